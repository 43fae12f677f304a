//! Distributed optimizer: wraps a Burn optimizer and averages gradients over all ranks.

mod elastic;
mod world;

use briquette_core::Session;
use briquette_core::config::Config;
use briquette_core::trace::TARGET;
use burn::lr_scheduler::module_lr_scheduler::ModuleLearningRate;
use burn::module::Module;
use burn::optim::{GradientsParams, ModuleOptimizer};
use tracing::trace_span;

use crate::checkpoint::{Pending, SaveReport, by_the_default_device};
use crate::error::{Error, StepError};
use crate::optim::{IterateAverage, IterateAverageConfig};
use crate::step_report::StepReport;
use crate::strategy::BuildStrategy;
use crate::summary::RunSummary;
use crate::synchronizer::Synchronizer;

/// Burn's [`ModuleOptimizer`], with a gradient exchange before each step.
///
/// ```no_run
/// use briquette::{DistributedOptimizer, core::Session};
/// use burn::optim::{GradientsParams, SgdConfig};
/// # use burn::prelude::*;
/// # use burn::nn::{Linear, LinearConfig};
/// # fn loss(model: &Linear, device: &Device) -> Tensor<1> {
/// #     model.forward(Tensor::<2>::ones([1, 2], device)).mean()
/// # }
/// # fn train(session: Session, device: Device) -> Result<(), briquette::Error> {
/// # let model = LinearConfig::new(2, 1).init(&device);
/// let optim = SgdConfig::new().init();
/// let mut optim = DistributedOptimizer::auto(optim, session, 42); // 1
/// let mut model = optim.join(model)?;                             // 2
/// for _ in 0..10 {
///     let loss = loss(&model, &device);
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     model = optim.step(0.1, model, grads)?;                     // 3
/// }
/// # Ok(())
/// # }
/// ```
pub struct DistributedOptimizer {
    pub(crate) inner: ModuleOptimizer,
    pub(crate) sync: Synchronizer,
    pub(crate) average: Option<IterateAverage>,
    /// Set if checkpoint files are written in a background thread.
    pub(crate) background: bool,
    /// The checkpoint that is being written.
    pub(crate) pending: Option<Pending>,
    pub(crate) saved: SaveReport,
}

impl std::fmt::Debug for DistributedOptimizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DistributedOptimizer").field("sync", &self.sync).finish_non_exhaustive()
    }
}

/// Converts an error that holds the model into a [`StepError`].
pub(crate) fn keeping<M: Module>((module, source): (M, Error)) -> StepError<M> {
    StepError { model: Box::new(module), source }
}

impl DistributedOptimizer {
    /// Wraps `optimizer`, including its parameter groups, and chooses the compression ratio at run time: [`Config::auto`]. `seed`
    /// must be the same on every rank. The [`summary`](Self::summary) reports the decisions and the time saved.
    pub fn auto(optimizer: impl Into<ModuleOptimizer>, session: impl Into<Session>, seed: u64) -> Self {
        Self::new(optimizer, session, Config::auto(), seed)
    }

    /// Wraps `optimizer`, including its parameter groups. `config` (a [`DistributedConfig`](crate::DistributedConfig), or
    /// [a user-defined algorithm](crate::strategy)) and `seed` must be the same on every rank.
    pub fn new(
        optimizer: impl Into<ModuleOptimizer>,
        comm: impl Into<Session>,
        config: impl BuildStrategy + 'static,
        seed: u64,
    ) -> Self {
        DistributedOptimizer {
            inner: optimizer.into(),
            sync: Synchronizer::new(comm, config, seed),
            average: None,
            background: false,
            pending: None,
            saved: SaveReport::default(),
        }
    }

    /// Adds `weight_decay · parameter` to every local gradient before it is exchanged. Momentum correction needs this, because
    /// its inner optimizer receives velocities instead of gradients. Turn off the inner optimizer's own weight decay then.
    #[must_use]
    pub fn with_local_weight_decay(mut self, weight_decay: f64) -> Self {
        self.sync = self.sync.with_local_weight_decay(weight_decay);
        self
    }

