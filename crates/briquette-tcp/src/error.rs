//! Why a world did not come about.

use std::path::PathBuf;

use crate::descriptors;

briquette_core::debug_by_display!(JoinError);

/// A rank could not join.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A rank cannot listen where it should.
    #[error("cannot listen at {address}: {source}. {}", bind_advice(source))]
    Listen {
        /// Where.
        address: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// An address means nothing.
    #[error(
        "the address `{address}` cannot be resolved: {source}. Give a host's name or address, and a port: `host:port`"
    )]
    Resolve {
        /// The text.
        address: String,
        /// The system's words.
        source: std::io::Error,
    },
    /// No answer where rank 0 should be.
    #[error(
        "rank {rank} could not reach rank 0 at {address} for {seconds:.1} s ({cause}). Is rank 0 running, is the port open \
         to this machine?{}",
        of_this_machine(address)
    )]
    Unreachable {
        /// Who tried.
        rank: usize,
        /// Where rank 0 should be.
        address: String,
        /// How long it was tried.
        seconds: f64,
        /// What the last attempt met.
        cause: String,
    },
    /// A link to another rank could not be made.
    #[error(
        "rank {rank} could not reach rank {other} at {address}: {cause}. Every rank must be reachable from every other one"
    )]
    Link {
        /// Who tried.
        rank: usize,
        /// Whom.
        other: usize,
        /// Where it was said to be.
        address: String,
        /// What happened.
        cause: String,
    },
    /// The other side does not want this one.
    #[error("rank {rank} was refused by {by}: {reason}")]
    Refused {
        /// Who was refused.
        rank: usize,
        /// By whom, with the address.
        by: String,
        /// Why.
        reason: String,
    },
    /// Some ranks never came.
    #[error("rank {rank} waited {seconds:.1} s for a world of {world} ranks: {missing}")]
    Incomplete {
        /// Who waited.
        rank: usize,
        /// Ranks there should be.
        world: usize,
        /// How long.
        seconds: f64,
        /// Who is missing, as far as this rank knows.
        missing: String,
    },
    /// Two ranks do not belong together.
    #[error(
        "{field} differs: {ours} at rank {rank}, {theirs} at rank {other}. Start all ranks with the same program and settings"
    )]
    Mismatch {
        /// What differs.
        field: &'static str,
        /// The one rank.
        rank: usize,
        /// Its value.
        ours: String,
        /// The other rank.
        other: usize,
        /// The other value.
        theirs: String,
    },
    /// Another rank failed to join, and took this one along.
    #[error("the world did not come about: {reason}")]
    Stopped {
        /// Its words.
        reason: String,
    },
    /// This rank was to stop before the world was complete: see [`TcpBuilder::cancel`](crate::TcpBuilder::cancel).
    #[error("rank {rank} was interrupted before all ranks had joined")]
    Cancelled {
        /// The rank that was interrupted.
        rank: usize,
    },
    /// A rank may not have as many open files as it needs.
    #[error(
        "rank {rank} of {world} cannot open its connections: {cause}. It needs {needed} more{usage}. Raise the limit where \
         this rank is started: `ulimit -n {advice}`"
    )]
    Descriptors {
        /// The rank that has reached a limit.
        rank: usize,
        /// How many ranks there are.
        world: usize,
        /// Which limit, in the system's words.
        cause: String,
        /// Descriptors that it has yet to open: its connections, and a few files.
        needed: usize,
        /// How many are open and how many there may be, where the system says so.
        usage: String,
        /// A limit that is enough.
        advice: usize,
    },
    /// A file of certificates or a token.
    #[error("{}: {problem}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// Settings that cannot work.
    #[error("{0}")]
    Settings(String),
    /// The system did not do its part.
    #[error("rank {rank} cannot {what}: {source}")]
    System {
        /// Who.
        rank: usize,
        /// What was tried.
        what: &'static str,
        /// The system's words.
        source: std::io::Error,
    },
}

impl JoinError {
    /// Whether another attempt with the same settings, on the same machines, would fail in the same way: settings that cannot
    /// work, files that cannot be used, ranks that do not belong together, limits of the system.
    pub fn is_permanent(&self) -> bool {
        match self {
            JoinError::Settings(_) | JoinError::File { .. } => true,
            JoinError::Mismatch { .. } | JoinError::Descriptors { .. } => true,
            JoinError::Resolve { source, .. } => source.kind() == std::io::ErrorKind::InvalidInput,
            _ => false,
        }
    }

    /// The error of a rank for which the system did not do its part.
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
        " That address is this machine's own: for ranks on several machines, give the network address of rank 0's"
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
