//! Wrappers that add error feedback, momentum, ratio control, bucketing or metering to a reducer.
//!
//! The useful order, from the outside in: [`ErrorFeedback`], [`MomentumCorrection`], [`InnerMomentum`], [`Shifted`] or [`RankMomentum`],
//! then [`Metered`], then `Threaded` (with the feature `rayon`), then [`Grouped`], then [`Adaptive`], then [`Bucketed`], then a
//! [reducer](crate::reduce). Gains are then those of the vector with its residual (or minus its memory), and one decision holds for all
//! buckets.
//!
//! Every stateful wrapper here [holds](crate::reduce::Reducer::hold) its state of slots for which no rank has a gradient.

pub mod adaptive;
pub mod bucketed;
pub mod by_optimizer;
pub mod byzantine;
pub mod error_feedback;
mod feed;
pub mod grouped;
pub mod inner_momentum;
pub mod metered;
pub mod momentum_correction;
pub mod no_feedback;
pub mod one_bit_adam;
pub mod rank_momentum;
pub mod shifted;
#[cfg(feature = "rayon")]
pub mod threaded;

pub use adaptive::{Adaptive, Probing};
pub use bucketed::Bucketed;
pub use by_optimizer::ByOptimizer;
pub use byzantine::{Attack, Byzantine, ByzantineConfig};
pub use error_feedback::{ErrorFeedback, ErrorFeedbackConfig, ErrorInsideConfig};
pub use grouped::Grouped;
pub use inner_momentum::{InnerMomentum, InnerMomentumConfig};
pub use metered::Metered;
pub use momentum_correction::{Momentum, MomentumCorrection};
pub use no_feedback::NoFeedback;
pub use one_bit_adam::{OneBitAdam, OneBitAdamConfig};
pub use rank_momentum::{RankMomentum, RankMomentumConfig};
pub use shifted::{DianaConfig, Ef21Config, Shifted};
#[cfg(feature = "rayon")]
pub use threaded::Threaded;

use crate::Slot;
use crate::error::ReduceError;
use crate::math;
use crate::reduce::not_finite;

/// Replaces `fed` by the residual, `rate` times the difference between `fed` and `sent`, and returns the energy of each slot. The residual
/// may overflow, because a compressor may send more than it was given.
fn keep_unsent(fed: &mut [f32], sent: &[f32], rate: f32, slots: &[Slot], rank: usize) -> Result<Vec<f64>, ReduceError> {
    let keep = |slot: &Slot| math::keep_unsent(&mut fed[slot.range()], &sent[slot.range()], rate);
    let left: Vec<f64> = slots.iter().map(keep).collect();
    if left.iter().any(|energy| !energy.is_finite()) {
        check_finite(fed, slots, rank)?;
    }
    Ok(left)
}

/// Clears slots for which no rank has a gradient, so that error feedback sends nothing there; its state is
/// [held](crate::reduce::Reducer::hold).
fn clear_absent(fed: &mut [f32], slots: &[Slot]) {
    slots.iter().filter(|slot| slot.is_absent()).for_each(|slot| fed[slot.range()].fill(0.0));
}

/// Checks that `fed` is finite. The header has checked the gradient alone; with a residual added to it, it may have become infinite.
pub(crate) fn check_finite(fed: &[f32], slots: &[Slot], rank: usize) -> Result<(), ReduceError> {
    not_finite(fed, slots).map_or(Ok(()), |slot| Err(ReduceError::NonFinite { rank, slot }))
}
