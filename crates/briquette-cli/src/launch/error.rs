//! Errors of the launcher.

use std::path::PathBuf;

briquette_core::debug_by_display!(LaunchError);

/// Error with which the launcher ends, and its exit code.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The command line is invalid; nothing was started.
    #[error("{0}")]
    Usage(String),
    /// The launcher cannot listen on the given port.
    #[error("port {port} of this machine cannot be listened on: choose another with --port, {}", other_port(*nodes))]
    Port {
        /// The port.
        port: u16,
        /// Number of machines of the world.
        nodes: usize,
        /// System error.
        source: std::io::Error,
    },
    /// A rank could not be started; those already started were killed.
    #[error("rank {rank}: `{program}` cannot be started, and the other ranks were ended")]
    Start {
        /// The rank.
        rank: usize,
        /// The program.
        program: String,
        /// System error.
        source: std::io::Error,
    },
    /// A log file cannot be written.
    #[error("--log-dir: {} cannot be written", path.display())]
    Log {
        /// The file or directory.
        path: PathBuf,
        /// System error.
        source: std::io::Error,
    },
    /// A system call that the launcher needs failed.
    #[error("{what}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// System error.
        source: std::io::Error,
    },
    /// A rank failed; this is the first failure.
    #[cfg(unix)]
    #[error("{0}")]
    Rank(super::failure::Failure),
}

impl LaunchError {
    /// Returns the exit code of the command: 2 for an invalid command line, the exit code of the rank that failed first
    /// (128 + signal if one killed it), else 1.
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
