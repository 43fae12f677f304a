//! Data-parallel training by pressing what ranks tell each other.
//!
//! ```text
//! flat vector → layers → compressor → message → communicator → aggregate
//! ```
#![forbid(unsafe_code)]

pub mod aggregate;
pub mod comm;
pub mod compress;
pub mod config;
pub mod control;
pub mod error;
mod factor;
mod key;
pub mod layer;
mod layout;
mod math;
mod bits;
mod message;
pub mod reduce;
pub mod report;
pub mod state;
pub mod sync;
mod traffic;
mod wire;

pub use comm::{Communicator, Frame};
pub use factor::CompressionFactor;
pub use key::{BLOCK, Key, KeyRng};
pub use layout::{Layout, Slot};
pub use message::Message;
pub use traffic::Traffic;
