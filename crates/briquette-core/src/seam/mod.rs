//! Seams: the traits that every algorithm implements, and the values that cross them. Each family of algorithms has a module of its
//! own, such as [`compress`](crate::compress), which holds the algorithms and re-exports the family's trait for other crates.

mod aggregator;
mod arriving;
mod compressor;
mod controller;
mod device;
mod knob;
mod rank_step;
mod reducer;
mod sent_input;
mod strategy;

pub use aggregator::*;
pub use arriving::*;
pub use compressor::*;
pub use controller::*;
pub use device::*;
pub use knob::*;
pub use rank_step::*;
pub use reducer::*;
pub use sent_input::*;
pub use strategy::*;
