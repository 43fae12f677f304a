//! Elastic membership: a world as a sequence of generations.
//!
//! A *generation* is a fixed set of members with ranks. When a member is lost, the survivors agree on the next generation
//! and compute the same step again in it. [`Election`] is the protocol of that agreement as a pure state machine: messages and
//! time in, actions out, without clock, threads or sockets. [`Regroup`] is the interface for training loops: it returns the session of the next generation.
//! [`Threads`] implements it for ranks that are threads, the crate `briquette-tcp` for processes. [`detector`] suspects members whose
//! heartbeats stop.
//!
//! **Commit.** A member may be lost while some survivors have committed a step and others have not. In an elastic world,
//! ranks therefore [vote](crate::step::Driver::set_votes) before they commit: a vote passes on a rank only after every rank has
//! the step's average. A rank whose vote fails is *in doubt*. It commits if any survivor committed, and otherwise discards the step,
//! so that all survivors begin the next generation at the same step with the same parameters.
//!
//! **New members.** A process that asks a member to be admitted is a *candidate*. At the end of a step on which all ranks agree, the
//! members form the next generation with it. It then receives the replicated state from a member, and has no residual.
//!
//! **Quorum.** A generation needs more than half of the members of the last one that was formed, or half of them with its first member, and at
//! least [`Policy::fewest`]. Two parts of a divided network can therefore never both train. A member without a quorum ends with
//! [`MembershipError::Minority`].
//!
//! **Source.** This project's. Generations resemble the quorums of torchft and the configurations of Raft (D. Ongaro and
//! J. Ousterhout, *In Search of an Understandable Consensus Algorithm*, 2014); unlike Raft there is no log, because a generation
//! counts only once all of its members have formed a session.

pub mod detector;
mod election;
mod successor;
#[cfg(test)]
mod tests;
mod threads;

pub use election::{Action, EXTENSIONS, Election, Event, Message};
pub use threads::Threads;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::comm::Session;
use crate::error::CommError;

/// Identity of a member: a random number, drawn when its process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId(pub u64);

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {:016x}", self.0)
    }
}

/// A set of members with ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// Its number, from 0.
    pub number: u64,
    /// Its members, by rank.
    pub members: Vec<MemberId>,
}

impl Generation {
    /// Returns the rank of a member.
    pub fn rank_of(&self, member: MemberId) -> Option<usize> {
        self.members.iter().position(|other| *other == member)
    }

    /// Returns whether these members, who are alive, are a quorum of this generation.
    pub fn is_quorum(&self, living: &[MemberId]) -> bool {
        let known = living.iter().filter(|member| self.members.contains(member)).count();
        let has_first = self.members.first().is_some_and(|first| living.contains(first));
        2 * known > self.members.len() || 2 * known == self.members.len() && has_first
    }
}

/// Settings of elastic membership.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// Minimum number of members.
    pub fewest: usize,
    /// Seconds for which a member that can be reached, and says nothing, is waited for; up to four times as long if a quorum needs it. A member that
    /// computes notices a loss only at its next exchange, so this should exceed the time of a step.
    pub patience: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Policy { fewest: 1, patience: 60.0 }
    }
}

/// Progress of a member when a generation ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Number of committed exchanges: of steps, if every step has one. All members count from the same moment.
    pub step: u64,
    /// Set if the vote on the next exchange failed, so that other members may have committed it.
    pub in_doubt: bool,
    /// Set for a new member that has not received its state. It counts for the quorum, and cannot go on.
    pub is_new: bool,
}

/// A process that asks to become a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// Its identity.
    pub member: MemberId,
    /// Its address, in a form that the transport knows.
    pub address: String,
}

/// The next generation, as its coordinator announces it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Next {
    /// Its members; those of the previous generation keep their order, and new ones follow.
    pub generation: Generation,
    /// The new ones.
    pub candidates: Vec<Candidate>,
    /// The member that coordinates.
    pub coordinator: MemberId,
    /// Number of this announcement by the coordinator: together with it, a name that no other session has.
    pub attempt: u64,
    /// Number of committed exchanges with which the generation begins.
    pub step: u64,
    /// Set if a member that is in doubt about the exchange before `step` commits it.
    pub commits: bool,
}

