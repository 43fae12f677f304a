//! Ranks that are threads of one process.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

mod run_ranks;

pub use run_ranks::run_ranks;

use super::{Clock, Communicator, Frame, FramePool, Scope, Verdict};
use crate::error::CommError;
use crate::traffic::Traffic;

/// One rank of a world of threads. Frames are moved through memory, never copied.
///
/// An endpoint dropped while its thread panics stops every other rank with this one's number; one dropped otherwise
/// has left, and ranks that go on to wait for it learn so at once, after the frames it sent before.
///
/// ```
/// use briquette_core::Communicator;
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
    scope: Scope,
    pool: FramePool,
    traffic: Traffic,
    /// This rank's own first error, which later calls repeat.
    failed: Option<CommError>,
    clock: Option<SharedClock>,
    /// Counts something that happens while a wait is not in vain; the deadline starts again when it moves.
    progress: Option<Arc<AtomicU64>>,
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

/// What one rank has been sent and has not taken.
struct Inbox {
    /// One queue per sending rank.
    queues: Mutex<Vec<VecDeque<Frame>>>,
    /// A frame came; only the rank itself waits for it.
    arrived: Condvar,
    /// A full queue has room again; the other ranks wait for it.
    room: Condvar,
}

impl Local {
    /// A world of `ranks` threads with the [default settings](LocalBuilder), in rank order.
    pub fn world(ranks: usize) -> Vec<Local> {
        Local::builder(ranks).build()
    }

    /// A world of `ranks` threads with settings to be chosen.
    pub fn builder(ranks: usize) -> LocalBuilder {
        let capacity = NonZeroUsize::new(16).expect("16 is not 0");
        LocalBuilder { ranks, deadline: Duration::from_secs(300), capacity, clock: None }
    }

    /// Runs `body` on every rank of a default world, each in a thread of its own; see [`run_ranks`].
    pub fn run<T, E>(ranks: usize, body: impl Fn(Local) -> Result<T, E> + Sync) -> Vec<Result<T, E>>
    where
        T: Send,
        E: From<CommError> + Send,
    {
        run_ranks(Local::world(ranks), body)
    }

    /// Lets waits go on past the deadline as long as `progress` moves.
    pub(super) fn wait_while_moving(&mut self, progress: Arc<AtomicU64>) {
        self.progress = Some(progress);
    }

    /// Whether [`recv`](Communicator::recv) would return without waiting.
    pub(super) fn can_recv(&self, from: usize) -> bool {
        self.queued(self.rank, from).is_some_and(|frames| frames > 0)
    }

    /// Whether [`send`](Communicator::send) would return without waiting.
    pub(super) fn can_send(&self, to: usize) -> bool {
        self.queued(to, self.rank).is_some_and(|frames| frames < self.shared.capacity)
    }

    fn queued(&self, to: usize, from: usize) -> Option<usize> {
        self.shared.inboxes.get(to)?.lock().get(from).map(VecDeque::len)
    }

    /// Stops all ranks because of this one's `error`, which its own later calls repeat.
    fn fail(&mut self, error: CommError, reason: &str) -> CommError {
        self.failed.get_or_insert(error.clone());
        self.abort(reason);
        error
    }

    /// The reason why nothing works any more, or the other rank's number made sure of.
    fn check(&mut self, other: usize) -> Result<(), CommError> {
        if let Some(error) = self.failed.as_ref().or_else(|| self.shared.stopped.get()) {
            return Err(error.clone());
        }
        if other < self.world() {
            return Ok(());
        }
        Err(self.lost(other, format!("the world has ranks 0 to {}", self.world() - 1)))
    }

    fn lost(&mut self, other: usize, cause: String) -> CommError {
        let reason = format!("lost rank {other}: {cause}");
        let error = CommError::Lost { rank: self.rank, other, address: None, during: self.scope, cause };
        self.fail(error, &reason)
    }

