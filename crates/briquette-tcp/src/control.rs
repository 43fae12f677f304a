//! Control thread: sends heartbeats, and reports ranks that stop or are lost.
//!
//! Rank 0 has a control line to every other rank. A rank that is computing, swapping or being debugged still sends
//! heartbeats: it counts as slow, and the timeout decides. A rank whose heartbeats stop, or whose line breaks without a
//! goodbye, counts as dead, and rank 0 reports it to all ranks. If rank 0 itself is dead, every rank detects it
//! directly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::MissedTickBehavior;

use crate::lines::{Event, Lines, Message};
use crate::shared::{Shared, Stop};

/// Heartbeat timing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pulse {
    /// Interval between two heartbeats.
    pub(crate) interval: Duration,
    /// Time without heartbeats after which a rank is dead.
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

pub(crate) async fn watch(
    mut lines: Lines,
    shared: Arc<Shared>,
    mut commands: UnboundedReceiver<Command>,
    pulse: Pulse,
) {
    let mut ticks = tokio::time::interval(pulse.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_tick = Instant::now();
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Stopped) => tell(&mut lines, &shared, None).await,
                Some(Command::Leave) | None => {
                    lines.tell_all(&Message::Bye).await;
                    return lines.close().await;
                }
            },
            (from, event) = lines.next() => heed(&mut lines, &shared, from, event).await,
            _ = ticks.tick() => {
                // A rank that was suspended itself cannot judge the heartbeats of others.
                let asleep = last_tick.elapsed() > pulse.lost_after / 2;
                last_tick = Instant::now();
                beat(&mut lines, &shared).await;
                if asleep {
                    shared.peers().iter_mut().for_each(|peer| peer.heard = last_tick);
                } else {
                    bury(&mut lines, &shared, pulse).await;
                }
            }
        }
    }
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

/// Declares ranks dead whose heartbeats have stopped.
async fn bury(lines: &mut Lines, shared: &Shared, pulse: Pulse) {
    let silent = {
        let peers = shared.peers();
        let watched = peers.iter().enumerate().filter(|(rank, peer)| lines.has(*rank) && !peer.left);
        watched.map(|(rank, peer)| (rank, peer.heard.elapsed())).find(|(_, silent)| *silent > pulse.lost_after)
    };
    let Some((rank, silent)) = silent else { return };
    let cause = format!("no heartbeat for {:.1} s", silent.as_secs_f64());
    if shared.stop(Stop::Lost { by: shared.rank, rank, cause }) {
        tell(lines, shared, None).await;
    }
}
