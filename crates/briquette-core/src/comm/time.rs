//! The clock of a session.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::simulated::{Simulation, UnderWay};
use super::{Clock, Network, Paces};

/// Where the seconds of a session come from.
pub(super) enum Time {
    /// A clock that was handed in, or always 0.
    Clock(Option<Arc<dyn Clock + Sync>>),
    /// Given seconds for every step of a rank.
    Stepped { paces: Paces, rank: usize, now: f64 },
    /// A simulated network.
    Simulated(Simulation),
}

/// Where a job in the background starts.
#[derive(Debug, Default)]
pub(super) struct JobStart {
    pub(super) now: f64,
    /// How often the clock was set.
    pub(super) settings: u64,
    /// Into how many parts the link is divided.
    pub(super) shares: usize,
    /// The link, where one is simulated.
    pub(super) network: Option<Network>,
    /// Of a simulated network, until the job's session takes it.
    pub(super) under_way: Option<UnderWay>,
}

impl Time {
    pub(super) fn now(&self) -> f64 {
        match self {
            Time::Clock(clock) => clock.as_ref().map_or(0.0, |clock| clock.seconds()),
            Time::Stepped { now, .. } => *now,
            Time::Simulated(network) => network.now(),
        }
    }

    pub(super) fn set(&mut self, seconds: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = seconds,
            Time::Simulated(network) => network.set_clock(seconds),
        }
    }

    pub(super) fn begin_step(&mut self, step: u64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { paces, rank, now } => *now += paces.seconds(*rank, step),
            Time::Simulated(network) => network.begin_step(step),
        }
    }

    /// A step of which the channel's job began at the start is computed so far.
    pub(super) fn computed(&mut self, step: u64, share: f64, elapsed: f64) {
        self.network_mut().into_iter().for_each(|network| network.computed(step, share, elapsed));
    }

    /// Computing that this clock does not measure took so long.
    pub(super) fn spend(&mut self, seconds: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now += seconds,
            Time::Simulated(network) => network.spend(seconds),
        }
    }

    /// The clock of a new channel.
    pub(super) fn of_channel(&self, channel: usize) -> Time {
        match self {
            Time::Clock(clock) => Time::Clock(clock.clone()),
            Time::Stepped { paces, rank, now } => Time::Stepped { paces: paces.clone(), rank: *rank, now: *now },
            Time::Simulated(network) => Time::Simulated(network.of_channel(channel)),
        }
    }

    /// A job starts now on one of the open channels, which has one of so many shares of the link.
    pub(super) fn start_job(&mut self, channel: usize, shares: usize) -> JobStart {
        let network = self.network_mut().map(|network| network.start_job(channel, shares)).unwrap_or_default();
        JobStart { now: self.now(), ..network }
    }

    /// On the channel's clock.
    pub(super) fn begin_job(&mut self, start: &JobStart) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = start.now,
            Time::Simulated(network) => network.begin_job(start),
        }
    }

    /// On the channel's clock: the job has ended.
    pub(super) fn end_job(&mut self) {
        self.end_turn();
        self.network().into_iter().for_each(|network| network.watch().ends());
    }

    /// A job that ended at this second is finished.
    pub(super) fn finish_job(&mut self, at: f64) {
        match self {
            Time::Clock(_) => {}
            Time::Stepped { now, .. } => *now = now.max(at),
            Time::Simulated(network) => network.finish_job(at),
        }
    }

    /// The rank among `from` of which a frame is to be received; `None` leaves it to the transport.
    ///
    /// # Errors
    /// The deadline, when it passed.
    pub(super) fn first_of(&mut self, from: &[usize]) -> Result<Option<usize>, Duration> {
        self.network_mut().map_or(Ok(None), |network| network.first_of(from))
    }

    /// This rank leaves; its jobs may still run.
    pub(super) fn leave(&mut self) {
        self.end_turn();
        self.network().into_iter().for_each(|network| network.watch().leaves());
    }

    pub(super) fn network(&self) -> Option<&Simulation> {
        if let Time::Simulated(network) = self { Some(network) } else { None }
    }

    pub(super) fn network_mut(&mut self) -> Option<&mut Simulation> {
        if let Time::Simulated(network) = self { Some(network) } else { None }
    }

    /// Waits for this rank's turn to compute, where ranks take turns; the rank that kept it past the deadline, in seconds.
    pub(super) fn take_turn(&mut self) -> Result<(), (usize, f64)> {
        self.network_mut().map_or(Ok(()), Simulation::take_turn)
    }

    pub(super) fn end_turn(&mut self) {
        self.network_mut().into_iter().for_each(Simulation::end_turn);
    }

    /// Lets ranks that wait for a turn go on, to find the world stopped.
    pub(super) fn stop(&mut self) {
        self.network_mut().into_iter().for_each(Simulation::stop);
    }

    pub(super) fn progress(&self) -> Option<u64> {
        self.network().and_then(Simulation::progress)
    }
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
