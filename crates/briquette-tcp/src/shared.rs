//! State shared by the calling thread and the control thread of a rank.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use briquette_core::comm::Scope;
use briquette_core::error::CommError;
use serde::{Deserialize, Serialize};

/// Current operation of a rank, as reported by that rank.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    operation: String,
    step: u64,
    bucket: Option<usize>,
}

impl From<Scope> for Doing {
    fn from(Scope { operation, step, bucket }: Scope) -> Doing {
        Doing { operation: operation.to_owned(), step, bucket }
    }
}

impl Doing {
    /// Returns the scope with leaked text, for the one error that ends a run.
    fn scope(&self) -> Scope {
        let operation = self.operation.clone().leak();
        Scope { operation, step: self.step, bucket: self.bucket }
    }
}

impl std::fmt::Display for Doing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Scope::show(f, &self.operation, self.step, self.bucket)
    }
}

/// Reason why the world stopped.
#[derive(Debug, Clone)]
pub(crate) enum Stop {
    Aborted { by: usize, during: Scope, reason: String },
    Lost { by: usize, rank: usize, cause: String },
}

impl Stop {
    pub(crate) fn aborted(by: usize, during: &Doing, reason: String) -> Stop {
        Stop::Aborted { by, during: during.scope(), reason }
    }
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) rank: usize,
    /// Set if the world goes on when a rank is lost.
    pub(crate) is_elastic: bool,
    /// Address at which each rank accepts connections.
    pub(crate) addresses: Vec<String>,
    /// Machine number of each rank.
    pub(crate) machines: Vec<usize>,
    stopped: OnceLock<Stop>,
    /// Wakers of every channel.
    wakers: Vec<mio::Waker>,
    doing: Mutex<Scope>,
    peers: Mutex<Vec<Peer>>,
}

/// Last known state of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) heard: Instant,
    pub(crate) doing: Doing,
    pub(crate) left: bool,
}

impl Shared {
    pub(crate) fn new(
        (rank, is_elastic): (usize, bool),
        addresses: Vec<String>,
        machines: Vec<usize>,
        wakers: Vec<mio::Waker>,
    ) -> Shared {
        let peer = Peer { heard: Instant::now(), doing: Doing::default(), left: false };
        let peers = Mutex::new(vec![peer; addresses.len()]);
        Shared {
            rank,
            is_elastic,
            addresses,
            machines,
            stopped: OnceLock::new(),
            wakers,
            doing: Mutex::default(),
            peers,
        }
    }

    pub(crate) fn stopped(&self) -> Option<&Stop> {
        self.stopped.get()
    }

    /// Stops this rank, whatever it waits for, and returns whether this was the first reason.
    pub(crate) fn stop(&self, stop: Stop) -> bool {
        let first = self.stopped.set(stop).is_ok();
        // If a waker fails, the calling thread continues at its deadline.
        self.wakers.iter().for_each(|waker| drop(waker.wake()));
        first
    }

    /// Returns the reason as an error of this rank.
    pub(crate) fn abort_cause(&self, during: Scope) -> Option<CommError> {
        let lost = |rank: usize, cause: &str| {
            let address = self.addresses.get(rank).cloned();
            CommError::Lost { rank: self.rank, other: rank, address, during, cause: cause.to_owned() }
        };
        self.stopped().map(|stop| match stop {
            Stop::Aborted { by, during, reason } => {
                CommError::Aborted { by: *by, during: *during, reason: reason.clone() }
            }
            Stop::Lost { by, rank, cause } if *rank == self.rank && *by != self.rank => {
                CommError::Aborted { by: *by, during, reason: format!("it lost this rank: {cause}") }
            }
            Stop::Lost { rank, cause, .. } => lost(*rank, cause),
        })
    }

    pub(crate) fn publish(&self, scope: Scope) {
        *lock(&self.doing) = scope;
    }

    pub(crate) fn doing(&self) -> Scope {
        *lock(&self.doing)
    }

    pub(crate) fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        lock(&self.peers)
    }

    /// Records that a message of a rank arrived `ago`, and the rank's operation at that time.
    pub(crate) fn heard(&self, rank: usize, ago: Duration, doing: Doing) {
        if let Some(peer) = self.peers().get_mut(rank) {
            peer.heard = Instant::now().checked_sub(ago).unwrap_or(peer.heard).max(peer.heard);
            peer.doing = doing;
        }
    }

    /// Describes the last known state of a rank.
    pub(crate) fn last_seen(&self, rank: usize) -> Option<String> {
        let peers = self.peers();
        let peer = peers.get(rank)?;
        let ago = peer.heard.elapsed().as_secs_f64();
        let doing = &peer.doing;
        Some(format!("rank {rank} was heard of {ago:.1} s ago, its last exchange was {doing}"))
    }
}

/// Locks a mutex. No code panics while holding one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
