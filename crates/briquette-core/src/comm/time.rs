//! Clock of a session.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::simulated::{Simulation, UnderWay};
use super::{Clock, Network, Paces};

/// Source of a session's seconds.
pub(super) enum Time {
    /// A clock supplied by the caller, or always 0.
    Clock(Option<Arc<dyn Clock + Sync>>),
    /// Given seconds for every step of a rank.
    Stepped { paces: Paces, rank: usize, now: f64 },
    /// A simulated network.
    Simulated(Simulation),
    /// One of the above, shared by several [sessions of one rank](super::Session::share).
    Shared(Arc<Mutex<Time>>),
}

/// Start of a background job.
#[derive(Debug, Default)]
pub(super) struct JobStart {
    pub(super) now: f64,
    /// Number of times that the clock was set.
    pub(super) settings: u64,
    /// Number of parts into which the link is divided.
    pub(super) shares: usize,
    /// The network, if it is simulated.
    pub(super) network: Option<Network>,
    /// The job in a simulated network, until the job's session takes it.
    pub(super) under_way: Option<UnderWay>,
}

impl Time {
    pub(super) fn now(&self) -> f64 {
        match self {
            Time::Clock(clock) => clock.as_ref().map_or(0.0, |clock| clock.seconds()),
            Time::Stepped { now, .. } => *now,
            Time::Simulated(network) => network.now(),
            Time::Shared(time) => lock(time).now(),
        }
    }

    /// Returns the clock of another session of this rank, which advances together with this one.
    pub(super) fn share(&mut self) -> Time {
        if let Time::Clock(clock) = self {
            return Time::Clock(clock.clone());
        }
        if !matches!(self, Time::Shared(_)) {
            *self = Time::Shared(Arc::new(Mutex::new(std::mem::take(self))));
        }
        match self {
            Time::Shared(time) => Time::Shared(Arc::clone(time)),
            _ => unreachable!("it has just become a shared one"),
        }
    }

    pub(super) fn set(&mut self, seconds: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = seconds,
            Time::Simulated(network) => network.set_clock(seconds),
            Time::Shared(time) => lock(time).set(seconds),
        }
    }

    pub(super) fn begin_step(&mut self, step: u64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { paces, rank, now } => *now += paces.seconds(*rank, step),
            Time::Simulated(network) => network.begin_step(step),
            Time::Shared(time) => lock(time).begin_step(step),
        }
    }

    /// Reports compute progress of the step with which the channel's job began.
    pub(super) fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        self.with_network(|network| network.computed(step, share, elapsed));
    }

    /// Adds compute time that this clock does not measure.
    pub(super) fn spend(&mut self, seconds: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now += seconds,
            Time::Simulated(network) => network.spend(seconds),
            Time::Shared(time) => lock(time).spend(seconds),
        }
    }

    /// Returns the clock of a new channel.
    pub(super) fn of_channel(&self, channel: usize) -> Time {
        match self {
            Time::Clock(clock) => Time::Clock(clock.clone()),
            Time::Stepped { paces, rank, now } => Time::Stepped { paces: paces.clone(), rank: *rank, now: *now },
            Time::Simulated(network) => Time::Simulated(network.of_channel(channel)),
            Time::Shared(time) => lock(time).of_channel(channel),
        }
    }

    /// Starts a job on one of the open channels, with one of `shares` shares of the link.
    pub(super) fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        let network = self.with_network(|network| network.start_job(channel, shares)).unwrap_or_default();
        JobStart { now: self.now(), ..network }
    }

    /// On the channel's clock.
    pub(super) fn begin_job(&mut self, start: &JobStart) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = start.now,
            Time::Simulated(network) => network.begin_job(start),
            Time::Shared(time) => lock(time).begin_job(start),
        }
    }

    /// On the channel's clock: the job has ended.
    pub(super) fn end_job(&mut self) {
        self.end_turn();
        self.with_network(|network| network.watch().ends());
    }

    /// Finishes a job that ended at this second.
    pub(super) fn finish_job(&mut self, at: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = now.max(at),
            Time::Simulated(network) => network.finish_job(at),
            Time::Shared(time) => lock(time).finish_job(at),
        }
    }

    /// Returns the rank among `from` from which a frame is received next; `None` leaves the choice to the transport.
    ///
    /// # Errors
    /// The deadline, if it passed.
    pub(super) fn first_of(&mut self, from: &[usize]) -> Result<Option<usize>, Duration> {
        self.with_network(|network| network.first_of(from)).unwrap_or(Ok(None))
    }

    /// Reports that this rank leaves; its jobs may still run.
    pub(super) fn leave(&mut self) {
        self.end_turn();
        let is_last = !matches!(self, Time::Shared(time) if Arc::strong_count(time) > 1);
        if is_last {
            self.with_network(|network| network.watch().leaves());
        }
    }

    /// Calls `body` with the simulated network and returns its result; `None` if there is no simulated network.
    pub(super) fn with_network<T>(&mut self, body: impl FnOnce(&mut Simulation) -> T) -> Option<T> {
        match self {
            Time::Simulated(network) => Some(body(network)),
            // The shared clock is not itself shared.
            Time::Shared(time) => match &mut *lock(time) {
                Time::Simulated(network) => Some(body(network)),
                _ => None,
            },
            Time::Clock(_) | Time::Stepped { .. } => None,
        }
    }

    /// Returns the simulated network, if there is one.
    pub(super) fn network(&self) -> Option<Network> {
        match self {
            Time::Simulated(network) => Some(network.network()),
            Time::Shared(time) => lock(time).network(),
            Time::Clock(_) | Time::Stepped { .. } => None,
        }
    }

    /// Reports that a frame of `bytes` bytes is about to be sent to rank `to`. Returns its departure, if simulated.
    pub(super) fn sends(&mut self, to: usize, bytes: usize) -> Option<f64> {
        self.with_network(|network| {
            let departure = network.departure(to, bytes);
            network.watch().sends(to, bytes, departure);
            departure
        })
    }

    /// Reports that the next frame of rank `from` is about to be received.
    pub(super) fn waits_for(&mut self, from: usize) {
        self.with_network(|network| network.watch().waits_for(from));
    }

    /// Reports that a frame of `bytes` bytes from rank `from` was received.
    pub(super) fn received(&mut self, from: usize, bytes: usize, departure: f64) {
        self.with_network(|network| {
            network.watch().received(from);
            network.arrive(from, bytes, departure);
        });
    }

    /// Waits for this rank's turn to compute, if ranks take turns. The error is the rank that kept the turn past the
    /// deadline, and the deadline in seconds.
    pub(super) fn take_turn(&mut self) -> Result<(), (usize, f64)> {
        self.with_network(Simulation::take_turn).unwrap_or(Ok(()))
    }

    pub(super) fn end_turn(&mut self) {
        self.with_network(Simulation::end_turn);
    }

    /// Wakes ranks that wait for a turn, so that they find the world stopped.
    pub(super) fn stop(&mut self) {
        self.with_network(Simulation::stop);
    }

    pub(super) fn progress(&self) -> Option<u64> {
        match self {
            Time::Simulated(network) => network.progress(),
            Time::Shared(time) => lock(time).progress(),
            Time::Clock(_) | Time::Stepped { .. } => None,
        }
    }
}

/// Locks the clock. No code panics while it holds the lock.
fn lock(time: &Mutex<Time>) -> MutexGuard<'_, Time> {
    time.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Time {
    fn default() -> Self {
        Time::Clock(None)
    }
}

impl fmt::Debug for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.now())
    }
}
