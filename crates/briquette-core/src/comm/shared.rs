//! Several sessions of one rank, used in turns.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::background::Closed;
use super::{AbortCause, Call, Clock, Frame, Scope, Session, Transport};
use crate::error::CommError;

/// Sessions that can tell each other apart in a step header.
const MOST_SHARES: usize = 256;

/// One session's part in what several share.
#[derive(Clone)]
pub(super) struct Share {
    /// Counted from 0, in the order in which they were made.
    number: usize,
    world: usize,
    rank: usize,
    all: Arc<Mutex<All>>,
}

struct All {
    transport: Box<dyn Transport>,
    sessions: usize,
    /// The transport's channels that one of them has opened.
    channels: BTreeSet<usize>,
    /// The session that made the last call, and when that ended.
    last: (usize, f64),
}

impl Session {
    /// Another session of this rank on the same transport, for a second optimizer of the same world (a GAN, actor and critic): each has
    /// its own counters, scope and background channels, and a clock that is not the wall's is one for both.
    ///
    /// They are used **one after the other, in the same order on every rank**, by one thread; so is this made. Steps that ranks take in
    /// another order are an error where both step headers meet. Channels are the transport's: it must have as many as all of them open
    /// together. The rank leaves with the last one.
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
        let mut session = Session::with_time(Box::new(other.clone()), self.call.time.share());
        session.compress_seconds.clone_from(&self.compress_seconds);
        session.failed.clone_from(&self.failed);
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

    /// Number of this session among those that [share](Self::share) this rank's transport, counted from 0.
    pub fn share_number(&self) -> usize {
        self.shared.as_ref().map_or(0, |share| share.number)
    }

    /// When a call of another session ended, on this one's clock, where that was the last one: this rank has computed for this session
    /// since then.
    pub fn other_used_until(&self) -> Option<f64> {
        let share = self.shared.as_ref()?;
        let (number, at) = share.lock().last;
        (number != share.number && at.is_finite()).then_some(at)
    }

    /// A call has ended.
    pub(super) fn used(&mut self) {
        let now = self.now();
        if let Some(share) = &self.shared {
            share.lock().last = (share.number, now);
        }
    }

    /// The transport's number for a channel of this session that is to be opened.
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
    /// Nothing but a transport's own code runs while holding it.
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
