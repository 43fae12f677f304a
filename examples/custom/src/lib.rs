//! Custom algorithms for Briquette.
//!
//! - [`FirstBits`]: a compressor, `cargo run --example custom_compressor`.
//! - [`WhileItHelps`]: a controller that reads the loss.
//! - [`EveryNth`]: a reducer.
//! - [`Doubling`]: a strategy that averages parameters at doubling intervals.
//!
//! All are in a [`catalogue`]. So flags and TOML files may name them, alone or with Briquette's own algorithms:
//!
//! ```sh
//! cargo run --example by_name -- --set controller=while-it-helps:10 --set reducer=ladder
//! ```
//!
//! [`train`] trains a small network with any of them on four ranks, each a thread.

mod compressor;
mod controller;
mod reducer;
mod strategy;
mod training;

use briquette::core::config::Catalogue;
use briquette::core::error::ConfigError;

pub use compressor::FirstBits;
pub use controller::WhileItHelps;
pub use reducer::EveryNth;
pub use strategy::Doubling;
pub use training::{Outcome, RANKS, Saved, train};

/// Returns the algorithms of this crate that a configuration can name.
///
/// # Errors
/// If a name is taken, or if a representative does not build.
pub fn catalogue() -> Result<Catalogue, ConfigError> {
    Catalogue::new()
        .with_compressor::<FirstBits>()?
        .with_controller::<WhileItHelps>()?
        .with_reducer::<EveryNth>()?
        .with_strategy::<Doubling>()
}
