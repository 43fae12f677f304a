//! Recording of a session's clock events, and replay on any simulated network.
//!
//! A run whose decisions do not depend on time sends the same frames on every network. Its recording can therefore be
//! replayed instead of running it on each network: [`replay`] sends the frames of all ranks through
//! [`Simulated`](super::Simulated), without the training.

use std::time::Duration;

use briquette_core::comm::{Local, Session, run_ranks};
use briquette_core::error::CommError;
use serde::{Deserialize, Serialize};

use super::timed::Timed;
use super::{Compute, Network, Simulated};

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
    /// Encoding and decoding took these [given](super::SessionExt::set_compress_seconds) seconds.
    #[serde(rename = "p")]
    Compressed(f64),
    /// Work outside of simulated time ended, and left the link idle.
    #[serde(rename = "i")]
    Idle,
    /// An event whose order or time may differ on another network: a frame received from any of several ranks, a
    /// background job, or a clock or a network that was set during the run. The recording cannot be replayed.
    #[serde(rename = "x")]
    Unrepeatable,
}

/// Events recorded so far.
#[derive(Debug, Default)]
pub(super) struct Recorder {
    events: Vec<Event>,
    /// Number of clock holds that have not ended. Above 0, the work is outside of simulated time.
    holds: usize,
}

impl Recorder {
    pub(super) fn events(self) -> Vec<Event> {
        self.events
    }

    pub(super) fn note(&mut self, event: Event) {
        if self.holds == 0 {
            self.events.push(event);
        }
    }

    pub(super) fn hold(&mut self) {
        self.holds += 1;
    }

    /// Records that the clock was set, which ends a hold. Recording continues after the outermost hold.
    pub(super) fn set_clock(&mut self) {
        let was_held = self.holds > 0;
        self.holds = self.holds.saturating_sub(1);
        self.note(if was_held { Event::Idle } else { Event::Unrepeatable });
    }

    /// Records a change of the network. It affects training even if it is set during a hold.
    pub(super) fn set_network(&mut self) {
        self.events.push(Event::Unrepeatable);
    }
}

/// Repeats the recorded events, with empty bytes. Returns the seconds at the end of each step.
fn repeat(comm: &mut Session, recording: &[Event]) -> Result<Vec<f64>, CommError> {
    let (mut ends, mut step) = (Vec::new(), 0);
    for event in recording {
        match *event {
            Event::BeginStep => {
                ends.extend((step > 0).then(|| comm.now()));
                comm.begin_step(step);
                step += 1;
            }
            Event::Sent(to, bytes) => comm.send(to, vec![0; bytes])?,
            Event::Received(from) => drop(comm.recv(from)?),
            Event::Compressed(seconds) => Timed::of(comm).spend(seconds),
            Event::Idle => comm.set_clock(comm.now()),
            Event::Unrepeatable => {
                let reason =
                    "another network may make another order or other seconds of what was recorded: run it there"
                        .to_owned();
                comm.abort(&reason);
                return Err(CommError::Aborted { by: comm.rank(), during: *comm.scope(), reason });
            }
        }
    }
    ends.push(comm.now());
    Ok(ends)
}

/// Returns, for each rank, the simulated seconds at which it ends each of its steps. Needs the recordings of all ranks
/// of a world. The recorded steps must not depend on time: no controller reads it, and no frame is received from any of
/// several ranks.
///
/// The seconds equal those of a run on this network, because they come from the same arithmetic. A step ends when the
/// computation of the next one begins.
///
/// # Errors
/// [`CommError`] for a recording that cannot be replayed, and for recordings of different worlds, for example if one
/// has a frame that no rank sends.
pub fn replay(recordings: &[Vec<Event>], network: Network, compute: &Compute) -> Result<Vec<Vec<f64>>, CommError> {
    let local = Local::builder(recordings.len()).deadline(Duration::from_secs(10));
    let world = Simulated::over(local, network, compute.clone());
    let repeat = |mut comm: Session| {
        let rank = comm.rank();
        repeat(&mut comm, &recordings[rank])
    };
    run_ranks(world, repeat).into_iter().collect()
}
