//! Settings of the all-gather of compressed messages.

use super::{Gather, Grain};
use crate::Layout;
use crate::compress::{Compressor, Dense, ErrorBound, Spec};
use crate::config::{
    CompressorConfig, Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits, probes, worse,
};
use crate::error::ConfigError;
use crate::reduce::Reducer;

/// Settings of [`Gather`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatherConfig {
    /// The compressor of the messages.
    pub compressor: CompressorConfig,
    /// Sends one message per slot instead of one per vector.
    pub per_slot: bool,
}

/// Top-k at 5 % with 8-bit values, over the whole vector.
impl Default for GatherConfig {
    fn default() -> Self {
        GatherConfig {
            compressor: CompressorConfig::top_k_q8(crate::CompressionFactor::constant(20.0)),
            per_slot: false,
        }
    }
}

impl Described for GatherConfig {
    const NAME: &'static str = "gather";
    const SETTINGS: &'static str = "COMPRESSOR[,per-slot=true]";
    const HELP: &'static str = "an all-gather of compressed messages, one for all or one a slot (topk:20x:q8)";

    fn representatives() -> Vec<Self> {
        vec![GatherConfig { compressor: Dense::representative().into(), per_slot: false }]
    }
}

impl ReducerSettings for GatherConfig {
    fn build(&self, exchange: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        let grain = if self.per_slot { Grain::PerSlot } else { Grain::Whole };
        Ok(Box::new(Gather::new(self.compressor.build(), exchange.aggregator.get().build()).grain(grain)))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits {
            needs_feedback: self.compressor.needs_feedback(),
            is_exact: self.compressor.is_exact(),
            searches: self.compressor.searches(),
            loses_magnitude: self.compressor.loses_magnitude(),
            is_per_slot: self.per_slot,
            aggregates: true,
            ..ReducerTraits::default()
        }
    }

    fn has_knob(&self) -> bool {
        self.compressor.has_knob()
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        let compressor = self.compressor.build();
        probes(len).map(|x| compressor.error_bound(&x)).reduce(worse)
    }

    fn compressor(&self) -> Option<CompressorConfig> {
        Some(self.compressor)
    }
}

impl ReducerConfig {
    /// Returns settings with one message for the whole vector.
    pub fn gather(compressor: CompressorConfig) -> Self {
        GatherConfig { compressor, per_slot: false }.into()
    }

    /// Returns settings with one message per slot.
    pub fn gather_per_slot(compressor: CompressorConfig) -> Self {
        GatherConfig { compressor, per_slot: true }.into()
    }
}
