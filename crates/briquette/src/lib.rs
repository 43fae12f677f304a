//! Data-parallel training for [Burn](https://burn.dev) over the network you have.

mod checkpoint;
mod clock;
mod compressed;
mod error;
mod flat;
mod hello;
mod optimizer;
mod synchronizer;

pub use briquette_core as core;
pub use briquette_core::config::Config;

pub use checkpoint::{Checkpoint, WorldChange};
pub use clock::WallClock;
pub use compressed::{Compressed, CompressedState};
pub use error::{Error, StepError};
pub use optimizer::DistributedOptimizer;
pub use synchronizer::{StepReport, Synchronizer};
