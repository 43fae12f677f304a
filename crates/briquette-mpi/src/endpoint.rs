//! Endpoint of one rank over one MPI communicator.

use briquette_core::Frame;
use briquette_core::comm::{AbortCause, Call, Clock, FramePool, Scope, Transport};
use briquette_core::error::CommError;
use mpi::datatype::Equivalence;
use mpi::point_to_point::{Message, Status};
use mpi::topology::{Process, SimpleCommunicator};
use mpi::traits::{Communicator as _, CommunicatorCollectives as _, MatchedReceiveVec, Root as _, Source};
use mpi::{Rank, Tag};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::label;
use crate::pending::Pending;
use crate::wait::Wait;

/// Capacity of the queue of each rank, in frames.
const CAPACITY: usize = 16;
/// Maximum frame length: MPI counts bytes in a C `int`, and a label follows.
const LONGEST: usize = i32::MAX as usize - label::LONGEST;

/// Tag of a frame.
const FRAME: Tag = 1;
/// Tag of an abort: the world stopped.
const ABORT: Tag = 2;
/// Tag of a farewell: the sender has left, and nothing follows.
const LEFT: Tag = 3;

/// Complete state of a rank, except for initializing and finalizing MPI.
pub(crate) struct Endpoint {
    rank: usize,
    comm: SimpleCommunicator,
    /// Machine number of each rank.
    machines: Vec<usize>,
    peers: Vec<Peer>,
    /// Frames of this rank to itself; MPI does not see them.
    own: VecDeque<Frame>,
    /// Aborts and farewells in transit.
    notices: Vec<Pending>,
    deadline: Duration,
    clock: Arc<Since>,
    /// First abort that this rank made or received.
    stopped: Arc<OnceLock<CommError>>,
    /// Result of leaving, once attempted.
    gone: Option<bool>,
}

/// Seconds since the endpoint was created.
struct Since(Instant);

impl Clock for Since {
    fn seconds(&self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}

/// Frames in transit between this rank and another.
#[derive(Default)]
struct Peer {
    sending: VecDeque<Pending>,
    receiving: Option<Pending>,
    left: bool,
}

// SAFETY: MPI is initialized with `MPI_THREAD_SERIALIZED`, so any thread may call it as long as no two do at once. Calls
// are made only here, through `&mut Endpoint`, and no two endpoints can be used at once: `Mpi` owns one, there is one
// `Mpi` per process, and a part of its world exists only while the `Mpi` is mutably borrowed.
#[allow(unsafe_code, reason = "handles of MPI are raw pointers in some implementations")]
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Creates the endpoint of this process's rank in `comm`, which no other code uses. Ranks that share memory are on
    /// one machine; this query to MPI waits for every rank, without a timeout.
    pub(crate) fn new(comm: SimpleCommunicator, deadline: Duration) -> Endpoint {
        let world = comm.size() as usize;
        let (machine, mut machines) = (comm.split_shared(comm.rank()), vec![0 as Rank; world]);
        let mut first = comm.rank();
        machine.process_at_rank(0).broadcast_into(&mut first);
        comm.all_gather_into(&first, &mut machines[..]);
        let machines = machines.into_iter().map(|first| first as usize).collect();
        Endpoint {
            machines,
            rank: comm.rank() as usize,
            comm,
            peers: (0..world).map(|_| Peer::default()).collect(),
            own: VecDeque::new(),
            notices: Vec::new(),
            deadline,
            clock: Arc::new(Since(Instant::now())),
            stopped: Arc::default(),
            gone: None,
        }
    }

    /// Returns once every rank has called it.
    pub(crate) fn meet(&mut self) -> Result<(), CommError> {
        let mut call = Call::default();
        call.scope.operation = "barrier";
        self.others().try_for_each(|other| self.send(other, Frame::new(), &mut call))?;
        self.others().try_for_each(|other| self.recv(other, &mut call).map(drop))
    }

    /// Returns a reference that is valid as long as this endpoint lives.
    pub(crate) fn alive(&self) -> Weak<impl Sized + use<>> {
        Arc::downgrade(&self.clock)
    }

    pub(crate) fn comm(&self) -> &SimpleCommunicator {
        &self.comm
    }

    /// Returns why the world stopped, if this rank knows of it.
    pub(crate) fn stopped(&self) -> Option<&CommError> {
        self.stopped.get()
    }

