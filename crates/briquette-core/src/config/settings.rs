//! What the settings of an algorithm declare and build, a trait per family. Builds and laws follow what is declared: neither asks
//! which algorithm it is.

use std::fmt;

use super::{CompressorConfig, Described, Exchange, Feedback, ReducerConfig, StrategyConfig};
use crate::aggregate::Aggregator;
use crate::compress::ErrorBound;
use crate::control::Controller;
use crate::error::ConfigError;
use crate::reduce::{GatherConfig, Reducer};
use crate::sync::SyncStrategy;
use crate::{CompressionFactor, Layout};

/// Settings of a strategy.
pub trait StrategySettings: fmt::Debug {
    /// The strategy of one of `world` ranks, with `exchange` for what travels. One that uses only some of its keys refuses the
    /// others ([`Exchange::refuse_all_but`]).
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// The fewest ranks that it works with.
    fn fewest_ranks(&self, exchange: &Exchange) -> usize;

    /// The channels it exchanges on in the background.
    fn channels(&self) -> usize {
        0
    }

    /// Whether what the optimizer steps with may have values in slots for which no rank has a gradient at that step.
    fn remembers(&self) -> bool {
        false
    }

    /// What travels where the laws try it.
    fn exchanges(&self) -> Vec<Exchange>;

    /// Returns whether every optimizer step uses an average of gradients, and nothing else is exchanged.
    fn steps_with_averages(&self) -> bool {
        false
    }

    /// Returns whether its effect on the model is correct only for plain SGD, which steps by the learning rate times the average.
    fn takes_plain_sgd(&self) -> bool {
        false
    }

    /// Steps from one exchange to the next, where ranks step without one in between.
    fn local_steps(&self) -> Option<u64> {
        None
    }

    /// Returns the settings for a run of this many steps, and the reason for them, if settings that depend on the number of steps were left
    /// open. For an unknown number, these are the usual ones. `None` if nothing was open.
    fn for_steps(&self, _steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        None
    }

    /// Why everything is sent where no reducer is named, behind the strategy's name; `None` where compression is
    /// [left open](super::Parts).
    fn dense_because(&self) -> Option<&'static str> {
        Some("exchanges parameters, once in a period")
    }

    /// Why what was not sent needs no memory, behind the strategy's name; `None` where it needs one as the reducer says.
    fn no_feedback_because(&self) -> Option<&'static str> {
        None
    }
}

/// What a reducer is, for builds and laws.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReducerTraits {
    /// Everything travels, exactly: there is no gain to measure, and nothing to feed back.
    pub is_dense: bool,
    /// What it loses must be fed back.
    pub needs_feedback: bool,
    /// What it sends is the vector's own bits, or 0.
    pub is_exact: bool,
    /// It looks for the largest values, which on long vectors begins with a sample: the laws try it on long ones.
    pub searches: bool,
    /// It compresses every slot by itself.
    pub is_per_slot: bool,
    /// It combines messages with the exchange's aggregator.
    pub aggregates: bool,
    /// Values are sums of products over a whole matrix, whose rounding is of the matrix.
    pub multiplies_matrices: bool,
    /// Set if decoded values have magnitude 1, whatever the vector's: an optimizer that steps with them moves every value by the learning
    /// rate.
    pub loses_size: bool,
}

/// What a memory on the way down holds: `xₜ` is the mean of step `t` and what is kept, with `‖xₜ‖ ≤ contraction·‖xₜ₋₁‖ + ‖meanₜ‖`, of which
/// at most `loss·‖xₜ‖` has not come. Law 2 holds to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Remembered {
    /// How much of what is sent may stay behind, at most 1.
    pub contraction: f64,
    /// How far what was received may be from all that was to be sent.
    pub loss: f64,
    /// In the units of the learning rate, or of the mean.
    pub in_rate: bool,
}

/// Settings of a reducer.
pub trait ReducerSettings: fmt::Debug {
    /// The reducer of one bucket, within `exchange`.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError>;

    /// Whether it is built without a bucket around it where the vector is not cut: its random bits are then those of the whole.
    fn takes_all_slots(&self) -> bool {
        false
    }

    /// What it is.
    fn traits(&self) -> ReducerTraits;

    /// Returns whether it consists of levels of any ratio, among which a controller chooses.
    fn takes_any_ratio(&self) -> bool {
        false
    }

    /// The class on one vector of `len` values; `None` where no constant holds for each rank by itself.
    fn error_bound(&self, len: usize) -> Option<ErrorBound>;

    /// The largest expected error on one vector of `len` values, in energies of the vector, where that may exceed them.
    fn amplification(&self, len: usize) -> Option<f64> {
        match self.error_bound(len)? {
            ErrorBound::Unbiased { omega } | ErrorBound::Biased { omega } => Some(omega),
            ErrorBound::Contractive { .. } | ErrorBound::MeanContractive { .. } => None,
        }
    }

