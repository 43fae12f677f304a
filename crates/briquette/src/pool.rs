//! Thread pool for a rank's computation.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

use rayon::{ThreadPoolBuildError, ThreadPoolBuilder};

/// Pool of threads on which a rank computes.
///
/// Burn's CPU backends compute on rayon's threads. If called from any other thread, each parallel operation switches to another
/// thread and, on several cores, to another core. Without a pool, a step of a ResNet-20 with a concurrent background exchange
/// took a quarter longer. Ranks that are threads of one process would also wait for each other's operations.
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
    /// Creates a pool with this number of threads; 0 counts as 1.
    pub fn of(threads: usize) -> Pool {
        Pool { threads: threads.max(1) }
    }

    /// Creates the pool of one of `ranks` ranks that compute at the same time in this process. It has `RAYON_NUM_THREADS`
    /// threads, or the rank's share of the cores.
    pub fn share(ranks: usize) -> Pool {
        let given = std::env::var("RAYON_NUM_THREADS").ok().and_then(|text| text.trim().parse().ok());
        let share = || available_parallelism().map_or(1, NonZeroUsize::get) / ranks.max(1);
        Pool::of(given.filter(|given| *given > 0).unwrap_or_else(share))
    }

    /// Runs `body`, all work of a rank, on a thread of the pool. The threads are named after the rank.
    ///
    /// # Errors
    /// If the system cannot start the threads.
    pub fn run<T: Send>(self, rank: usize, body: impl FnOnce() -> T + Send) -> Result<T, ThreadPoolBuildError> {
        let pool = ThreadPoolBuilder::new().num_threads(self.threads).thread_name(move |_| format!("rank {rank}"));
        Ok(pool.build()?.install(body))
    }
}
