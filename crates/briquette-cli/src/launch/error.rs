//! What ends the launcher with an error.

use std::path::PathBuf;

briquette_core::debug_by_display!(LaunchError);

/// Why the launcher ends with an error, and with which exit code.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command line asks for something impossible; nothing was started.
    #[error("{0}")]
    Usage(String),
    /// The given port cannot be listened on.
    #[error("port {port} of this machine cannot be listened on: choose another with --port, {}", other_port(*nodes))]
    Port {
        /// The port.
        port: u16,
        /// How many machines the world is on.
        nodes: usize,
        /// What the system says.
        source: std::io::Error,
    },
    /// A rank could not be started; those already started were killed.
    #[error("rank {rank}: `{program}` cannot be started, and the other ranks were ended")]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        program: String,
        /// What the system says.
        source: std::io::Error,
    },
    /// A log file cannot be written.
    #[error("--log-dir: {} cannot be written", path.display())]
    Log {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The system refuses something a launcher needs.
    #[error("{what}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system says.
        source: std::io::Error,
    },
    /// The rank that failed first.
    #[cfg(unix)]
    #[error("{0}")]
    Rank(super::failure::Failure),
}

impl LaunchError {
    /// What the command ends with: 2 for a command line that asks for something impossible, the exit code of the rank that
    /// failed first (128 + signal if one killed it), else 1.
    pub fn exit_code(&self) -> u8 {
        match self {
            LaunchError::Usage(_) => 2,
            #[cfg(unix)]
            LaunchError::Rank(failure) => failure.exit_code(),
            _ => 1,
        }
    }
}

fn other_port(nodes: usize) -> &'static str {
    if nodes > 1 { "the same on every node" } else { "or give none and a free one is taken" }
}
