//! Session: a transport, with collectives, counters, a clock and error handling that are the same for every transport.

mod clock;
mod transfer;

pub use clock::Spent;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::thread;

use super::background::Background;
use super::group::Group;
use super::recorder::{Recorder, Way};
use super::shared::Share;
use super::timeline::{Clocked, Sender, Timeline};
use super::{AbortCause, Call, Clock, Frame, FramePool, Scope, Transport};
use crate::error::CommError;
use crate::traffic::Traffic;

/// One rank's membership in a world: sends and receives frames, runs [collectives](#method.all_gather), counts bytes,
/// and has a clock.
///
/// `Session::from` makes a session from any [`Transport`]. After an error, the session is poisoned: every later call
/// fails with the first error, and so do the calls of the other ranks. A session that is dropped by a panic stops the
/// other ranks, and their errors name this rank.
///
/// ```
/// use briquette_core::comm::Local;
/// use briquette_core::error::CommError;
///
/// let sums = Local::run(3, |mut comm| {
///     let mut x = [comm.rank() as f32];
///     comm.all_reduce_sum(&mut x)?;
///     // Two other ranks, one value of four bytes each way.
///     Ok::<_, CommError>((x, comm.traffic().sent, comm.traffic().received))
/// });
/// assert_eq!(sums, vec![Ok(([3.0], 8, 8)); 3]);
/// ```
pub struct Session {
    identity: SessionId,
    pub(super) transport: Box<dyn Transport>,
    pub(super) call: Call,
    pub(super) traffic: Traffic,
    /// Number of sends and receives.
    pub(super) calls: u64,
    /// The first error, which later calls repeat.
    pub(super) failed: Option<CommError>,
    /// The current subgroup, if any.
    pub(super) group: Option<Group>,
    /// Background threads, by channel.
    pub(super) background: BTreeMap<usize, Background>,
    /// Sender of the last frame received from any of several ranks.
    last_sender: usize,
    /// Set inside a call, for nested calls.
    busy: bool,
    spent: Spent,
    /// State shared with other sessions of this rank.
    pub(super) shared: Option<Share>,
    pub(super) recorder: Recorder,
    /// The transport's number for this session's channel; 0 for a session that is not in the background.
    pub(super) channel: usize,
}

impl<T: Transport + 'static> From<T> for Session {
    fn from(transport: T) -> Session {
        let clock = Clocked(transport.clock());
        Session::with_timeline(Box::new(transport), Box::new(clock))
    }
}

/// Identity of a session; no two sessions have the same.
#[derive(Debug, Clone, Default)]
pub struct SessionId(Arc<()>);

impl PartialEq for SessionId {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Session {
    /// Creates a session with a timeline in place of the transport's clock.
    pub fn with_timeline(transport: Box<dyn Transport>, timeline: Box<dyn Timeline>) -> Session {
        let recorder = Recorder::new(transport.rank(), transport.world());
        Session {
            identity: SessionId::default(),
            transport,
            call: Call { timeline, ..Call::default() },
            traffic: Traffic::default(),
            calls: 0,
            failed: None,
            group: None,
            background: BTreeMap::new(),
            last_sender: 0,
            busy: false,
            spent: Spent::default(),
            shared: None,
            recorder,
            channel: 0,
        }
    }

    /// Returns the identity of this session. An algorithm that sends in the background uses it to detect a change of
    /// session.
    pub fn identity(&self) -> &SessionId {
        &self.identity
    }

    /// Returns the source of this session's seconds.
    pub fn timeline(&self) -> &dyn Timeline {
        &*self.call.timeline
    }

    /// Returns the source of this session's seconds, to change or to replace it.
    pub fn timeline_mut(&mut self) -> &mut Box<dyn Timeline> {
        &mut self.call.timeline
    }

    /// Adds this clock if the session has none. A transport's clock and a simulated clock are kept.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use std::sync::Arc;
    /// # struct Noon;
    /// # impl briquette_core::comm::Clock for Noon { fn seconds(&self) -> f64 { 12.0 } }
    ///
    /// let comm = Local::world(1).remove(0);
    /// assert!(!comm.has_clock());
    /// assert_eq!(comm.or_clock(Arc::new(Noon)).now(), 12.0);
    /// ```
    #[must_use]
    pub fn or_clock(mut self, clock: Arc<dyn Clock + Sync>) -> Session {
        self.call.timeline.or_clock(clock);
        self
    }

