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
use briquette_core::config::{Config, ControllerConfig, Exchange, Feedback, StrategyConfig};
use briquette_core::error::ConfigError;
use briquette_core::sync::SyncStrategy;
use briquette_core::wrapper::InnerMomentumConfig;

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
        if let Some(plain) = takes_plain_sgd(self) {
            check_sgd(&plain, optimizer())?;
        }
        match self.exchange.feedback {
            Feedback::InnerMomentum(settings) => check_momentum(settings, steps_with_it.then(optimizer)).map(|()| None),
            Feedback::ByOptimizer if !steps_with_it => {
                *self = self.clone().for_optimizer(None);
                Ok(Some(format!("error feedback (strategy {})", self.strategy.name())))
            }
            Feedback::ByOptimizer => {
                let optimizer = optimizer();
                *self = self.clone().for_optimizer(optimizer.momentum());
                let memory = if optimizer.momentum().is_some() { "momentum correction" } else { "error feedback" };
                Ok(Some(format!("{memory} ({optimizer})")))
            }
            feedback => {
                let exchanges_momentum = feedback.get().has_momentum();
                match feedback {
                    Feedback::OneBitAdam(_) if steps_with_it => check_adam(feedback, optimizer())?,
                    _ if steps_with_it && exchanges_momentum => check_plain(feedback, optimizer())?,
                    _ => {}
                }
                Ok(None)
            }
        }
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

/// Checks that an optimizer that steps with exchanged gradients has the configured momentum, if that can be determined.
fn check_momentum(settings: InnerMomentumConfig, optimizer: Option<InnerOptimizer>) -> Result<(), ConfigError> {
    let InnerMomentumConfig { momentum } = settings;
    let why = match optimizer {
        Some(InnerOptimizer::Unseen) => return Ok(()),
        Some(InnerOptimizer::HeavyBall { momentum: its }) if (its - momentum).abs() <= 1e-6 => return Ok(()),
        Some(InnerOptimizer::Sgd) if momentum == 0.0 => return Ok(()),
        Some(optimizer) => format!("got {optimizer}"),
        None => "and the strategy exchanges parameters".to_owned(),
    };
    Err(ConfigError::Conflict(format!(
        "feedback inner-momentum:{momentum} is for SGD with momentum {momentum}, which steps with the exchanged gradients; {why}: use \
         feedback by-optimizer, or error"
    )))
}

/// Checks that the optimizer has no momentum if the feedback has it, if that can be determined.
fn check_plain(feedback: Feedback, optimizer: InnerOptimizer) -> Result<(), ConfigError> {
    let instead = match optimizer {
        InnerOptimizer::HeavyBall { momentum } => format!("feedback inner-momentum:{momentum} or error"),
        InnerOptimizer::OneBitAdam => "feedback one-bit-adam".to_owned(),
        InnerOptimizer::OtherMomentum => "feedback error".to_owned(),
        InnerOptimizer::Sgd | InnerOptimizer::Other | InnerOptimizer::Unseen => return Ok(()),
    };
    Err(ConfigError::Conflict(format!(
        "feedback {feedback} is for an optimizer without momentum, got {optimizer}, whose momentum would act on top: use SGD without \
         momentum, or {instead}"
    )))
}

/// Returns the strategy or reducer that requires plain SGD as the optimizer, if there is one.
fn takes_plain_sgd(config: &Config) -> Option<String> {
    if config.strategy.get().takes_plain_sgd() {
        return Some(format!("strategy {}", config.strategy));
    }
    let mut reducers = config.exchange.reducers().filter(|_| config.steps_with_averages());
    reducers.find(|reducer| reducer.get().takes_plain_sgd()).map(|reducer| format!("reducer {reducer}"))
}

/// Checks that the optimizer steps by the learning rate times the average, as `plain` requires, if that can be determined.
fn check_sgd(plain: &str, optimizer: InnerOptimizer) -> Result<(), ConfigError> {
    match optimizer {
        InnerOptimizer::Sgd | InnerOptimizer::Unseen => Ok(()),
        _ => Err(ConfigError::Conflict(format!(
            "{plain} counts on steps of the learning rate times the average, got {optimizer}: use SGD without momentum, gradient \
             clipping and parameter groups, or leave it out"
        ))),
    }
}

/// Checks that the optimizer is 1-bit Adam, if that can be determined; its warm-up cannot.
fn check_adam(feedback: Feedback, optimizer: InnerOptimizer) -> Result<(), ConfigError> {
    match optimizer {
        InnerOptimizer::OneBitAdam | InnerOptimizer::Unseen => Ok(()),
        _ => Err(ConfigError::Conflict(format!(
            "feedback {feedback} is for optimizer OneBitAdam with the same warm-up, got {optimizer}: use that, or feedback error"
        ))),
    }
}

/// The kind of the optimizer that steps with the averages, if it can be determined.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum InnerOptimizer {
    /// SGD without momentum.
    Sgd,
    /// SGD with momentum in (0, 1), in the usual form; dampened or not.
    HeavyBall {
        /// The velocity's decay.
        momentum: f32,
    },
    /// Another optimizer that still moves parameters in a step without a gradient: Adam, Nesterov momentum.
    OtherMomentum,
    /// [1-bit Adam](crate::optim::OneBitAdam).
    OneBitAdam,
    /// Any other: clipped gradients, parameter groups that differ, an optimizer that cannot be probed.
    Other,
    /// The exchange has no access to the optimizer.
    Unseen,
}

impl InnerOptimizer {
    /// The momentum of heavy-ball SGD.
    pub fn momentum(self) -> Option<f32> {
        match self {
            InnerOptimizer::HeavyBall { momentum } => Some(momentum),
            _ => None,
        }
    }
}

impl fmt::Display for InnerOptimizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InnerOptimizer::Sgd => f.write_str("SGD without momentum"),
            InnerOptimizer::HeavyBall { momentum } => write!(f, "SGD, momentum {momentum}"),
            InnerOptimizer::Other => f.write_str("an optimizer that is not SGD with heavy-ball momentum"),
            InnerOptimizer::OneBitAdam => f.write_str("OneBitAdam, an optimizer with momentum"),
            InnerOptimizer::OtherMomentum => {
                f.write_str("an optimizer with momentum that is not SGD with heavy-ball momentum")
            }
            InnerOptimizer::Unseen => f.write_str("the optimizer cannot be seen"),
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
