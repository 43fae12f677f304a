//! Its settings.

use super::Parle;
use crate::Layout;
use crate::config::{Described, Exchange, ReducerConfig, StrategySettings};
use crate::error::ConfigError;
use crate::sync::SyncStrategy;

/// Settings of [`Parle`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParleConfig {
    /// Steps from one outer step to the next.
    pub period: u64,
    /// How strongly gradients are pulled back to where the period began, at first: 0 or more.
    pub pull: f32,
    /// How strongly ranks are pulled to their mean, at first: 0 or more, and with `rate` at most 1.
    pub coupling: f32,
    /// What both are divided by at each outer step, in (0, 1].
    pub scope: f32,
    /// How much the running average keeps at each step, in [0, 1).
    pub alpha: f32,
    /// How far an outer step goes, in (0, 1].
    pub rate: f32,
}

impl Default for ParleConfig {
    fn default() -> Self {
        ParleConfig { period: 25, pull: 0.01, coupling: 0.1, scope: 0.999, alpha: 0.75, rate: 1.0 }
    }
}

impl ParleConfig {
    /// `p` and `c` at a step.
    pub(super) fn strengths(&self, step: u64) -> [f32; 2] {
        let Self { period, pull, coupling, scope, rate, .. } = *self;
        // Not infinite, so that 0 stays 0.
        let growth = f64::from(scope).powf(-((step / period) as f64)).min(f64::MAX);
        [(pull, pull.max(1.0)), (coupling, 1.0 / rate)].map(|(first, most)| {
            let grown = f64::from(first) * growth;
            grown.min(f64::from(most)) as f32
        })
    }
}

impl Described for ParleConfig {
    const NAME: &'static str = "parle";
    const SETTINGS: &'static str = "PERIOD[,pull=0.01,coupling=0.1,scope=0.999,alpha=0.75,rate=1]";
    const HELP: &'static str = "Entropy-SGD on every rank, pulled to the mean of all after every PERIOD steps (25)";

    fn check(&self) -> Result<(), ConfigError> {
        let Self { period, pull, coupling, scope, alpha, rate } = *self;
        ConfigError::unless(period > 0, "period of parle", "at least 1", period)?;
        ConfigError::unless(pull.is_finite() && pull >= 0.0, "pull of parle", "0 or more", pull)?;
        ConfigError::unless(scope > 0.0 && scope <= 1.0, "scope of parle", "in (0, 1]", scope)?;
        ConfigError::unless((0.0..1.0).contains(&alpha), "alpha of parle", "in [0, 1)", alpha)?;
        ConfigError::unless(rate > 0.0 && rate <= 1.0, "rate of parle", "in (0, 1]", rate)?;
        let is_within = (0.0..=1.0 / rate).contains(&coupling);
        ConfigError::unless(is_within, "coupling of parle", "in [0, 1/rate]", coupling)
    }

    fn representatives() -> Vec<Self> {
        let one = ParleConfig { period: 1, alpha: 0.0, ..Self::default() };
        vec![ParleConfig { period: 3, pull: 0.25, coupling: 0.5, scope: 0.5, rate: 0.75, ..one }, one]
    }
}

impl StrategySettings for ParleConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let used =
            ["reducer", "aggregator", "controller", "bucket_values", "overlap", "rules", "dense_below", "threads"];
        exchange.refuse_all_but(&used, "strategy parle exchanges differences that keep what was not sent")?;
        Ok(Box::new(Parle::new(*self, exchange.build_reducer(layout, world)?)?))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
    }

    fn exchanges(&self) -> Vec<Exchange> {
        let reducer = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
        vec![Exchange::default(), Exchange { reducer, ..Exchange::default() }]
    }
}
