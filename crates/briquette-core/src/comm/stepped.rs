//! A clock that counts steps, over any communicator.

use std::time::Duration;

use super::{Communicator, forward};

/// Any communicator with a clock that shows the same seconds for every step's computing, and none for exchanges: what
/// controllers decide then depends on nothing that differs between two runs.
///
/// The clock of [`Simulated`](super::Simulated) on an unlimited network with
/// [`Compute::Fixed`](super::Compute::Fixed) shows the same.
///
/// ```
/// use briquette_core::Communicator;
/// use briquette_core::comm::{Local, Stepped, run_ranks};
/// use briquette_core::error::CommError;
/// use std::time::Duration;
///
/// let world = Local::world(2).into_iter().map(|comm| Stepped::new(comm, Duration::from_millis(50))).collect();
/// let seconds = run_ranks(world, |mut comm| {
///     comm.begin_step(0);
///     comm.barrier()?;
///     comm.begin_step(1);
///     Ok::<_, CommError>(comm.now())
/// });
/// assert_eq!(seconds, [Ok(0.1), Ok(0.1)]);
/// ```
#[derive(Debug)]
pub struct Stepped<C> {
    inner: C,
    step: f64,
    clock: f64,
}

impl<C: Communicator> Stepped<C> {
    /// Every step takes `step`.
    pub fn new(inner: C, step: Duration) -> Self {
        Stepped { inner, step: step.as_secs_f64(), clock: 0.0 }
    }
}

impl<C: Communicator> Communicator for Stepped<C> {
    forward!(self => self.inner; rank world send recv flush abort verdict traffic scope pool overlaps finished
        collectives);

    fn now(&self) -> f64 {
        self.clock
    }

    fn set_clock(&mut self, seconds: f64) {
        self.clock = seconds;
    }

    fn begin_step(&mut self, step: u64) {
        self.inner.begin_step(step);
        self.clock += self.step;
    }
}
