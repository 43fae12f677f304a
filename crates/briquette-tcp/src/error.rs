//! Errors of process-group initialization (rendezvous).

use std::path::PathBuf;

use crate::descriptors;

briquette_core::debug_by_display!(JoinError);

/// A rank could not join.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A rank cannot listen at its address.
    #[error("cannot listen at {address}: {source}. {}", bind_advice(source))]
    Listen {
        /// Listening address.
        address: String,
        /// System error.
        source: std::io::Error,
    },
    /// An address cannot be resolved.
    #[error(
        "the address `{address}` cannot be resolved: {source}. Give a host's name or address, and a port: `host:port`"
    )]
    Resolve {
        /// Text of the address.
        address: String,
        /// System error.
        source: std::io::Error,
    },
    /// Rank 0 does not answer at its address.
    #[error(
        "rank {rank} could not reach rank 0 at {address} for {seconds:.1} s ({cause}). Is rank 0 running, is the port open \
         to this machine?{}",
        of_this_machine(address)
    )]
    Unreachable {
        /// Rank that tried to connect.
        rank: usize,
        /// Expected address of rank 0.
        address: String,
        /// Duration of the attempts in seconds.
        seconds: f64,
        /// Cause of the last failed attempt.
        cause: String,
    },
    /// A link to another rank could not be made.
    #[error(
        "rank {rank} could not reach rank {other} at {address}: {cause}. Every rank must be reachable from every other one"
    )]
    Link {
        /// Rank that tried to connect.
        rank: usize,
        /// Rank to connect to.
        other: usize,
        /// Advertised address of that rank.
        address: String,
        /// Cause of the failure.
        cause: String,
    },
    /// The other side refused this rank.
    #[error("rank {rank} was refused by {by}: {reason}")]
    Refused {
        /// Refused rank.
        rank: usize,
        /// Refusing rank, with its address.
        by: String,
        /// Reason for the refusal.
        reason: String,
    },
    /// Some ranks did not join.
    #[error("rank {rank} waited {seconds:.1} s for a world of {world} ranks: {missing}")]
    Incomplete {
        /// Rank that waited.
        rank: usize,
        /// Expected number of ranks.
        world: usize,
        /// Waiting time in seconds.
        seconds: f64,
        /// Missing ranks known to this rank.
        missing: String,
    },
    /// The settings of two ranks differ.
    #[error(
        "{field} differs: {ours} at rank {rank}, {theirs} at rank {other}. Start all ranks with the same program and settings"
    )]
    Mismatch {
        /// Field that differs.
        field: &'static str,
        /// First rank.
        rank: usize,
        /// Value at the first rank.
        ours: String,
        /// Other rank.
        other: usize,
        /// Value at the other rank.
        theirs: String,
    },
    /// Another rank failed to join, which stopped this rank too.
    #[error("process group failed to initialize: {reason}")]
    Stopped {
        /// Reason given by that rank.
        reason: String,
    },
    /// Joining was cancelled before the world was complete: see [`TcpBuilder::cancel`](crate::TcpBuilder::cancel).
    #[error("rank {rank} was interrupted before all ranks had joined")]
    Cancelled {
        /// Rank that was cancelled.
        rank: usize,
    },
    /// The limit of open files is too low for this rank.
    #[error(
        "rank {rank} of {world} cannot open its connections: {cause}. It needs {needed} more{usage}. Raise the limit where \
         this rank is started: `ulimit -n {advice}`"
    )]
    Descriptors {
        /// Rank that reached the limit.
        rank: usize,
        /// Number of ranks.
        world: usize,
        /// Limit that was reached, in the system's message.
        cause: String,
        /// Descriptors still to be opened: connections, and a few files.
        needed: usize,
        /// Number of open files and their limit, if the system reports them.
        usage: String,
        /// A sufficient limit.
        advice: usize,
    },
    /// A certificate or token file cannot be used.
    #[error("{}: {problem}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Defect of the file, and its remedy.
        problem: String,
    },
    /// The settings are invalid.
    #[error("{0}")]
    Settings(String),
    /// A system call failed.
    #[error("rank {rank} cannot {what}: {source}")]
    System {
        /// Rank on which it failed.
        rank: usize,
        /// Operation that failed.
        what: &'static str,
        /// System error.
        source: std::io::Error,
    },
}

impl JoinError {
    /// Returns whether another attempt with the same settings on the same machines would fail in the same way. Such
    /// errors are invalid settings, unusable files, ranks of different worlds, and system limits.
    pub fn is_permanent(&self) -> bool {
        match self {
            JoinError::Settings(_) | JoinError::File { .. } => true,
            JoinError::Mismatch { .. } | JoinError::Descriptors { .. } => true,
            JoinError::Resolve { source, .. } => source.kind() == std::io::ErrorKind::InvalidInput,
            _ => false,
        }
    }

    /// Creates the error of a rank on which a system call failed.
    pub(crate) fn system(rank: usize, world: usize, what: &'static str) -> impl Fn(std::io::Error) -> JoinError {
        move |source| match descriptors::are_exhausted(&source) {
            true => descriptors::exhausted(rank, world, source.to_string()),
            false => JoinError::System { rank, what, source },
        }
    }
}

/// Returns a hint for a loopback address, in case rank 0 is on another machine; empty for other addresses.
fn of_this_machine(address: &str) -> &'static str {
    let is_loopback = ["127.", "localhost:", "localhost,", "[::1]"].iter().any(|start| address.starts_with(start));
    if is_loopback {
        " That address is a loopback address: for ranks on several machines, give the network address of rank 0's"
    } else {
        ""
    }
}

fn bind_advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => {
            "Another program has this port (an earlier run, perhaps): end it or choose another port"
        }
        std::io::ErrorKind::AddrNotAvailable => {
            "The address is not one of this machine's: give one that is, and start rank 0 on the machine that has its address"
        }
        _ => "Choose another address or port",
    }
}
