//! Errors of MPI initialization.

use mpi::Threading;

briquette_core::debug_by_display!(MpiError);

/// MPI cannot be used in this process.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// MPI was initialized before; it can be initialized once in a process.
    #[error(
        "MPI was initialized before in this process, and can be only once: keep the first `Mpi`, and initialize it nowhere \
         else"
    )]
    InitializedBefore,
    /// The MPI library does not allow calls from the threads that make them.
    #[error(
        "this MPI gives {got}, and {needed} is needed: use one that was built with threads, or ask the site for its \
         threaded variant"
    )]
    Threading {
        /// Lowest sufficient threading level.
        needed: &'static str,
        /// Threading level of the library.
        got: &'static str,
    },
}

/// Returns the level's name in the MPI standard.
pub(crate) fn name(threading: Threading) -> &'static str {
    match threading {
        Threading::Single => "MPI_THREAD_SINGLE",
        Threading::Funneled => "MPI_THREAD_FUNNELED",
        Threading::Serialized => "MPI_THREAD_SERIALIZED",
        Threading::Multiple => "MPI_THREAD_MULTIPLE",
    }
}
