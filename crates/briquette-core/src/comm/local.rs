//! In-process transport: ranks are threads of one process.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

mod run_ranks;

pub use run_ranks::run_ranks;

use super::{AbortCause, Call, Clock, Frame, Scope, Session, Transport};
use crate::error::CommError;

/// One rank's endpoint in a world of threads. Frames are moved through memory, never copied.
///
/// An endpoint that is dropped leaves the world. Ranks that wait for it afterwards receive the frames that it sent
/// before, then fail at once.
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
    channel: usize,
    world: Arc<World>,
    queues: Arc<Queues>,
    clock: Option<SharedClock>,
}

type SharedClock = Arc<dyn Clock + Sync>;

/// Settings of a world of [`Local`] ranks.
#[derive(Clone)]
pub struct LocalBuilder {
    ranks: usize,
    deadline: Duration,
    capacity: NonZeroUsize,
    machines_of: NonZeroUsize,
    longest_frame: NonZeroUsize,
    clock: Option<SharedClock>,
}

/// State shared by all endpoints of a world.
struct World {
    /// Set for the ranks that were dropped.
    left: Vec<AtomicBool>,
    /// The first abort in the world.
    stopped: OnceLock<CommError>,
    deadline: Duration,
    capacity: usize,
    machines_of: usize,
    longest_frame: usize,
    /// The queues of every channel that a rank has opened.
    channels: Mutex<BTreeMap<usize, Arc<Queues>>>,
}

/// The frames of a channel, by receiving rank.
type Queues = [Inbox];

/// A frame, its departure in simulated seconds, and its sender's operation.
type Sent = (Frame, f64, Scope);

/// Frames sent to one rank and not yet received.
struct Inbox {
    /// One queue per sending rank.
    queues: Mutex<Vec<VecDeque<Sent>>>,
    /// Signals a new frame; only the rank itself waits for it.
    arrived: Condvar,
    /// Signals room in a full queue; the other ranks wait for it.
    room: Condvar,
}

impl Local {
    /// Creates a world of `ranks` threads with the [default settings](LocalBuilder), in rank order.
    pub fn world(ranks: usize) -> Vec<Session> {
        Local::builder(ranks).build()
    }

    /// Creates a builder for a world of `ranks` threads.
    pub fn builder(ranks: usize) -> LocalBuilder {
        let capacity = NonZeroUsize::new(16).expect("16 is not 0");
        LocalBuilder {
            ranks,
            deadline: Duration::from_secs(300),
            capacity,
            machines_of: NonZeroUsize::MAX,
            longest_frame: NonZeroUsize::MAX,
            clock: None,
        }
    }

    /// Runs `body` on every rank of a default world, each in a separate thread; see [`run_ranks`].
    pub fn run<T, E>(ranks: usize, body: impl Fn(Session) -> Result<T, E> + Sync) -> Vec<Result<T, E>>
    where
        T: Send,
        E: From<CommError> + Send,
    {
        run_ranks(Local::world(ranks), body)
    }

    fn of(world: &Arc<World>, rank: usize, channel: usize, clock: Option<SharedClock>) -> Local {
        Local { rank, channel, world: Arc::clone(world), queues: world.queues(channel), clock }
    }

    /// Waits on `changed` while `waiting` holds, for at most `longest`, or longer if there is progress.
    fn wait<'a, S>(
        &self,
        mut guard: MutexGuard<'a, S>,
        changed: &Condvar,
        waiting: impl Fn(&mut S) -> bool,
        (call, longest): (&mut Call, Duration),
    ) -> MutexGuard<'a, S> {
        if waiting(&mut guard) {
            call.waits();
        }
        loop {
            let before = call.progress();
            let waited = changed.wait_timeout_while(guard, longest, |state| waiting(state));
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if !timeout.timed_out() || before == call.progress() {
                return now;
            }
            guard = now;
        }
    }

    /// Returns the error of a wait for these ranks that ended without a frame or room.
    fn in_vain(&mut self, others: &[usize], call: &Call) -> CommError {
        let during = call.scope;
        if let Some(error) = self.world.stopped.get() {
            return error.clone();
        }
        if let Some(&other) = others.first().filter(|_| self.world.have_left(others)) {
            let cause = CommError::LEFT.to_owned();
            self.abort(during, &format!("lost rank {other}: {cause}"));
            return CommError::Lost { rank: self.rank, other, address: None, during, cause };
        }
        let error = CommError::deadline(self.rank, others, during, call.longest(self.world.deadline));
        self.abort(during, &error.reason());
        error
    }

    /// Returns the error for a frame that rank `other` sent in another operation than the one that receives it.
    fn out_of_step(&mut self, other: usize, theirs: Scope, during: Scope) -> CommError {
        let error = CommError::OutOfStep { rank: self.rank, other, during, theirs: theirs.to_string() };
        self.abort(during, &error.to_string());
        error
    }
}

