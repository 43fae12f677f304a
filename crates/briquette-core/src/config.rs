//! Settings as values: in code, in TOML, and on a command line.
//!
//! [`Config`] is what all algorithms' settings make together, and builds them; every impossible setting is an error at
//! [`build`](Config::build), before any rank talks. An algorithm's settings are in its own file, and in its family's list. From
//! there they have a text (`name:first,key=value`), TOML (that text, or a table with the `kind`), and a place in
//! [`representatives`], which the laws iterate over.
//!
//! ```
//! use briquette_core::{Layout, config::Config};
//! let config: Config = toml::from_str(r#"
//!     strategy = "every-step"
//!     feedback = "error"
//!     reducer = "gather:topk:0.01:q8"
//!     controller = { kind = "gravac", epsilon = 0.4 }
//! "#)?;
//! config.build(&Layout::flat(1000), 4)?;
//! assert_eq!(toml::from_str::<Config>("strategy = 'local-sgd:8'")?, Config::local_sgd(8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
mod class;
mod exchange;
mod family;
mod keys;
mod lists;
pub mod parts;
mod representatives;
mod rules;
mod run;
mod settings;
mod spec;
mod text;

pub(crate) use class::{probes, worse};
pub use exchange::Exchange;
pub use family::Described;
pub use lists::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, ServerConfig, StrategyConfig};
pub use parts::{Choice, Parts};
pub use representatives::{exchanges, representatives};
pub use rules::{Rule, SlotPattern};
pub use settings::{
    AggregatorSettings, Asks, ControllerSettings, FeedbackSettings, ReducerSettings, ReducerTraits, Remembered,
    StrategySettings,
};
pub use spec::{CompressorConfig, CompressorKind};

use serde::Serialize;

use crate::control::{AutoConfig, GraVacConfig};
use crate::error::ConfigError;
use crate::reduce::LadderConfig;
use crate::sync::{LocalSgdConfig, SyncStrategy};
use crate::wrapper::{InnerMomentumConfig, Momentum};
use crate::{CompressionFactor, Layout};

/// When ranks exchange, and what. In TOML, `strategy` stands beside the keys of the [exchange](Exchange).
///
/// **Defaults.** `Config::default()` and an empty table are [`Config::auto`]. Where some keys are given, the others are chosen by the
/// [same rules](parts): naming one part changes no other. In code, [`Parts`] follows the same rules; an [`Exchange`] names all of its parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// When, and what: gradients or parameters.
    pub strategy: StrategyConfig,
    /// How it travels.
    #[serde(flatten)]
    pub exchange: Exchange,
}

impl Default for Config {
    fn default() -> Self {
        Config::auto()
    }
}

impl Config {
    /// Gradients at every step.
    pub fn every_step(exchange: Exchange) -> Self {
        Config { strategy: StrategyConfig::EveryStep, exchange }
    }

    /// Local SGD: parameters after every `period` steps.
    pub fn local_sgd(period: u64) -> Self {
        Config {
            strategy: LocalSgdConfig { period: Some(period), ..LocalSgdConfig::default() }.into(),
            exchange: Exchange::default(),
        }
    }

    /// The exact mean at every step.
    pub fn dense() -> Self {
        Config::every_step(Exchange::default())
    }

    /// The largest `fraction` of the values at every step, with error feedback.
    ///
    /// # Errors
    /// [`ConfigError`] when `fraction` is outside (0, 1].
    pub fn top_k(fraction: f64) -> Result<Self, ConfigError> {
        Ok(Config::every_step(Exchange {
            reducer: ReducerConfig::gather(format!("topk:{fraction}").parse()?),
            feedback: Feedback::Error,
            ..Exchange::default()
        }))
    }