impl Next {
    /// Returns whether a member with this standing commits the exchange about which it is in doubt. One that is in doubt about a later exchange than
    /// others discards it with them.
    pub fn commits_for(&self, standing: Standing) -> bool {
        self.commits && standing.in_doubt && standing.step + 1 == self.step
    }
}

/// A world that was formed anew.
#[derive(Debug)]
pub struct Regrouped {
    /// The session of the new generation.
    pub session: Session,
    /// The generation.
    pub generation: Generation,
    /// The ranks that its members had in the previous generation, by their new rank. New members follow; they have no state yet.
    pub before: Vec<usize>,
    /// Set if this member commits the exchange about which it is in doubt.
    pub commits: bool,
}

/// Forms the next generation when a member is lost.
pub trait Regroup: Send {
    /// Agrees with the other members on the next generation, and returns its session. Called by every survivor after an error of its
    /// session, or by every member at the end of a step. If all members call it with `admits`, candidates become members.
    ///
    /// # Errors
    /// [`MembershipError`]; this member cannot go on.
    fn regroup(&mut self, standing: Standing, admits: bool) -> Result<Regrouped, MembershipError>;

    /// Returns the current generation.
    fn generation(&self) -> &Generation;

    /// Returns the number of members that are new in the current generation. They have its last ranks, and receive their state from the others.
    fn new_members(&self) -> usize {
        0
    }

    /// Returns whether a process asks to become a member. It is one after the next [`regroup`](Self::regroup).
    fn has_candidates(&self) -> bool {
        false
    }
}

impl<R: Regroup + ?Sized> Regroup for Box<R> {
    fn regroup(&mut self, standing: Standing, admits: bool) -> Result<Regrouped, MembershipError> {
        (**self).regroup(standing, admits)
    }
    fn generation(&self) -> &Generation {
        (**self).generation()
    }
    fn new_members(&self) -> usize {
        (**self).new_members()
    }
    fn has_candidates(&self) -> bool {
        (**self).has_candidates()
    }
}

/// A member cannot be part of the next generation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MembershipError {
    /// Too few members are left, or can be reached.
    #[error(
        "rank {rank} of generation {generation} reaches {living} of {members} members, itself included, and a world continues with more than half of them \
         and at least {fewest}: resume from a checkpoint, or set a lower minimum"
    )]
    Minority {
        /// Rank of this member.
        rank: usize,
        /// Number of the last generation.
        generation: u64,
        /// Members that can be reached, itself included.
        living: usize,
        /// Members of the last generation.
        members: usize,
        /// Minimum number of members.
        fewest: usize,
    },
    /// The others continued without this member, which was too slow or could not be reached.
    #[error("rank {rank} of generation {generation} was declared lost, and the others continue without it: {reason}")]
    Fenced {
        /// Rank of this member.
        rank: usize,
        /// Number of the last generation.
        generation: u64,
        /// The reason, as another member states it.
        reason: String,
    },
    /// The session of the next generation could not be formed.
    #[error("rank {rank} of generation {generation} cannot form the next one: {cause}")]
    Failed {
        /// Rank of this member.
        rank: usize,
        /// Number of the last generation.
        generation: u64,
        /// The cause.
        cause: String,
    },
}

/// Returns whether an error of the transport means that a member is lost, and not that a rank stopped the run.
pub fn is_loss(error: &CommError) -> bool {
    match error {
        CommError::Lost { .. } => true,
        CommError::Aborted { reason, .. } => LOST.iter().any(|words| reason.starts_with(words)),
        _ => false,
    }
}

/// First words of the reasons with which transports stop the other ranks after one was lost.
const LOST: [&str; 2] = ["lost rank ", "it lost this rank"];
