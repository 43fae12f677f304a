//! Session methods for simulated time and recordings.

use briquette_core::Session;

use super::recording::{Event, Recorder};
use super::source::Source;
use super::timed::Timed;
use super::{CompressSeconds, Network, Paces};

/// Simulated time and recordings of a [`Session`].
pub trait SessionExt: Sized {
    /// Adds a clock that advances by a given compute time at every step, one time for all ranks or [`Paces`], and by
    /// nothing during exchanges. The decisions of controllers then depend on nothing that differs between two runs.
    ///
    /// [`Simulated`](super::Simulated) on an unlimited network with [`Compute::Fixed`](super::Compute::Fixed) is
    /// equivalent.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_sim::SessionExt;
    /// use std::time::Duration;
    ///
    /// let mut comm = Local::world(1).remove(0).stepped(Duration::from_millis(50));
    /// comm.begin_step(0);
    /// comm.begin_step(1);
    /// assert_eq!(comm.now(), 0.1);
    /// ```
    #[must_use]
    fn stepped(self, paces: impl Into<Paces>) -> Self;

    /// Returns the simulated network, if there is one.
    fn network(&self) -> Option<Network>;

    /// Replaces this rank's simulated link from now on. Without a simulated network, it has no effect. Every rank must
    /// call it. Background jobs that have been [started](Session::start) keep their link.
    fn set_network(&mut self, network: Network);

    /// Sets the encode and decode seconds of an exchange, which are added at its end. They apply to clocks that do not
    /// measure them ([`stepped`](Self::stepped), and [`Compute::Fixed`](super::Compute::Fixed)); any other clock
    /// ignores them. For background exchanges they apply from the next [started](Session::start) job on.
    fn set_compress_seconds(&mut self, seconds: CompressSeconds);

    /// Starts to record the events that advance a simulated clock, and discards an earlier recording. It costs a few
    /// bytes per frame. Frames that are sent while the clock is [held](Session::hold_clock) are not recorded.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    /// use briquette_sim::{Compute, Event, SessionExt, replay};
    /// use std::time::Duration;
    ///
    /// let recorded = Local::run(2, |mut comm| {
    ///     comm.record();
    ///     comm.begin_step(0);
    ///     comm.all_gather(&[7; 1000], &mut Vec::new())?;
    ///     Ok::<_, CommError>(comm.take_recording())
    /// });
    /// let recorded = recorded.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!(recorded[1], [Event::BeginStep, Event::Sent(0, 1000), Event::Received(0)]);
    /// // 50 ms of computing, 1 ms of latency, 1000 bytes at 1 Mbit/s.
    /// let seconds = replay(&recorded, "1mbit,1ms".parse()?, &Compute::Fixed(Duration::from_millis(50)))?;
    /// assert!((seconds[0][0] - 0.059).abs() < 1e-9);
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    fn record(&mut self);

    /// Ends the recording and returns it; empty if nothing was recorded.
    fn take_recording(&mut self) -> Vec<Event>;
}

impl SessionExt for Session {
    fn stepped(mut self, paces: impl Into<Paces>) -> Session {
        let (paces, rank) = (paces.into(), self.rank());
        Timed::of(&mut self).set_source(Source::Stepped { paces, rank, now: 0.0 });
        self
    }

    fn network(&self) -> Option<Network> {
        Timed::network_of(self)
    }

    fn set_network(&mut self, network: Network) {
        Timed::of(self).set_network(network);
    }

    fn set_compress_seconds(&mut self, seconds: CompressSeconds) {
        Timed::of(self).compress_seconds = Some(seconds);
    }

    fn record(&mut self) {
        Timed::of(self).recorder = Some(Recorder::default());
    }

    fn take_recording(&mut self) -> Vec<Event> {
        Timed::of(self).recorder.take().map(Recorder::events).unwrap_or_default()
    }
}
