//! Settings of algorithms: their traits by family, the value that holds those of any algorithm, and an exchange made of them. The
//! algorithms are above; [`config`](crate::config) lists them and decides what may be combined.

mod compressor;
mod described;
mod exchange;
mod family;
mod parts;
mod reducer;
mod rules;
mod strategy;

pub use briquette_derive::Described;
pub use compressor::CompressorConfig;
pub use described::Described;
pub use exchange::{CompressionDevice, Exchange, Probing};
pub use family::{Algorithm, Entry, Family};
pub(crate) use family::{sealed::Sealed, text_of};
pub use parts::*;
pub use reducer::{DownlinkResidual, ReducerSettings, ReducerTraits};
pub use rules::{Rule, SlotPattern};
pub use strategy::{Sends, StrategySettings, StrategyTraits};

/// The strategy: decides when ranks exchange, and whether they exchange gradients or parameters.
pub type StrategyConfig = Algorithm<dyn StrategySettings>;

/// The reducer: combines vectors.
pub type ReducerConfig = Algorithm<dyn ReducerSettings>;

/// A compressor without a compressor of its values: encodes a vector. Settings hold a [`CompressorConfig`].
pub type CompressorKind = Algorithm<dyn CompressorSettings>;

/// The aggregator: combines contributions into one vector.
pub type AggregatorConfig = Algorithm<dyn AggregatorSettings>;

/// The feedback: handles the residual.
pub type Feedback = Algorithm<dyn FeedbackSettings>;

/// The controller: chooses the compression ratio.
pub type ControllerConfig = Algorithm<dyn ControllerSettings>;
