//! Settings of the parts around a reducer, one trait per family (feedbacks, controllers, compressors, aggregators). Each trait has the properties
//! that an algorithm declares, and its construction. Builds and laws depend only on the declared properties, never on the algorithm.

use std::any::Any;
use std::fmt;

use super::{Described, Exchange, Feedback, ReducerConfig};
use crate::error::ConfigError;
use crate::seam::{Aggregator, Compressor, Controller, Reducer};
use crate::{CompressionRatio, Layout};

/// The kind of the optimizer that steps with the averages, if it can be determined.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum InnerOptimizer {
    /// SGD without momentum.
    Sgd,
    /// SGD with heavy-ball momentum in (0, 1), with or without dampening.
    HeavyBall {
        /// The velocity's decay.
        momentum: f32,
    },
    /// Another optimizer with momentum, which moves parameters even in a step without a gradient: Adam, Nesterov
    /// momentum.
    OtherMomentum,
    /// 1-bit Adam.
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
    pub fn keeps_state(self) -> bool {
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
pub trait FeedbackSettings: fmt::Debug + Any + Send + Sync {
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

    /// Returns whether it has no effect if everything is sent.
    fn is_identity_when_dense(&self) -> bool {
        false
    }

    /// Returns whether it sends a velocity. It is then valid only for gradients.
    fn has_momentum(&self) -> bool {
        false
    }

    /// Returns whether the residual is kept in units of the learning rate. The feedback is then valid only for gradients, which the
    /// optimizer multiplies by the learning rate.
    fn reads_rate(&self) -> bool {
        false
    }

    /// Returns the kind of optimizer that this feedback requires if the optimizer steps with averaged gradients; `None` if it works
    /// with any. A feedback that has momentum requires SGD without momentum.
    fn optimizer(&self) -> Option<InnerOptimizer> {
        self.has_momentum().then_some(InnerOptimizer::Sgd)
    }

    /// Returns the settings with which the laws test this feedback under a controller, if its own settings cannot be
    /// used there.
    fn under_controller(&self) -> Option<Feedback> {
        None
    }
}

/// Settings of a controller.
pub trait ControllerSettings: fmt::Debug + Any + Send + Sync {
    /// Builds the controller of one of `world` ranks, for a residual that is handled by `feedback`. Returns `None` if there is nothing
    /// to decide. A controller around another one passes both arguments on.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError>;

    /// Returns whether the controller sends everything in a world of one rank, in which an exchange has no cost.
    fn is_dense_alone(&self) -> bool {
        false
    }

    /// Returns whether it decides for each slot. The reducer must then compress each slot separately.
    fn per_slot(&self) -> bool {
        false
    }

    /// Returns the reducer to use if the configuration names none; `None` for a gather of top-k.
    fn reducer(&self) -> Option<ReducerConfig> {
        None
    }

    /// Returns whether its decisions need measured times. Without a clock in the session it sends dense.
    fn needs_clock(&self) -> bool {
        false
    }

    /// Returns whether decisions depend on measured times at all, even if the controller also works without them. On another
    /// network it may then decide differently, so a recording (`briquette-sim`) of a run is valid only for its own network.
    fn reads_seconds(&self) -> bool {
        self.needs_clock()
    }

    /// Returns the smallest and the largest ratio that the controller may choose. By default it may choose any ratio.
    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, CompressionRatio::constant(f64::MAX)]
    }
}

/// Properties of a compressor, for builds and laws.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompressorTraits {
    /// Set if its error must be fed back.
    pub needs_feedback: bool,
    /// Set if every value sent is an exact copy of the vector's value.
    pub is_exact: bool,
    /// Set if its messages are sparse, so that another compressor may encode their values (`topk:0.01+natural`).
    pub is_sparse: bool,
    /// Set if it searches for the largest values. On long vectors the search starts with a sample, so the laws test long vectors.
    pub searches: bool,
    /// Set if decoded values have magnitude 1, independent of the vector's magnitude.
    pub loses_magnitude: bool,
}

impl CompressorTraits {
    /// Traits of a sparsifier that searches for the largest values and sends them exactly.
    pub const LARGEST: CompressorTraits = CompressorTraits {
        needs_feedback: true,
        is_exact: true,
        is_sparse: true,
        searches: true,
        loses_magnitude: false,
    };
}

/// Settings of a compressor. Most are the compressor itself.
pub trait CompressorSettings: fmt::Debug + Any + Send + Sync {
    /// Returns its properties.
    fn traits(&self) -> CompressorTraits;

    /// Builds the compressor.
    fn build(&self) -> Box<dyn Compressor>;
}

/// Settings of an aggregator. They are the aggregator itself.
pub trait AggregatorSettings: Aggregator + Any + Send + Sync {
    /// Returns a boxed copy.
    fn build(&self) -> Box<dyn Aggregator>;
}

impl<A: Aggregator + Described + Clone + Sync + 'static> AggregatorSettings for A {
    fn build(&self) -> Box<dyn Aggregator> {
        Box::new(self.clone())
    }
}
