//! Multithreaded encoding and decoding.
//!
//! The inner reducer runs in this wrapper's thread pool, whose threads share the segments of long vectors ([ADR
//! 15](https://github.com/briquette-rs/briquette/blob/main/docs/adr/0015-speed-of-codecs.md)). All bits are the same as without threads.
//! Each rank of a process has its own pool. Threads pay off if a rank has idle cores during the exchange, and if vectors have several
//! segments of 65 536 values.

use std::ops::Range;

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{ConfigError, ReduceError};
use crate::report::Report;
use crate::seam::{Exchanged, Reducer, Round, SentInput};
use crate::{Session, stateful};

/// A reducer that runs in a thread pool; see the [module](self).
#[derive(Debug)]
pub struct Threaded<R> {
    inner: R,
    pool: ThreadPool,
}

/// Limit on the threads of one rank.
const MOST_THREADS: usize = 1024;

impl<R: Reducer> Threaded<R> {
    /// Creates a pool with this many threads.
    ///
    /// # Errors
    /// [`ConfigError`] if `threads` is 0 or above 1024, or the system cannot start them.
    pub fn new(inner: R, threads: usize) -> Result<Self, ConfigError> {
        ConfigError::unless((1..=MOST_THREADS).contains(&threads), "threads", "at least 1 and at most 1024", threads)?;
        let name = |index| format!("briquette-{index}");
        let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(name).build();
        let pool = pool.map_err(|error| {
            let why = format!("the system cannot start them: {error}");
            ConfigError::conflict(format!("threads {threads}"), "this machine", why, "set fewer threads")
        })?;
        Ok(Threaded { inner, pool })
    }
}

stateful! {
    impl<R: Reducer> Stateful for Threaded<R> { inner: flatten() }
}

impl<R: Reducer> Reducer for Threaded<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.pool.install(|| self.inner.reduce(round, comm))
    }

    fn can_subtract_sent(&self) -> bool {
        self.inner.can_subtract_sent()
    }

    fn subtracts_on_device(&self) -> bool {
        self.inner.subtracts_on_device()
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        self.pool.install(|| self.inner.subtract_sent(input))
    }

    fn discards_residual(&self) -> bool {
        self.inner.discards_residual()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::mean::Mean;
    use crate::comm::Local;
    use crate::compress::{Norm, qsgd::Qsgd};
    use crate::reduce::gather::Gather;
    use crate::seam::{AgreedStep, Selection};
    use crate::state::Stateful;
    use crate::{Key, Layout, Traffic};

    fn averages(wrap: impl Fn(Gather<Qsgd, Mean>) -> Box<dyn Reducer> + Sync) -> Vec<Vec<f32>> {
        Local::run(2, |mut comm| {
            let (layout, mut average) = (Layout::flat(200_000), vec![0.0; 200_000]);
            let input: Vec<f32> = (0..200_000).map(|i| (i as f32 * 0.37 + comm.rank() as f32).sin()).collect();
            let mut reducer = wrap(Gather::new(Qsgd::new(4, 512, Norm::Max).unwrap(), Mean));
            let (key, slots, agreed_step) = (Key::new(3), layout.slots(), AgreedStep::default());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            reducer.reduce(round, &mut comm)?;
            Ok::<_, ReduceError>(average)
        })
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap()
    }

    #[test]
    fn threads_change_no_bit() {
        let alone = averages(|gather| Box::new(gather));
        for threads in [1, 2, 3] {
            assert!(averages(|gather| Box::new(Threaded::new(gather, threads).unwrap())) == alone, "{threads} threads");
        }
    }

    /// Writes the thread that it ran on: its number in the pool counted from 1, and the pool's thread count; zeros outside of a pool.
    struct Where;

    impl Stateful for Where {}

    impl Reducer for Where {
        fn reduce(&mut self, round: Round<'_>, _comm: &mut Session) -> Result<Exchanged, ReduceError> {
            // Outside of a pool, querying the number of threads would start a pool for the whole process.
            let place = rayon::current_thread_index().map(|index| [index + 1, rayon::current_num_threads()]);
            round.average.copy_from_slice(&place.unwrap_or_default().map(|number| number as f32));
            Ok(Exchanged { traffic: Traffic::default(), selection: Selection::All })
        }
    }

    #[test]
    fn what_is_inside_runs_in_a_pool_of_so_many_threads() {
        let place = |reducer: &mut dyn Reducer| {
            let (layout, mut average, agreed_step) = (Layout::flat(2), [9.0; 2], AgreedStep::default());
            let (key, slots) = (Key::new(3), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &[0.0; 2], average: &mut average, sent: None };
            reducer.reduce(round, &mut Local::world(1).remove(0)).unwrap();
            average
        };
        assert_eq!(place(&mut Where), [0.0, 0.0], "without the layer");
        for threads in [1, 2, 3] {
            let [number, of] = place(&mut Threaded::new(Where, threads).unwrap());
            assert!((1.0..=of).contains(&number) && of == threads as f32, "{number} of {of}, not of {threads}");
        }
    }

    #[test]
    fn no_threads_are_too_few() {
        let gather = Gather::new(Qsgd::new(4, 512, Norm::Max).unwrap(), Mean);
        assert!(Threaded::new(gather, 0).unwrap_err().to_string().contains("at least 1"));
    }
}
