//! Ranked byte pipes, and the collectives built on them.
//!
//! A [`Communicator`] moves owned [`Frame`]s between ranks; it knows bytes and ranks, nothing of gradients. The
//! collectives are provided methods in `collectives.rs`, so that threads, sockets and MPI give the same bits: which
//! algorithm an all-reduce uses depends on the vector's length alone.
//!
//! - [`Local`]: the ranks are threads of this process.
//! - [`Simulated`]: real ranks and real bytes over `Local`, with a virtual clock and a link model.
//! - [`Stepped`]: any of them, with a clock that counts steps.
//! - [`Faulty`]: a test double that fails at a chosen call.

mod collectives;
mod faulty;
mod forward;
mod local;
mod network;
mod pool;
mod simulated;
mod stepped;
mod turns;
mod unfinished;

pub use collectives::{RING_FRAME, SMALL_ALL_REDUCE, all_reduce_traffic};
pub use faulty::Faulty;
pub(crate) use forward::forward;
pub use local::{Local, LocalBuilder, run_ranks};
pub use network::Network;
pub use pool::FramePool;
pub use simulated::{Compute, Simulated};
pub use stepped::Stepped;
pub use unfinished::Unfinished;

use std::fmt;

use crate::error::CommError;
use crate::traffic::Traffic;

/// What a rank is doing, for error messages: `all_gather of bucket 2 at step 1841`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope {
    /// The collective or exchange, `all_gather`.
    pub operation: &'static str,
    /// The optimizer step.
    pub step: u64,
    /// The bucket, where an exchange has several.
    pub bucket: Option<usize>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scope::show(f, self.operation, self.step, self.bucket)
    }
}

impl Scope {
    /// What a rank does between exchanges.
    pub const COMPUTE: &str = "compute";

    /// Writes what a rank does as scopes are shown, for what came from another rank: its operation is no `&'static str`.
    ///
    /// # Errors
    /// Those of the formatter.
    pub fn show(f: &mut fmt::Formatter<'_>, operation: &str, step: u64, bucket: Option<usize>) -> fmt::Result {
        f.write_str(if operation.is_empty() { "idle" } else { operation })?;
        if let Some(bucket) = bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " at step {step}")
    }
}

/// Why a world stopped, as soon as it did; outlives the endpoint it was asked of.
pub type Verdict = Box<dyn Fn() -> Option<CommError> + Send>;

/// An owned block of bytes on its way between ranks.
pub type Frame = Vec<u8>;

/// A clock somebody hands in: core itself reads no clock.
pub trait Clock: Send {
    /// Seconds since some fixed moment; never decreases.
    fn seconds(&self) -> f64;
}

/// Blocking, ranked byte pipes. Frames from one rank to another arrive in the order they were sent.
///
/// Every wait has a deadline. After an error the communicator is poisoned: every later call fails with the first
/// reason, and so do the calls of the other ranks.
pub trait Communicator: Send {
    /// This rank's number, `0..world()`.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// Hands a frame over for rank `to`; waits, until the deadline, while the queue is full.
    ///
    /// # Errors
    /// [`CommError`] when the deadline passes, the other rank is gone, or any rank aborted.
    fn send(&mut self, to: usize, frame: Frame) -> Result<(), CommError>;

    /// The next frame from rank `from`.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send).
    fn recv(&mut self, from: usize) -> Result<Frame, CommError>;

    /// Returns when everything that was sent is on its way and needs no further call of this rank. The collectives end
    /// with it, so that a rank which goes on computing keeps no rank waiting. Nothing to do where `send` keeps nothing back.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send).
    fn flush(&mut self) -> Result<(), CommError> {
        Ok(())
    }

    /// Makes every rank's pending and later calls fail with this rank's number and `reason`.
    fn abort(&mut self, reason: &str);

    /// Why the world stopped, for code that outlives this endpoint. Nothing where it is not kept.
    fn verdict(&self) -> Verdict {
        Box::new(|| None)
    }

    /// Seconds on this communicator's clock: wall time, simulated time, or always 0 without a clock.
    fn now(&self) -> f64;

