//! Errors of the transport, which end a session.

use std::time::Duration;

use crate::scope::Scope;

/// A session failed to complete an operation. The session cannot be used afterward.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// The timeout passed while waiting for another rank, or for any one of several.
    #[error(
        "rank {rank} waited {seconds:.1} s for {} during {during}: deadline passed{}",
        any_of(others),
        note(last_seen)
    )]
    Deadline {
        /// The rank that waited.
        rank: usize,
        /// The ranks, any one of which it waited for.
        others: Box<[usize]>,
        /// The operation in progress.
        during: Scope,
        /// The time waited, in seconds.
        seconds: f64,
        /// The last known state of the other side, if the transport knows it.
        last_seen: Option<String>,
    },
    /// Some rank called [`abort`](crate::comm::Session::abort), panicked, or failed.
    #[error("rank {by} stopped the run during {during}: {reason}")]
    Aborted {
        /// The rank that stopped the run.
        by: usize,
        /// The operation in progress on *that* rank.
        during: Scope,
        /// The reason that it gave.
        reason: String,
    },
    /// The connection to another rank was lost.
    #[error("rank {other}{} lost during {during}: {cause}", place(address))]
    Lost {
        /// The rank that noticed.
        rank: usize,
        /// The lost rank.
        other: usize,
        /// The address of the lost rank, if it ran elsewhere.
        address: Option<String>,
        /// The operation in progress.
        during: Scope,
        /// The transport's description of the cause.
        cause: String,
    },
    /// The transport has no such channel for background exchanges.
    #[error("rank {rank} cannot exchange on channel {channel}: {cause}")]
    Channel {
        /// The rank of the transport.
        rank: usize,
        /// The channel.
        channel: usize,
        /// The reason, and a remedy.
        cause: String,
    },
    /// Two ranks execute different operations.
    #[error(
        "rank {rank} is at {during}, rank {other} at {theirs}: every rank must make the same calls in the same order"
    )]
    OutOfStep {
        /// The receiving rank.
        rank: usize,
        /// The sending rank.
        other: usize,
        /// The operation in progress on this rank.
        during: Scope,
        /// The operation of the other rank when it sent.
        theirs: String,
    },
    /// A frame has an unexpected size.
    #[error("rank {rank} got {got} bytes from rank {other} during {during}, expected {expected}")]
    Size {
        /// The receiving rank.
        rank: usize,
        /// The sending rank.
        other: usize,
        /// The operation in progress.
        during: Scope,
        /// Bytes expected.
        expected: usize,
        /// Bytes received.
        got: usize,
    },
}

impl CommError {
    /// The cause in [`Lost`](CommError::Lost) if the other side ended without an error.
    pub const LEFT: &'static str =
        "it left the run: its code returned, perhaps after fewer steps; every rank must take as many";

    /// Returns the error for a timeout of rank `rank` while it waited for one of `others`, whose state is unknown.
    pub fn deadline(rank: usize, others: &[usize], during: Scope, waited: Duration) -> CommError {
        let (mut others, seconds) = (others.to_vec(), waited.as_secs_f64());
        others.sort_unstable();
        CommError::Deadline { rank, others: others.into(), during, seconds, last_seen: None }
    }

    /// Returns the reason to abort the other ranks with: a short text for a missed deadline, otherwise the error's own text.
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
