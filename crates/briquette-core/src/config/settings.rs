//! Interfaces of settings, one trait per family: the properties that an algorithm declares, and its construction. Builds and laws
//! depend only on the declared properties, never on the algorithm.

use std::fmt;

use super::combine::{InnerOptimizer, StrategyTraits};
use super::{CompressorConfig, Described, Exchange, Feedback, ReducerConfig, StrategyConfig};
use crate::aggregate::Aggregator;
use crate::compress::ErrorBound;
use crate::control::Controller;
use crate::error::{ConfigError, Conflict};
use crate::reduce::{GatherConfig, Reducer};
use crate::sync::SyncStrategy;
use crate::{CompressionFactor, Layout};

/// Settings of a strategy.
pub trait StrategySettings: fmt::Debug {
    /// Builds the strategy of one of `world` ranks, with `exchange` as the settings of its exchanges. A strategy that uses only some
    /// keys of `exchange` declares them in its [traits](Self::traits).
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// Returns the minimum number of ranks.
    fn fewest_ranks(&self, exchange: &Exchange) -> usize;

    /// Returns the properties that decide what it may be [combined](super::combine) with.
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::default()
    }

    /// Returns the number of channels used for background exchanges.
    fn channels(&self) -> usize {
        0
    }

    /// Returns whether the optimizer's input may have values in slots for which no rank has a gradient at that step.
    fn remembers(&self) -> bool {
        false
    }

    /// Returns the exchanges with which the laws test the strategy.
    fn exchanges(&self) -> Vec<Exchange>;

    /// Returns whether every optimizer step uses an average of gradients, and nothing else is exchanged.
    fn steps_with_averages(&self) -> bool {
        false
    }

    /// Returns whether its effect on the model is correct only for plain SGD, which steps by the learning rate times the average.
    fn requires_plain_sgd(&self) -> bool {
        false
    }

    /// Returns the number of steps from one exchange to the next, if ranks take steps without an exchange.
    fn local_steps(&self) -> Option<u64> {
        None
    }

    /// Returns the settings for a run of this many steps, and the reason for them, if settings that depend on the number of steps were left
    /// open. For an unknown number, these are the usual ones. `None` if nothing was open.
    fn for_steps(&self, _steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        None
    }

    /// Returns the reason for sending everything if no reducer is named, as a clause that follows the strategy's name. Returns `None`
    /// if compression is [left open](super::Parts).
    fn dense_because(&self) -> Option<&'static str> {
        Some("exchanges parameters, once in a period")
    }

    /// Returns the reason that no feedback is needed, as a clause that follows the strategy's name. Returns `None` if the reducer decides this.
    fn no_feedback_because(&self) -> Option<&'static str> {
        None
    }
}

/// Properties of a reducer, for builds and laws.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReducerTraits {
    /// Set if all values are sent exactly: there is no gain to measure, and nothing to feed back.
    pub is_dense: bool,
    /// Set if its error must be fed back.
    pub needs_feedback: bool,
    /// Set if every value sent is an exact copy of the vector's value, or 0.
    pub is_exact: bool,
    /// Set if it searches for the largest values. On long vectors the search starts with a sample, so the laws test long vectors.
    pub searches: bool,
    /// Set if it compresses every slot separately.
    pub is_per_slot: bool,
    /// Set if it combines messages with the exchange's aggregator.
    pub aggregates: bool,
    /// Set if values are sums of products over a whole matrix, so that the rounding error depends on the matrix.
    pub multiplies_matrices: bool,
    /// Set if decoded values have magnitude 1, independent of the vector's magnitude. An optimizer that steps with them moves every value by
    /// the learning rate.
    pub loses_magnitude: bool,
}

/// Bound of the residual of the downlink, which law 2 checks. `xₜ` is the mean of step `t` plus the residual, with
/// `‖xₜ‖ ≤ contraction·‖xₜ₋₁‖ + ‖meanₜ‖`. At most `loss·‖xₜ‖` of it has not been received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DownlinkResidual {
    /// Share of `xₜ₋₁` that may remain in `xₜ`, at most 1.
    pub contraction: f64,
    /// Largest distance of the received vectors from those to be sent, relative to `‖xₜ‖`.
    pub loss: f64,
    /// Set if the vectors are in units of the learning rate. Otherwise they are in units of the mean.
    pub in_rate: bool,
}

/// Settings of a reducer.
pub trait ReducerSettings: fmt::Debug {
    /// Builds the reducer of one bucket, within `exchange`.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError>;

    /// Returns whether it is built without a surrounding bucket if the vector is not cut into buckets. Its random bits are then those
    /// of the whole vector.
    fn requires_all_slots(&self) -> bool {
        false
    }

    /// Returns its properties.
    fn traits(&self) -> ReducerTraits;

    /// Returns whether it consists of levels of any ratio, among which a controller chooses.
    fn accepts_any_ratio(&self) -> bool {
        false
    }

    /// Returns the error class on a vector of `len` values; `None` if no constant holds for each rank separately.
    fn error_bound(&self, len: usize) -> Option<ErrorBound>;

