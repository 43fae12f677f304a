//! Settings of Overlap-Local-SGD.

use super::OverlapLocalSgd;
use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, ReducerConfig, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    SyncStrategy,
    in_background::CHANNEL,
    rounds::{in_rounds, period_of},
};

/// Settings of [`OverlapLocalSgd`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "overlap-local-sgd",
    help = "parameters, averaged in the background after every PERIOD steps, a period late (2)",
    representatives("overlap-local-sgd:offset=1", "overlap-local-sgd:1,beta=0", "overlap-local-sgd:3,beta=0"),
    check = Self::check_offset
)]
pub struct OverlapLocalSgdConfig {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Fraction of the distance to the anchor by which a rank is pulled, in [0, 1).
    #[setting(default = 0.6, range = "[0, 1)")]
    pub alpha: f32,
    /// The anchor's momentum, in [0, 1).
    #[setting(default = 0.7, range = "[0, 1)")]
    pub beta: f32,
    /// Steps by which the first period is longer; less than the period.
    pub offset: u64,
}

/// The default period.
const USUAL: u64 = 2;

impl OverlapLocalSgdConfig {
    /// Returns the steps of a period. If none is set, the default, or the smallest value above the offset.
    pub(super) fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL.max(self.least()))
    }

    fn least(&self) -> u64 {
        self.offset.saturating_add(1)
    }

    fn check_offset(&self) -> Result<(), ConfigError> {
        let is_valid = self.offset < self.steps();
        ConfigError::unless(is_valid, "offset of overlap-local-sgd", "below its period", self.offset)
    }
}

impl StrategySettings for OverlapLocalSgdConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::without_feedback("exchanges in the background, differences that keep what was not sent")
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let overlap = OverlapLocalSgd::new(self.clone(), exchange.build_reducer(layout, world)?)?;
        let is_exact = exchange.reducers().all(|reducer| reducer.get().traits().is_dense);
        Ok(Box::new(OverlapLocalSgd { is_exact, ..overlap }))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn channels(&self) -> usize {
        CHANNEL
    }

    /// Dense, and compressed.
    fn exchanges(&self) -> Vec<Exchange> {
        let reducer = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
        vec![Exchange::default(), Exchange { reducer, ..Exchange::default() }]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("exchanges differences that keep what was not sent")
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let period = period_of(USUAL, steps).max(self.least());
        in_rounds(self.period, (USUAL.max(self.least()), period), steps, |period| {
            OverlapLocalSgdConfig { period: Some(period), ..self.clone() }.into()
        })
    }
}
