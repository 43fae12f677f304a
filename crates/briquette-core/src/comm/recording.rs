//! What a session does with its clock, recorded, and replayed on any simulated network.
//!
//! A run whose decisions do not depend on seconds sends the same frames on every network. Its recording is then worth a run on each
//! of them: [`replay`] plays the frames of all ranks through [`Simulated`](super::Simulated), without the training.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Compute, Network, Session, Simulated, run_ranks};
use crate::error::CommError;

/// What a session did that moves a simulated clock.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// A step's computing ended.
    #[serde(rename = "c")]
    BeginStep,
    /// A frame to a rank, of this many bytes.
    #[serde(rename = "s")]
    Sent(usize, usize),
    /// The next frame from a rank.
    #[serde(rename = "r")]
    Received(usize),
    /// Encoding and decoding took these [given](Session::set_compress_seconds) seconds.
    #[serde(rename = "p")]
    Compressed(f64),
    /// Work outside of simulated time ended, and left the link idle.
    #[serde(rename = "i")]
    Idle,
    /// What another network may make another order or other seconds of: a frame from any of several ranks, a job in the background, or a clock or
    /// a network that is set in the middle. The recording cannot be replayed.
    #[serde(rename = "x")]
    Unrepeatable,
}

#[derive(Debug, Default)]
pub(super) struct Recorder {
    events: Vec<Event>,
    /// How many holds of the clock have not ended: above 0 it is work outside of simulated time.
    holds: usize,
}

impl Session {
    /// Begins to record what moves a simulated clock; what was recorded before is dropped. Costs a few bytes a frame.
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

    /// What was recorded; empty where nothing was. Ends the recording.
    pub fn take_recording(&mut self) -> Vec<Event> {
        self.recorder.take().map(|recorder| recorder.events).unwrap_or_default()
    }

    /// The seconds on this session's clock, to be given to [`set_clock`](Self::set_clock) when work outside of training is done. What
    /// is sent until then is not recorded. Holds nest: each ends with a `set_clock` of its own, and recording goes on after the
    /// outermost.
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

    /// Training goes on with it, wherever it was set: held or not.
    pub(super) fn note_set_network(&mut self) {
        self.recorder.iter_mut().for_each(|recorder| recorder.events.push(Event::Unrepeatable));
    }

    /// Does again what was recorded, with empty bytes; the seconds at the end of each step.
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

/// The simulated seconds at which every rank ends each of its steps, by rank, where recordings are of all ranks of a world and of
/// steps that do not depend on seconds: no controller that reads them, no frame from any of several ranks.
///
/// The seconds are those that a run on this network would show, as the same arithmetic makes them. A step ends where the next one's
/// computing begins.
///
/// # Errors
/// [`CommError`] for a recording that cannot be replayed, or of another world: one with a frame that no rank sends.
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
