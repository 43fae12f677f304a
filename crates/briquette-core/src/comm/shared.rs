//! Several sessions of one rank on one transport, used in turn.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::background::Closed;
use super::{AbortCause, Call, Clock, Frame, Scope, Session, Transport};
use crate::error::CommError;

/// Maximum number of sessions that a step header can distinguish.
const MOST_SHARES: usize = 256;

/// One session's handle to the shared state.
#[derive(Clone)]
pub(super) struct Share {
    /// Number of the session, from 0, in order of creation.
    number: usize,
    world: usize,
    rank: usize,
    all: Arc<Mutex<All>>,
}

struct All {
    transport: Box<dyn Transport>,
    sessions: usize,
    /// The transport's channels opened by any of the sessions.
    channels: BTreeSet<usize>,
    /// The session that made the last call, and the end of that call.
    last: (usize, f64),
}

impl Session {
    /// Creates another session of this rank on the same transport, for a second optimizer in the same world (as for a
    /// GAN, or for actor and critic). Each session has separate counters, scope and background channels. The sessions
    /// share one clock, unless it is the wall clock.
    ///
    /// One thread uses the sessions **one after the other, in the same order on every rank**. They must also be created
    /// in the same order. If ranks take steps in different orders, the step headers detect it and report an error.
    /// Channels belong to the transport: it must have as many as all sessions open together. The rank leaves with the
    /// last session.
    ///
    /// ```
    /// use briquette_core::comm::Local;
    /// use briquette_core::error::CommError;
    ///
    /// let sums = Local::run(2, |mut generator| {
    ///     let mut critic = generator.share();
    ///     let (mut x, mut y) = ([1.0], [10.0]);
    ///     critic.all_reduce_sum(&mut x)?;
    ///     generator.all_reduce_sum(&mut y)?;
    ///     assert_eq!((critic.share_number(), critic.traffic().sent), (1, 4));
    ///     Ok::<_, CommError>([x, y])
    /// });
    /// assert_eq!(sums, vec![Ok([[2.0], [20.0]]); 2]);
    /// ```
    ///
    /// # Panics
    /// For more than 256 sessions of a rank, and within a [group](Self::within).
    #[must_use]
    pub fn share(&mut self) -> Session {
        assert!(self.group.is_none(), "a session is shared by the whole world, not within a group");
        let own = self.shared.take().unwrap_or_else(|| self.begin_sharing());
        let number = own.lock().sessions;
        assert!(number < MOST_SHARES, "a rank has at most {MOST_SHARES} sessions on one transport");
        own.lock().sessions += 1;
        let other = Share { number, ..own.clone() };
        let mut session = Session::with_timeline(Box::new(other.clone()), self.call.timeline.share());
        session.failed.clone_from(&self.failed);
        session.recorder = self.recorder.clone();
        (self.shared, session.shared) = (Some(own), Some(other));
        session
    }

    fn begin_sharing(&mut self) -> Share {
        let (rank, world) = (self.transport.rank(), self.transport.world());
        let transport = std::mem::replace(&mut self.transport, Box::new(Closed { rank, world }));
        let channels = self.background.keys().copied().collect();
        let all = All { transport, sessions: 1, channels, last: (0, f64::NEG_INFINITY) };
        let share = Share { number: 0, rank, world, all: Arc::new(Mutex::new(all)) };
        self.transport = Box::new(share.clone());
        share
    }

    /// Returns the number of this session among those that [share](Self::share) this rank's transport, counted from 0.
    pub fn share_number(&self) -> usize {
        self.shared.as_ref().map_or(0, |share| share.number)
    }

    /// Returns the end of another session's call, on this session's clock, if that call was the last one. Since then,
    /// this rank has computed for this session.
    pub fn other_used_until(&self) -> Option<f64> {
        let share = self.shared.as_ref()?;
        let (number, at) = share.lock().last;
        (number != share.number && at.is_finite()).then_some(at)
    }

    /// Records that a call has ended.
    pub(super) fn used(&mut self) {
        let now = self.now();
        if let Some(share) = &self.shared {
            share.lock().last = (share.number, now);
        }
    }

    /// Returns the transport's number for a new channel of this session.
    pub(super) fn channel_number(&self, channel: usize) -> usize {
        self.shared.as_ref().map_or(channel, |share| {
            let mut all = share.lock();
            let number =
                (1..).find(|number| !all.channels.contains(number)).expect("there are more numbers than channels");
            all.channels.insert(number);
            number
        })
    }
}

impl Share {
    /// Locks the shared state. Only the transport's own code runs while the lock is held.
    fn lock(&self) -> MutexGuard<'_, All> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Transport for Share {
    fn rank(&self) -> usize {
        self.rank
    }
    fn world(&self) -> usize {
        self.world
    }
    fn machine(&self, rank: usize) -> usize {
        self.lock().transport.machine(rank)
    }
    fn longest_frame(&self) -> usize {
        self.lock().transport.longest_frame()
    }
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError> {
        self.lock().transport.send(to, frame, call)
    }
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError> {
        self.lock().transport.recv_any(from, call)
    }
    fn recv_any_within(
        &mut self,
        from: &[usize],
        longest: Duration,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        self.lock().transport.recv_any_within(from, longest, call)
    }
    fn flush(&mut self, call: &mut Call) -> Result<(), CommError> {
        self.lock().transport.flush(call)
    }
    fn abort(&mut self, during: Scope, reason: &str) {
        self.lock().transport.abort(during, reason);
    }
    fn abort_cause(&self) -> AbortCause {
        self.lock().transport.abort_cause()
    }
    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        self.lock().transport.open(channel)
    }
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        self.lock().transport.clock()
    }
}
