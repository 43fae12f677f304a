//! Ranked byte pipes, and the collectives built on them.
//!
//! A [`Transport`] moves owned [`Frame`]s between ranks; it knows bytes and ranks, nothing of gradients. A [`Session`] owns
//! one and adds what is the same over all of them: collectives, counters, a clock, the scope that errors quote, frames to be
//! used again. [`within`](Session::within) makes a world of some ranks; [`start`](Session::start) exchanges in the background, on a
//! channel of its own. Threads, sockets and MPI therefore give the same bits: which algorithm an all-reduce uses depends on the
//! vector's length alone.
//!
//! - [`Local`]: the ranks are threads of this process.
//! - [`Simulated`]: sessions over `Local` with a virtual clock and a link model: real ranks and real bytes.
//! - [`replay`]: the simulated seconds of a session's recorded frames on any network.
//! - [`Faulty`]: a test double around a transport that fails at a chosen call.

mod arrivals;
mod background;
mod collectives;
mod compress_seconds;
mod faulty;
mod group;
mod local;
mod network;
mod paces;
mod pieces;
mod places;
mod pool;
mod recording;
mod ring;
mod session;
mod shared;
mod simulated;
mod time;
mod transport;
mod turns;

pub use background::Pending;
pub(crate) use collectives::expect_size;
pub use collectives::{RING_FRAME, SMALL_ALL_REDUCE, all_reduce_traffic};
pub use compress_seconds::CompressSeconds;
pub use faulty::Faulty;
pub use local::{Local, LocalBuilder, run_ranks};
pub use network::Network;
pub use paces::Paces;
pub use pieces::{BROADCAST_PIECE, PIECE};
pub use places::Places;
pub use pool::FramePool;
pub use recording::{Event, replay};
pub(crate) use ring::{Hop, Hops};
pub use session::{Session, Spent};
pub use simulated::{Compute, Simulated};
pub use transport::{Call, Transport};

use std::fmt;

use crate::error::CommError;

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
pub type AbortCause = Box<dyn Fn() -> Option<CommError> + Send>;

/// An owned block of bytes on its way between ranks.
pub type Frame = Vec<u8>;

/// A clock somebody hands in: core itself reads no clock.
pub trait Clock: Send {
    /// Seconds since some fixed moment; never decreases.
    fn seconds(&self) -> f64;
}
