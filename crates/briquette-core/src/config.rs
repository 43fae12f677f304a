//! Configuration values: in code, in TOML, and on a command line.
//!
//! [`Config`] combines the settings of all parts of an exchange and builds them. Before any communication, [`build`](Config::build) refuses every
//! setting that cannot work for the model and the world; [`combine::check`] also considers the optimizer. The settings of an algorithm are defined in
//! the algorithm's file and listed in its family. From this list they get a text (`name:first,key=value`), a TOML form (that text, or a table with
//! the name as `kind`), and an entry in [`representatives`], the configurations with which the laws are tested.
//!
//! ```
//! use briquette_core::{Layout, config::Config};
//! let config: Config = toml::from_str(r#"
//!     strategy = "every-step"
//!     feedback = "error"
//!     reducer = "gather:topk:0.01:q8"
//!     controller = { kind = "cost-aware", max = "50x" }
//! "#)?;
//! config.build(&Layout::flat(1000), 4)?;
//! assert_eq!(toml::from_str::<Config>("strategy = 'local-sgd:8'")?, Config::local_sgd(8));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod build;
pub mod catalogue;
mod class;
pub mod combine;
mod groups;
mod keys;
mod lists;
pub mod parts;
mod representatives;
mod run;
mod text;

pub use crate::ratio::share;
pub use crate::settings::{
    AggregatorConfig, AggregatorSettings, Algorithm, CompressionDevice, CompressorConfig, CompressorKind,
    CompressorSettings, CompressorTraits, ControllerConfig, ControllerSettings, Described, DownlinkResidual, Entry,
    Exchange, Family, Feedback, FeedbackRequirement, FeedbackSettings, ReducerConfig, ReducerSettings, ReducerTraits,
    Rule, Sends, SlotPattern, StrategyConfig, StrategySettings, StrategyTraits,
};
pub use catalogue::Catalogue;
pub use lists::ServerConfig;
pub use parts::{Choice, Parts};
pub use representatives::{exchanges, representatives};

use serde::Serialize;

use crate::control::auto::Auto;
use crate::error::ConfigError;
use crate::reduce::ladder::LadderConfig;
use crate::seam::SyncStrategy;
use crate::sync::periodic::LocalSgd;
use crate::wrapper::{
    by_optimizer::ByOptimizer, inner_momentum::InnerMomentumConfig, momentum_correction::MomentumCorrectionConfig,
};
use crate::{CompressionRatio, Layout};