    /// Returns this rank's number, `0..world()`.
    pub fn rank(&self) -> usize {
        self.group.as_ref().map_or_else(|| self.transport.rank(), Group::rank)
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.group.as_ref().map_or_else(|| self.transport.world(), Group::size)
    }

    /// Queues a frame for rank `to`. Blocks while the queue is full, until the deadline.
    ///
    /// # Errors
    /// [`CommError`] when the deadline passes, the other rank is gone, or any rank aborted.
    pub fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError> {
        self.timed(|comm| {
            comm.begin_call(&[to])?;
            let (to, bytes) = (comm.number(to), frame.len());
            comm.call.departure = comm.call.timeline.sends(to, bytes);
            let transfer = comm.start_transfer(Way::Send, (to, bytes as u64));
            let sent = comm.transport.send(to, frame, &mut comm.call);
            comm.keep_failure(sent)?;
            comm.recorder.end(transfer, None, comm.now());
            comm.traffic.sent += bytes as u64;
            comm.take_turn()
        })
    }

    /// Receives the next frame from rank `from`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn recv(&mut self, from: usize) -> Result<Frame, CommError> {
        self.timed(|comm| {
            comm.begin_call(&[from])?;
            let from = [comm.number(from)];
            comm.call.timeline.receives(from[0]);
            comm.receive(&from).map(|(_, frame)| frame)
        })
    }

    /// Receives the next frame from any of the ranks `from`, and returns the sender with it. It is for servers, and for
    /// ranks that do not wait for stragglers. The frames of one rank arrive in the order in which they were sent, also
    /// if [`recv`](Self::recv) receives some of them. Ranks that have left are skipped while another one remains.
    ///
    /// The order of frames differs between runs, unless the network is simulated. For bit-identical results, the
    /// processing of frames must not depend on this order. Among frames that have already arrived, those of ranks after
    /// the last sender come first, so that no rank starves.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    ///
    /// // Rank 0 goes on with the first two of three frames.
    /// let seen = Local::run(4, |mut comm| {
    ///     if comm.rank() > 0 {
    ///         return comm.send(0, vec![comm.rank() as u8]).map(|()| 0);
    ///     }
    ///     let (first, _) = comm.recv_any(&[1, 2, 3])?;
    ///     let others: Vec<_> = (1..4).filter(|rank| *rank != first).collect();
    ///     let (second, frame) = comm.recv_any(&others)?;
    ///     assert_eq!(frame, [second as u8]);
    ///     Ok::<_, CommError>(first + second)
    /// });
    /// assert!((3..=5).contains(seen[0].as_ref().unwrap()));
    /// ```
    ///
    /// # Errors
    /// As for [`send`](Self::send). The other rank counts as gone when all of `from` are gone.
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn recv_any(&mut self, from: &[usize]) -> Result<(usize, Frame), CommError> {
        self.recv_any_until(from, f64::INFINITY).map(|received| received.expect("a wait without a limit"))
    }

    /// Does the same until the second `until` of [`now`](Self::now); returns `None` if no frame has arrived by then, or at the transport's timeout. Some
    /// transports wait for the next frame in any case. If the session's seconds stand still while it waits, the limit counts in real seconds.
    ///
    /// # Errors
    /// As for [`recv_any`](Self::recv_any).
    ///
    /// # Panics
    /// If `from` is empty.
    pub fn recv_any_until(&mut self, from: &[usize], until: f64) -> Result<Option<(usize, Frame)>, CommError> {
        assert!(!from.is_empty(), "a frame comes from one of some ranks");
        self.timed(|comm| {
            comm.begin_call(from)?;
            let mut numbers: Vec<_> = from.iter().map(|rank| (comm.number(*rank), *rank)).collect();
            numbers.sort_unstable();
            let next = numbers.iter().position(|(number, _)| *number > comm.last_sender).unwrap_or(0);
            numbers.rotate_left(next);
            let (order, ranks): (Vec<_>, Vec<_>) = numbers.into_iter().unzip();
            let received = match comm.first_of(&order, until)? {
                Sender::Rank(sender) => Some(comm.receive(&[sender])?),
                Sender::Any if until == f64::INFINITY => Some(comm.receive(&order)?),
                Sender::Any => comm.receive_within(&order, until - comm.now())?,
                Sender::Late => None,
            };
            let Some((sender, frame)) = received else {
                comm.take_turn()?;
                return Ok(None);
            };
            comm.last_sender = sender;
            let place = order.iter().position(|number| *number == sender).expect("one of those asked for");
            Ok(Some((ranks[place], frame)))
        })
    }

