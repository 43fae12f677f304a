//! Recording of a session's clock events, and replay on any simulated network.
//!
//! A run whose decisions do not depend on time sends the same frames on every network. Its recording replaces a run on
//! each of them: [`replay`] plays the frames of all ranks through [`Simulated`](super::Simulated), without the
//! training.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Compute, Network, Session, Simulated, run_ranks};
use crate::error::CommError;

/// An event of a session that advances a simulated clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// The computation of a step ended.
    #[serde(rename = "c")]
    BeginStep,
    /// Sent a frame to a rank, of this many bytes.
    #[serde(rename = "s")]
    Sent(usize, usize),
    /// Received the next frame from a rank.
    #[serde(rename = "r")]
    Received(usize),
    /// Encoding and decoding took these [given](Session::set_compress_seconds) seconds.
    #[serde(rename = "p")]
    Compressed(f64),
    /// Work outside of simulated time ended, and left the link idle.
    #[serde(rename = "i")]
    Idle,
    /// An event whose order or time may differ on another network: a frame from any of several ranks, a background job,
    /// or a clock or a network set during the run. The recording cannot be replayed.
    #[serde(rename = "x")]
    Unrepeatable,
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    events: Vec<Event>,
    /// Number of holds of the clock that have not ended: above 0, work is outside of simulated time.
    holds: usize,
}

impl Session {
    /// Starts to record the events that advance a simulated clock, and drops an earlier recording. Costs a few bytes
    /// per frame.
    ///
    /// ```
    /// use briquette_core::comm::{Compute, Event, Local, Network, replay};
    /// use briquette_core::error::CommError;
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
    pub fn record(&mut self) {
        self.recorder = Some(Recorder::default());
    }

    /// Ends the recording and returns it; empty if nothing was recorded.
    pub fn take_recording(&mut self) -> Vec<Event> {
        self.recorder.take().map(|recorder| recorder.events).unwrap_or_default()
    }

    /// Starts work outside of training, and returns the seconds on this session's clock. Pass them to
    /// [`set_clock`](Self::set_clock) when that work is done. Frames sent until then are not recorded. Holds nest: each
    /// ends with its own `set_clock`, and recording continues after the outermost.
    pub fn hold_clock(&mut self) -> f64 {
        self.recorder.iter_mut().for_each(|recorder| recorder.holds += 1);
        self.now()
    }

    pub(super) fn note(&mut self, event: Event) {
        if let Some(recorder) = self.recorder.as_mut().filter(|recorder| recorder.holds == 0) {
            recorder.events.push(event);
        }
    }

    pub(super) fn note_set_clock(&mut self) {
        let Some(recorder) = &mut self.recorder else { return };
        let was_held = recorder.holds > 0;
        recorder.holds = recorder.holds.saturating_sub(1);
        self.note(if was_held { Event::Idle } else { Event::Unrepeatable });
    }

    /// Records a change of the network. It affects training even if it is set during a hold.
    pub(super) fn note_set_network(&mut self) {
        self.recorder.iter_mut().for_each(|recorder| recorder.events.push(Event::Unrepeatable));
    }

    /// Repeats the recorded events, with empty bytes. Returns the seconds at the end of each step.
    fn repeat(&mut self, recording: &[Event]) -> Result<Vec<f64>, CommError> {
        let (mut ends, mut step) = (Vec::new(), 0);
        for event in recording {
            match *event {
                Event::BeginStep => {
                    ends.extend((step > 0).then(|| self.now()));
                    self.begin_step(step);
                    step += 1;
                }
                Event::Sent(to, bytes) => self.send(to, vec![0; bytes])?,
                Event::Received(from) => drop(self.recv(from)?),
                Event::Compressed(seconds) => self.call.time.spend(seconds),
                Event::Idle => self.set_clock(self.now()),
                Event::Unrepeatable => {
                    let reason =
                        "another network may make another order or other seconds of what was recorded: run it there"
                            .to_owned();
                    self.abort(&reason);
                    return Err(CommError::Aborted { by: self.rank(), during: *self.scope(), reason });
                }
            }
        }
        ends.push(self.now());
        Ok(ends)
    }
}

/// Returns the simulated seconds at which every rank ends each of its steps, by rank. It needs the recordings of all
/// ranks of a world. The recorded steps must not depend on time: no controller that reads it, no frame from any of
/// several ranks.
///
/// The seconds equal those of a run on this network, because they come from the same arithmetic. A step ends when the
/// computation of the next one begins.
///
/// # Errors
/// [`CommError`] for a recording that cannot be replayed, or of another world, such as one with a frame that no rank
/// sends.
pub fn replay(recordings: &[Vec<Event>], network: Network, compute: &Compute) -> Result<Vec<Vec<f64>>, CommError> {
    let local = super::Local::builder(recordings.len()).deadline(Duration::from_secs(10));
    let world = Simulated::over(local, network, compute.clone());
    let repeat = |mut comm: Session| {
        let rank = comm.rank();
        comm.repeat(&recordings[rank])
    };
    run_ranks(world, repeat).into_iter().collect()
}

#[cfg(test)]
mod tests;
