//! Configuration values: in code, in TOML, and on a command line.
//!
//! [`Config`] combines the settings of all algorithms and builds them. [`build`](Config::build) refuses every
//! setting that cannot work for the model and the world, before any communication; [`combine::check`] also knows the optimizer. The settings of an algorithm are defined in its own file and listed in its
//! family. The list gives them a text (`name:first,key=value`), a TOML form (that text, or a table with the `kind`), and a place in
//! [`representatives`], over which the laws iterate.
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
pub mod catalogue;
mod class;
pub mod combine;
mod exchange;
mod family;
mod guest;
mod keys;
mod lists;
pub mod parts;
mod representatives;
mod rules;
mod run;
mod settings;
mod spec;
mod text;

pub use catalogue::Catalogue;
pub(crate) use class::{probes, worse};
pub use combine::{Sends, StrategyTraits};
pub use exchange::Exchange;
pub use family::Described;
pub use guest::Guest;
pub use lists::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, ServerConfig, StrategyConfig};
pub use parts::{Choice, Parts};
pub use representatives::{exchanges, representatives};
pub use rules::{Rule, SlotPattern};
pub use settings::{
    AggregatorSettings, ControllerSettings, DownlinkResidual, FeedbackRequirement, FeedbackSettings, ReducerSettings,
    ReducerTraits, StrategySettings,
};
pub use spec::{CompressorConfig, CompressorKind};

use serde::Serialize;

use crate::control::{AutoConfig, GraVacConfig};
use crate::error::ConfigError;
use crate::reduce::LadderConfig;
use crate::sync::{LocalSgdConfig, SyncStrategy};
use crate::wrapper::{InnerMomentumConfig, Momentum};
use crate::{CompressionFactor, Layout};

/// The complete configuration: the strategy, and the exchange. In TOML, `strategy` stands next to the keys of the [exchange](Exchange).
///
/// **Defaults.** `Config::default()` and an empty table are [`Config::auto`]. If some keys are given, the others are chosen by the
/// [same rules](parts): naming one part changes another only if the two are incompatible. In code, [`Parts`] follows the same rules. An [`Exchange`] names all of its
/// parts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Config {
    /// The strategy: decides when ranks exchange, and whether they exchange gradients or parameters.
    pub strategy: StrategyConfig,
    /// The exchange: compresses and combines vectors.
    #[serde(flatten)]
    pub exchange: Exchange,
}

impl Default for Config {
    fn default() -> Self {
        Config::auto()
    }
}

impl Config {
    /// Exchanges gradients at every step.
    pub fn every_step(exchange: Exchange) -> Self {
        Config { strategy: StrategyConfig::EveryStep, exchange }
    }

    /// Local SGD: averages parameters after every `period` steps.
    pub fn local_sgd(period: u64) -> Self {
        Config {
            strategy: LocalSgdConfig { period: Some(period), ..LocalSgdConfig::default() }.into(),
            exchange: Exchange::default(),
        }
    }

    /// The exact mean of gradients at every step, without compression.
    pub fn dense() -> Self {
        Config::every_step(Exchange::default())
    }

    /// Top-k: the largest `fraction` of the values at every step, with error feedback.
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

    /// Top-k with 8-bit values: the largest `fraction` of the values at every step, with error feedback. It sends about three times
    /// fewer bytes than [`top_k`](Self::top_k), for Adam and any other optimizer.
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

    /// Top-k with 8-bit values and momentum correction (`momentum` in [0, 1)): the largest `fraction` of the values at every step. It
    /// is for SGD. The optimizer's own momentum must then be off, and weight decay is applied before the exchange.
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

    /// Sets the strategy, which decides when ranks exchange.
    #[must_use]
    pub fn with_strategy(self, strategy: impl Into<StrategyConfig>) -> Self {
        Config { strategy: strategy.into(), ..self }
    }