    /// The class of what is done to the mean of `len` values before ranks receive it, where that is compressed again. Law 2 holds
    /// to this error.
    fn downlink(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    /// What is remembered of what the [downlink](Self::downlink) loses of the mean of `len` values, and comes later.
    fn remembered(&self, _len: usize) -> Option<Remembered> {
        None
    }

    /// Whether what it sends back is right for an optimizer that steps by the learning rate times the average, plain SGD, alone.
    fn takes_plain_sgd(&self) -> bool {
        false
    }

    /// Whether every rank receives the same average. Where not, replicas differ, by no more than what is
    /// [remembered](Self::remembered).
    fn averages_equal(&self) -> bool {
        true
    }

    /// What goes around the reducer that it is the settings of, once what a rank remembers of what it has not sent is around that.
    fn around_memory(&self, whole: Box<dyn Reducer>) -> Box<dyn Reducer> {
        whole
    }

    /// The fewest ranks that it works with.
    fn fewest_ranks(&self) -> usize {
        1
    }

    /// That it works with so many ranks, where more is asked of the world than a fewest number.
    ///
    /// # Errors
    /// [`ConfigError`] names what does not fit.
    fn check_world(&self, _world: usize) -> Result<(), ConfigError> {
        Ok(())
    }

    /// What makes its messages, where a compressor does.
    fn compressor(&self) -> Option<CompressorConfig> {
        None
    }
}

/// What a memory asks of what it is around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asks {
    /// Nothing: there is no memory.
    Nothing,
    /// It keeps what was not sent, all of it (law 3): the error must be smaller than the vector.
    Bounded,
    /// It sends differences: on every rank the error must be smaller than the difference, and the average a mean.
    Contractive,
    /// It sends differences: the error must have no mean, and the average be one.
    Unbiased,
}

impl Asks {
    /// Whether there is a memory.
    pub fn remembers(self) -> bool {
        self != Asks::Nothing
    }

    /// Whether the memory is a residual.
    pub fn keeps_residual(self) -> bool {
        self == Asks::Bounded
    }

    /// Whether the memory is what differences are taken to.
    pub fn sends_differences(self) -> bool {
        matches!(self, Asks::Contractive | Asks::Unbiased)
    }
}

/// Settings of a memory around a reducer.
pub trait FeedbackSettings: fmt::Debug {
    /// The memory around what `exchange` makes for `layout`, whose errors are as it [asks](Self::asks).
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn wrap(
        &self,
        inner: Box<dyn Reducer>,
        exchange: &Exchange,
        layout: &Layout,
    ) -> Result<Box<dyn Reducer>, ConfigError>;

    /// What it asks of what it is around.
    fn asks(&self) -> Asks;

    /// Whether what it sends is a velocity: it is then for gradients alone.
    fn has_momentum(&self) -> bool {
        false
    }

    /// Whether what waits is kept in units of the learning rate's: it is then for what the optimizer multiplies by it, gradients.
    fn reads_rate(&self) -> bool {
        false
    }

    /// The settings with which the laws try it under a controller, where these cannot be.
    fn under_controller(&self) -> Option<Feedback> {
        None
    }
}

/// Settings of a controller.
pub trait ControllerSettings: fmt::Debug {
    /// The controller of one of `world` ranks, where this becomes of what was not sent; `None` where nothing is decided. One around
    /// another passes both on.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError>;

    /// Whether it decides for each slot: the reducer must then compress each by itself.
    fn per_slot(&self) -> bool {
        false
    }

    /// The reducer whose ratio it decides, where none is named.
    fn reducer(&self) -> ReducerConfig {
        GatherConfig { per_slot: self.per_slot(), ..GatherConfig::default() }.into()
    }

    /// Whether it decides by seconds: on a session without a clock it sends dense.
    fn needs_clock(&self) -> bool {
        false
    }

    /// Whether its decisions depend on seconds at all, also where it does without them: on another network it may then send something
    /// else, and a [recording](crate::comm::replay) of a run holds for its own network only.
    fn reads_seconds(&self) -> bool {
        self.needs_clock()
    }

    /// The smallest and the largest ratio that it may decide; any, unless stated.
    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, CompressionFactor::constant(f64::MAX)]
    }
}

/// Settings of an aggregator, which are the aggregator itself.
pub trait AggregatorSettings: Aggregator {
    /// As an object of its own.
    fn build(&self) -> Box<dyn Aggregator>;
}

impl<A: Aggregator + Described + Clone + 'static> AggregatorSettings for A {
    fn build(&self) -> Box<dyn Aggregator> {
        Box::new(self.clone())
    }
}
