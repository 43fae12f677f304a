//! Simulated networks for [`briquette-core`](briquette_core): real ranks and real bytes, simulated seconds.
//!
//! A simulation replaces the clock of a [`Session`](briquette_core::Session) by a
//! [`Timeline`](briquette_core::comm::Timeline) that computes its seconds. Results, traffic and errors are those of the
//! transport.
//!
//! - [`Simulated`]: worlds of threads on a [`Network`], a link model with bandwidth, latency and topology. [`Compute`]
//!   determines the compute times of ranks: fixed, given by [`Paces`] for each rank and step, or measured.
//! - [`SessionExt`]: methods that add given compute times to a session without a simulated network, add recorded encode
//!   and decode times ([`CompressSeconds`]), and record the frames of a session.
//! - [`replay`]: computes the simulated seconds of recorded frames on any network.
//! - [`membership`]: elastic worlds over simulated weeks, with losses, elections and new members.

#![forbid(unsafe_code)]

mod arrivals;
mod compress_seconds;
pub mod membership;
mod network;
mod paces;
mod recording;
mod session;
mod simulated;
mod source;
mod timed;
mod turns;

pub use compress_seconds::CompressSeconds;
pub use network::Network;
pub use paces::Paces;
pub use recording::{Event, replay};
pub use session::SessionExt;
pub use simulated::{Compute, Simulated};
