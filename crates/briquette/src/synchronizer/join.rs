//! Joining: compares settings with the other ranks, and copies rank 0's module.

use briquette_core::Layout;
use briquette_core::config::combine;
use briquette_core::error::ConfigError;
use briquette_core::sync::{Plan, SyncStrategy};
use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::{Joined, REBROADCAST_STEPS, REPLICA_CHECK_STEPS, Synchronizer, mixed};
use crate::backend::in_host_memory;
use crate::error::Error;
use crate::flat::{self, Inventory, Known, Part};
use crate::handshake::{self, Compared, Identity};
use crate::probe::{Probe, inner_optimizer};
use crate::strategy::InnerOptimizer;

impl Synchronizer {
    /// Registers a setting of the training loop that must be the same on every rank and in every part of a resumed run.
    /// [`join`](Self::join) compares it with the other ranks, and loading compares it with the checkpoint. The error for a
    /// mismatch names both values or, if both are JSON objects, the entry that differs.
    #[must_use]
    pub fn with_run_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.run.push((name.into(), value.into()));
        self
    }

    /// As [`with_run_setting`](Self::with_run_setting), for a setting that may change when the run is resumed, such as the
    /// number of steps: only [`join`](Self::join) compares it.
    #[must_use]
    pub fn with_world_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.part.push((name.into(), value.into()));
        self
    }

    /// As [`with_run_setting`](Self::with_run_setting), for a setting that depends on the number of ranks, such as this number,
    /// or the samples per rank and step. [`join`](Self::join) compares it with the other ranks; loading compares it if the
    /// checkpoint is from a world of the same size.
    #[must_use]
    pub fn with_size_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.size.push((name.into(), value.into()));
        self
    }

    /// Sets the total number of steps of the run, counted from its beginning even if it is resumed. It must be the same on every
    /// rank. It has three effects:
    ///
    /// - It determines settings that the configuration leaves open (periods of local steps, the scope of Parle).
    /// - If the strategy needs it, there is an exchange at the last step, so that the evaluated model includes the last steps'
    ///   progress.
    /// - A run that would exchange too rarely logs a warning when it [joins](Self::join).
    ///
    /// A checkpoint compares the determined values as part of the configuration. If a run is to be resumed with another number
    /// of steps, set the period (and the scope of Parle) explicitly: a checkpoint is refused if the new number gives another
    /// period.
    #[must_use]
    pub fn with_run_steps(mut self, steps: u64) -> Self {
        self.run_steps = Some(steps);
        self
    }

    /// As [`with_run_steps`](Self::with_run_steps), after a checkpoint was read. In a world of another size the rest of a run
    /// has another number of steps. Every rank must call it.
    pub fn set_run_steps(&mut self, steps: u64) {
        self.run_steps = Some(steps);
        if let Some(last) = steps.checked_sub(1) {
            self.driver.strategy_mut().ends_at(last);
        }
    }

    /// Joins this rank to the world. Compares version, configuration, seed, local weight decay, layout and the training loop's
    /// [own settings](Self::with_run_setting) with every rank, then copies rank 0's parameters and buffers into the module, by
    /// path. Local parameter ids do not change, so parameter groups still match.
    ///
    /// A synchronizer has no access to the optimizer, so a feedback that [depends on the
    /// optimizer](briquette_core::wrapper::by_optimizer::ByOptimizer) becomes error feedback.
    /// [`DistributedOptimizer::join`](crate::DistributedOptimizer::join) probes its own optimizer instead.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names the setting, the rank and both values; [`Error::Config`] when the configuration cannot
    /// work for this model or world.
    pub fn join<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.join_with(module, None)
    }

    /// As [`join`](Self::join), with the optimizer if it is accessible.
    pub(crate) fn join_with<M: Module>(&mut self, module: M, optimizer: Option<&ModuleOptimizer>) -> Result<M, Error> {
        flat::drain(&module);
        let clip = self.clip;
        let seen = |optimizer| clip.seen(inner_optimizer(optimizer, &module));
        let find = || optimizer.map_or(InnerOptimizer::Unseen, seen);
        let mut cautions = self.config.for_run(self.run_steps);
        let probe = |module: &M| optimizer.map_or(Ok(None), |optimizer| Probe::of(optimizer, module));
        let built = Inventory::of(&module).and_then(|inventory| {
            self.feedback = self.config.suit(&find)?;
            let strategy = self.build_strategy(&inventory.layout)?;
            self.check_rebroadcast(&*strategy)?;
            self.check_elastic(&*strategy)?;
            self.check_shares()?;
            (1..=self.config.channels()).try_for_each(|channel| self.comm.open(channel))?;
            Ok((inventory, strategy, mixed::rounding(&module)?, probe(&module)?))
        });
        // The other ranks may have built their strategies, and would wait for this one.
        let (inventory, mut strategy, rounding, optimizer) =
            built.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        let mut identity = self.identity(&inventory, rounding, optimizer);
        let discrete = flat::discrete::describe(&module);
        if !discrete.is_empty() {
            identity.part.push(("integer and boolean tensors".to_owned(), discrete));
        }
        let compared = self.elastic.compared(&identity);
        let is_mixed = handshake::compare(&mut self.comm, &compared, &inventory)?;
        let first = self.take_first(module, &inventory, &mut *strategy);
        let module = first.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        // If the aggregator is not the mean, no rank may decide for the others, so rank 0's parameters may not be
        // re-broadcast.
        let drifts = is_mixed && averages_gradients(strategy.plan(0));
        // In an elastic world, a broadcast that fails half-way cannot be repeated.
        let may_broadcast = self.config.weights_by_samples() && self.generation().is_none();
        let due = if drifts && may_broadcast { REBROADCAST_STEPS } else { 0 };
        if drifts && due == 0 && self.rank() == 0 {
            tracing::warn!("ranks round differently, and parameters are not re-broadcast: replicas drift apart");
        }
        let rebroadcast = self.rebroadcast.unwrap_or(due);
        cautions.extend(inventory.caution());
        self.say_what_was_decided(&cautions);
        let slots = inventory.layout.slots().iter().chain(inventory.buffers.slots());
        let names = Layout::new(slots.map(|slot| (slot.path().to_owned(), slot.shape().to_vec())));
        self.driver.drive(strategy, inventory.layout.clone());
        self.driver.set_names(names);
        self.driver.set_weights_by_samples(self.config.weights_by_samples());
        self.driver.set_keeps_state(self.config.keeps_state());
        let (known, buffer_ids) = (Known::default(), flat::buffer_ids(&module));
        // Gradients are read from a device in buckets.
        let is_near = module.devices().iter().all(in_host_memory);
        let is_identity = self.world() == 1 && is_near && self.config.is_identity_alone();
        let joined = Joined { inventory, identity, rebroadcast, is_mixed, is_identity, known, buffer_ids };
        self.joined = Some(joined);
        // The other ranks proceed to their first step, and would wait for this one.
        self.keep_buffers(&module).inspect_err(|error| self.comm.abort(&error.to_string()))?;
        self.last_end = self.comm.now();
        self.computing();
        Ok(module)
    }

    /// Builds the strategy in its state before the run's first step.
    pub(crate) fn build_strategy(&self, layout: &Layout) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let mut strategy = self.config.build(layout, self.world())?;
        self.run_steps.and_then(|steps| steps.checked_sub(1)).into_iter().for_each(|last| strategy.ends_at(last));
        Ok(strategy)
    }

    /// Logs the decisions once, on rank 0.
    fn say_what_was_decided(&self, cautions: &[String]) {
        if self.rank() != 0 {
            return;
        }
        if self.joined.is_none() {
            cautions.iter().for_each(|caution| tracing::warn!("{caution}"));
        }
        if let Some(feedback) = &self.feedback {
            tracing::info!("what is not sent is kept by {feedback}");
        }
    }

    /// The training loop's settings are compared first, because they explain a mismatch best.
    fn identity(&self, inventory: &Inventory, rounding: String, optimizer: Option<Probe>) -> Identity {
        let Compared { mut run, size, mut part } = self.settings.clone();
        run.extend(handshake::settings(inventory, self.config.settings(), self.seed, self.weight_decay));
        let steps = self.rebroadcast.map_or("as the world needs".to_owned(), |steps| format!("every {steps} steps"));
        // If several optimizers share a world, all ranks must join them in the same order.
        let number = self.comm.share_number();
        part.extend((number > 0).then(|| ("optimizer of the world, counted from 0".to_owned(), number.to_string())));
        // Not compared with a checkpoint: a run may be resumed on devices for which another interval applies.
        part.push(("re-broadcast".to_owned(), steps));
        part.extend(self.run_steps.map(|steps| ("steps of the run".to_owned(), steps.to_string())));
        let steps = self.replica_check.unwrap_or(REPLICA_CHECK_STEPS);
        part.push(("comparison of replicas".to_owned(), format!("every {steps} steps")));
        Identity { run, size, part, rounding, optimizer }
    }

    fn check_rebroadcast(&self, strategy: &dyn SyncStrategy) -> Result<(), ConfigError> {
        match self.rebroadcast.is_some_and(|steps| steps > 0) {
            true => Ok(combine::rebroadcast(strategy.plan(0), self.config.weights_by_samples())?),
            false => Ok(()),
        }
    }

    /// Checks that the exchange of gradients keeps replicas equal after every step, as `what` requires.
    pub(crate) fn check_replicas_equal(&self, what: &str) -> Result<(), Error> {
        Ok(combine::equal_replicas(self.plan()?, what).map_err(ConfigError::from)?)
    }

    /// Returns the module with rank 0's parameters and buffers, and initializes the strategy with them.
    fn take_first<M: Module>(
        &mut self,
        mut module: M,
        inventory: &Inventory,
        strategy: &mut dyn SyncStrategy,
    ) -> Result<M, Error> {
        // Members that hand their state over keep their values, and their strategy's state.
        let keeps = self.hands_over() && !self.is_new_member();
        if keeps && self.rank() > 0 {
            return Ok(module);
        }
        for part in [Part::Trainable, Part::Frozen, Part::Buffers] {
            let mut values = Vec::new();
            flat::read_values(&module, part, &mut values)?;
            self.broadcast(&mut values)?;
            if keeps {
                continue;
            }
            if part == Part::Trainable {
                strategy.begin(&values);
            }
            module = flat::write_values(module, part, &values, inventory);
        }
        let mut bytes = flat::discrete::read(&module)?;
        if bytes.is_empty() {
            return Ok(module);
        }
        self.with_receivers(|comm| comm.broadcast(0, &mut bytes))?;
        Ok(if keeps { module } else { flat::discrete::write(module, &bytes) })
    }

    /// Replaces the values by rank 0's.
    pub(super) fn broadcast(&mut self, values: &mut [f32]) -> Result<(), Error> {
        self.with_receivers(|comm| comm.broadcast_values(0, values))
    }
}

/// Returns whether replicas stay equal because every rank's optimizer steps with the same bits.
pub(super) fn averages_gradients(plan: Plan) -> bool {
    plan.gradients && plan.replicas_equal
}
