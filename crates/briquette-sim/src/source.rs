//! Source of simulated seconds: given compute times, or a simulated network.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use briquette_core::comm::{JobStart, Overdue, Sender, Timeline};

use super::Paces;
use super::simulated::{Job, Simulation};

/// Source of a session's simulated seconds.
pub(super) enum Source {
    /// Given seconds for every step of a rank.
    Stepped { paces: Paces, rank: usize, now: f64 },
    /// A simulated network.
    Simulated(Simulation),
    /// One of the above, shared by several [sessions of one rank](briquette_core::Session::share).
    Shared(Arc<Mutex<Source>>),
}

impl Source {
    /// Adds compute time that this source does not measure.
    pub(super) fn spend(&mut self, seconds: f64) {
        match self {
            Source::Stepped { now, .. } => *now += seconds,
            Source::Simulated(network) => network.spend(seconds),
            Source::Shared(source) => lock(source).spend(seconds),
        }
    }

    /// Calls `body` with the simulated network and returns its result; `None` if there is no simulated network.
    pub(super) fn with_network<T>(&mut self, body: impl FnOnce(&mut Simulation) -> T) -> Option<T> {
        match self {
            Source::Simulated(network) => Some(body(network)),
            // The shared source is not itself shared.
            Source::Shared(source) => match &mut *lock(source) {
                Source::Simulated(network) => Some(body(network)),
                _ => None,
            },
            Source::Stepped { .. } => None,
        }
    }

    /// Does the same without changing the network.
    pub(super) fn of_network<T>(&self, body: impl Fn(&Simulation) -> T) -> Option<T> {
        match self {
            Source::Simulated(network) => Some(body(network)),
            Source::Shared(source) => match &*lock(source) {
                Source::Simulated(network) => Some(body(network)),
                _ => None,
            },
            Source::Stepped { .. } => None,
        }
    }

    fn shared(&mut self) -> Source {
        if !matches!(self, Source::Shared(_)) {
            let unset = Source::Stepped { paces: Duration::ZERO.into(), rank: 0, now: 0.0 };
            let source = std::mem::replace(self, unset);
            *self = Source::Shared(Arc::new(Mutex::new(source)));
        }
        match self {
            Source::Shared(source) => Source::Shared(Arc::clone(source)),
            _ => unreachable!("it has just become a shared one"),
        }
    }

    fn for_channel(&self, channel: usize) -> Source {
        match self {
            Source::Stepped { paces, rank, now } => Source::Stepped { paces: paces.clone(), rank: *rank, now: *now },
            Source::Simulated(network) => Source::Simulated(network.of_channel(channel)),
            Source::Shared(source) => lock(source).for_channel(channel),
        }
    }

    fn begin(&mut self, job: &Job) {
        match self {
            Source::Stepped { now, .. } => *now = job.now,
            Source::Simulated(network) => network.begin_job(job),
            Source::Shared(source) => lock(source).begin(job),
        }
    }
}

impl Timeline for Source {
    fn now(&self) -> f64 {
        match self {
            Source::Stepped { now, .. } => *now,
            Source::Simulated(network) => network.now(),
            Source::Shared(source) => lock(source).now(),
        }
    }

    fn share(&mut self) -> Box<dyn Timeline> {
        Box::new(self.shared())
    }

    fn of_channel(&self, channel: usize) -> Box<dyn Timeline> {
        Box::new(self.for_channel(channel))
    }

    fn machine(&self, rank: usize) -> Option<usize> {
        self.of_network(|network| rank / network.network().ranks_per_link())
    }

    fn set(&mut self, seconds: f64) {
        match self {
            Source::Stepped { now, .. } => *now = seconds,
            Source::Simulated(network) => network.set_clock(seconds),
            Source::Shared(source) => lock(source).set(seconds),
        }
    }

    fn begin_step(&mut self, step: u64, samples: Option<u64>) {
        match self {
            Source::Stepped { paces, rank, now } => *now += paces.seconds_of(*rank, step, samples),
            Source::Simulated(network) => network.begin_step(step, samples),
            Source::Shared(source) => lock(source).begin_step(step, samples),
        }
    }

    fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        self.with_network(|network| network.computed(step, share, elapsed));
    }

    fn sends(&mut self, to: usize, bytes: usize) -> f64 {
        let departure = self.with_network(|network| {
            let departure = network.departure(to, bytes);
            network.watch().sends(to, bytes, departure);
            departure
        });
        departure.unwrap_or(0.0)
    }

    fn receives(&mut self, from: usize) {
        self.with_network(|network| network.watch().waits_for(from));
    }

    fn receives_any(&mut self, from: &[usize], until: f64) -> Result<Sender, Duration> {
        let first = self.with_network(|network| network.first_of(from, until)).unwrap_or(Ok(Sender::Any))?;
        if let (Sender::Any, [from]) = (first, from) {
            self.receives(*from);
        }
        Ok(first)
    }

    fn received(&mut self, from: usize, bytes: usize, departure: f64) {
        self.with_network(|network| {
            network.watch().received(from);
            network.arrive(from, bytes, departure);
        });
    }

    fn take_turn(&mut self) -> Result<(), Overdue> {
        self.with_network(Simulation::take_turn).unwrap_or(Ok(()))
    }

    fn end_turn(&mut self) {
        self.with_network(Simulation::end_turn);
    }

    fn progress(&self) -> Option<u64> {
        self.of_network(Simulation::progress).flatten()
    }

    fn stop(&mut self) {
        self.with_network(Simulation::stop);
    }

    fn leave(&mut self) {
        self.end_turn();
        let is_last = !matches!(self, Source::Shared(source) if Arc::strong_count(source) > 1);
        if is_last {
            self.with_network(|network| network.watch().leaves());
        }
    }

    fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        let (job, under_way) = self.with_network(|network| network.start_job(channel, shares)).unzip();
        let mut job = job.unwrap_or_default();
        job.now = self.now();
        let awaited = under_way.map(|under_way| Box::new(move || under_way.awaited()) as Box<dyn Fn() + Send>);
        JobStart { data: Some(Box::new(job)), awaited }
    }

    fn begin_job(&mut self, data: Box<dyn Any + Send>) {
        if let Ok(job) = data.downcast::<Job>() {
            self.begin(&job);
        }
    }

    fn end_job(&mut self) {
        self.end_turn();
        self.with_network(|network| network.watch().ends());
    }

    fn finish_job(&mut self, at: f64) {
        match self {
            Source::Stepped { now, .. } => *now = now.max(at),
            Source::Simulated(network) => network.finish_job(at),
            Source::Shared(source) => lock(source).finish_job(at),
        }
    }
}

/// Locks the source. No code panics while it holds the lock.
fn lock(source: &Mutex<Source>) -> MutexGuard<'_, Source> {
    source.lock().unwrap_or_else(PoisonError::into_inner)
}