    /// See [`Synchronizer::with_replica_check`].
    #[must_use]
    pub fn with_replica_check(mut self, steps: u64) -> Self {
        self.sync = self.sync.with_replica_check(steps);
        self
    }

    /// Maintains the running mean of the parameters after each step, to evaluate with it. Around AdamW this is [Gadam](crate::optim::IterateAverage).
    /// Every checkpoint includes the mean; it needs no communication. It requires a strategy that exchanges gradients and keeps replicas equal, as
    /// the default does; [`join`](Self::join) refuses others. A second `join` resets the mean, but not the step count.
    ///
    /// # Panics
    /// If a setting is out of its range.
    #[must_use]
    pub fn with_iterate_average(mut self, config: &IterateAverageConfig) -> Self {
        self.sync = self.sync.with_run_setting("iterate average", config.to_string());
        self.average = Some(config.init());
        self
    }

    /// Broadcasts rank 0's parameters to all ranks every `steps` steps; 0 for never. The default is [100](crate::REBROADCAST_STEPS) if the ranks'
    /// devices round differently, and otherwise never.
    #[must_use]
    pub fn with_rebroadcast(mut self, steps: u64) -> Self {
        self.sync = self.sync.with_rebroadcast(steps);
        self
    }

    /// Sets the total number of steps of the run, counted from its beginning; see [`Synchronizer::with_run_steps`].
    #[must_use]
    pub fn with_run_steps(mut self, steps: u64) -> Self {
        self.sync = self.sync.with_run_steps(steps);
        self
    }

