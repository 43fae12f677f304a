//! Settings of Parle.

use super::Parle;
use crate::Layout;
use crate::config::{Described, Exchange, ReducerConfig, StrategyConfig, StrategySettings, StrategyTraits};
use crate::error::ConfigError;
use crate::sync::SyncStrategy;
use crate::sync::rounds::{check_period, period_of};

/// Settings of [`Parle`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ParleConfig {
    /// Steps between outer steps. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Initial strength of the pull of gradients towards the start of the period, 0 or more.
    pub pull: f32,
    /// Initial strength of the pull of ranks towards their mean, 0 or more, and with `rate` at most 1.
    pub coupling: f32,
    /// Divisor of both at each outer step, in (0, 1]. If absent and the number of steps is known, the coupling is at its full strength for
    /// the last fifth of the run. If absent and the number is unknown, 0.999.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<f32>,
    /// Decay of the running average, in [0, 1).
    pub alpha: f32,
    /// Rate of an outer step, in (0, 1].
    pub rate: f32,
}

/// The default period and scope.
const USUAL: u64 = 25;
const SCOPE: f32 = 0.999;

impl Default for ParleConfig {
    fn default() -> Self {
        ParleConfig { period: None, pull: 0.01, coupling: 0.1, scope: None, alpha: 0.75, rate: 1.0 }
    }
}

impl ParleConfig {
    /// Returns the steps between outer steps.
    pub(super) fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }

    /// Returns the scope with which the coupling of a run of `steps` steps reaches its maximum in four fifths of them. The
    /// growth is never slower than with the default scope.
    fn scope_of(&self, steps: u64) -> f32 {
        let outer_steps = (0.8 * (steps / self.steps().max(1)) as f64).floor().max(1.0);
        let growth = 1.0 / f64::from(self.rate * self.coupling);
        if growth.is_finite() { (growth.powf(-1.0 / outer_steps) as f32).min(SCOPE) } else { SCOPE }
    }

    /// Returns `p` and `c` at a step.
    pub(super) fn strengths(&self, step: u64) -> [f32; 2] {
        let Self { pull, coupling, rate, .. } = *self;
        let (period, scope) = (self.steps(), self.scope.unwrap_or(SCOPE));
        // Finite, so that 0 stays 0.
        let growth = f64::from(scope).powf(-((step / period) as f64)).min(f64::MAX);
        [(pull, pull.max(1.0)), (coupling, 1.0 / rate)].map(|(first, most)| {
            let grown = f64::from(first) * growth;
            grown.min(f64::from(most)) as f32
        })
    }
}

impl Described for ParleConfig {
    const NAME: &'static str = "parle";
    const SETTINGS: &'static str = "PERIOD[,pull=0.01,coupling=0.1,scope=S,alpha=0.75,rate=1]";
    const HELP: &'static str = "Entropy-SGD on every rank, pulled to the mean of all after every PERIOD steps (25)";

    fn check(&self) -> Result<(), ConfigError> {
        let Self { period, pull, coupling, scope, alpha, rate } = *self;
        check_period("period of parle", period)?;
        let scope = scope.unwrap_or(SCOPE);
        ConfigError::unless(pull.is_finite() && pull >= 0.0, "pull of parle", "0 or more", pull)?;
        ConfigError::unless(scope > 0.0 && scope <= 1.0, "scope of parle", "in (0, 1]", scope)?;
        ConfigError::unless((0.0..1.0).contains(&alpha), "alpha of parle", "in [0, 1)", alpha)?;
        ConfigError::unless(rate > 0.0 && rate <= 1.0, "rate of parle", "in (0, 1]", rate)?;
        let is_within = (0.0..=1.0 / rate).contains(&coupling);
        ConfigError::unless(is_within, "coupling of parle", "in [0, 1/rate]", coupling)
    }

    fn representatives() -> Vec<Self> {
        let one = ParleConfig { period: Some(1), alpha: 0.0, ..Self::default() };
        vec![ParleConfig { period: Some(3), pull: 0.25, coupling: 0.5, scope: Some(0.5), rate: 0.75, ..one }, one]
    }
}

impl StrategySettings for ParleConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::without_feedback("exchanges differences that keep what was not sent")
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Parle::new(*self, exchange.build_reducer(layout, world)?)?))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
    }

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
        if self.period.is_some() && self.scope.is_some() {
            return None;
        }
        let settings = ParleConfig { period: Some(self.period.unwrap_or(period_of(USUAL, steps))), ..*self };
        let (usual, why) = match steps {
            None => (SCOPE, format!("its usual period is {USUAL} steps, and its usual scope {SCOPE}")),
            Some(steps) => (
                settings.scope_of(steps),
                format!(
                    "ranks are drawn together within four fifths of {} periods in {steps} steps",
                    steps / settings.steps().max(1)
                ),
            ),
        };
        let scope = Some(settings.scope.unwrap_or(usual));
        Some((ParleConfig { scope, ..settings }.into(), why))
    }
}
