//! User-defined strategies: algorithms from another crate.
//!
//! A [`DistributedOptimizer`](crate::DistributedOptimizer) takes a value that [builds its strategy](BuildStrategy) once the
//! module is known. [`Config`] is one, for built-in algorithms. [`custom`] makes one from a function, for your own compressor,
//! reducer, aggregator, controller or strategy, combined with the [wrappers](crate::core::wrapper) of core.
//!
//! ```
//! use briquette::core::{CompressionFactor, Key, Layout, Message, aggregate::Mean, wrapper::{ErrorFeedback, Metered}};
//! use briquette::core::{compress::{ErrorBound, Compressor}, reduce::Gather, sync::EveryStep};
//! use briquette::strategy::{self, BuildStrategy};
//!
//! /// Keeps the first half of the values.
//! struct FirstHalf;
//!
//! impl Compressor for FirstHalf {
//!     fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
//!         let kept = (0..).zip(x.iter().copied()).take(x.len().div_ceil(2));
//!         out.write_sparse(x.len(), kept).expect("indices ascend");
//!     }
//!     fn error_bound(&self, _x: &[f32]) -> ErrorBound {
//!         ErrorBound::Contractive { delta: 0.0 }
//!     }
//!     fn nominal(&self) -> CompressionFactor {
//!         CompressionFactor::new(2.0).expect("at least 1")
//!     }
//!     fn selects(&self) -> bool {
//!         true
//!     }
//! }
//!
//! let strategy = strategy::custom("first half", |_: &Layout, _world| {
//!     let gather = Gather::new(FirstHalf, Mean);
//!     Ok(EveryStep::new(ErrorFeedback::new(Metered::new(gather))))
//! });
//! assert_eq!(strategy.settings(), "first half");
//! strategy.build(&Layout::flat(10), 4)?;
//! # Ok::<(), briquette::core::error::ConfigError>(())
//! ```

use std::fmt;

use briquette_core::Layout;
use briquette_core::config::combine;
pub use briquette_core::config::combine::InnerOptimizer;
use briquette_core::config::{Config, ControllerConfig, Exchange, Feedback, StrategyConfig};
use briquette_core::error::ConfigError;
use briquette_core::sync::SyncStrategy;

/// Builds a rank's strategy when its module is known. Every rank must have an equal one.
pub trait BuildStrategy: Send {
    /// The settings that must be the same on every rank, and in every part of a run that is resumed. Ranks compare them when they
    /// join. If both are JSON objects, errors name the entry that differs.
    fn settings(&self) -> String;

    /// Builds the strategy of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for an invalid configuration, before any rank communicates.
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// The number of channels for background exchanges, which the transport must support: [`join`](crate::Synchronizer::join)
    /// opens them before any rank communicates.
    fn channels(&self) -> usize {
        0
    }

    /// Returns whether gradients are exchanged while the backward pass computes them, see
    /// [`forward_model`](crate::Synchronizer::forward_model). This requires one [channel](Self::channels).
    fn during_backward(&self) -> bool {
        false
    }

    /// Returns whether an average may have values in slots for which no rank has a gradient, as an earlier step's average does.
    /// These values become 0 if the strategy [holds](SyncStrategy::hold) its state of such slots, or if this is false.
    fn remembers(&self) -> bool {
        true
    }

    /// Decides settings that depend on the length of the run, in steps, if it is known; called before [`suit`](Self::suit).
    /// Returns warnings to log before the run begins, one sentence each; by default none. A checkpoint compares the decisions:
    /// see [`with_run_steps`](crate::Synchronizer::with_run_steps) for runs that are resumed for another number of steps.
    fn for_run(&mut self, _steps: Option<u64>) -> Vec<String> {
        Vec::new()
    }

    /// Decides settings that depend on the optimizer, once, before any of the methods above is called. Returns the decision and
    /// its reason, as text; by default there is nothing to decide.
    ///
    /// # Errors
    /// [`ConfigError`] for a configuration that cannot work with this optimizer.
    fn suit(&mut self, _optimizer: &dyn Fn() -> InnerOptimizer) -> Result<Option<String>, ConfigError> {
        Ok(None)
    }

    /// Returns whether a decision depends on seconds, for which a session needs a clock.
    fn needs_clock(&self) -> bool {
        false
    }

    /// A short name for [summaries](crate::RunSummary): the controller of the compression, or else the compression.
    fn label(&self) -> String {
        self.settings()
    }

