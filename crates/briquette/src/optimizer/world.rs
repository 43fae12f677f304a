//! Methods of the distributed optimizer for metrics, decisions and output over all ranks.

use std::fmt;

use super::DistributedOptimizer;
use crate::error::Error;

impl DistributedOptimizer {
    /// Sets the maximum global norm of the gradient that the optimizer steps with; a longer gradient is scaled down. The norm is over
    /// all parameters. See [`Synchronizer::with_clip_norm`](crate::Synchronizer::with_clip_norm). (Burn's `with_grad_clipping` clips
    /// each tensor separately.)
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

    /// Divides the samples of every step by the speeds of the ranks, so that all ranks end their computation together. A step has
    /// `batch · W` samples in a world of `W` ranks, as with batches of `batch`, and so the same mean gradient: ranks are weighted by the
    /// [recorded](Self::record_samples) samples. [`shares`](Self::shares) returns how many each rank takes; the method is that of
    /// [`Balance`](briquette_core::shards::Balance). It reads the session's clock, so runs are equal to the bit only on a simulated one. Under
    /// local steps, ranks agree on their speeds after each of the first three steps, and later with each exchange.
    ///
    /// ```no_run
    /// # use briquette::{DistributedOptimizer, Error, core::shards::EpochPlan};
    /// # use burn::{module::Module, optim::GradientsParams};
    /// # fn step<M: Module>(
    /// #     optim: &mut DistributedOptimizer, model: M, plan: &EpochPlan, step: usize,
    /// #     gradients: fn(&M, &[usize]) -> GradientsParams,
    /// # ) -> Result<M, Error> {
    /// let samples = plan.in_shares(step, optim.rank(), optim.shares().expect("with_balance"));
    /// optim.record_samples(samples.len()); // may be 0 for a very slow rank
    /// let grads = if samples.is_empty() { GradientsParams::new() } else { gradients(&model, samples) };
    /// let model = optim.step(0.1, model, grads)?;
    /// # Ok(model)
    /// # }
    /// ```
    ///
    /// # Panics
    /// If `batch` is 0.
    #[must_use]
    pub fn with_balance(mut self, batch: usize) -> Self {
        self.sync = self.sync.with_balance(batch);
        self
    }

    /// Returns the samples of each rank in the next step, in rank order; the same on every rank. `None` without
    /// [`with_balance`](Self::with_balance).
    pub fn shares(&self) -> Option<&[usize]> {
        self.sync.shares()
    }

    /// The global norm of the last step's gradient before clipping; `None` without [`with_clip_norm`](Self::with_clip_norm).
    pub fn gradient_norm(&self) -> Option<f64> {
        self.sync.gradient_norm()
    }

    /// Returns the mean of metrics over ranks, weighted by their numbers of samples; see
    /// [`Synchronizer::mean_over_ranks`](crate::Synchronizer::mean_over_ranks).
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails, or ranks call with different numbers of values.
    pub fn mean_over_ranks(&mut self, values: &[f64], samples: u64) -> Result<Vec<f64>, Error> {
        self.sync.mean_over_ranks(values, samples)
    }

    /// Returns whether the condition holds on any rank. The result is the same on every rank. All ranks must call it.
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
