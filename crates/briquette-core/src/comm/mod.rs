//! Point-to-point transports between ranks, and collectives over them.
//!
//! A [`Transport`] moves owned [`Frame`]s (blocks of bytes) between ranks; it knows nothing of gradients. A [`Session`]
//! owns a transport and adds everything that does not depend on it: collectives, counters, a clock, the current
//! operation for error messages, a pool of reusable frames. [`within`](Session::within) creates a subgroup of ranks,
//! and [`start`](Session::start) runs an exchange in the background, on a separate channel. Threads, sockets and MPI
//! give the same bits, because the algorithm of an all-reduce depends only on the vector's length.
//!
//! - [`Local`]: the ranks are threads of this process.
//! - [`Faulty`]: a test double around a transport that fails at a chosen call.
//!
//! A session's seconds come from its [`Timeline`]. Simulated networks are timelines over `Local`, in the crate
//! `briquette-sim`: real ranks and real bytes, simulated seconds.

mod background;
mod blame;
mod collectives;
mod faulty;
mod group;
mod local;
mod machine_map;
mod pieces;
mod pool;
mod recorder;
mod ring;
mod session;
mod shared;
mod timeline;
mod transport;

pub use crate::scope::Scope;
pub use background::Pending;
pub use blame::culprits;
pub(crate) use collectives::RING_FRAME;
pub(crate) use collectives::expect_size;
pub use collectives::{SMALL_ALL_REDUCE, all_reduce_traffic};
pub use faulty::Faulty;
pub use local::{Local, LocalBuilder, run_ranks};
pub use machine_map::MachineMap;
pub use pieces::{BROADCAST_PIECE, PIECE};
pub use pool::FramePool;
pub use recorder::{Failure, Record, Recorder, Transfer, Way};
pub(crate) use ring::{Hop, Hops};
pub use session::{Session, SessionId, Spent};
pub use timeline::{JobStart, Overdue, Sender, Timeline};
pub use transport::{Call, Transport};

use crate::error::CommError;

/// Function that returns the reason why the world stopped, once it has stopped. The function outlives the endpoint from
/// which it was obtained.
pub type AbortCause = Box<dyn Fn() -> Option<CommError> + Send>;

/// An owned block of bytes sent between ranks.
pub type Frame = Vec<u8>;

/// A clock supplied by the caller: this crate reads no clock.
pub trait Clock: Send {
    /// Returns the seconds since a fixed moment; never decreases.
    fn seconds(&self) -> f64;
}
