//! Turns of measured compute: one rank computes at a time, so that its measured time is its own.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use briquette_core::comm::{Clock, Overdue};

/// A token that one rank of a world holds while it computes.
pub(super) struct Turns {
    clock: Arc<dyn Clock + Sync>,
    holder: Mutex<Holder>,
    free: Condvar,
    /// Number of times that the token changed hands.
    taken: AtomicU64,
    deadline: Duration,
}

enum Holder {
    Free,
    Rank(usize),
    /// The world has stopped; no rank takes turns any more.
    Stopped,
}

impl Turns {
    pub(super) fn new(clock: Arc<dyn Clock + Sync>, deadline: Duration) -> Self {
        let holder = Mutex::new(Holder::Free);
        Turns { clock, holder, free: Condvar::new(), taken: AtomicU64::new(0), deadline }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.clock.seconds()
    }

    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Waits for the token. Returns `Ok(false)` if the world has stopped.
    ///
    /// # Errors
    /// [`Overdue`] if a rank has held the token for longer than the deadline.
    pub(super) fn take(&self, rank: usize) -> Result<bool, Overdue> {
        let mut holder = self.lock();
        loop {
            let before = self.taken();
            let busy = |holder: &mut Holder| matches!(holder, Holder::Rank(_));
            let waited = self.free.wait_timeout_while(holder, self.deadline, busy);
            (holder, _) = waited.unwrap_or_else(PoisonError::into_inner);
            match *holder {
                Holder::Free => {
                    *holder = Holder::Rank(rank);
                    self.taken.fetch_add(1, Ordering::Relaxed);
                    return Ok(true);
                }
                Holder::Rank(holder) if before == self.taken() => {
                    return Err(Overdue { holder, seconds: self.deadline.as_secs_f64() });
                }
                Holder::Rank(_) => {}
                Holder::Stopped => return Ok(false),
            }
        }
    }

    /// Returns the token.
    pub(super) fn give(&self) {
        let mut holder = self.lock();
        if matches!(*holder, Holder::Rank(_)) {
            *holder = Holder::Free;
            self.free.notify_one();
        }
    }

    /// Wakes every rank at once, so that it finds the world stopped.
    pub(super) fn stop(&self) {
        *self.lock() = Holder::Stopped;
        self.free.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Turns({} taken)", self.taken())
    }
}