    /// Returns whether a rank's vector is multiplied by its share of the samples, times the number of ranks, before it is
    /// exchanged.
    fn weighs_samples(&self) -> bool {
        true
    }

    /// Returns whether the average of a world of one rank is that rank's gradient, at every step. In such a world gradients are
    /// then returned in place, and the strategy is not called.
    fn is_identity_alone(&self) -> bool {
        false
    }
}

impl BuildStrategy for Config {
    fn settings(&self) -> String {
        serde_json::to_string(self).unwrap_or_else(|_| format!("{self:?}"))
    }
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Config::build(self, layout, world)
    }
    fn channels(&self) -> usize {
        Config::channels(self)
    }
    fn during_backward(&self) -> bool {
        self.exchange.during_backward
    }
    fn remembers(&self) -> bool {
        Config::remembers(self)
    }
    fn weighs_samples(&self) -> bool {
        Config::weighs_samples(self)
    }
    fn is_identity_alone(&self) -> bool {
        Config::is_identity_alone(self)
    }
    fn for_run(&mut self, steps: Option<u64>) -> Vec<String> {
        self.choose_for(steps);
        self.cautions(steps)
    }
    fn suit(&mut self, optimizer: &dyn Fn() -> InnerOptimizer) -> Result<Option<String>, ConfigError> {
        let steps_with_it = self.steps_with_averages();
        let seen = if combine::reads_optimizer(self) { optimizer() } else { InnerOptimizer::Unseen };
        combine::optimizer(self, seen)?;
        if self.exchange.feedback != Feedback::ByOptimizer {
            return Ok(None);
        }
        if !steps_with_it {
            *self = self.clone().for_optimizer(None);
            return Ok(Some(format!("error feedback (strategy {})", self.strategy.name())));
        }
        let optimizer = optimizer();
        *self = self.clone().for_optimizer(optimizer.momentum());
        let memory = if optimizer.momentum().is_some() { "momentum correction" } else { "error feedback" };
        Ok(Some(format!("{memory} ({optimizer})")))
    }
    fn needs_clock(&self) -> bool {
        self.exchange.controller.get().needs_clock()
    }
    fn label(&self) -> String {
        let Exchange { controller, reducer, .. } = &self.exchange;
        match (controller, &self.strategy) {
            (ControllerConfig::None, StrategyConfig::EveryStep) => reducer.to_string(),
            (ControllerConfig::None, strategy) => strategy.to_string(),
            (controller, _) => controller.name().to_owned(),
        }
    }
}

/// Builds strategies with a function of the module's layout and the number of ranks. `settings` is a text that must be equal on
/// every rank: the algorithm's name and its settings.
///
/// For an aggregator that is not a mean, call [`without_weights`](Custom::without_weights). Otherwise a rank's vector is
/// multiplied by the number of samples that the rank states.
pub fn custom<S, F>(settings: impl Into<String>, build: F) -> Custom<F>
where
    S: SyncStrategy + 'static,
    F: Fn(&Layout, usize) -> Result<S, ConfigError> + Send,
{
    Custom { settings: settings.into(), build, weighs_samples: true, remembers: true, channels: 0 }
}

/// See [`custom`].
pub struct Custom<F> {
    settings: String,
    build: F,
    weighs_samples: bool,
    remembers: bool,
    channels: usize,
}

impl<F> Custom<F> {
    /// Declares that the strategy keeps no residual: a slot without a gradient on any rank stays unchanged, whatever the compressor
    /// makes of zeros. A strategy that [holds](SyncStrategy::hold) such slots does not need this.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        self.remembers = false;
        self
    }

    /// Declares that the strategy exchanges in the background, on this number of channels.
    #[must_use]
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Gives every rank the same weight, independent of the samples that it states: for aggregators that are robust against
    /// arbitrary ranks.
    #[must_use]
    pub fn without_weights(mut self) -> Self {
        self.weighs_samples = false;
        self
    }
}

impl<F> fmt::Debug for Custom<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Custom").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<S, F> BuildStrategy for Custom<F>
where
    S: SyncStrategy + 'static,
    F: Fn(&Layout, usize) -> Result<S, ConfigError> + Send,
{
    fn settings(&self) -> String {
        self.settings.clone()
    }
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new((self.build)(layout, world)?))
    }
    fn channels(&self) -> usize {
        self.channels
    }
    fn remembers(&self) -> bool {
        self.remembers
    }
    fn weighs_samples(&self) -> bool {
        self.weighs_samples
    }
}
