//! One call for what most training loops need of the other ranks.

use std::fmt;

use super::DistributedOptimizer;
use crate::error::Error;

impl DistributedOptimizer {
    /// Scales the gradient that the optimizer steps with so that its global norm, over all parameters, is at most `max`; see
    /// [`Synchronizer::with_clip_norm`](crate::Synchronizer::with_clip_norm). (Burn's `with_grad_clipping` clips each tensor by itself.)
    ///
    /// ```
    /// use briquette::{DistributedOptimizer, core::comm::Local};
    /// use burn::optim::AdamConfig;
    /// let session = Local::world(1).remove(0);
    /// let optim = DistributedOptimizer::auto(AdamConfig::new().init(), session, 42).with_clip_norm(1.0);
    /// assert_eq!(optim.gradient_norm(), None, "no step yet");
    /// ```
    ///
    /// # Panics
    /// If `max` is not above 0.
    #[must_use]
    pub fn with_clip_norm(mut self, max: f64) -> Self {
        self.sync = self.sync.with_clip_norm(max);
        self
    }

    /// The global norm of the gradient of the last step, before it was clipped; `None` without [`with_clip_norm`](Self::with_clip_norm).
    pub fn gradient_norm(&self) -> Option<f64> {
        self.sync.gradient_norm()
    }

    /// The mean of metrics over ranks, weighted by the samples behind them; see
    /// [`Synchronizer::mean_over_ranks`](crate::Synchronizer::mean_over_ranks).
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails, or ranks call with different numbers of values.
    pub fn mean_over_ranks(&mut self, values: &[f64], samples: u64) -> Result<Vec<f64>, Error> {
        self.sync.mean_over_ranks(values, samples)
    }

    /// Returns whether the condition holds on any rank, the same on every rank. All ranks must call it.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn any_rank(&mut self, condition: bool) -> Result<bool, Error> {
        self.sync.any_rank(condition)
    }

    /// Prints a line to standard output on rank 0 only.
    pub fn print(&self, line: impl fmt::Display) {
        if self.rank() == 0 {
            println!("{line}");
        }
    }
}
