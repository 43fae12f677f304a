//! Why MPI cannot be used.

use mpi::Threading;

briquette_core::debug_by_display!(MpiError);

/// MPI cannot be used in this process.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MpiError {
    /// MPI can be initialized once in a process.
    #[error(
        "MPI was initialized before in this process, and can be only once: keep the first `Mpi`, and initialize it nowhere \
         else"
    )]
    InitializedBefore,
    /// The library does not allow calls from the threads that make them.
    #[error(
        "this MPI gives {got}, and {needed} is needed: use one that was built with threads, or ask the site for its \
         threaded variant"
    )]
    Threading {
        /// The lowest level that is enough.
        needed: &'static str,
        /// The library's.
        got: &'static str,
    },
}

/// The standard's name for it.
pub(crate) fn name(threading: Threading) -> &'static str {
    match threading {
        Threading::Single => "MPI_THREAD_SINGLE",
        Threading::Funneled => "MPI_THREAD_FUNNELED",
        Threading::Serialized => "MPI_THREAD_SERIALIZED",
        Threading::Multiple => "MPI_THREAD_MULTIPLE",
    }
}
