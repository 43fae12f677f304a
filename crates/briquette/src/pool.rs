//! Thread pool of a rank's computation.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// The pool of threads that a rank computes on. Burn's CPU backends compute on rayon's threads: called from any other thread,
/// each parallel operation switches the thread and, on several cores, the core. With a concurrent background exchange, a step of
/// a ResNet-20 took a quarter longer without a pool. Ranks that are threads of one process would also wait for each other's
/// operations.
///
/// ```
/// use briquette::Pool;
///
/// let threads = Pool::of(3).run(0, rayon::current_num_threads)?;
/// assert_eq!(threads, 3);
/// # Ok::<_, rayon::ThreadPoolBuildError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    threads: usize,
}

impl Pool {
    /// A pool of this number of threads; 0 counts as 1.
    pub fn of(threads: usize) -> Pool {
        Pool { threads: threads.max(1) }
    }

    /// The pool of one of `ranks` that compute at the same time in this process: `RAYON_NUM_THREADS` threads, or its share of the
    /// cores.
    pub fn share(ranks: usize) -> Pool {
        let given = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.trim().parse().ok());
        let share = || available_parallelism().map_or(1, NonZeroUsize::get) / ranks.max(1);
        Pool::of(given.filter(|given| *given > 0).unwrap_or_else(share))
    }

    /// Runs `body`, the whole of a rank's work, on a thread of the pool. The threads are named after the rank.
    ///
    /// # Errors
    /// The system cannot start the threads.
    pub fn run<T: Send>(self, rank: usize, body: impl FnOnce() -> T + Send) -> Result<T, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(self.threads).thread_name(move |_| format!("rank {rank}"));
        Ok(pool.build()?.install(body))
    }
}
