//! Settings of a reducer: the properties that it declares, and its construction.

use std::any::Any;
use std::fmt;

use super::{CompressorConfig, Exchange};
use crate::Layout;
use crate::error::{ConfigError, Conflict};
use crate::seam::{ErrorBound, Reducer};

/// Properties of a reducer, for builds and laws.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReducerTraits {
    /// Set if all values are sent exactly, so that there is no gain to measure and no residual.
    pub is_dense: bool,
    /// Set if its compression error must be kept as a residual (error feedback).
    pub needs_feedback: bool,
    /// Set if every value sent is an exact copy of the vector's value, or 0.
    pub is_exact: bool,
    /// Set if it searches for the largest values. On long vectors the search starts with a sample, so the laws test long vectors.
    pub searches: bool,
    /// Set if it compresses every slot separately.
    pub is_per_slot: bool,
    /// Set if it combines messages with the exchange's aggregator.
    pub aggregates: bool,
    /// Set if values are sums of products over a matrix or a block, so that the rounding error depends on more than the own value.
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
pub trait ReducerSettings: fmt::Debug + Any + Send + Sync {
    /// Builds the reducer of one bucket, within `exchange`.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError>;

    /// Returns whether the reducer is built without a surrounding bucket if the vector is not cut into buckets. Its random bits are
    /// then those of the whole vector.
    fn requires_all_slots(&self) -> bool {
        false
    }

    /// Returns its properties.
    fn traits(&self) -> ReducerTraits;

    /// Returns whether the reducer accepts every ratio, among which a controller chooses.
    fn accepts_any_ratio(&self) -> bool {
        false
    }

    /// Returns the error class on a vector of `len` values; `None` if no constant holds for each rank separately.
    fn error_bound(&self, len: usize) -> Option<ErrorBound>;

    /// Returns the largest expected error on a vector of `len` values, relative to the vector's energy, if the error may exceed this energy.
    fn amplification(&self, len: usize) -> Option<f64> {
        self.error_bound(len)?.amplification()
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
    fn min_ranks(&self) -> usize {
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

    /// Returns whether the reducer changes what a rank contributes, as simulations of attacks do. If not, a dense exchange of a single
    /// rank returns the rank's own vector.
    fn changes_contributions(&self) -> bool {
        false
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
