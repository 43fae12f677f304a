//! Timeline of a session: the source of its seconds, and the hooks by which a simulation follows its frames.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::Clock;
use crate::CompressionRatio;

/// The source of a session's seconds.
///
/// A session reports its steps, frames and background jobs to its timeline, in the order of its calls. The default
/// timeline is the transport's clock, or no clock; it ignores the reports. A simulation (`briquette-sim`) computes its
/// seconds from them. Ranks are numbered as in the transport's world.
///
/// A session uses another timeline through [`Session::with_timeline`](super::Session::with_timeline) and
/// [`Session::timeline_mut`](super::Session::timeline_mut).
pub trait Timeline: Any + Send {
    /// Returns the seconds since a fixed moment.
    fn now(&self) -> f64;

    /// Returns whether there is a clock. Without one, seconds are always 0.
    fn has_clock(&self) -> bool {
        true
    }

    /// Uses this clock if the timeline has none.
    fn or_clock(&mut self, _clock: Arc<dyn Clock + Sync>) {}

    /// Returns the timeline of another session of this rank, which advances together with this one.
    fn share(&mut self) -> Box<dyn Timeline>;

    /// Returns the timeline of a background channel.
    fn of_channel(&self, channel: usize) -> Box<dyn Timeline>;

    /// Returns the machine of a rank, if this timeline determines it. Otherwise the transport does.
    fn machine(&self, _rank: usize) -> Option<usize> {
        None
    }

    /// Sets the clock to these seconds. A real-time clock ignores the call.
    fn set(&mut self, _seconds: f64) {}

    /// Begins work outside of training, which costs no simulated time, and returns the current seconds. The work ends
    /// with [`set`](Self::set), called with these seconds.
    fn hold(&mut self) -> f64 {
        self.now()
    }

    /// Reports that the computation of a step has ended, with its number of samples on this rank, if known.
    fn begin_step(&mut self, _step: u64, _samples: Option<u64>) {}

    /// Reports that the job of a background channel has computed the fraction `share` of the step during which it
    /// began, in `elapsed` real seconds.
    fn computed(&mut self, _step: u64, _share: f64, _elapsed: f64) {}

    /// Reports that an exchange has ended, with its compression ratio, if any.
    fn compressed(&mut self, _ratio: &dyn Fn() -> Option<CompressionRatio>) {}

    /// Reports that a frame of `bytes` bytes is about to be sent. Returns its departure time. If the transport is
    /// [`Local`](super::Local), the other rank's [`received`](Self::received) gets this time.
    fn sends(&mut self, _to: usize, _bytes: usize) -> f64 {
        0.0
    }

    /// Reports that the next frame of rank `from` is about to be received.
    fn receives(&mut self, _from: usize) {}

    /// Reports that the next frame of any of these ranks is about to be received, if one arrives until the second `until` (infinity for no
    /// limit). Returns its sender, if the timeline determines it.
    ///
    /// # Errors
    /// The deadline, if it passed.
    fn receives_any(&mut self, _from: &[usize], _until: f64) -> Result<Sender, Duration> {
        Ok(Sender::Any)
    }

    /// Reports that a frame of `bytes` bytes was received.
    fn received(&mut self, _from: usize, _bytes: usize, _departure: f64) {}

    /// Waits for this rank's turn to compute, if ranks take turns.
    ///
    /// # Errors
    /// [`Overdue`] if another rank kept its turn past the deadline.
    fn take_turn(&mut self) -> Result<(), Overdue> {
        Ok(())
    }

    /// Ends this rank's turn to compute, because the rank is about to wait.
    fn end_turn(&mut self) {}

    /// Returns a number that changes while awaited work makes progress. A wait whose deadline passes continues while it
    /// changes.
    fn progress(&self) -> Option<u64> {
        None
    }

    /// Ends the waits of this timeline, because the world has stopped.
    fn stop(&mut self) {}

    /// Reports that the session leaves. Its background jobs may still run.
    fn leave(&mut self) {}

    /// Starts a job on one of the open channels. The link is divided into `shares` equal parts, and the job uses one.
    fn start_job(&mut self, _channel: usize, _shares: usize) -> JobStart {
        JobStart::default()
    }

    /// Reports, on the channel's timeline, that a job begins, with the data from [`start_job`](Self::start_job).
    fn begin_job(&mut self, _data: Box<dyn Any + Send>) {}

    /// Reports, on the channel's timeline, that the job has ended.
    fn end_job(&mut self) {}

    /// Reports that the session has waited for a job that ended at this second.
    fn finish_job(&mut self, _at: f64) {}
}

/// Sender of the next frame that a session receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// This rank.
    Rank(usize),
    /// The transport finds it.
    Any,
    /// No frame arrives in time; the timeline is at the end of the wait.
    Late,
}

/// Start of a background job.
#[derive(Default)]
pub struct JobStart {
    /// Data for the channel's timeline.
    pub data: Option<Box<dyn Any + Send>>,
    /// Function to call before the session waits for the job. It is dropped after the wait, or when the session will
    /// not wait.
    pub awaited: Option<Box<dyn Fn() + Send>>,
}

/// A rank that kept its turn to compute past the deadline.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Overdue {
    /// The rank.
    pub holder: usize,
    /// The deadline, in seconds.
    pub seconds: f64,
}

/// Timeline of a clock that no session influences, or of no clock.
#[derive(Clone, Default)]
pub(super) struct Clocked(pub(super) Option<Arc<dyn Clock + Sync>>);

impl Timeline for Clocked {
    fn now(&self) -> f64 {
        self.0.as_ref().map_or(0.0, |clock| clock.seconds())
    }

    fn has_clock(&self) -> bool {
        self.0.is_some()
    }

    fn or_clock(&mut self, clock: Arc<dyn Clock + Sync>) {
        self.0.get_or_insert(clock);
    }

    fn share(&mut self) -> Box<dyn Timeline> {
        Box::new(self.clone())
    }

    fn of_channel(&self, _channel: usize) -> Box<dyn Timeline> {
        Box::new(self.clone())
    }
}

impl Default for Box<dyn Timeline> {
    fn default() -> Self {
        Box::new(Clocked::default())
    }
}

impl fmt::Debug for dyn Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} s", self.now())
    }
}

impl fmt::Debug for JobStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobStart")
    }
}
