//! Point-to-point transports between ranks, and collectives over them.
//!
//! A [`Transport`] moves owned [`Frame`]s between ranks; it handles bytes and ranks, and no gradients. A [`Session`]
//! owns a transport and adds everything that does not depend on it: collectives, counters, a clock, the scope for error
//! messages, a pool of reusable frames. [`within`](Session::within) creates a subgroup of ranks;
//! [`start`](Session::start) runs an exchange in the background, on a separate channel. Threads, sockets and MPI give
//! the same bits, because the algorithm of an all-reduce depends on the vector's length alone.
//!
//! - [`Local`]: the ranks are threads of this process.
//! - [`Simulated`]: sessions over `Local` with a virtual clock and a link model: real ranks and real bytes.
//! - [`replay`]: computes the simulated seconds of a session's recorded frames on any network.
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
pub(crate) use collectives::RING_FRAME;
pub(crate) use collectives::expect_size;
pub use collectives::{SMALL_ALL_REDUCE, all_reduce_traffic};
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

/// A rank's current operation, for error messages: `all_gather of bucket 2 at step 1841`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scope {
    /// The collective or exchange, `all_gather`.
    pub operation: &'static str,
    /// The optimizer step.
    pub step: u64,
    /// The bucket, if the exchange has several.
    pub bucket: Option<usize>,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Scope::show(f, self.operation, self.step, self.bucket)
    }
}

impl Scope {
    /// Name of the operation between exchanges: the rank computes.
    pub const COMPUTE: &str = "compute";

    /// Writes an operation in the format of [`Scope`]. For operations of other ranks, whose name is no `&'static str`.
    ///
    /// # Errors
    /// Errors of the formatter.
    pub fn show(f: &mut fmt::Formatter<'_>, operation: &str, step: u64, bucket: Option<usize>) -> fmt::Result {
        f.write_str(if operation.is_empty() { "idle" } else { operation })?;
        if let Some(bucket) = bucket {
            write!(f, " of bucket {bucket}")?;
        }
        write!(f, " at step {step}")
    }
}

/// A function that returns the reason why the world stopped, once it has stopped. It outlives the endpoint from which it
/// was obtained.
pub type AbortCause = Box<dyn Fn() -> Option<CommError> + Send>;

/// An owned block of bytes sent between ranks.
pub type Frame = Vec<u8>;

/// A clock supplied by the caller: this crate reads no clock.
pub trait Clock: Send {
    /// Returns the seconds since a fixed moment; never decreases.
    fn seconds(&self) -> f64;
}
