//! Wrappers that add error feedback, momentum, ratio control, bucketing or metering to a reducer.
//!
//! Useful order, from the outside in: a feedback ([`ErrorFeedback`](error_feedback::ErrorFeedback),
//! [`MomentumCorrection`](momentum_correction::MomentumCorrection), [`InnerMomentum`](inner_momentum::InnerMomentum)), then
//! [`Metered`](metered::Metered), `Threaded` (with the feature `rayon`), [`Grouped`](grouped::Grouped),
//! [`Adaptive`](adaptive::Adaptive), [`Bucketed`](bucketed::Bucketed), and a [reducer](crate::reduce). In this order a controller
//! measures the vector after the feedback (with its residual, or as the difference to a memory), and one decision holds for all buckets.
//!
//! Every stateful wrapper here [holds](crate::reduce::Reducer::hold) its state for slots (parameter tensors) for which no rank has a
//! gradient: the exchange leaves that state unchanged.

pub mod adaptive;
pub mod bucketed;
pub mod by_optimizer;
pub mod error_feedback;
mod feed;
pub mod grouped;
pub mod inner_momentum;
pub mod metered;
pub mod momentum_correction;
pub mod no_feedback;
mod residual;
#[cfg(feature = "rayon")]
pub mod threaded;
mod unsent;

use crate::error::ReduceError;
use crate::seam::not_finite;
use crate::{Slot, math};

/// Replaces `fed` by the residual, which is `rate` times the difference between `fed` and `sent`, and returns the energy of each slot. The
/// residual may overflow, because a compressor may send larger values than it was given.
fn keep_unsent(fed: &mut [f32], sent: &[f32], rate: f32, slots: &[Slot], rank: usize) -> Result<Vec<f64>, ReduceError> {
    let keep = |slot: &Slot| math::keep_unsent(&mut fed[slot.range()], &sent[slot.range()], rate);
    let left: Vec<f64> = slots.iter().map(keep).collect();
    if left.iter().any(|energy| !energy.is_finite()) {
        check_finite(fed, slots, rank)?;
    }
    Ok(left)
}

/// Checks that `fed`, a gradient plus a residual, is finite. The step header has checked only the gradient.
///
/// # Errors
/// [`ReduceError::NonFinite`] names the rank and the slot.
pub fn check_finite(fed: &[f32], slots: &[Slot], rank: usize) -> Result<(), ReduceError> {
    not_finite(fed, slots).map_or(Ok(()), |slot| Err(ReduceError::NonFinite { rank, slot }))
}
