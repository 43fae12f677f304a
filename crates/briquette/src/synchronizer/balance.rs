//! Samples of ranks of unequal speed.

use briquette_core::error::ConfigError;
use briquette_core::shards::Balance;
use briquette_core::sync::{Header, Plan, RankStep, StopFlags};
use burn::module::Module;

use super::Synchronizer;
use super::recorded::WeightedMean;
use crate::error::Error;

/// Shares of the samples of a step, if they follow the speeds of the ranks, and the samples of local steps.
#[derive(Debug, Default)]
pub(super) struct Shares {
    batch: usize,
    balance: Option<Balance>,
    /// This rank's samples in the steps since the last exchange.
    pub(super) local_samples: u64,
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
    pub(super) fn observe_speeds(&mut self, ranks: &[RankStep], plan: Plan) {
        self.shares.local_samples = 0;
        let Some(shares) = self.shares().map(<[usize]>::to_vec) else { return };
        let seconds = ranks.iter().map(|rank| rank.compute_seconds);
        let is_after_local_steps = plan.parameters && !plan.gradients;
        if is_after_local_steps && self.has_short_step(ranks, &shares) {
            return;
        }
        // The header has the samples of all local steps, and the seconds of the last one.
        let samples = |(rank, own): (usize, &RankStep)| match is_after_local_steps {
            true => shares.get(rank).map_or(0, |share| *share as u64),
            false => own.samples,
        };
        self.observe(ranks.iter().enumerate().map(samples).zip(seconds));
    }

    /// Returns whether a step since the last exchange had fewer samples than the others, as the last one of an epoch: the shares are then not what
    /// ranks had in the last step.
    fn has_short_step(&self, ranks: &[RankStep], shares: &[usize]) -> bool {
        let exchanged = |step: &u64| self.driver.strategy().plan(*step).exchanges();
        let steps = 1 + (0..self.driver.step()).rev().take_while(|step| !exchanged(step)).count() as u64;
        let of_a_step: u64 = shares.iter().map(|share| *share as u64).sum();
        RankStep::together(ranks.iter()).samples < steps.saturating_mul(of_a_step)
    }

    fn observe(&mut self, ranks: impl Iterator<Item = (u64, f64)>) {
        let Some(balance) = &mut self.shares.balance else { return };
        let step = self.driver.step();
        if balance.observe(step, ranks) && self.comm.rank() == 0 {
            tracing::info!("samples by rank from step {}: {:?}", step + 1, balance.shares());
        }
    }

    /// Ends a step without an exchange. Until the ranks' speeds are known, ranks agree on them in a header, so that not a whole period is at the
    /// speed of the slowest rank.
    pub(super) fn end_local_step<M: Module>(&mut self, module: &M) -> Result<(), Error> {
        let WeightedMean { samples, .. } = std::mem::take(&mut self.loss);
        self.shares.local_samples = self.shares.local_samples.saturating_add(samples.unwrap_or(1));
        let is_due = self.shares.balance.as_ref().is_some_and(|balance| !balance.has_looked());
        if !is_due || !self.is_settled() {
            return Ok(());
        }
        let begin = self.comm.now();
        let samples = WeightedMean { samples, ..WeightedMean::default() };
        let header = Header { learning_rate: None, stop: StopFlags::NONE, ..self.header_of(&samples, None) };
        let agreed = self.driver.agree_on_speeds(header, &mut self.comm);
        self.last_end = self.comm.now();
        (self.report.wait_seconds, self.report.clock) = (self.last_end - begin, self.last_end);
        self.report.traffic = self.comm.traffic() - self.start.traffic;
        match agreed {
            Ok(ranks) => {
                self.observe(ranks.iter().map(|rank| (rank.samples, rank.compute_seconds)));
                Ok(())
            }
            // If a rank was lost, the next world has been formed; the step itself is complete.
            Err(error) => self.exchange_again(module, error).map(drop),
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

    /// This rank's samples in the steps since the last exchange.
    pub(crate) fn local_samples(&self) -> u64 {
        self.shares.local_samples
    }

    /// Loads the samples since the last exchange, and the state of the shares unless it is that of another world.
    pub(crate) fn load_shares(&mut self, numbers: &[f64], local_samples: u64) {
        self.shares.local_samples = local_samples;
        if let Some(saved) = self.shares.balance.as_ref().and_then(|balance| balance.from_numbers(numbers)) {
            self.shares.balance = Some(saved);
        }
    }
}