    /// Blocks until all sent frames are on their way and need no further call of this rank. Each collective ends with a
    /// flush, so that no rank waits for frames of a rank that already computes again.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub fn flush(&mut self) -> Result<(), CommError> {
        self.timed(|comm| {
            let flushed = comm.transport.flush(&mut comm.call);
            comm.keep_failure(flushed)
        })
    }

    /// Makes every rank's pending and later calls fail. Their errors contain this rank's number and `reason`.
    pub fn abort(&mut self, reason: &str) {
        self.transport.abort(self.call.scope, reason);
        self.call.timeline.stop();
        self.recorder.stopped(reason, self.now());
    }

    /// Returns a function that reads why the world stopped, for code that outlives this session. The function returns
    /// `None` if the transport does not keep the reason.
    pub fn abort_cause(&self) -> AbortCause {
        self.transport.abort_cause()
    }

    /// Returns the bytes of frames moved since this session was created, without the bytes that the transport adds.
    pub fn traffic(&self) -> Traffic {
        self.traffic
    }

    /// Counts the bytes of a background exchange that was [finished without
    /// counting](super::Pending::finish_uncounted), at the step that uses its result.
    pub fn count(&mut self, traffic: Traffic) {
        self.traffic += traffic;
    }

    /// Returns the number of calls of [`send`](Self::send), [`recv`](Self::recv) and [`recv_any`](Self::recv_any),
    /// including those of the collectives.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// Returns this rank's current operation. Collectives and exchanges set it; errors quote it.
    pub fn scope(&mut self) -> &mut Scope {
        &mut self.call.scope
    }

    /// Returns the recorder of this rank's last transfers.
    pub fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// Returns the pool of reusable frames.
    pub fn pool(&mut self) -> &mut FramePool {
        &mut self.call.pool
    }

    /// Runs `body` with waits that are longer by this many deadlines. It is for waits for a rank that itself waits for
    /// up to a deadline: that rank then times out first, and its error names the rank that caused the delay.
    pub(crate) fn patient<T>(&mut self, deadlines: u32, body: impl FnOnce(&mut Session) -> T) -> T {
        let before = std::mem::replace(&mut self.call.patience, deadlines);
        let out = body(self);
        self.call.patience = before;
        out
    }

    /// Prepares a call of the transport for these ranks: counts it, checks for failure and valid ranks, and takes a
    /// turn.
    fn begin_call(&mut self, others: &[usize]) -> Result<(), CommError> {
        self.calls += 1;
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if let Some(&other) = others.iter().find(|other| **other >= self.world()) {
            let cause = format!("the world has ranks 0 to {}", self.world() - 1);
            let (rank, during) = (self.transport.rank(), self.call.scope);
            let reason = format!("lost rank {other}: {cause}");
            let lost = self.keep_failure(Err(CommError::Lost { rank, other, address: None, during, cause }));
            self.abort(&reason);
            return lost;
        }
        self.take_turn()
    }

    /// Records the first error and returns it. Wakes the ranks that wait for a turn, so that they observe the failure
    /// too.
    pub(super) fn keep_failure<T>(&mut self, result: Result<T, CommError>) -> Result<T, CommError> {
        result.map_err(|error| {
            self.call.timeline.stop();
            self.recorder.failed(&error, self.now());
            self.failed.get_or_insert(error).clone()
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if thread::panicking() {
            self.abort("panicked");
        }
        self.call.timeline.leave();
        // Ends the background threads before this rank leaves with the transport.
        self.background.clear();
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session(rank {} of {}, {})", self.rank(), self.world(), self.call.scope)
    }
}

#[cfg(test)]
mod tests;
