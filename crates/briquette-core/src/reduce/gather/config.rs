//! Settings of the all-gather of compressed messages.

use super::{Gather, Grain};
use crate::Layout;
use crate::error::ConfigError;
use crate::seam::{ErrorBound, Reducer};
use crate::settings::{CompressorConfig, Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};

/// Settings of [`Gather`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "gather",
    help = "an all-gather of compressed messages, one for all or one a slot (topk:20x:q8)",
    representatives("gather:dense")
)]
pub struct GatherConfig {
    /// The compressor of the messages.
    #[setting(default = "topk:20x:q8")]
    pub compressor: CompressorConfig,
    /// Sends one message per slot instead of one per vector.
    pub per_slot: bool,
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
        ErrorBound::of(&compressor, len)
    }

    fn compressor(&self) -> Option<CompressorConfig> {
        Some(self.compressor.clone())
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