    /// Registers a setting of the training loop, such as the batch size or a fingerprint of the data. The setting must be the same on every rank
    /// and in every part of a resumed run: [`join`](Self::join) compares it with the other ranks, and loading compares it with the checkpoint. The
    /// error for a mismatch names both values or, if both are JSON objects, the entry that differs.
    #[must_use]
    pub fn with_run_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sync = self.sync.with_run_setting(name, value);
        self
    }

    /// As [`with_run_setting`](Self::with_run_setting), for a setting that may change on resume, such as the number of steps.
    /// Only [`join`](Self::join) compares it.
    #[must_use]
    pub fn with_world_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sync = self.sync.with_world_setting(name, value);
        self
    }

    /// See [`Synchronizer::with_size_setting`].
    #[must_use]
    pub fn with_size_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sync = self.sync.with_size_setting(name, value);
        self
    }

    /// Joins this rank to the world. Call it once, on every rank, before the first step. A new member of a running [elastic
    /// world](Self::with_membership) receives its whole state from rank 0, with empty residuals.
    ///
    /// First compares version, configuration, seed, layout and the training loop's [own settings](Self::with_run_setting) with every rank. Then
    /// copies rank 0's parameters and buffers into the module, by path. Local parameter ids do not change, so parameter groups still match.
    /// Integer and boolean tensors and the optimizer's state are also copied from rank 0. Fields of type `Tensor` are not, because Burn does not
    /// expose them: make them the same on every rank, or use a `Param` without a gradient.
    ///
    /// **Frozen layers** (`no_grad`) are copied from rank 0 here and are not sent again. To unfreeze some, call `join` again, on every rank, with
    /// the unfrozen module. This resets the exchange and drops the residuals; the step count continues. Burn does not expose the settings of the
    /// inner optimizer, so ranks compare its results for a few test gradients. The same test chooses a [feedback left
    /// open](briquette_core::wrapper::by_optimizer::ByOptimizer), as [`auto`](Self::auto) does.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a rank differs in version, configuration, seed, layout, optimizer or a setting of the training
    /// loop, with both values; [`Error::Config`] when the configuration cannot work for this model or world.
    pub fn join<M: Module>(&mut self, module: M) -> Result<M, Error> {
        if self.sync.is_entering() {
            return self.hand_over(true, &module);
        }
        let module = self.sync.join_with(module, Some(&self.inner))?;
        let inner = &self.inner;
        if let Some(record) = self.sync.first_optimizer(&module, || inner.into_bytes().map_err(|e| e.to_string()))? {
            let loaded = by_the_default_device(|| self.inner.clone().load_record(record));
            // The other ranks proceed to their first step and would wait for this one.
            self.inner = loaded.inspect_err(|error| self.sync.comm.abort(&error.to_string()))?;
        }
        self.check_elastic()?;
        if self.average.is_some() {
            self.sync.check_replicas_equal("an iterate average")?;
        }
        self.average.iter_mut().for_each(IterateAverage::forget);
        Ok(module)
    }

    /// Averages gradients over all ranks, then steps the inner optimizer with the average, as [`ModuleOptimizer::step`] does.
    ///
    /// Under gradient accumulation, call it once per optimizer step with the accumulated gradients. If gradients are exchanged [during the backward
    /// pass](Self::forward_model), pass the gradients of that pass unchanged; to accumulate, run the forward passes on the module itself.
    /// If a rank of an [elastic world](Self::with_membership) is lost, returns the model of the last completed step: read the step number again.
    ///
    /// # Errors
    /// Those of [`try_step`](Self::try_step), without the model.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> Result<M, Error> {
        self.try_step(lr, module, grads).or_else(|failed| self.recover(failed))
    }

    /// As [`step`](Self::step), but returns the model with an error, for callers that continue or save the model after a failure.
    ///
    /// # Errors
    /// [`StepError`] holds the model, unchanged. Training may continue with the next batch if a gradient or a learning rate is
    /// not finite, or a number of samples is invalid: every rank refuses such a step. After any other error, and under Local SGD,
    /// the session is unusable.
    pub fn try_step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> Result<M, StepError<M>> {
        let lr = lr.into();
        self.sync.record_learning_rate(lr.base());
        match self.sync.sync_gradients(&module, grads) {
            Err(error) => Err(keeping((module, error))),
            Ok(grads) => {
                let optimizer = trace_span!(target: TARGET, "optimizer").entered();
                let module = self.inner.step(lr, module, grads);
                drop(optimizer);
                self.finish(module)
            }
        }
    }

    /// Returns the model for this step's forward pass. Needed only if gradients are exchanged [while the backward pass
    /// computes them](briquette_core::config::Exchange::during_backward). Pass the original model, not this one, to `step`.
    /// If communication cannot be overlapped, the result is a copy of the model, and the exchange begins after the backward
    /// pass.
    ///
    /// # Errors
    /// [`Error::NotJoined`]; those of the transport.
    pub fn forward_model<M: Module>(&mut self, model: &M) -> Result<M, Error> {
        self.sync.forward_model(model)
    }

    /// Exchanges gradients without stepping the optimizer: the first half of [`step`](Self::step), to inspect or clip the average:
    ///
    /// ```no_run
    /// # use briquette::{DistributedOptimizer, Error};
    /// # use burn::{module::Module, optim::GradientsParams};
    /// # fn by_hand<M: Module>(
    /// #     optim: &mut DistributedOptimizer, model: M, grads: GradientsParams, lr: f64,
    /// # ) -> Result<M, Error> {
    /// let grads = optim.sync_gradients(&model, grads)?;
    /// let model = optim.inner_mut().step(lr, model, grads);
    /// let model = optim.sync_parameters(model)?;
    /// # Ok(model)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`step`](Self::step); [`Error::Order`] if the previous step was not ended with
    /// [`sync_parameters`](Self::sync_parameters).
    pub fn sync_gradients<M: Module>(&mut self, module: &M, grads: GradientsParams) -> Result<GradientsParams, Error> {
        self.sync.sync_gradients(module, grads)
    }

    /// Ends a step: the second half of [`step`](Self::step). Averages parameters if the plan of this step requires it. Call
    /// it after every [`sync_gradients`](Self::sync_gradients) and step of the optimizer.
    ///
    /// # Errors
    /// As for [`step`](Self::step); [`Error::Order`] without `sync_gradients` before it.
    pub fn sync_parameters<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.finish(module).map_err(Error::from)
    }

    fn finish<M: Module>(&mut self, module: M) -> Result<M, StepError<M>> {
        let module = self.end_step(module)?;
        if let Some(average) = &mut self.average {
            average.update(&module);
        }
        self.admit(module)
    }

    fn end_step<M: Module>(&mut self, module: M) -> Result<M, StepError<M>> {
        let (module, inner) = (self.sync.sync_parameters(module).map_err(keeping)?, &self.inner);
        let record = match self.sync.next_momenta(&module, || inner.into_bytes().map_err(|e| e.to_string())) {
            Ok(None) => return Ok(module),
            Ok(Some(record)) => record,
            Err(error) => return Err(keeping((module, error))),
        };
        match by_the_default_device(|| self.inner.clone().load_record(record)) {
            Ok(next) => {
                self.inner = next;
                Ok(module)
            }
            Err(error) => {
                self.sync.comm.abort(&error.to_string());
                Err(keeping((module, error)))
            }
        }
    }

    /// Averages replicas that have trained independently since the last average (Local SGD), and continues training from the
    /// average. Call it at the end of a run, on all ranks. Does nothing if replicas are equal already.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn average_parameters<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.sync.average_parameters(module)
    }

    /// Returns the module to evaluate, in Burn's inference form and the same on every rank. It has the means over ranks of
    /// BatchNorm's running statistics and, under Local SGD, of parameters. All ranks must call it. `module` itself does not
    /// change, so evaluation does not affect training.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn evaluation_copy<M: Module>(&mut self, module: &M) -> Result<M, Error> {
        self.sync.evaluation_copy(module)
    }

    /// The running mean of the parameters, if [`with_iterate_average`](Self::with_iterate_average) is set. The model with
    /// this mean, in training form, may be passed to [`evaluation_copy`](Self::evaluation_copy).
    pub fn iterate_average(&self) -> Option<&IterateAverage> {
        self.average.as_ref()
    }

    /// Records this rank's training loss for the next step. Call it on every rank before [`step`](Self::step). Controllers read
    /// the mean over ranks, weighted by samples.
    pub fn record_loss(&mut self, loss: f64) {
        self.sync.record_loss(loss);
    }

    /// Records a validation loss. Call it after an evaluation, on any subset of the ranks. Controllers read the mean of the
    /// recorded values.
    pub fn record_validation_loss(&mut self, loss: f64) {
        self.sync.record_validation_loss(loss);
    }

    /// Records the number of samples in the gradient of the next step. Call it before [`step`](Self::step). Ranks' gradients
    /// are then weighted by their samples. A rank whose data has ended records 0 and passes empty gradients.
    pub fn record_samples(&mut self, samples: usize) {
        self.sync.record_samples(samples);
    }

    /// Records the learning rate of the next step. Only callers that do not use [`step`](Self::step), which records it itself,
    /// need this. Call it before [`sync_gradients`](Self::sync_gradients), and before [`forward_model`](Self::forward_model) if
    /// the feedback reads the rate.
    pub fn record_learning_rate(&mut self, learning_rate: f64) {
        self.sync.record_learning_rate(learning_rate);
    }

    /// A summary of the steps so far: formats sent, bytes, and an estimate of the time saved. It displays as one line.
    pub fn summary(&self) -> RunSummary {
        self.sync.summary()
    }

    /// The report of the last exchange.
    pub fn report(&self) -> &StepReport {
        self.sync.report()
    }

    /// The synchronizer, which exposes the exchange in full.
    pub fn synchronizer(&self) -> &Synchronizer {
        &self.sync
    }

    /// The synchronizer, which exposes the exchange in full.
    pub fn synchronizer_mut(&mut self) -> &mut Synchronizer {
        &mut self.sync
    }

    /// This rank's index.
    pub fn rank(&self) -> usize {
        self.sync.rank()
    }

    /// The number of ranks.
    pub fn world(&self) -> usize {
        self.sync.world()
    }

    /// Returns the wrapped optimizer and the synchronizer. The [iterate average](Self::with_iterate_average) is
    /// dropped.
    pub fn into_parts(self) -> (ModuleOptimizer, Synchronizer) {
        (self.inner, self.sync)
    }

    /// The wrapped optimizer.
    pub fn inner(&self) -> &ModuleOptimizer {
        &self.inner
    }

    /// The wrapped optimizer.
    pub fn inner_mut(&mut self) -> &mut ModuleOptimizer {
        &mut self.inner
    }
}
