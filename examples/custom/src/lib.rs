//! Custom algorithms for Briquette.
//!
//! - [`FirstBits`]: a compressor, `cargo run --example custom_compressor`.
//! - [`WhileItHelps`]: a controller that reads the loss, `cargo run --example custom_controller`.
//! - [`Doubling`]: a strategy that averages parameters at doubling intervals, `cargo run --example custom_strategy`.
//!
//! [`train`] trains a small network with any of them on four ranks, each a thread.

mod compressor;
mod controller;
mod strategy;
mod training;

pub use compressor::FirstBits;
pub use controller::WhileItHelps;
pub use strategy::Doubling;
pub use training::{Outcome, RANKS, Saved, train};