    /// Sets the reducer, which combines vectors.
    #[must_use]
    pub fn with_reducer(mut self, reducer: impl Into<ReducerConfig>) -> Self {
        self.exchange.reducer = reducer.into();
        self
    }

    /// Sets the feedback, which handles the residual.
    #[must_use]
    pub fn with_feedback(mut self, feedback: impl Into<Feedback>) -> Self {
        self.exchange.feedback = feedback.into();
        self
    }

    /// Sets the controller, which chooses the compression ratio.
    #[must_use]
    pub fn with_controller(mut self, controller: impl Into<ControllerConfig>) -> Self {
        self.exchange.controller = controller.into();
        self
    }

    /// Sets the minimum number of values per bucket.
    #[must_use]
    pub fn with_bucket_values(mut self, values: usize) -> Self {
        self.exchange.bucket_values = Some(values);
        self
    }

    /// Adds a rule for slots that are exchanged differently. The first matching rule applies.
    #[must_use]
    pub fn with_rule(mut self, rule: Rule) -> Self {
        self.exchange.rules.push(rule);
        self
    }

    /// Sets [`during_backward`](Exchange::during_backward): buckets are exchanged while the backward pass computes the next ones.
    #[must_use]
    pub fn during_backward(mut self) -> Self {
        self.exchange.during_backward = true;
        self
    }

    /// Top-k with 8-bit values, controlled by GraVAC, with error feedback. It works with any inner optimizer.
    pub fn gravac(settings: GraVacConfig) -> Self {
        Config::every_step(Exchange {
            reducer: ReducerConfig::gather(CompressorConfig::top_k_q8(settings.min)),
            feedback: Feedback::Error,
            controller: settings.into(),
            ..Exchange::default()
        })
    }

    /// Chooses the compression ratio at run time from measured step times and the training loss: from dense through 16 and 8 bits to
    /// one value in 100. The residual is kept in the way that [suits the optimizer](Feedback::ByOptimizer), so it works with any.
    ///
    /// Needs a session with a clock. Without one it sends dense.
    pub fn auto() -> Self {
        Config::every_step(Exchange {
            reducer: LadderConfig::default().into(),
            feedback: Feedback::ByOptimizer,
            controller: AutoConfig::default().into(),
            ..Exchange::default()
        })
    }

    /// Chooses a feedback that was left [open](Feedback::ByOptimizer), for an optimizer that is SGD with heavy-ball momentum
    /// `momentum` in (0, 1), or for any other optimizer (`None`). Under a strategy whose optimizer does not step with averages of
    /// gradients, the choice is error feedback.
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

    /// Returns whether every optimizer step uses an average of gradients, and nothing else is exchanged.
    pub fn steps_with_averages(&self) -> bool {
        self.strategy.get().steps_with_averages()
    }

    /// Returns whether an average may have values for slots in which no rank has a gradient. The values come from a residual, or from
    /// the gradients of an earlier step.
    pub fn remembers(&self) -> bool {
        self.strategy.get().remembers() || self.exchange.feedback.get().requirement().remembers()
    }

    /// Returns whether a rank's vector is weighted by its number of samples. If not, every rank has the same weight: see
    /// [`Aggregator::is_mean`](crate::aggregate::Aggregator::is_mean).
    pub fn weighs_samples(&self) -> bool {
        self.exchange.aggregator.get().is_mean()
    }

    /// Returns the minimum number of ranks.
    pub fn fewest_ranks(&self) -> usize {
        self.strategy.get().fewest_ranks(&self.exchange)
    }

    /// Returns the number of channels used for background exchanges. The transport must provide them.
    pub fn channels(&self) -> usize {
        self.strategy.get().channels().max(usize::from(self.exchange.during_backward))
    }

    /// Builds the strategy for a module and a world.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work, before any communication.
    pub fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        if world == 0 {
            return Err(ConfigError::range("ranks", "at least 1", world));
        }
        combine::strategy(self)?;
        self.strategy.get().build(&self.exchange, layout, world)
    }
}