    /// The largest `fraction` of the values at every step, in 8 bits each, with error feedback: about three times fewer bytes than
    /// [`top_k`](Self::top_k), for Adam and any other optimizer.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// assert_eq!(Config::top_k_q8(0.01)?.exchange.reducer.to_string(), "gather:topk:100x:q8");
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] when `fraction` is outside (0, 1].
    pub fn top_k_q8(fraction: f64) -> Result<Self, ConfigError> {
        let compressor = CompressorConfig::top_k_q8(CompressionFactor::new(1.0 / fraction)?);
        Ok(Config::top_k(fraction)?.with_reducer(ReducerConfig::gather(compressor)))
    }

    /// The largest `fraction` of the values at every step, in 8 bits each, with momentum correction (`momentum` in [0, 1)): for SGD, whose
    /// own momentum is left off then, and whose weight decay goes in front of the exchange.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let config = Config::top_k_momentum(0.05, 0.9)?;
    /// assert_eq!(config.exchange.feedback.to_string(), "momentum:0.9");
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] when `fraction` is outside (0, 1].
    pub fn top_k_momentum(fraction: f64, momentum: f32) -> Result<Self, ConfigError> {
        let feedback = Feedback::Momentum(Momentum { momentum, ..Momentum::default() });
        Ok(Config::top_k_q8(fraction)?.with_feedback(feedback))
    }

    /// Another strategy: when ranks exchange.
    #[must_use]
    pub fn with_strategy(self, strategy: impl Into<StrategyConfig>) -> Self {
        Config { strategy: strategy.into(), ..self }
    }

    /// Another reducer: how vectors are combined.
    #[must_use]
    pub fn with_reducer(mut self, reducer: impl Into<ReducerConfig>) -> Self {
        self.exchange.reducer = reducer.into();
        self
    }

    /// Another feedback: what becomes of what was not sent.
    #[must_use]
    pub fn with_feedback(mut self, feedback: impl Into<Feedback>) -> Self {
        self.exchange.feedback = feedback.into();
        self
    }

    /// Another controller: what decides the compression ratio.
    #[must_use]
    pub fn with_controller(mut self, controller: impl Into<ControllerConfig>) -> Self {
        self.exchange.controller = controller.into();
        self
    }

    /// Buckets of at least so many values.
    #[must_use]
    pub fn with_bucket_values(mut self, values: usize) -> Self {
        self.exchange.bucket_values = Some(values);
        self
    }

    /// One more rule for slots that are exchanged another way; the first that matches decides.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule) -> Self {
        self.exchange.rules.push(rule);
        self
    }

    /// With [`during_backward`](Exchange::during_backward): buckets go while the backward pass computes the next ones.
    #[must_use]
    pub fn during_backward(mut self) -> Self {
        self.exchange.during_backward = true;
        self
    }

    /// Top-k with 8-bit values under GraVAC, with error feedback: works under any inner optimizer.
    pub fn gravac(settings: GraVacConfig) -> Self {
        Config::every_step(Exchange {
            reducer: ReducerConfig::gather(CompressorConfig::top_k_q8(settings.min)),
            feedback: Feedback::Error,
            controller: settings.into(),
            ..Exchange::default()
        })
    }

    /// Decides by itself how much to compress, by what a step takes and how the loss falls: from dense through 16 and 8 bits to one
    /// value in 100. What is not sent is remembered in the way that [suits the optimizer](Feedback::ByOptimizer): it works under any.
    ///
    /// Needs a session with a clock: without one dense is sent.
    pub fn auto() -> Self {
        Config::every_step(Exchange {
            reducer: LadderConfig::default().into(),
            feedback: Feedback::ByOptimizer,
            controller: AutoConfig::default().into(),
            ..Exchange::default()
        })
    }

    /// For an optimizer that is SGD with heavy-ball momentum `momentum` in (0, 1), or any other one (`None`): a feedback that was left
    /// [open](Feedback::ByOptimizer) is decided. Only where it steps with averages of gradients does the optimizer step with what the
    /// feedback makes: under other strategies it becomes error feedback.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let feedback = |momentum| Config::auto().for_optimizer(momentum).exchange.feedback.to_string();
    /// assert_eq!((feedback(Some(0.9)).as_str(), feedback(None).as_str()), ("inner-momentum:0.9", "error"));
    /// assert_eq!(Config::dense().for_optimizer(Some(0.9)), Config::dense());
    /// ```
    #[must_use]
    pub fn for_optimizer(mut self, momentum: Option<f32>) -> Self {
        if self.exchange.feedback == Feedback::ByOptimizer {
            let momentum = momentum.filter(|_| self.steps_with_averages());
            let inner = momentum.map(|momentum| InnerMomentumConfig { momentum }.into());
            self.exchange.feedback = inner.unwrap_or(Feedback::Error);
        }
        self
    }

    /// Whether every step of the optimizer is one with an average of gradients, and nothing else is exchanged.
    pub fn steps_with_averages(&self) -> bool {
        self.strategy.get().steps_with_averages()
    }

    /// Whether an average may have values where no rank has a gradient: where what was not sent before is remembered, or the average is
    /// of an earlier step's gradients.
    pub fn remembers(&self) -> bool {
        self.strategy.get().remembers() || self.exchange.feedback.get().asks().remembers()
    }

    /// Whether a rank's vector counts by its samples. If not, every rank counts the same, whatever it states: see
    /// [`Aggregator::is_mean`](crate::aggregate::Aggregator::is_mean).
    pub fn weighs_samples(&self) -> bool {
        self.exchange.aggregator.get().is_mean()
    }

    /// The fewest ranks that it works with.
    pub fn fewest_ranks(&self) -> usize {
        self.strategy.get().fewest_ranks(&self.exchange)
    }

    /// The channels that it exchanges on in the background: transports must have them.
    pub fn channels(&self) -> usize {
        self.strategy.get().channels().max(usize::from(self.exchange.overlap || self.exchange.during_backward))
    }

    /// Builds the strategy for a module and a world.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work, before any rank talks.
    pub fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        if world == 0 {
            return Err(ConfigError::range("ranks", "at least 1", world));
        }
        if self.exchange.during_backward && self.strategy != StrategyConfig::EveryStep {
            let why = "during_backward needs strategy every-step: gradients are exchanged as they are computed";
            return Err(ConfigError::Conflict(why.into()));
        }
        let differs = self.exchange.reducers().find(|reducer| !reducer.get().averages_equal());
        if let Some(reducer) = differs.filter(|_| self.strategy != StrategyConfig::EveryStep) {
            return Err(ConfigError::Conflict(format!(
                "reducer {reducer} sends every rank an average of its own, and strategy {} counts on equal ones: use every-step",
                self.strategy.name()
            )));
        }
        self.strategy.get().build(&self.exchange, layout, world)
    }
}
