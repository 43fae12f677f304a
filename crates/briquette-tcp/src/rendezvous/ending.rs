//! Failure of an attempt to join: reports the reason to the other ranks.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::Gathering;
use crate::descriptors;
use crate::error::JoinError;
use crate::handshake::Caller;
use crate::lines::{Event, Lines, Message};
use crate::secure::Secure;
use crate::settings::Settings;

/// Time for which a rank that gives up still reports the reason to ranks that call, or waits until the reason has been
/// read. Ranks that have not reached rank 0 yet call five times a second.
const PARTING: Duration = Duration::from_secs(2);
/// As `PARTING`, for a rank that was interrupted.
const HURRIED: Duration = Duration::from_millis(300);

impl Gathering {
    /// Sends the reason to the other ranks before giving up, unless rank 0 sent it to this rank.
    pub(super) async fn fail<T>(mut self, error: JoinError) -> Result<T, JoinError> {
        let reason = error.to_string();
        // Time for which late ranks can still get the reason.
        let parting = match error {
            JoinError::Cancelled { .. } => HURRIED,
            JoinError::Descriptors { .. } => PARTING,
            _ => Duration::ZERO,
        };
        if self.settings.rank == 0 {
            self.lines.tell_all(&Message::Fail(reason.clone())).await;
            self.part(&reason, parting).await;
        } else if !parting.is_zero() {
            self.lines.tell_all(&Message::Unable(reason)).await;
            // Rank 0 closes the line once it has read the reason.
            timeout(parting, self.lines.close()).await.unwrap_or_default();
        } else if !matches!(error, JoinError::Stopped { .. }) {
            self.lines.tell_all(&Message::Fail(reason)).await;
        }
        Err(error)
    }

    /// Reports the reason to ranks that rank 0 has not accepted. Without it they would call in vain until their
    /// deadline.
    async fn part(&mut self, reason: &str, limit: Duration) {
        let until = Instant::now() + limit;
        // These lines use the file descriptors that further calls need.
        self.lines = Lines::new();
        while !self.missing().is_empty() {
            match timeout_at(until, self.calls.recv()).await {
                Ok(Some(Ok((caller, from)))) => {
                    if let Some(address) = self.addresses.get_mut(caller.introduction.rank) {
                        *address = from.to_string();
                    }
                    drop(caller.refuse(reason).await);
                }
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Records that a rank has not reached another one, and logs it the first time.
    pub(super) fn note(&mut self, trouble: JoinError) {
        if let JoinError::Link { rank, other, .. } = trouble {
            if !self.is_stuck(rank, other) {
                tracing::warn!("{trouble}; retrying");
            }
            self.stuck.insert(rank, trouble);
        }
    }

    /// Removes the record that a rank had not reached another one, once it has.
    pub(super) fn forget(&mut self, rank: usize, other: usize) {
        if self.is_stuck(rank, other) {
            self.stuck.remove(&rank);
        }
    }

    fn is_stuck(&self, rank: usize, other: usize) -> bool {
        matches!(self.stuck.get(&rank), Some(JoinError::Link { other: known, .. }) if *known == other)
    }

    pub(super) fn incomplete(&mut self, missing: String) -> JoinError {
        if let Some(error) = self.exhausted.take() {
            return descriptors::exhausted(self.settings.rank, self.settings.world, error.to_string());
        }
        // The rank that could not be reached explains more than the missing links.
        if let Some((_, trouble)) = self.stuck.pop_first() {
            return trouble;
        }
        let Settings { rank, world, join_deadline, .. } = *self.settings;
        JoinError::Incomplete { rank, world, seconds: join_deadline.as_secs_f64(), missing }
    }
}

pub(super) async fn send_away(caller: Caller<Secure>, from: SocketAddr, problem: String) {
    let rank = caller.introduction.rank;
    tracing::warn!("refused a process at {from} as rank {rank}: {problem}");
    drop(caller.refuse(problem).await);
}

pub(super) fn stopped(rank: usize, event: Event) -> JoinError {
    let reason = match event {
        Event::Said(Message::Fail(reason) | Message::Unable(reason)) => reason,
        Event::Said(message) => format!("rank {rank} said {message:?} out of turn"),
        Event::Closed(cause) => format!("rank {rank} disconnected during rendezvous: {cause}"),
    };
    JoinError::Stopped { reason }
}
