//! Elastic worlds.

use briquette_core::membership::{Generation, Regroup};
use burn::module::Module;

use super::{DistributedOptimizer, keeping};
use crate::checkpoint::by_the_default_device;
use crate::error::{Error, StepError};

impl DistributedOptimizer {
    /// Makes the world elastic: if a rank is lost during a step, the survivors agree on a new world without it, and compute the same
    /// step again. No checkpoint is needed. `membership` forms the new worlds; call this on every rank.
    ///
    /// - **A lost rank** is one whose process ended, whose connection broke, or whose thread returned. A rank that fails by itself and
    ///   states a reason (a panic, an error of its device) still ends all ranks.
    /// - **Ranks and shards.** [`rank`](Self::rank) and [`world`](Self::world) change. Read them before every step.
    /// - **Commit.** Ranks vote before they commit a step, which costs one latency per step. All survivors continue with the same
    ///   parameters, and compare them at their first step.
    /// - **Residuals** of survivors are multiplied by new world size / old world size, so that each keeps its weight in the mean.
    ///   Velocities are kept. What the lost rank had not sent is lost.
    /// - **Strategies.** Exchanges that leave all ranks with the same parameters: every step, or after local steps.
    ///   [`join`](Self::join) refuses others. With local steps, survivors repeat the exchange instead of the step, and see
    ///   [`Synchronizer::is_settled`](crate::Synchronizer::is_settled).
    ///
    /// [`run_elastic`](crate::run_elastic) makes the membership, and has an example.
    #[must_use]
    pub fn with_membership(mut self, membership: impl Regroup + 'static) -> Self {
        self.sync = self.sync.with_membership(membership);
        self
    }

    /// Returns the current generation of an elastic world.
    pub fn generation(&self) -> Option<&Generation> {
        self.sync.generation()
    }

    /// Returns the model of a failed step if a rank was lost and the survivors, of which this is one, have formed a new world. The step
    /// is then computed again. [`step`](Self::step) calls it; call it after [`try_step`](Self::try_step).
    ///
    /// # Errors
    /// The error of the step, if it has another cause, or if this rank cannot be part of the new world.
    pub fn recover<M: Module>(&mut self, failed: StepError<M>) -> Result<M, Error> {
        let StepError { model, source } = failed;
        self.sync.recover(&*model, source)?;
        Ok(*model)
    }

    /// Waits until every rank has ended its last step; see [`Synchronizer::leave`](crate::Synchronizer::leave). Call it at the end of an elastic
    /// run if ranks do nothing together after their last step.
    ///
    /// # Errors
    /// Those of [`recover`](Self::recover), except that a rank whose steps are complete needs no other one.
    pub fn leave<M: Module>(&mut self, model: &M) -> Result<(), Error> {
        while !self.sync.leave(model)? {}
        Ok(())
    }

    /// Admits candidates at the end of a step, if ranks have agreed so.
    pub(super) fn admit<M: Module>(&mut self, module: M) -> Result<M, StepError<M>> {
        match self.sync.admit(&module) {
            Ok(false) => Ok(module),
            Ok(true) => match self.hand_over(false, &module) {
                Ok(_) => Ok(module),
                Err(error) => Err(keeping((module, error))),
            },
            Err(error) => Err(keeping((module, error))),
        }
    }

    /// Refuses what a new member would not have.
    pub(super) fn check_elastic(&self) -> Result<(), Error> {
        let kept = [("background saving", self.background), ("an iterate average", self.average.is_some())];
        let mut kept = kept.into_iter().filter(|(_, is_set)| *is_set);
        Ok(kept.try_for_each(|(what, _)| self.sync.check_fixed(what))?)
    }

    pub(super) fn hand_over<M: Module>(&mut self, is_new: bool, module: &M) -> Result<M, Error> {
        let DistributedOptimizer { inner, sync, .. } = self;
        let mut record = None;
        let joined = sync.hand_over(is_new, module, |sync, module| {
            let module = sync.join_with(module, Some(inner))?;
            // New members do not know the step yet.
            sync.comm.scope().step = 0;
            record = sync.first_optimizer(&module, || inner.into_bytes().map_err(|e| e.to_string()))?;
            Ok(module)
        })?;
        if let Some(record) = record {
            let loaded = by_the_default_device(|| self.inner.clone().load_record(record));
            self.inner = loaded.inspect_err(|error| self.sync.comm.abort(&error.to_string()))?;
        }
        Ok(joined)
    }
}
