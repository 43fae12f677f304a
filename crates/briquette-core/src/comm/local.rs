//! Ranks that are threads of one process.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

mod run_ranks;

pub use run_ranks::run_ranks;

use super::{Call, Clock, Frame, Scope, Session, Transport, Verdict};
use crate::error::CommError;

/// One rank's endpoint in a world of threads. Frames are moved through memory, never copied.
///
/// An endpoint that is dropped has left, and ranks that go on to wait for it fail at once, after the frames it sent before.
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_core::error::CommError;
///
/// // Three ranks average a vector.
/// let averages = Local::run(3, |mut comm| {
///     let mut x = [comm.rank() as f32, 1.0];
///     comm.all_reduce_sum(&mut x)?;
///     Ok::<_, CommError>(x.map(|sum| sum / comm.world() as f32))
/// });
/// assert_eq!(averages, vec![Ok([1.0, 1.0]); 3]);
/// ```
pub struct Local {
    rank: usize,
    shared: Arc<Shared>,
    clock: Option<SharedClock>,
}

type SharedClock = Arc<dyn Clock + Sync>;

/// What a world of [`Local`] ranks is like.
#[derive(Clone)]
pub struct LocalBuilder {
    ranks: usize,
    deadline: Duration,
    capacity: NonZeroUsize,
    clock: Option<SharedClock>,
}

struct Shared {
    inboxes: Vec<Inbox>,
    /// Ranks whose endpoints were dropped.
    left: Vec<AtomicBool>,
    /// The first abort of all.
    stopped: OnceLock<CommError>,
    deadline: Duration,
    capacity: usize,
}

/// A frame, and when it departed in simulated seconds.
type Sent = (Frame, f64);

/// What one rank has been sent and has not taken.
struct Inbox {
    /// One queue per sending rank.
    queues: Mutex<Vec<VecDeque<Sent>>>,
    /// A frame came; only the rank itself waits for it.
    arrived: Condvar,
    /// A full queue has room again; the other ranks wait for it.
    room: Condvar,
}

impl Local {
    /// A world of `ranks` threads with the [default settings](LocalBuilder), in rank order.
    pub fn world(ranks: usize) -> Vec<Session> {
        Local::builder(ranks).build()
    }

    /// A world of `ranks` threads with settings to be chosen.
    pub fn builder(ranks: usize) -> LocalBuilder {
        let capacity = NonZeroUsize::new(16).expect("16 is not 0");
        LocalBuilder { ranks, deadline: Duration::from_secs(300), capacity, clock: None }
    }

    /// Runs `body` on every rank of a default world, each in a thread of its own; see [`run_ranks`].
    pub fn run<T, E>(ranks: usize, body: impl Fn(Session) -> Result<T, E> + Sync) -> Vec<Result<T, E>>
    where
        T: Send,
        E: From<CommError> + Send,
    {
        run_ranks(Local::world(ranks), body)
    }

    /// The reason why nothing works any more, or the other rank's number made sure of.
    fn check(&mut self, other: usize, during: Scope) -> Result<(), CommError> {
        if let Some(error) = self.shared.stopped.get() {
            return Err(error.clone());
        }
        if other < self.world() {
            return Ok(());
        }
        Err(self.lost(other, during, format!("the world has ranks 0 to {}", self.world() - 1)))
    }

    fn lost(&mut self, other: usize, during: Scope, cause: String) -> CommError {
        self.abort(during, &format!("lost rank {other}: {cause}"));
        CommError::Lost { rank: self.rank, other, address: None, during, cause }
    }

    /// Waits on `changed` while `waiting` holds, until the deadline, or longer where there is progress.
    fn wait<'a, S>(
        &self,
        mut guard: MutexGuard<'a, S>,
        changed: &Condvar,
        waiting: impl Fn(&mut S) -> bool,
        call: &mut Call,
    ) -> MutexGuard<'a, S> {
        if waiting(&mut guard) {
            call.waits();
        }
        loop {
            let before = call.progress();
            let waited = changed.wait_timeout_while(guard, self.shared.deadline, |state| waiting(state));
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if !timeout.timed_out() || before == call.progress() {
                return now;
            }
            guard = now;
        }
    }

    /// Why a wait for rank `other` ended without what was waited for.
    fn in_vain(&mut self, other: usize, during: Scope) -> CommError {
        if let Some(error) = self.shared.stopped.get() {
            return error.clone();
        }
        if self.shared.has_left(other) {
            return self.lost(other, during, "it left the run".to_owned());
        }
        let seconds = self.shared.deadline.as_secs_f64();
        self.abort(during, &format!("waited {seconds:.1} s for rank {other}: deadline passed"));
        CommError::Deadline { rank: self.rank, other, during, seconds, last_seen: None }
    }
}

