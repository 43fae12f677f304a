//! Settings of Overlap-Local-SGD.

use super::OverlapLocalSgd;
use crate::Layout;
use crate::config::{Described, Exchange, ReducerConfig, StrategyConfig, StrategySettings, StrategyTraits};
use crate::error::ConfigError;
use crate::sync::SyncStrategy;
use crate::sync::in_background::CHANNEL;
use crate::sync::rounds::{in_rounds, period_of};

/// Settings of [`OverlapLocalSgd`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverlapConfig {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Fraction of the distance to the anchor by which a rank is pulled, in [0, 1).
    pub alpha: f32,
    /// The anchor's momentum, in [0, 1).
    pub beta: f32,
    /// Steps by which the first period is longer; less than the period.
    pub offset: u64,
}

/// The default period.
const USUAL: u64 = 2;

impl Default for OverlapConfig {
    fn default() -> Self {
        OverlapConfig { period: None, alpha: 0.6, beta: 0.7, offset: 0 }
    }
}

impl OverlapConfig {
    /// Returns the steps of a period. If none is set, the default, or the smallest value above the offset.
    pub(super) fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL.max(self.least()))
    }

    fn least(&self) -> u64 {
        self.offset.saturating_add(1)
    }
}

impl Described for OverlapConfig {
    const NAME: &'static str = "overlap-local-sgd";
    const SETTINGS: &'static str = "PERIOD[,alpha=0.6,beta=0.7,offset=0]";
    const HELP: &'static str = "parameters, averaged in the background after every PERIOD steps, a period late (2)";

    fn check(&self) -> Result<(), ConfigError> {
        let wrong = |what, valid, got: f32| Err(ConfigError::range(what, valid, got));
        match *self {
            Self { period: Some(0), .. } => Err(ConfigError::range("period of overlap-local-sgd", "at least 1", 0)),
            Self { alpha, .. } if !(0.0..1.0).contains(&alpha) => {
                wrong("alpha of overlap-local-sgd", "in [0, 1)", alpha)
            }
            Self { beta, .. } if !(0.0..1.0).contains(&beta) => wrong("beta of overlap-local-sgd", "in [0, 1)", beta),
            Self { offset, .. } if offset >= self.steps() => {
                Err(ConfigError::range("offset of overlap-local-sgd", "below its period", offset))
            }
            _ => Ok(()),
        }
    }

    fn representatives() -> Vec<Self> {
        let conserves = OverlapConfig { period: Some(3), beta: 0.0, ..Self::default() };
        vec![
            OverlapConfig { offset: 1, ..Self::default() },
            OverlapConfig { period: Some(1), ..conserves.clone() },
            conserves,
        ]
    }
}

impl StrategySettings for OverlapConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::without_feedback("exchanges in the background, differences that keep what was not sent")
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let overlap = OverlapLocalSgd::new(self.clone(), exchange.build_reducer(layout, world)?)?;
        let is_exact = exchange.reducers().all(|reducer| reducer.get().traits().is_dense);
        Ok(Box::new(OverlapLocalSgd { is_exact, ..overlap }))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
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
            OverlapConfig { period: Some(period), ..self.clone() }.into()
        })
    }
}
