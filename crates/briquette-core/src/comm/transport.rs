//! Transport interface: ranked byte pipes over a network or a substitute for one.

use std::sync::Arc;
use std::time::Duration;

use super::{AbortCause, Clock, Frame, FramePool, Scope, Timeline};
use crate::error::CommError;

/// One rank's endpoint of a transport: blocking pipes of bytes to and from every rank. Frames from one rank to another
/// arrive in the order in which they were sent.
///
/// A transport moves bytes and detects that the world has stopped. The [`Session`](super::Session) that owns it does
/// everything else: collectives, counters, and the clock. It lends its data to the transport in a [`Call`].
///
/// Every wait has a deadline. After an error, the endpoint is unusable: the session repeats the first error, and the
/// calls of the other ranks fail too. An endpoint that is dropped leaves the world. If its thread panics, the session
/// [aborts](Self::abort) first.
pub trait Transport: Send {
    /// Returns this rank's number, `0..world()`.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn world(&self) -> usize;

    /// Returns a number for the machine of a rank: ranks with the same number share a machine. By default, each rank is
    /// on its own machine.
    fn machine(&self, rank: usize) -> usize {
        rank
    }

    /// Queues a frame for rank `to`, which is below `world()`. Blocks while the queue is full, until the deadline.
    ///
    /// # Errors
    /// [`CommError`] when the deadline passes, the other rank is gone, or any rank aborted.
    fn send(&mut self, to: usize, frame: Frame, call: &mut Call) -> Result<(), CommError>;

    /// Receives the next frame from any of the ranks `from`, which are below `world()`, and returns the sender with it.
    /// If several ranks have sent a frame, the first of them in `from` counts. Ranks that have left are skipped while
    /// another one remains.
    ///
    /// # Errors
    /// As for [`send`](Self::send). The other rank counts as gone when all of `from` are gone, or when the connection
    /// to one of them broke.
    fn recv_any(&mut self, from: &[usize], call: &mut Call) -> Result<(usize, Frame), CommError>;

    /// Does the same, and returns `None` if no frame has arrived after `longest`. By default, it waits as long as
    /// [`recv_any`](Self::recv_any).
    ///
    /// # Errors
    /// As for [`recv_any`](Self::recv_any).
    fn recv_any_within(
        &mut self,
        from: &[usize],
        _longest: Duration,
        call: &mut Call,
    ) -> Result<Option<(usize, Frame)>, CommError> {
        self.recv_any(from, call).map(Some)
    }

    /// Receives the next frame from rank `from`.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn recv(&mut self, from: usize, call: &mut Call) -> Result<Frame, CommError> {
        self.recv_any(&[from], call).map(|(_, frame)| frame)
    }

    /// Blocks until all sent frames are on their way and need no further call of this rank. Does nothing if `send`
    /// buffers nothing.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    fn flush(&mut self, _call: &mut Call) -> Result<(), CommError> {
        Ok(())
    }

    /// Returns the length of the longest frame accepted, in bytes; the same on every rank. Longer messages are split
    /// into [pieces](super::PIECE).
    fn longest_frame(&self) -> usize {
        usize::MAX
    }

    /// Makes every rank's pending and later calls fail with this rank's number, its current operation, and `reason`.
    fn abort(&mut self, during: Scope, reason: &str);

    /// Returns a function that reads why the world stopped, for code that outlives this endpoint. The function returns
    /// `None` if the transport does not keep the reason.
    fn abort_cause(&self) -> AbortCause {
        Box::new(|| None)
    }

    /// Opens a further endpoint of this rank, a *channel*, to be owned by another thread. Frames of a channel arrive
    /// only at the same channel of the other ranks. An abort on any channel stops the world, and so all channels.
    /// Called once per channel, counted from 1. The channel's endpoint is dropped before this one.
    ///
    /// # Errors
    /// [`CommError::Channel`] if the transport has no such channel, as by default.
    fn open(&mut self, channel: usize) -> Result<Box<dyn Transport>, CommError> {
        let cause = "this transport has no background channels".to_owned();
        Err(CommError::Channel { rank: self.rank(), channel, cause })
    }

    /// Returns the clock with which this endpoint was configured. A session without one shows 0 seconds.
    fn clock(&self) -> Option<Arc<dyn Clock + Sync>> {
        None
    }
}

/// Session data lent to the transport for a call.
#[derive(Debug, Default)]
pub struct Call {
    /// This rank's current operation, for errors and for the metadata that the transport adds to frames.
    pub scope: Scope,
    /// Pool of reusable frames.
    pub pool: FramePool,
    /// Number of additional deadlines that a wait may take: more than 0 for a rank that waits for a rank that itself
    /// waits.
    pub patience: u32,
    /// Departure of the frame, in seconds of a simulated timeline. [`Local`](super::Local) carries it; other transports need not.
    pub(super) departure: f64,
    pub(super) timeline: Box<dyn Timeline>,
}

impl Call {
    /// Returns the maximum time of a wait, for the transport's `deadline`.
    pub fn longest(&self, deadline: Duration) -> Duration {
        deadline.saturating_mul(self.patience.saturating_add(1))
    }

    /// Ends this rank's turn to compute, so that another rank may compute. A transport under a simulated network calls
    /// it before it blocks.
    pub(super) fn waits(&mut self) {
        self.timeline.end_turn();
    }

    /// Returns a number that changes while awaited work makes progress; see
    /// [`Timeline::progress`](super::Timeline::progress).
    pub(super) fn progress(&self) -> Option<u64> {
        self.timeline.progress()
    }
}