impl LocalBuilder {
    /// How long a call may wait for another rank; 5 minutes if not set.
    ///
    /// Panics, aborts and ranks that leave end a wait at once. The deadline is for ranks that wait for each other in
    /// vain, so it should be longer than anything one rank does alone, such as testing or saving.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Frames that may wait between any two ranks, per direction; 16 if not set. The collectives need four.
    #[must_use]
    pub fn capacity(mut self, frames: NonZeroUsize) -> Self {
        self.capacity = frames;
        self
    }

    /// The clock behind [`now`](Session::now), shared by all ranks; without one it is always 0.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock + Sync>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The ranks' sessions, in rank order; none for zero ranks.
    pub fn build(self) -> Vec<Session> {
        self.endpoints().into_iter().map(Session::from).collect()
    }

    /// The bare endpoints, in rank order, for transports around them.
    pub fn endpoints(self) -> Vec<Local> {
        let inbox = |_| Inbox {
            queues: Mutex::new((0..self.ranks).map(|_| VecDeque::new()).collect()),
            arrived: Condvar::new(),
            room: Condvar::new(),
        };
        let shared = Arc::new(Shared {
            inboxes: (0..self.ranks).map(inbox).collect(),
            left: (0..self.ranks).map(|_| AtomicBool::new(false)).collect(),
            stopped: OnceLock::new(),
            deadline: self.deadline,
            capacity: self.capacity.get(),
        });
        let endpoint = |rank| Local { rank, shared: Arc::clone(&shared), clock: self.clock.clone() };
        (0..self.ranks).map(endpoint).collect()
    }

    pub(super) fn longest_wait(&self) -> Duration {
        self.deadline
    }
}

impl Transport for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.shared.inboxes.len()
    }

    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.check(to, call.scope)?;
        let (shared, rank) = (Arc::clone(&self.shared), self.rank);
        let inbox = &shared.inboxes[to];
        let full = |queues: &mut Vec<VecDeque<Sent>>| {
            queues[rank].len() >= shared.capacity && !shared.is_stopped() && !shared.has_left(to)
        };
        let mut queues = self.wait(inbox.lock(), &inbox.room, full, call);
        if queues[rank].len() >= shared.capacity || shared.is_stopped() || shared.has_left(to) {
            drop(queues);
            return Err(self.in_vain(to, call.scope));
        }
        queues[rank].push_back((frame, call.departure));
        inbox.arrived.notify_one();
        Ok(())
    }

    fn recv(&mut self, from: usize, call: &mut Call) -> Result<Frame, CommError> {
        self.check(from, call.scope)?;
        let shared = Arc::clone(&self.shared);
        let inbox = &shared.inboxes[self.rank];
        let empty = |queues: &mut Vec<VecDeque<Sent>>| {
            queues[from].is_empty() && !shared.is_stopped() && !shared.has_left(from)
        };
        let mut queues = self.wait(inbox.lock(), &inbox.arrived, empty, call);
        let sent = if shared.is_stopped() { None } else { queues[from].pop_front() };
        if queues[from].len() + 1 == shared.capacity {
            inbox.room.notify_all();
        }
        drop(queues);
        let (frame, departure) = sent.ok_or_else(|| self.in_vain(from, call.scope))?;
        call.departure = departure;
        Ok(frame)
    }

    fn abort(&mut self, during: Scope, reason: &str) {
        self.shared.stop(CommError::Aborted { by: self.rank, during, reason: reason.to_owned() });
    }

    fn verdict(&self) -> Verdict {
        let shared = Arc::clone(&self.shared);
        Box::new(move || shared.stopped.get().cloned())
    }

    fn clock(&self) -> Option<SharedClock> {
        self.clock.clone()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.shared.left[self.rank].store(true, Ordering::SeqCst);
        self.shared.wake_all();
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local(rank {} of {})", self.rank, self.world())
    }
}

impl fmt::Debug for LocalBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LocalBuilder { ranks, deadline, capacity, .. } = self;
        write!(f, "LocalBuilder({ranks} ranks, deadline {deadline:?}, {capacity} frames)")
    }
}

impl Shared {
    fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::SeqCst)
    }

    fn stop(&self, error: CommError) {
        if self.stopped.set(error).is_ok() {
            self.wake_all();
        }
    }

    /// Every wait looks again. The lock is taken so that no rank is between looking and waiting.
    fn wake_all(&self) {
        for inbox in &self.inboxes {
            let _looking = inbox.lock();
            inbox.arrived.notify_all();
            inbox.room.notify_all();
        }
    }
}

impl Inbox {
    /// A panic elsewhere does not spoil the queues: nothing panics while holding the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<VecDeque<Sent>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