impl LocalBuilder {
    /// Sets the maximum time that a call may wait for another rank; 5 minutes if not set.
    ///
    /// Panics, aborts and ranks that leave end a wait at once. The deadline is for ranks that deadlock, so it should be
    /// longer than any work that one rank does alone, such as testing or saving.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Sets the number of frames that may be queued between any two ranks, per direction; 16 if not set. The
    /// collectives need four.
    #[must_use]
    pub fn capacity(mut self, frames: NonZeroUsize) -> Self {
        self.capacity = frames;
        self
    }

    /// Sets the number of consecutive ranks that [count as on one machine](Session::machine_map), where the last machine has
    /// the remainder; all if not set.
    #[must_use]
    pub fn machines_of(mut self, ranks: NonZeroUsize) -> Self {
        self.machines_of = ranks;
        self
    }

    /// Sets the length of the longest frame, in bytes; unlimited if not set. For tests of the behavior on transports
    /// with such a limit.
    #[must_use]
    pub fn longest_frame(mut self, bytes: NonZeroUsize) -> Self {
        self.longest_frame = bytes;
        self
    }

    /// Sets the clock behind [`now`](Session::now), shared by all ranks; without one it is always 0.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock + Sync>) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Returns the ranks' sessions, in rank order; none for zero ranks.
    pub fn build(self) -> Vec<Session> {
        self.endpoints().into_iter().map(Session::from).collect()
    }

    /// Returns the bare endpoints, in rank order, for transports around them.
    pub fn endpoints(self) -> Vec<Local> {
        let world = Arc::new(World {
            left: (0..self.ranks).map(|_| AtomicBool::new(false)).collect(),
            stopped: OnceLock::new(),
            deadline: self.deadline,
            capacity: self.capacity.get(),
            machines_of: self.machines_of.get(),
            longest_frame: self.longest_frame.get(),
            channels: Mutex::default(),
        });
        let endpoint = |rank| Local::of(&world, rank, 0, self.clock.clone());
        (0..self.ranks).map(endpoint).collect()
    }

    /// Returns the maximum time of a wait, and the number of frames that may be queued between two ranks: the limits that
    /// a simulation over these endpoints must know.
    pub fn limits(&self) -> (Duration, NonZeroUsize) {
        (self.deadline, self.capacity)
    }
}

