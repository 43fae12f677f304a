//! What ends a session.

use std::time::Duration;

use crate::comm::Scope;

/// A session could not finish an operation. It is of no further use after one.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// Another rank, or any of several, sent nothing for too long.
    #[error(
        "rank {rank} waited {seconds:.1} s for {} during {during}: deadline passed{}",
        any_of(others),
        note(last_seen)
    )]
    Deadline {
        /// Who waited.
        rank: usize,
        /// The ranks of which it waited for one.
        others: Box<[usize]>,
        /// What was going on.
        during: Scope,
        /// How long, in seconds.
        seconds: f64,
        /// What is known of the other side, where the transport knows anything.
        last_seen: Option<String>,
    },
    /// Some rank called [`abort`](crate::comm::Session::abort), panicked, or failed.
    #[error("rank {by} stopped the run during {during}: {reason}")]
    Aborted {
        /// The rank that stopped the run.
        by: usize,
        /// What *that* rank was doing.
        during: Scope,
        /// Its own words.
        reason: String,
    },
    /// The other side is gone.
    #[error("rank {other}{} lost during {during}: {cause}", place(address))]
    Lost {
        /// Who noticed.
        rank: usize,
        /// Who is gone.
        other: usize,
        /// Where that was, if it was elsewhere.
        address: Option<String>,
        /// What was going on.
        during: Scope,
        /// The transport's words.
        cause: String,
    },
    /// A rank has no such channel for exchanges in the background.
    #[error("rank {rank} cannot exchange on channel {channel}: {cause}")]
    Channel {
        /// Whose transport.
        rank: usize,
        /// The channel.
        channel: usize,
        /// Why not, and what to do.
        cause: String,
    },
    /// Two ranks are not doing the same thing.
    #[error(
        "rank {rank} is at {during}, rank {other} at {theirs}: every rank must make the same calls in the same order"
    )]
    OutOfStep {
        /// Who received.
        rank: usize,
        /// Who sent.
        other: usize,
        /// What this rank was doing.
        during: Scope,
        /// What the other rank was doing as it sent.
        theirs: String,
    },
    /// A frame of an unexpected size.
    #[error("rank {rank} got {got} bytes from rank {other} during {during}, expected {expected}")]
    Size {
        /// Who received.
        rank: usize,
        /// Who sent.
        other: usize,
        /// What was going on.
        during: Scope,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
}

impl CommError {
    /// The cause of [`Lost`](CommError::Lost) where the other side ended without an error.
    pub const LEFT: &'static str =
        "it left the run: its code returned, perhaps after fewer steps; every rank must take as many";

    /// Rank `rank` waited in vain for one of `others`, of which nothing is known.
    pub fn deadline(rank: usize, others: &[usize], during: Scope, waited: Duration) -> CommError {
        let (mut others, seconds) = (others.to_vec(), waited.as_secs_f64());
        others.sort_unstable();
        CommError::Deadline { rank, others: others.into(), during, seconds, last_seen: None }
    }

    /// The reason that the other ranks are stopped with, where this error is a missed deadline; otherwise the error itself.
    pub fn reason(&self) -> String {
        match self {
            CommError::Deadline { others, seconds, .. } => {
                format!("waited {seconds:.1} s for {}: deadline passed", any_of(others))
            }
            error => error.to_string(),
        }
    }
}

fn any_of(ranks: &[usize]) -> String {
    match ranks {
        [rank] => format!("rank {rank}"),
        ranks => format!("any of ranks {}", ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

fn note(last_seen: &Option<String>) -> String {
    last_seen.as_ref().map_or_else(String::new, |known| format!("; {known}"))
}

fn place(address: &Option<String>) -> String {
    address.as_ref().map_or_else(String::new, |address| format!(" ({address})"))
}
