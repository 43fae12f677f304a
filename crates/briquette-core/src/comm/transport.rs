//! What a network, or what stands for one, must be able to do: ranked byte pipes.

use std::sync::Arc;
use std::time::Duration;

use super::time::Time;
use super::{AbortCause, Clock, Frame, FramePool, Scope};
use crate::error::CommError;

/// Blocking, ranked byte pipes: one rank's endpoint. Frames from one rank to another arrive in the order they were sent.
///
/// It moves bytes and knows when the world has stopped. Everything else is the [`Session`](super::Session)'s, which owns it:
/// collectives, counters, clock, and what a [`Call`] lends.
///
/// Every wait has a deadline. After an error the endpoint is of no further use: the session repeats the first one, and the
/// calls of the other ranks fail too. Dropping an endpoint leaves the world; the session
/// [aborts](Self::abort) before that where its thread panics.
pub trait Transport: Send {
    /// This rank's number, `0..world()`.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// A number of the machine that a rank runs on: ranks with the same one share it. By default each has its own.
    fn machine(&self, rank: usize) -> usize {
        rank
    }

    /// Queues a frame for rank `to`, which is below `world()`; waits, until the deadline, while the queue is full.
    ///
    /// # Errors
    /// [`CommError`] when the deadline passes, the other rank is gone, or any rank aborted.
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError>;

    /// The next frame from any of the ranks `from`, which are below `world()`, and the rank that sent it. Where several have
    /// sent one, that of the first of them in `from`; ranks that have left are passed over while one is there that has not.
    ///
    /// # Errors
    /// As for [`send`](Self::send); the other rank is gone when all of `from` are, or the connection to one of them broke.
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError>;

    /// The next frame from rank `from`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn recv(&mut self, from: usize, call: &mut Call) -> Result<Frame, CommError> {
        self.recv_any(&[from], call).map(|(_, frame)| frame)
    }

    /// Returns when everything that was sent is on its way and needs no further call of this rank. Nothing to do where
    /// `send` keeps nothing back.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn flush(&mut self, _call: &mut Call) -> Result<(), CommError> {
        Ok(())
    }

    /// The longest frame that it takes, in bytes; the same on every rank. Longer messages go in [pieces](super::PIECE).
    fn longest_frame(&self) -> usize {
        usize::MAX
    }

    /// Makes every rank's pending and later calls fail with this rank's number, what it was doing, and `reason`.
    fn abort(&mut self, during: Scope, reason: &str);

    /// Why the world stopped, for code that outlives this endpoint. Nothing where it is not kept.
    fn abort_cause(&self) -> AbortCause {
        Box::new(|| None)
    }

    /// A second endpoint of this rank, to be owned by another thread: frames of a channel arrive at the same channel of the
    /// other ranks and at no other. An abort on any channel stops the world, and so all of them. Asked for once a channel,
    /// counted from 1; dropped before this one.
    ///
    /// # Errors
    /// [`CommError::Channel`] where the transport has no such channel, as by default.
    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        let cause = "this transport has no background channels".to_owned();
        Err(CommError::Channel { rank: self.rank(), channel, cause })
    }

    /// The clock that this endpoint was configured with. A session without one shows 0 seconds.
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        None
    }
}

/// What a session lends its transport for the time of a call.
#[derive(Debug, Default)]
pub struct Call {
    /// What this rank is doing, for errors and for what the transport adds to frames.
    pub scope: Scope,
    /// Frames to be used again.
    pub pool: FramePool,
    /// Deadlines that a wait may take beside the first: more than none for a rank that waits for one that itself waits.
    pub patience: u32,
    /// When the frame departs or departed, in simulated seconds; [`Local`](super::Local) carries it, others need not.
    pub(super) departure: f64,
    pub(super) time: Time,
}

impl Call {
    /// How long a wait may take where `deadline` is that of the transport.
    pub fn longest(&self, deadline: Duration) -> Duration {
        deadline.saturating_mul(self.patience.saturating_add(1))
    }

    /// A transport over which a network is simulated calls this before it blocks, so that another rank may compute.
    pub(super) fn waits(&mut self) {
        self.time.end_turn();
    }

    /// A number that changes as long as waits are not in vain, whatever the deadline.
    pub(super) fn progress(&self) -> Option<u64> {
        self.time.progress()
    }
}
