//! Settings of Parle.

use super::Parle;
use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, ReducerConfig, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{SyncStrategy, rounds::period_of};

/// Settings of [`Parle`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "parle",
    help = "Entropy-SGD on every rank, pulled to the mean of all after every PERIOD steps (25)",
    representatives("parle:3,pull=0.25,coupling=0.5,scope=0.5,alpha=0,rate=0.75", "parle:1,alpha=0"),
    check = Self::check_coupling
)]
pub struct ParleConfig {
    /// Steps between outer steps. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Initial strength of the pull of gradients towards the start of the period, 0 or more.
    #[setting(default = 0.01, range = "[0, inf)")]
    pub pull: f32,
    /// Initial strength of the pull of ranks towards their mean, 0 or more, and with `rate` at most 1.
    #[setting(default = 0.1)]
    pub coupling: f32,
    /// Divisor of both at each outer step, in (0, 1]. If absent and the number of steps is known, the coupling is at its full strength for
    /// the last fifth of the run. If absent and the number is unknown, 0.999.
    #[setting(range = "(0, 1]")]
    pub scope: Option<f32>,
    /// Decay of the running average, in [0, 1).
    #[setting(default = 0.75, range = "[0, 1)")]
    pub alpha: f32,
    /// Rate of an outer step, in (0, 1].
    #[setting(default = 1.0, range = "(0, 1]")]
    pub rate: f32,
}

/// The default period and scope.
const USUAL: u64 = 25;
const SCOPE: f32 = 0.999;

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

    fn check_coupling(&self) -> Result<(), ConfigError> {
        let is_valid = (0.0..=1.0 / self.rate).contains(&self.coupling);
        ConfigError::unless(is_valid, "coupling of parle", "in [0, 1/rate]", self.coupling)
    }
}

impl StrategySettings for ParleConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::without_feedback("exchanges differences that keep what was not sent")
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Parle::new(*self, exchange.build_reducer(layout, world)?)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
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