/// The complete configuration: the strategy, and the exchange. In TOML, `strategy` stands next to the keys of the [exchange](Exchange).
///
/// **Defaults.** `Config::default()` and an empty table are [`Config::auto`]. If some keys are given, the others follow from [rules](parts): a given
/// part changes another only if the two are incompatible. In code, [`Parts`] follows the same rules. An [`Exchange`] in code states all of its parts.
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
        Config { strategy: StrategyConfig::every_step(), exchange }
    }

    /// Local SGD: averages parameters after every `period` steps.
    pub fn local_sgd(period: u64) -> Self {
        Config {
            strategy: LocalSgd { period: Some(period), ..LocalSgd::default() }.into(),
            exchange: Exchange::default(),
        }
    }

    /// Exchanges the exact mean of gradients at every step, without compression.
    pub fn dense() -> Self {
        Config::every_step(Exchange::default())
    }

    /// Top-k: sends the `fraction` of the values that are largest in magnitude, at every step, with error feedback.
    ///
    /// # Errors
    /// [`ConfigError`] when `fraction` is outside (0, 1].
    pub fn top_k(fraction: f64) -> Result<Self, ConfigError> {
        Ok(Config::every_step(Exchange {
            reducer: ReducerConfig::gather(format!("topk:{fraction}").parse()?),
            feedback: Feedback::error(),
            ..Exchange::default()
        }))
    }

    /// Top-k with 8-bit values and error feedback: sends the `fraction` of the values that are largest in magnitude, at every step.
    /// It sends about three times fewer bytes than [`top_k`](Self::top_k). It is for Adam and any other optimizer.
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
        let compressor = CompressorConfig::top_k_q8(CompressionRatio::new(1.0 / fraction)?);
        Ok(Config::top_k(fraction)?.with_reducer(ReducerConfig::gather(compressor)))
    }

    /// Top-k with 8-bit values and momentum correction, for SGD: sends the `fraction` of the values that are largest in magnitude, at
    /// every step. `momentum` is in [0, 1). The optimizer's own momentum must be off, and weight decay must be applied before the
    /// exchange.
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
        let feedback = Feedback::from(MomentumCorrectionConfig { momentum, ..MomentumCorrectionConfig::default() });
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

    /// Compresses gradients on the host, wherever they are. By default they are compressed on their [device](CompressionDevice) if it has kernels, to
    /// the same bits.
    #[must_use]
    pub fn with_host_compression(mut self) -> Self {
        self.exchange.device = CompressionDevice::Host;
        self
    }

    /// Chooses the compression ratio at run time from measured step times and the training loss: from dense through 16 and 8 bits to
    /// one value in 100. It works with any optimizer, because the way to keep the residual [depends on the optimizer](ByOptimizer).
    ///
    /// Needs a session with a clock. Without one it sends dense.
    pub fn auto() -> Self {
        Config::every_step(Exchange {
            reducer: LadderConfig::default().into(),
            feedback: Feedback::by_optimizer(),
            controller: Auto::default().into(),
            ..Exchange::default()
        })
    }

    /// Chooses the feedback if the configuration left it [open](ByOptimizer). `momentum` in (0, 1) is that of SGD with heavy-ball
    /// momentum; `None` is any other optimizer. If the optimizer does not step with averaged gradients under this strategy, the
    /// choice is error feedback.
    ///
    /// ```
    /// use briquette_core::config::Config;
    /// let feedback = |momentum| Config::auto().for_optimizer(momentum).exchange.feedback.to_string();
    /// assert_eq!((feedback(Some(0.9)).as_str(), feedback(None).as_str()), ("inner-momentum:0.9", "error"));
    /// assert_eq!(Config::dense().for_optimizer(Some(0.9)), Config::dense());
    /// ```
    #[must_use]
    pub fn for_optimizer(mut self, momentum: Option<f32>) -> Self {
        if self.exchange.feedback.is::<ByOptimizer>() {
            let momentum = momentum.filter(|_| self.steps_with_averages());
            let inner =
                momentum.map(|momentum| InnerMomentumConfig { momentum, ..InnerMomentumConfig::default() }.into());
            self.exchange.feedback = inner.unwrap_or_else(Feedback::error);
        }
        self
    }

    /// Returns whether every optimizer step uses an averaged gradient, and nothing else is exchanged.
    pub fn steps_with_averages(&self) -> bool {
        self.strategy.get().steps_with_averages()
    }

    /// Returns whether an average may have values in slots for which no rank has a gradient. Such values come from a residual, or
    /// from the gradients of an earlier step.
    pub fn keeps_state(&self) -> bool {
        self.strategy.get().keeps_state() || self.exchange.feedback.get().requirement().keeps_state()
    }

    /// Returns whether a rank's vector is weighted by its number of samples. Otherwise every rank has the same weight:
    /// see [`Aggregator::is_mean`](crate::seam::Aggregator::is_mean).
    pub fn weights_by_samples(&self) -> bool {
        self.exchange.aggregator.get().is_mean()
    }

    /// Returns the minimum number of ranks.
    pub fn min_ranks(&self) -> usize {
        self.strategy.get().min_ranks(&self.exchange)
    }

    /// Returns the number of channels used for background exchanges. The transport must provide them.
    pub fn channels(&self) -> usize {
        self.strategy.get().channels().max(usize::from(self.exchange.during_backward))
    }

    /// Builds the strategy for a model's layout and a world size.
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
