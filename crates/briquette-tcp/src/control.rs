//! Control thread: sends heartbeats, and reports ranks that stop or are lost.
//!
//! Rank 0 has a control line to every other rank. A rank that is computing, swapping or being debugged still sends
//! heartbeats: it counts as slow, and the timeout decides. A rank whose heartbeats stop, or whose line breaks without a
//! goodbye, counts as dead, and rank 0 reports it to all ranks. If rank 0 itself is dead, every rank detects it
//! directly.
//!
//! A rank judges only the ranks to which it has a line, by the heartbeats that arrive there; what rank 0 forwards of other ranks is for error
//! messages. In a fixed world a rank is dead after a constant time. In an elastic world the [history](Detector) of its heartbeats
//! determines the time, except at step 0 and while a new member joins: a loss ends the run there, or the new member.

use std::sync::Arc;
use std::time::{Duration, Instant};

use briquette_core::membership::detector::Detector;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

use crate::lines::{Event, Lines, Message};
use crate::shared::{Shared, Stop};

/// Heartbeat timing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pulse {
    /// Interval between two heartbeats.
    pub(crate) interval: Duration,
    /// Time without heartbeats after which a rank is dead; in an elastic world, the upper limit of that time.
    pub(crate) lost_after: Duration,
}

/// Command from the calling thread.
#[derive(Debug)]
pub(crate) enum Command {
    /// This rank stopped, for the reason in [`Shared`], which is sent to the others.
    Stopped,
    /// This rank is done.
    Leave,
}

/// Failure detectors of all ranks, on the clock of the control thread.
struct Watched {
    start: Instant,
    detectors: Vec<Detector>,
}

impl Watched {
    fn new(ranks: usize, pulse: Pulse) -> Watched {
        let detector = Detector::new(pulse.interval.as_secs_f64(), pulse.lost_after.as_secs_f64(), 0.0);
        Watched { start: Instant::now(), detectors: vec![detector; ranks] }
    }

    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn heard(&mut self, rank: usize) {
        let now = self.now();
        if let Some(detector) = self.detectors.get_mut(rank) {
            detector.heard(now);
        }
    }

    /// Returns the suspected ranks, with their silence in seconds. Every detector looks, so that each notices that this rank was suspended.
    fn suspects(&mut self, now: f64, uses_history: bool) -> Vec<(usize, f64)> {
        let look = |(rank, detector): (usize, &mut Detector)| {
            detector.use_history(uses_history);
            detector.is_suspect(now).then(|| (rank, detector.silence(now)))
        };
        self.detectors.iter_mut().enumerate().filter_map(look).collect()
    }
}

pub(crate) async fn watch(
    mut lines: Lines,
    shared: Arc<Shared>,
    mut commands: UnboundedReceiver<Command>,
    pulse: Pulse,
) {
    let mut ticks = tokio::time::interval(pulse.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watched = Watched::new(shared.addresses.len(), pulse);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Stopped) => tell(&mut lines, &shared, None).await,
                Some(Command::Leave) | None => {
                    lines.tell_all(&Message::Bye).await;
                    return lines.close().await;
                }
            },
            (from, event) = lines.next() => {
                if matches!(event, Event::Said(Message::Beat { .. })) {
                    watched.heard(from);
                }
                heed(&mut lines, &shared, from, event).await;
            }
            _ = ticks.tick() => {
                // Nothing is received while this rank writes its own heartbeat, so that time does not count.
                let now = watched.now();
                beat(&mut lines, &shared).await;
                bury(&mut lines, &shared, &watched.suspects(now, uses_history(&shared))).await;
            }
        }
    }
}

/// Returns whether the world survives the loss of a rank now, so that a false alarm costs only an election. The operations with which new
/// members join are at step 0, too.
fn uses_history(shared: &Shared) -> bool {
    shared.is_elastic && shared.doing().step > 0
}

async fn heed(lines: &mut Lines, shared: &Shared, from: usize, event: Event) {
    let first = match event {
        Event::Said(Message::Beat { doing, others }) => {
            shared.heard(from, Duration::ZERO, doing);
            for (rank, ago, doing) in others {
                shared.heard(rank, ago, doing);
            }
            false
        }
        // Only the first reason is kept: see `Doing::scope`.
        Event::Said(Message::Abort { by, during, reason }) => {
            shared.stopped().is_none() && shared.stop(Stop::aborted(by, &during, reason))
        }
        Event::Said(Message::Lost { by, rank, cause }) => shared.stop(Stop::Lost { by, rank, cause }),
        Event::Said(Message::Bye) => {
            if let Some(peer) = shared.peers().get_mut(from) {
                peer.left = true;
            }
            false
        }
        Event::Said(_) => false,
        Event::Closed(cause) => {
            lines.remove(from);
            let left = shared.peers().get(from).is_some_and(|peer| peer.left);
            !left && shared.stop(Stop::Lost { by: shared.rank, rank: from, cause })
        }
    };
    if first {
        tell(lines, shared, Some(from)).await;
    }
}

/// Sends the reason why this rank stopped to the others.
async fn tell(lines: &mut Lines, shared: &Shared, but: Option<usize>) {
    let message = match shared.stopped() {
        Some(Stop::Aborted { by, during, reason }) => {
            Message::Abort { by: *by, during: (*during).into(), reason: reason.clone() }
        }
        Some(Stop::Lost { by, rank, cause }) => Message::Lost { by: *by, rank: *rank, cause: cause.clone() },
        None => return,
    };
    lines.tell_others(&message, but).await;
    if shared.rank == 0 && shared.addresses.len() > 1 {
        let known: Vec<String> = (1..shared.addresses.len()).filter_map(|rank| shared.last_seen(rank)).collect();
        let known = known.join("; ");
        if shared.is_elastic {
            tracing::debug!("this generation ended; {known}");
        } else {
            tracing::error!("the run stopped; {known}");
        }
    }
}

async fn beat(lines: &mut Lines, shared: &Shared) {
    let known = |(rank, peer): (usize, &crate::shared::Peer)| (rank, peer.heard.elapsed(), peer.doing.clone());
    let others =
        if shared.rank == 0 { shared.peers().iter().enumerate().skip(1).map(known).collect() } else { Vec::new() };
    lines.tell_all(&Message::Beat { doing: shared.doing().into(), others }).await;
}

/// Declares a suspected rank dead.
async fn bury(lines: &mut Lines, shared: &Shared, suspects: &[(usize, f64)]) {
    let is_watched = |rank: usize| lines.has(rank) && shared.peers().get(rank).is_some_and(|peer| !peer.left);
    let Some((rank, silent)) = suspects.iter().copied().find(|(rank, _)| is_watched(*rank)) else { return };
    let cause = format!("no heartbeat for {silent:.1} s");
    if shared.stop(Stop::Lost { by: shared.rank, rank, cause }) {
        tell(lines, shared, None).await;
    }
}
