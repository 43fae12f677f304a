//! Elastic worlds.

use briquette_core::membership::{Generation, Regroup};
use burn::module::Module;

use super::{DistributedOptimizer, keeping};
use crate::checkpoint::by_the_default_device;
use crate::error::{Error, StepError};
use crate::flat::{self, Part};

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
    /// - **Strategies.** Exchanges after the backward pass that leave all ranks with the same parameters: every step, or after local steps.
    ///   [`join`](Self::join) refuses others. With local steps, survivors repeat the exchange instead of the step, and see
    ///   [`Synchronizer::is_settled`](crate::Synchronizer::is_settled).
    ///
    /// ```
    /// use briquette::core::comm::Local;
    /// use briquette::core::membership::{Policy, Threads};
    /// use briquette::{DistributedConfig, DistributedOptimizer, Error};
    /// use burn::nn::{Linear, LinearConfig};
    /// use burn::optim::{GradientsParams, SgdConfig};
    /// use burn::prelude::*;
    ///
    /// # fn loss(model: &Linear, device: &Device) -> Tensor<1> {
    /// #     model.forward(Tensor::<2>::ones([1, 2], device)).mean()
    /// # }
    /// // Three ranks; the last one ends after two steps of five.
    /// let members = Threads::world(3, Policy::default(), Local::world);
    /// let ends = std::thread::scope(|threads| {
    ///     let ranks: Vec<_> = members.into_iter().map(|(session, member)| threads.spawn(move || {
    ///         let (device, last) = (Device::default().autodiff(), session.rank() == 2);
    ///         let optim = DistributedOptimizer::new(SgdConfig::new().init(), session, DistributedConfig::dense(), 42);
    ///         let mut optim = optim.with_membership(member);
    ///         let mut model = optim.join(LinearConfig::new(2, 1).init(&device))?;
    ///         while optim.synchronizer().step() < if last { 2 } else { 5 } {
    ///             let grads = GradientsParams::from_grads(loss(&model, &device).backward(), &model);
    ///             model = match optim.try_step(0.1, model, grads) {
    ///                 Ok(next) => next,
    ///                 Err(failed) => optim.recover(failed)?, // the loop computes the step again
    ///             };
    ///         }
    ///         if !last {
    ///             while !optim.synchronizer_mut().leave(&model)? {} // no rank is in doubt about the last step
    ///         }
    ///         Ok::<_, Error>(optim.world())
    ///     })).collect();
    ///     ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<Result<Vec<_>, _>>()
    /// })?;
    /// assert_eq!(ends, [2, 2, 3]);
    /// # Ok::<_, Error>(())
    /// ```
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
    /// is then computed again.
    ///
    /// # Errors
    /// The error of the step, if it has another cause, or if this rank cannot be part of the new world.
    pub fn recover<M: Module>(&mut self, failed: StepError<M>) -> Result<M, Error> {
        let StepError { model, source } = failed;
        self.sync.recover(&*model, source)?;
        Ok(*model)
    }

    /// Joins a world that is running, as a new member: `session` and membership are from
    /// [`TcpBuilder::join_running`](crate::tcp::TcpBuilder::join_running). Takes the place of [`join`](Self::join). Compares the settings of
    /// the run with the other ranks, then takes rank 0's parameters, buffers, optimizer state, replicated strategy state and step. Residuals
    /// begin empty.
    ///
    /// # Errors
    /// As for [`join`](Self::join).
    pub fn enter<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.hand_over(true, &module)
    }

    /// Admits candidates at the end of a step, if ranks have agreed so.
    pub(super) fn admit<M: Module>(&mut self, module: M) -> Result<M, StepError<M>> {
        match self.sync.admit(&module) {
            Ok(false) => Ok(module),
            Ok(true) => {
                // Clones share running statistics, which joining writes.
                let buffers = match flat::read_bytes(&module, Part::Buffers) {
                    Ok(buffers) => buffers,
                    Err(error) => return Err(keeping((module, error))),
                };
                let handed = self.hand_over(false, &module);
                let module = flat::write_bytes(module, Part::Buffers, &buffers).unwrap_or_else(|module| module);
                let kept = self.sync.keep_buffers(&module);
                match handed.and(kept) {
                    Ok(()) => Ok(module),
                    Err(error) => Err(keeping((module, error))),
                }
            }
            Err(error) => Err(keeping((module, error))),
        }
    }

    /// Refuses what a new member would not have.
    pub(super) fn check_elastic(&self) -> Result<(), Error> {
        let kept = [("background saving", self.background), ("an iterate average", self.average.is_some())];
        let mut kept = kept.into_iter().filter(|(_, is_set)| *is_set);
        Ok(kept.try_for_each(|(what, _)| self.sync.check_fixed(what))?)
    }

    fn hand_over<M: Module>(&mut self, is_new: bool, module: &M) -> Result<M, Error> {
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