impl Transport for Local {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.queues.len()
    }

    fn machine(&self, rank: usize) -> usize {
        rank / self.world.machines_of
    }

    fn longest_frame(&self) -> usize {
        self.world.longest_frame
    }

    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        if frame.len() > self.world.longest_frame {
            let cause =
                format!("a frame of {} bytes for it; ranks take {} at most", frame.len(), self.world.longest_frame);
            self.abort(call.scope, &format!("lost rank {to}: {cause}"));
            return Err(CommError::Lost { rank: self.rank, other: to, address: None, during: call.scope, cause });
        }
        let (world, all, rank) = (Arc::clone(&self.world), Arc::clone(&self.queues), self.rank);
        let inbox = &all[to];
        let full = |queues: &mut Vec<VecDeque<Sent>>| {
            queues[rank].len() >= world.capacity && !world.is_stopped() && !world.has_left(to)
        };
        let longest = call.longest(world.deadline);
        let mut queues = self.wait(inbox.lock(), &inbox.room, full, (call, longest));
        if queues[rank].len() >= world.capacity || world.is_stopped() || world.has_left(to) {
            drop(queues);
            return Err(self.in_vain(&[to], call));
        }
        queues[rank].push_back((frame, call.departure, call.scope));
        inbox.arrived.notify_one();
        Ok(())
    }

    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        let received = self.recv_any_within(from, call.longest(self.world.deadline), call)?;
        received.ok_or_else(|| self.in_vain(from, call))
    }

    fn recv_any_within(
        &mut self,
        from: &[usize],
        longest: Duration,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        let (world, all) = (Arc::clone(&self.world), Arc::clone(&self.queues));
        let inbox = &all[self.rank];
        let first = |queues: &[VecDeque<Sent>]| from.iter().copied().find(|rank| !queues[*rank].is_empty());
        let empty =
            |queues: &mut Vec<VecDeque<Sent>>| first(queues).is_none() && !world.is_stopped() && !world.have_left(from);
        let mut queues = self.wait(inbox.lock(), &inbox.arrived, empty, (call, longest));
        let sender = first(&queues).filter(|_| !world.is_stopped());
        let sent = sender.and_then(|rank| Some((rank, queues[rank].pop_front()?)));
        if sender.is_some_and(|rank| queues[rank].len() + 1 == world.capacity) {
            inbox.room.notify_all();
        }
        drop(queues);
        let Some((rank, (frame, departure, theirs))) = sent else {
            let is_over = world.is_stopped() || world.have_left(from);
            return if is_over { Err(self.in_vain(from, call)) } else { Ok(None) };
        };
        call.departure = departure;
        if theirs == call.scope { Ok(Some((rank, frame))) } else { Err(self.out_of_step(rank, theirs, call.scope)) }
    }

    fn abort(&mut self, during: Scope, reason: &str) {
        self.world.stop(CommError::Aborted { by: self.rank, during, reason: reason.to_owned() });
    }

    fn abort_cause(&self) -> AbortCause {
        let world = Arc::clone(&self.world);
        Box::new(move || world.stopped.get().cloned())
    }

    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        if self.channel > 0 {
            let cause = "a channel has no channels of its own: open it on the session of the rank".to_owned();
            return Err(CommError::Channel { rank: self.rank, channel, cause });
        }
        Ok(Box::new(Local::of(&self.world, self.rank, channel, self.clock.clone())))
    }

    fn clock(&self) -> Option<SharedClock> {
        self.clock.clone()
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.channel == 0 {
            self.world.left[self.rank].store(true, Ordering::SeqCst);
            self.world.wake_all();
        }
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

impl World {
    /// Returns the queues of a channel, and creates them if no rank has opened it before.
    fn queues(&self, channel: usize) -> Arc<Queues> {
        let ranks = self.left.len();
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(channels.entry(channel).or_insert_with(|| (0..ranks).map(|_| Inbox::new(ranks)).collect()))
    }

    fn is_stopped(&self) -> bool {
        self.stopped.get().is_some()
    }

    fn has_left(&self, rank: usize) -> bool {
        self.left[rank].load(Ordering::SeqCst)
    }

    fn have_left(&self, ranks: &[usize]) -> bool {
        ranks.iter().all(|rank| self.has_left(*rank))
    }

    fn stop(&self, error: CommError) {
        if self.stopped.set(error).is_ok() {
            self.wake_all();
        }
    }

    /// Wakes every wait to check again. The lock is taken so that no rank is between its check and its wait.
    fn wake_all(&self) {
        let channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        for inbox in channels.values().flat_map(|queues| queues.iter()) {
            let _looking = inbox.lock();
            inbox.arrived.notify_all();
            inbox.room.notify_all();
        }
    }
}

impl Inbox {
    fn new(ranks: usize) -> Self {
        let queues = Mutex::new((0..ranks).map(|_| VecDeque::new()).collect());
        Inbox { queues, arrived: Condvar::new(), room: Condvar::new() }
    }

    /// Locks the queues. A panic elsewhere does not corrupt them: no code panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<VecDeque<Sent>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