    /// Sets a simulated clock, and the links idle: how a resumed run continues at the second it was saved, and how work
    /// outside of training is left out. Clocks that are not simulated ignore it.
    fn set_clock(&mut self, _seconds: f64) {}

    /// Bytes moved since this communicator was made.
    fn traffic(&self) -> Traffic;

    /// What this rank is doing; collectives and exchanges write it, errors quote it.
    fn scope(&mut self) -> &mut Scope;

    /// Frames to be used again.
    fn pool(&mut self) -> &mut FramePool;

    /// Called once at the start of every step's exchange, when the rank has finished computing.
    fn begin_step(&mut self, step: u64) {
        *self.scope() = Scope { step, ..Scope::default() };
    }

    /// Whether a second thread may encode and decode beside a call. Not where the seconds of this rank are told apart by
    /// its calls: they would not say which thread took them.
    fn overlaps(&self) -> bool {
        true
    }

    /// Promises that this exchange makes no further call: what follows is decoding, and the next bucket may have the
    /// communicator meanwhile ([`Bucketed`](crate::layer::Bucketed)). Reducers say it after their last call, or not at all.
    /// One that runs others inside it hides their promise behind [`Unfinished`].
    fn finished(&mut self) {}

    /// Every rank's bytes to every rank: `parts[r]` becomes rank `r`'s, with `parts[rank()]` left empty, as the
    /// caller has its own. Lengths may differ between ranks. Earlier contents of `parts` go back to the pool.
    ///
    /// Moves `(W-1)·len` bytes out and the others' bytes in, pairwise: first to the ranks `+1`, `+2`, … of this one,
    /// then from `-1`, `-2`, …, so that the latency is paid once and no two ranks begin with the same target.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send).
    fn all_gather(&mut self, mine: &[u8], parts: &mut Vec<Frame>) -> Result<(), CommError> {
        collectives::all_gather(self, mine, parts)
    }

    /// The sum over ranks, the same bits on every rank.
    ///
    /// Up to [`SMALL_ALL_REDUCE`] values: an all-gather, summed in rank order. Above: a ring (reduce-scatter and
    /// all-gather) that moves `2(W-1)/W` of the vector out and in, in frames of at most [`RING_FRAME`] values. After an
    /// error `x` holds nothing of use.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send); [`CommError::Size`] when the ranks' vectors differ in length.
    fn all_reduce_sum(&mut self, x: &mut [f32]) -> Result<(), CommError> {
        collectives::all_reduce_sum(self, x)
    }

    /// The sum of a few exact numbers in rank order, the same bits on every rank.
    ///
    /// # Errors
    /// As for [`all_reduce_sum`](Communicator::all_reduce_sum).
    fn all_reduce_sum_f64(&mut self, x: &mut [f64]) -> Result<(), CommError> {
        collectives::all_reduce_sum_f64(self, x)
    }

    /// Rank `root`'s bytes to everyone: `bytes` is replaced on all other ranks.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send).
    fn broadcast(&mut self, root: usize, bytes: &mut Vec<u8>) -> Result<(), CommError> {
        collectives::broadcast(self, root, bytes)
    }

    /// Each rank's own bytes for each rank: `parts[r]` goes to rank `r`, and what rank `r` has for this one takes its place.
    /// `parts[rank()]` stays as it is. Lengths may differ.
    ///
    /// Moves the others' parts out and in, pairwise, in the order of [`all_gather`](Communicator::all_gather).
    ///
    /// # Errors
    /// As for [`send`](Communicator::send); the parts are then gone.
    ///
    /// # Panics
    /// When there are not `world()` parts.
    fn all_to_all(&mut self, parts: &mut [Frame]) -> Result<(), CommError> {
        collectives::all_to_all(self, parts)
    }

    /// Returns when every rank has called it.
    ///
    /// # Errors
    /// As for [`send`](Communicator::send).
    fn barrier(&mut self) -> Result<(), CommError> {
        collectives::barrier(self)
    }
}

/// A boxed communicator is one too, its own collectives included.
impl<C: Communicator + ?Sized> Communicator for Box<C> {
    forward!(self => (**self); rank world send recv flush abort verdict now set_clock traffic scope pool overlaps
        finished begin_step collectives);
}