    /// Sends a goodbye, and receives and discards frames in transit until every other rank has done the same and has
    /// received everything sent to it. Returns false if the deadline passed first.
    pub(crate) fn leave(&mut self) -> bool {
        if let Some(complete) = self.gone {
            return complete;
        }
        self.tell_all(LEFT, &[]);
        let (mut wait, mut pool) = (Wait::new(self.deadline), FramePool::default());
        let complete = loop {
            for from in self.others() {
                if let Some(frame) = self.take(from, &mut pool) {
                    pool.put(frame);
                }
            }
            self.reclaim(&mut pool);
            let done = |peer: &Peer| peer.left && peer.sending.is_empty() && peer.receiving.is_none();
            if self.others().all(|other| done(&self.peers[other])) && self.notices.is_empty() {
                break true;
            }
            if !wait.pause() {
                break false;
            }
        };
        self.gone = Some(complete);
        complete
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank;
        (0..self.peers.len()).filter(move |other| *other != rank)
    }

    fn process(&self, rank: usize) -> Process<'_> {
        self.comm.process_at_rank(rank as Rank)
    }

    /// Sends a short notice to every other rank.
    fn tell_all(&mut self, tag: Tag, bytes: &[u8]) {
        for to in self.others() {
            let notice = Pending::send(bytes.to_vec(), &self.process(to), tag);
            self.notices.push(notice);
        }
    }

    /// Reclaims the frames that MPI has sent.
    fn reclaim(&mut self, pool: &mut FramePool) {
        self.notices.retain_mut(|notice| notice.test().is_none());
        for peer in &mut self.peers {
            peer.sending.retain_mut(|frame| match frame.test() {
                Some(frame) => {
                    pool.put(frame);
                    false
                }
                None => true,
            });
        }
    }

    /// Returns the next frame from another rank, or from this one, if it has arrived. Processes notices that arrive meanwhile.
    fn take(&mut self, from: usize, pool: &mut FramePool) -> Option<Frame> {
        if from == self.rank {
            return self.own.pop_front();
        }
        while self.peers[from].receiving.is_none() && !self.peers[from].left {
            // With any tag: only messages that one receive could match are sure to come in the order they were sent.
            let (message, status) = self.process(from).immediate_matched_probe()?;
            match status.tag() {
                FRAME => self.peers[from].receiving = Some(begin_to_receive(message, &status, pool)),
                tag => self.heed(tag, message, status),
            }
        }
        let peer = &mut self.peers[from];
        let frame = peer.receiving.as_mut()?.test()?;
        peer.receiving = None;
        Some(frame)
    }

    /// Removes the label from a frame that has arrived, and checks that the sender made the same call.
    fn checked(&mut self, from: usize, mut frame: Frame, call: &mut Call) -> Result<Frame, CommError> {
        if from == self.rank {
            return Ok(frame);
        }
        if let Err(theirs) = label::remove(&mut frame, &call.scope) {
            let error = CommError::OutOfStep { rank: self.rank, other: from, during: call.scope, theirs };
            self.abort(call.scope, &error.to_string());
            return Err(error);
        }
        // The callers of a barrier give no frame back.
        if frame.is_empty() {
            call.pool.put(std::mem::take(&mut frame));
        }
        Ok(frame)
    }

    /// Processes a notice. It is short, so receiving it does not wait.
    fn heed(&mut self, tag: Tag, message: Message, status: Status) {
        let from = status.source_rank() as usize;
        let (bytes, _) = (message, status).matched_receive_vec::<u8>();
        match tag {
            LEFT => self.peers[from].left = true,
            _ => drop(self.stopped.set(abort_of(from, &bytes))),
        }
    }

    /// Receives pending messages, and fails if any rank stopped the world.
    fn listen(&mut self) -> Result<(), CommError> {
        if self.stopped.get().is_none()
            && let Some((message, status)) = self.comm.any_process().immediate_matched_probe_with_tag(ABORT)
        {
            self.heed(ABORT, message, status);
        }
        self.stopped.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Returns whether rank `to` accepts no more frames; it may have sent some before it left.
    fn has_left(&self, to: usize) -> bool {
        to != self.rank && (self.peers[to].left || self.process(to).immediate_probe_with_tag(LEFT).is_some())
    }

    /// Creates the error for rank `other`, which is gone: because of an abort that preceded its farewell, or because it
    /// had finished.
    fn left(&mut self, other: usize, during: Scope) -> CommError {
        self.listen().err().unwrap_or_else(|| {
            let cause = CommError::LEFT.to_owned();
            self.abort(during, &format!("lost rank {other}: {cause}"));
            CommError::Lost { rank: self.rank, other, address: None, during, cause }
        })
    }

    /// Handles a wait for one of `others` that reached the deadline.
    fn overdue(&mut self, others: &[usize], call: &Call) -> CommError {
        let error = CommError::deadline(self.rank, others, call.scope, call.longest(self.deadline));
        self.abort(call.scope, &error.reason());
        error
    }

    fn waits_for_room(&self, to: usize) -> bool {
        let queued = if to == self.rank { self.own.len() } else { self.peers[to].sending.len() };
        queued >= CAPACITY
    }
}