    /// Waits on `changed` while `waiting` holds, until the deadline, or longer where there is progress.
    fn wait<'a, S>(
        &self,
        mut guard: MutexGuard<'a, S>,
        changed: &Condvar,
        waiting: impl Fn(&mut S) -> bool,
    ) -> MutexGuard<'a, S> {
        let progress = || self.progress.as_ref().map(|moves| moves.load(Ordering::Relaxed));
        loop {
            let before = progress();
            let waited = changed.wait_timeout_while(guard, self.shared.deadline, |state| waiting(state));
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if !timeout.timed_out() || before == progress() {
                return now;
            }
            guard = now;
        }
    }

    /// Why a wait for rank `other` ended without what was waited for.
    fn in_vain(&mut self, other: usize) -> CommError {
        if let Some(error) = self.shared.stopped.get() {
            return error.clone();
        }
        if self.shared.has_left(other) {
            return self.lost(other, "it left the run".to_owned());
        }
        self.overdue(other)
    }

    /// Waited for rank `other` until the deadline.
    pub(super) fn overdue(&mut self, other: usize) -> CommError {
        let seconds = self.shared.deadline.as_secs_f64();
        let reason = format!("waited {seconds:.1} s for rank {other}: deadline passed");
        let error = CommError::Deadline { rank: self.rank, other, during: self.scope, seconds, last_seen: None };
        self.fail(error, &reason)
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

    /// The clock behind [`now`](Communicator::now), shared by all ranks; without one it is always 0.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock + Sync>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The endpoints, in rank order; none for zero ranks.
    pub fn build(self) -> Vec<Local> {
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
        let endpoint = |rank| Local {
            rank,
            shared: Arc::clone(&shared),
            scope: Scope::default(),
            pool: FramePool::default(),
            traffic: Traffic::default(),
            failed: None,
            clock: self.clock.clone(),
            progress: None,
        };
        (0..self.ranks).map(endpoint).collect()
    }

    pub(super) fn ranks(&self) -> usize {
        self.ranks
    }

    pub(super) fn longest_wait(&self) -> Duration {
        self.deadline
    }
}

impl Communicator for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.shared.inboxes.len()
    }

    fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError> {
        self.check(to)?;
        let (shared, rank) = (Arc::clone(&self.shared), self.rank);
        let inbox = &shared.inboxes[to];
        let full = |queues: &mut Vec<VecDeque<Frame>>| {
            queues[rank].len() >= shared.capacity && !shared.is_stopped() && !shared.has_left(to)
        };
        let mut queues = self.wait(inbox.lock(), &inbox.room, full);
        if queues[rank].len() >= shared.capacity || shared.is_stopped() || shared.has_left(to) {
            drop(queues);
            return Err(self.in_vain(to));
        }
        self.traffic.sent += frame.len() as u64;
        queues[rank].push_back(frame);
        inbox.arrived.notify_one();
        Ok(())
    }

    fn recv(&mut self, from: usize) -> Result<Frame, CommError> {
        self.check(from)?;
        let shared = Arc::clone(&self.shared);
        let inbox = &shared.inboxes[self.rank];
        let empty = |queues: &mut Vec<VecDeque<Frame>>| {
            queues[from].is_empty() && !shared.is_stopped() && !shared.has_left(from)
        };
        let mut queues = self.wait(inbox.lock(), &inbox.arrived, empty);
        let frame = if shared.is_stopped() { None } else { queues[from].pop_front() };
        if queues[from].len() + 1 == shared.capacity {
            inbox.room.notify_all();
        }
        drop(queues);
        let frame = frame.ok_or_else(|| self.in_vain(from))?;
        self.traffic.received += frame.len() as u64;
        Ok(frame)
    }

    fn abort(&mut self, reason: &str) {
        self.shared.stop(CommError::Aborted { by: self.rank, during: self.scope, reason: reason.to_owned() });
    }

    fn verdict(&self) -> Verdict {
        let shared = Arc::clone(&self.shared);
        Box::new(move || shared.stopped.get().cloned())
    }

    fn now(&self) -> f64 {
        self.clock.as_ref().map_or(0.0, |clock| clock.seconds())
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn scope(&mut self) -> &mut Scope {
        &mut self.scope
    }

    fn pool(&mut self) -> &mut FramePool {
        &mut self.pool
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort("panicked");
        }
        self.shared.left[self.rank].store(true, Ordering::SeqCst);
        self.shared.wake_all();
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Local(rank {} of {}, {})", self.rank, self.world(), self.scope)
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
    fn lock(&self) -> MutexGuard<'_, Vec<VecDeque<Frame>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