    /// Returns the largest expected error on a vector of `len` values, relative to the vector's energy, if the error may exceed this energy.
    fn amplification(&self, len: usize) -> Option<f64> {
        match self.error_bound(len)? {
            ErrorBound::Unbiased { omega } | ErrorBound::Biased { omega } => Some(omega),
            ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. } => None,
        }
    }

    /// Returns the error class of the compression of the mean of `len` values before ranks receive it, if it is compressed again.
    /// Law 2 checks this error.
    fn downlink(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    /// Returns the bound of the residual of the [downlink](Self::downlink) for a mean of `len` values, if that residual is kept and sent later.
    fn downlink_residual(&self, _len: usize) -> Option<DownlinkResidual> {
        None
    }

    /// Returns whether its result is correct only for plain SGD, which steps by the learning rate times the average.
    fn requires_plain_sgd(&self) -> bool {
        false
    }

    /// Returns whether every rank receives the same average. If not, replicas differ by at most the bound of the residual that
    /// [`downlink_residual`](Self::downlink_residual) returns.
    fn averages_equal(&self) -> bool {
        true
    }

    /// Wraps the complete reducer, including the feedback around it.
    fn wrap_outer(&self, whole: Box<dyn Reducer>) -> Box<dyn Reducer> {
        whole
    }

    /// Returns the minimum number of ranks.
    fn fewest_ranks(&self) -> usize {
        1
    }

    /// Checks further requirements on the number of ranks, besides the minimum.
    ///
    /// # Errors
    /// [`Conflict`] names the unmet requirement.
    fn check_world(&self, _world: usize) -> Result<(), Conflict> {
        Ok(())
    }

    /// Checks its requirements on the other parts of the exchange that it is in.
    ///
    /// # Errors
    /// [`Conflict`] names the part that it cannot be combined with.
    fn check_within(&self, _exchange: &Exchange) -> Result<(), Conflict> {
        Ok(())
    }

    /// Returns whether a controller can set its compression ratio.
    fn has_knob(&self) -> bool {
        false
    }

    /// Returns the compressor of its messages, if it uses one.
    fn compressor(&self) -> Option<CompressorConfig> {
        None
    }
}

/// Requirement of a feedback on the reducer that it wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum FeedbackRequirement {
    /// No requirement: no state is kept.
    Nothing,
    /// The feedback keeps the whole residual (law 3): the error must be smaller than the vector.
    Bounded,
    /// The feedback sends differences: on every rank the error must be smaller than the difference, and the aggregator must be a mean.
    Contractive,
    /// The feedback sends differences: the error must have mean zero, and the aggregator must be a mean.
    Unbiased,
}

impl FeedbackRequirement {
    /// Returns whether the feedback keeps state.
    pub fn remembers(self) -> bool {
        self != FeedbackRequirement::Nothing
    }

    /// Returns whether that state is a residual.
    pub fn keeps_residual(self) -> bool {
        self == FeedbackRequirement::Bounded
    }

    /// Returns whether the feedback sends differences to that state.
    pub fn sends_differences(self) -> bool {
        matches!(self, FeedbackRequirement::Contractive | FeedbackRequirement::Unbiased)
    }
}

/// Settings of a feedback around a reducer.
pub trait FeedbackSettings: fmt::Debug {
    /// Wraps the reducer that `exchange` builds for `layout`, whose errors meet the [requirement](Self::requirement).
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn wrap(
        &self,
        inner: Box<dyn Reducer>,
        exchange: &Exchange,
        layout: &Layout,
    ) -> Result<Box<dyn Reducer>, ConfigError>;

    /// Returns the requirement on the wrapped reducer.
    fn requirement(&self) -> FeedbackRequirement;

    /// Returns whether it sends a velocity. It is then valid only for gradients.
    fn has_momentum(&self) -> bool {
        false
    }

    /// Returns whether the residual is kept in units of the learning rate. It is then valid only for gradients, which the optimizer
    /// multiplies by the learning rate.
    fn reads_rate(&self) -> bool {
        false
    }

    /// Returns the optimizer that it requires if the optimizer steps with averages of gradients; `None` if it works with any. One that
    /// has momentum requires SGD without momentum.
    fn optimizer(&self) -> Option<InnerOptimizer> {
        self.has_momentum().then_some(InnerOptimizer::Sgd)
    }

    /// Returns the settings with which the laws test it under a controller, if these settings cannot be used there.
    fn under_controller(&self) -> Option<Feedback> {
        None
    }
}

/// Settings of a controller.
pub trait ControllerSettings: fmt::Debug {
    /// Builds the controller of one of `world` ranks, for a residual that is handled by `feedback`. Returns `None` if nothing is to be
    /// decided. A controller around another one passes both arguments on.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError>;

    /// Returns whether it decides for each slot. The reducer must then compress each slot separately.
    fn per_slot(&self) -> bool {
        false
    }

    /// Returns the reducer whose ratio it sets if no reducer is named.
    fn reducer(&self) -> ReducerConfig {
        GatherConfig { per_slot: self.per_slot(), ..GatherConfig::default() }.into()
    }

    /// Returns whether its decisions need measured times. Without a clock in the session it sends dense.
    fn needs_clock(&self) -> bool {
        false
    }

    /// Returns whether its decisions depend on measured times at all, even if it also works without them. On another network it may
    /// then send something else, so a [recording](crate::comm::replay) of a run is valid only for its own network.
    fn reads_seconds(&self) -> bool {
        self.needs_clock()
    }

    /// Returns the smallest and the largest ratio that it may choose. By default any ratio is allowed.
    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, CompressionFactor::constant(f64::MAX)]
    }
}

/// Settings of an aggregator. They are the aggregator itself.
pub trait AggregatorSettings: Aggregator {
    /// Returns a boxed copy.
    fn build(&self) -> Box<dyn Aggregator>;
}

impl<A: Aggregator + Described + Clone + 'static> AggregatorSettings for A {
    fn build(&self) -> Box<dyn Aggregator> {
        Box::new(self.clone())
    }
}
