//! Samples of ranks of unequal speed.

use briquette_core::error::ConfigError;
use briquette_core::shards::Balance;
use briquette_core::sync::RankStep;

use super::Synchronizer;

/// Shares of the samples of a step, if they follow the speeds of the ranks.
#[derive(Debug, Default)]
pub(super) struct Shares {
    batch: usize,
    balance: Option<Balance>,
}

impl Shares {
    /// Begins with equal shares for a world of this size.
    pub(super) fn begin(&mut self, world: usize) {
        self.balance = Balance::new(self.batch.saturating_mul(world), world).ok();
    }
}

impl Synchronizer {
    /// Divides the samples of every step by the speeds of the ranks: `batch` times the number of ranks, as with batches of `batch`. See
    /// [`DistributedOptimizer::with_balance`](crate::DistributedOptimizer::with_balance).
    ///
    /// # Panics
    /// If `batch` is 0.
    #[must_use]
    pub fn with_balance(mut self, batch: usize) -> Self {
        assert!(batch > 0, "with_balance: the samples of a rank must be at least 1, got 0");
        self.shares.batch = batch;
        self.shares.begin(self.world());
        self.with_run_setting("samples of a rank, balanced", batch.to_string())
    }

    /// Returns the samples of each rank in the next step, in rank order; the same on every rank. `None` without
    /// [`with_balance`](Self::with_balance).
    pub fn shares(&self) -> Option<&[usize]> {
        self.shares.balance.as_ref().map(Balance::shares)
    }

    /// Refuses shares for an aggregator that gives all ranks the same weight.
    pub(super) fn check_shares(&self) -> Result<(), ConfigError> {
        if self.shares.balance.is_none() || self.config.weights_by_samples() {
            return Ok(());
        }
        let why = "it gives ranks the same weight, whatever their samples";
        Err(ConfigError::conflict(
            "shares of samples by speed",
            "an aggregator other than the mean",
            why,
            "leave out one of the two",
        ))
    }

    /// Observes the ranks' samples and seconds in a step that all ranks have completed.
    pub(super) fn observe_speeds(&mut self, ranks: &[RankStep]) {
        let Some(balance) = &mut self.shares.balance else { return };
        let (step, ranks) = (self.driver.step(), ranks.iter().map(|rank| (rank.samples, rank.compute_seconds)));
        if balance.observe(step, ranks) && self.comm.rank() == 0 {
            tracing::info!("samples by rank from step {}: {:?}", step + 1, balance.shares());
        }
    }

    /// Begins with equal shares in a world that has changed: survivors may have observed different steps last.
    pub(super) fn forget_speeds(&mut self) {
        if self.shares.balance.is_some() {
            self.shares.begin(self.world());
            self.shares.balance = self.shares.balance.take().map(Balance::during_a_run);
        }
    }

    /// The state of the shares, for a checkpoint; empty without any.
    pub(crate) fn saved_shares(&self) -> Vec<f64> {
        self.shares.balance.as_ref().map_or(Vec::new(), Balance::to_numbers)
    }

    /// Loads the state of the shares, unless it is that of another world.
    pub(crate) fn load_shares(&mut self, numbers: &[f64]) {
        if let Some(saved) = self.shares.balance.as_ref().and_then(|balance| balance.from_numbers(numbers)) {
            self.shares.balance = Some(saved);
        }
    }
}
