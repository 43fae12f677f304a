//! User-defined algorithms: your own compressor, reducer, aggregator, controller or strategy in a distributed optimizer.
//!
//! A [`DistributedOptimizer`](crate::DistributedOptimizer) takes a value that [builds its strategy](BuildStrategy) once the
//! module is known. For built-in algorithms this value is a [`Config`]. For your own, [`custom`] creates it from a function
//! that combines your algorithm with the [wrappers](crate::core::wrapper) of core.
//!
//! ```
//! use briquette::core::{CompressionRatio, Key, Layout, Message, aggregate::mean::Mean, wrapper::{error_feedback::ErrorFeedback, metered::Metered}};
//! use briquette::core::{compress::{ErrorBound, Compressor}, reduce::gather::Gather, sync::every_step::EveryStep};
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
//!     fn nominal(&self) -> CompressionRatio {
//!         CompressionRatio::new(2.0).expect("at least 1")
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
use briquette_core::config::{CompressionDevice, Config, Exchange};
use briquette_core::error::ConfigError;
use briquette_core::sync::SyncStrategy;
use briquette_core::wrapper::by_optimizer::ByOptimizer;

/// Builds a rank's strategy once its module is known. The value must be equal on every rank.
pub trait BuildStrategy: Send {
    /// Returns, as text, the settings that must be the same on every rank and in every part of a resumed run. Ranks compare the
    /// texts when they join. If both texts are JSON objects, errors name the entry that differs.
    fn settings(&self) -> String;

    /// Builds the strategy of one rank in a world of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for an invalid configuration, before any rank communicates.
    fn build(&self, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// Returns the number of channels for background exchanges. The transport must support them:
    /// [`join`](crate::Synchronizer::join) opens them before any rank communicates.
    fn channels(&self) -> usize {
        0
    }

    /// Returns whether gradients are exchanged while the backward pass computes them; see
    /// [`forward_model`](crate::Synchronizer::forward_model). This requires one [channel](Self::channels).
    fn during_backward(&self) -> bool {
        false
    }

    /// Returns the device that compresses gradients. Ranks may differ.
    fn device(&self) -> CompressionDevice {
        CompressionDevice::Auto
    }

    /// Returns whether an average may have values in slots (parameter tensors) for which no rank has a gradient, for example
    /// from a residual. If false, these values are set to 0. They are also set to 0 if the strategy [holds](SyncStrategy::hold)
    /// its state of such slots.
    fn keeps_state(&self) -> bool {
        true
    }

    /// Determines settings that depend on the number of steps of the run, if it is known. Called before [`suit`](Self::suit).
    /// Returns warnings to log before the run begins, one sentence each; by default none. A checkpoint compares the determined
    /// settings: [`with_run_steps`](crate::Synchronizer::with_run_steps) describes runs that are resumed for another number of
    /// steps.
    fn for_run(&mut self, _steps: Option<u64>) -> Vec<String> {
        Vec::new()
    }

    /// Determines settings that depend on the optimizer. Called once, before any of the methods above except `for_run`. Returns
    /// the decision and its reason, as text; by default there is nothing to decide.
    ///
    /// # Errors
    /// [`ConfigError`] for a configuration that cannot work with this optimizer.
    fn suit(&mut self, _optimizer: &dyn Fn() -> InnerOptimizer) -> Result<Option<String>, ConfigError> {
        Ok(None)
    }

    /// Returns whether a decision depends on seconds. The session then needs a clock.
    fn needs_clock(&self) -> bool {
        false
    }

    /// Returns a short name for [summaries](crate::RunSummary): that of the controller, or of the compression if there
    /// is no controller.
    fn label(&self) -> String {
        self.settings()
    }

    /// Returns whether a rank's vector is multiplied, before the exchange, by the number of ranks times the rank's share
    /// of the samples.
    fn weights_by_samples(&self) -> bool {
        true
    }

    /// Returns whether, in a world of one rank, the average always equals the rank's gradient. In such a world gradients are
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
    fn device(&self) -> CompressionDevice {
        self.exchange.device
    }
    fn keeps_state(&self) -> bool {
        Config::keeps_state(self)
    }
    fn weights_by_samples(&self) -> bool {
        Config::weights_by_samples(self)
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
        if !self.exchange.feedback.is::<ByOptimizer>() {
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
        self.exchange.controller.get().needs_clock() || self.strategy.get().reads_seconds()
    }
    fn label(&self) -> String {
        let Exchange { controller, reducer, .. } = &self.exchange;
        match (controller.is_none(), self.strategy.is_every_step()) {
            (true, true) => reducer.to_string(),
            (true, false) => self.strategy.to_string(),
            (false, _) => controller.name().to_owned(),
        }
    }
}

/// Creates a strategy builder from a function of the module's layout and the number of ranks. `settings` is a text that must be
/// equal on every rank: the algorithm's name and its settings.
///
/// If the aggregator is not a mean, call [`without_weights`](Custom::without_weights). Otherwise each rank's vector is
/// multiplied by the number of samples that the rank reports.
pub fn custom<S, F>(settings: impl Into<String>, build: F) -> Custom<F>
where
    S: SyncStrategy + 'static,
    F: Fn(&Layout, usize) -> Result<S, ConfigError> + Send,
{
    Custom { settings: settings.into(), build, weights_by_samples: true, keeps_state: true, channels: 0 }
}

/// Strategy builder of a user-defined algorithm; see [`custom`].
pub struct Custom<F> {
    settings: String,
    build: F,
    weights_by_samples: bool,
    keeps_state: bool,
    channels: usize,
}

impl<F> Custom<F> {
    /// Declares that the strategy keeps no residual. A slot without a gradient on any rank then stays unchanged, even if the
    /// compressor turns zeros into other values. A strategy that [holds](SyncStrategy::hold) such slots does not need this.
    #[must_use]
    pub fn without_memory(mut self) -> Self {
        self.keeps_state = false;
        self
    }

    /// Sets the number of channels on which the strategy exchanges in the background.
    #[must_use]
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels;
        self
    }

    /// Gives every rank the same weight, whatever number of samples it reports: for aggregators that are robust against
    /// arbitrary ranks.
    #[must_use]
    pub fn without_weights(mut self) -> Self {
        self.weights_by_samples = false;
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
    fn keeps_state(&self) -> bool {
        self.keeps_state
    }
    fn weights_by_samples(&self) -> bool {
        self.weights_by_samples
    }
}