impl Transport for Endpoint {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    fn machine(&self, rank: usize) -> usize {
        self.machines[rank]
    }

    fn longest_frame(&self) -> usize {
        LONGEST
    }

    fn send(&mut self, to: usize, mut frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.listen()?;
        if frame.len() > LONGEST {
            let bytes = frame.len();
            let reason = format!("a frame of {bytes} bytes is too long: MPI counts to {LONGEST}. Use smaller buckets");
            self.abort(call.scope, &reason);
            return self.listen();
        }
        let mut wait = Wait::new(call.longest(self.deadline));
        self.reclaim(&mut call.pool);
        if to != self.rank {
            label::append(&mut frame, &call.scope);
        }
        while self.waits_for_room(to) && !self.has_left(to) {
            if !wait.pause() {
                return Err(self.overdue(&[to], call));
            }
            self.listen()?;
            self.reclaim(&mut call.pool);
        }
        if self.has_left(to) {
            return Err(self.left(to, call.scope));
        }
        if to == self.rank {
            self.own.push_back(frame);
        } else {
            let sending = Pending::synchronous(frame, &self.process(to), FRAME);
            self.peers[to].sending.push_back(sending);
        }
        Ok(())
    }

    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.listen()?;
        let mut wait = Wait::new(call.longest(self.deadline));
        loop {
            let first = from.iter().find_map(|rank| Some((*rank, self.take(*rank, &mut call.pool)?)));
            if let Some((from, frame)) = first {
                return Ok((from, self.checked(from, frame, call)?));
            }
            self.listen()?;
            if from.iter().all(|rank| self.peers[*rank].left) {
                return Err(self.left(from[0], call.scope));
            }
            self.reclaim(&mut call.pool);
            if !wait.pause() {
                return Err(self.overdue(from, call));
            }
        }
    }

    /// Moves no data, but reclaims the frames that were sent meanwhile, for reuse.
    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        self.reclaim(&mut call.pool);
        Ok(())
    }

    fn abort(&mut self, during: Scope, reason: &str) {
        let error = CommError::Aborted { by: self.rank, during, reason: reason.to_owned() };
        if self.stopped.set(error).is_ok() {
            self.tell_all(ABORT, &label::abort(&during, reason));
        }
    }

    fn abort_cause(&self) -> AbortCause {
        let stopped = Arc::clone(&self.stopped);
        Box::new(move || stopped.get().cloned())
    }

    /// Returns a clock of the seconds since this endpoint was created.
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        Some(Arc::clone(&self.clock) as _)
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.leave();
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.peers.len())
    }
}

fn begin_to_receive(message: Message, status: &Status, pool: &mut FramePool) -> Pending {
    let bytes = usize::try_from(status.count(u8::equivalent_datatype())).expect("a message of bytes has a length");
    let mut frame = pool.take_for(bytes);
    frame.resize(bytes, 0);
    Pending::receive(message, frame)
}

/// Decodes the abort of rank `by`. Malformed bytes give an abort without a reason.
fn abort_of(by: usize, bytes: &[u8]) -> CommError {
    let (during, reason) = label::split(bytes)
        .map_or_else(Default::default, |(reason, label)| (label.leak(), String::from_utf8_lossy(reason).into_owned()));
    CommError::Aborted { by, during, reason }
}
