//! The optimizer a Burn user already has, on many ranks.

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

/// Burn's [`ModuleOptimizer`], with an exchange between `backward` and `step`.
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
    /// Whether files are written in a thread.
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

/// An error that gives the model back.
pub(crate) fn keeping<M: Module>((module, source): (M, Error)) -> StepError<M> {
    StepError { model: Box::new(module), source }
}

impl DistributedOptimizer {
    /// Wraps `optimizer`, parameter groups and all, and decides by itself how much to compress: [`Config::auto`]. `seed` must be the same
    /// on every rank. What was decided, and what that saved, is in the [`summary`](Self::summary).
    pub fn auto(optimizer: impl Into<ModuleOptimizer>, session: impl Into<Session>, seed: u64) -> Self {
        Self::new(optimizer, session, Config::auto(), seed)
    }

    /// Wraps `optimizer`, parameter groups and all. `config` (a [`DistributedConfig`](crate::DistributedConfig), or an algorithm
    /// [of your own](crate::strategy)) and `seed` must be the same on every rank.
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

    /// Adds `weight_decay · parameter` to every local gradient before it is exchanged: what momentum correction needs, since its inner
    /// optimizer sees velocities. Leave the inner optimizer's own weight decay off then.
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

    /// Keeps the running mean of the parameters after each step, to evaluate in their place: [Gadam](crate::optim::IterateAverage) around AdamW.
    /// It is saved with every checkpoint, and nothing is sent for it. For strategies that exchange gradients and leave replicas equal, as the
    /// default does; [`join`](Self::join) refuses others. A second `join` begins the mean anew, and goes on counting steps.
    ///
    /// # Panics
    /// A setting is out of its range.
    #[must_use]
    pub fn with_iterate_average(mut self, config: &IterateAverageConfig) -> Self {
        self.sync = self.sync.with_run_setting("iterate average", config.to_string());
        self.average = Some(config.init());
        self
    }

    /// Gives every rank rank 0's parameters after every `steps` steps; 0 for never. By default that is done
    /// [every 100 steps](crate::REBROADCAST_STEPS) where ranks' devices round differently, and nowhere else.
    #[must_use]
    pub fn with_rebroadcast(mut self, steps: u64) -> Self {
        self.sync = self.sync.with_rebroadcast(steps);
        self
    }

    /// Says how many steps the run will have, counted from its beginning; see [`Synchronizer::with_run_steps`].
    #[must_use]
    pub fn with_run_steps(mut self, steps: u64) -> Self {
        self.sync = self.sync.with_run_steps(steps);
        self
    }

    /// Has a setting of the training loop compared, which must be the same on every rank and in every part of the run (the batch size, the
    /// data): by [`join`](Self::join), and when a checkpoint is loaded. What differs is named with both values; of two JSON objects, the
    /// entry that does.
    #[must_use]
    pub fn with_run_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.sync = self.sync.with_run_setting(name, value);
        self
    }

    /// As [`with_run_setting`](Self::with_run_setting), for what may change when the run is resumed, as its length may: only
    /// [`join`](Self::join) compares it.
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

    /// Makes this rank one of the world; call it once, before the first step. Compares version, configuration, seed, layout and the training
    /// loop's [own settings](Self::with_run_setting) with every rank, then gives the module rank 0's parameters and buffers, by path:
    /// ranks may initialize theirs as they like. Local parameter ids stay, so parameter groups keep matching.
    ///
    /// Integer and boolean tensors are rank 0's, too, and so is the state of the optimizer, where ranks come with different ones. (A plain
    /// `Tensor` field is shown by no module: make it the same on every rank, or a `Param` without a gradient.)
    ///
    /// **Frozen layers** (`no_grad`) are rank 0's from then on, on every rank, and are not sent again. To unfreeze some, call `join` again,
    /// on every rank, with the module as it is then: the exchange begins anew, without what was not sent before, and the step goes on.
    ///
    /// The inner optimizer is compared too, by what a copy of
    /// it makes of a few test gradients: Burn does not say of what kind it is and how it is set. By the same means a
    /// [feedback that was left open](briquette_core::config::Feedback::ByOptimizer), as [`auto`](Self::auto) leaves it, is decided.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when a rank differs in version, configuration, seed, layout, optimizer or a setting of the training
    /// loop, with both values; [`Error::Config`] when the configuration cannot work here.
    pub fn join<M: Module>(&mut self, module: M) -> Result<M, Error> {
        let module = self.sync.join_with(module, Some(&self.inner))?;
        let inner = &self.inner;
        if let Some(record) = self.sync.first_optimizer(&module, || inner.into_bytes().map_err(|e| e.to_string()))? {
            let loaded = by_the_default_device(|| self.inner.clone().load_record(record));
            // The others go on to their first step.
            self.inner = loaded.inspect_err(|error| self.sync.comm.abort(&error.to_string()))?;
        }
        if let Some(average) = &mut self.average {
            self.sync.check_replicas_equal("an iterate average")?;
            average.forget();
        }
        Ok(module)
    }

    /// As [`ModuleOptimizer::step`], with the average of all ranks' gradients.
    ///
    /// Under gradient accumulation, call it once per real step with the accumulated gradients. Where gradients are exchanged
    /// [during the backward pass](Self::forward_model), these must be the ones that came, unchanged: accumulate with forward passes on the
    /// module itself.
    ///
    /// # Errors
    /// Those of [`try_step`](Self::try_step), without the model.
    pub fn step<M: Module>(
        &mut self,
        lr: impl Into<ModuleLearningRate>,
        module: M,
        grads: GradientsParams,
    ) -> Result<M, Error> {
        self.try_step(lr, module, grads).map_err(Error::from)
    }

    /// [`step`](Self::step) for people who go on after a failure, or save the model then.
    ///
    /// # Errors
    /// [`StepError`] holds the model as it was. After a gradient or a learning rate that is not finite, or a senseless number
    /// of samples (refused on every rank), the world may go on with the next batch; after any other error, and under Local
    /// SGD, the session is of no further use.
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

    /// The model to run this step's forward pass on, where gradients are exchanged
    /// [while the backward pass computes them](briquette_core::config::Exchange::during_backward); then `step` is given the model itself. Where
    /// nothing can be exchanged meanwhile it is a copy of the model, and the exchange begins after the pass.
    ///
    /// # Errors
    /// [`Error::NotJoined`]; those of the transport.
    pub fn forward_model<M: Module>(&mut self, model: &M) -> Result<M, Error> {
        self.sync.forward_model(model)
    }

    /// The first half of [`step`](Self::step), for people who step themselves (to look at the average, or to clip it):
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
    /// As for [`step`](Self::step); [`Error::Order`] when [`sync_parameters`](Self::sync_parameters) did not end the step
    /// before.
    pub fn sync_gradients<M: Module>(&mut self, module: &M, grads: GradientsParams) -> Result<GradientsParams, Error> {
        self.sync.sync_gradients(module, grads)
    }

    /// The second half: ends the step, and averages parameters where they are due. Call it after every
    /// [`sync_gradients`](Self::sync_gradients) and step of the optimizer.
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
        Ok(module)
    }

    fn end_step<M: Module>(&mut self, module: M) -> Result<M, StepError<M>> {
        let module = self.sync.sync_parameters(module).map_err(keeping)?;
        let inner = &self.inner;
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

    /// Makes replicas equal that trained alone since the last average (Local SGD), to go on with the average: at the end of a
    /// run. All ranks must call it. Does nothing where replicas are equal already.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn average_parameters<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.sync.average_parameters(module)
    }

    /// The module to evaluate, the same on every rank and in Burn's inference form: with the mean over ranks of BatchNorm's running
    /// statistics and, under Local SGD, of parameters. All ranks must call it. `module` itself does not change, so that evaluating does
    /// not change training.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn evaluation_copy<M: Module>(&mut self, module: &M) -> Result<M, Error> {
        self.sync.evaluation_copy(module)
    }

    /// The mean of iterates, under [`with_iterate_average`](Self::with_iterate_average). What it makes of the model may be given to
    /// [`evaluation_copy`](Self::evaluation_copy), in training form.
    pub fn iterate_average(&self) -> Option<&IterateAverage> {
        self.average.as_ref()
    }

    /// This rank's training loss of the step to come, before [`step`](Self::step), on every rank: controllers read the mean over ranks,
    /// weighted by samples.
    pub fn record_loss(&mut self, loss: f64) {
        self.sync.record_loss(loss);
    }

    /// A validation loss, after an evaluation, on any ranks: controllers read the mean of those that have one.
    pub fn record_validation_loss(&mut self, loss: f64) {
        self.sync.record_validation_loss(loss);
    }

    /// How many samples are behind the gradient of the step to come, before [`step`](Self::step): ranks' gradients then count by their
    /// samples. A rank whose data ran out records 0 and passes empty gradients.
    pub fn record_samples(&mut self, samples: usize) {
        self.sync.record_samples(samples);
    }

    /// The learning rate of the step to come, where [`step`](Self::step) does not record it: before
    /// [`sync_gradients`](Self::sync_gradients), and before [`forward_model`](Self::forward_model) where a feedback needs it then.
    pub fn record_learning_rate(&mut self, learning_rate: f64) {
        self.sync.record_learning_rate(learning_rate);
    }

    /// What the steps so far were sent as, the bytes, and about what time that saved; it displays as one line.
    pub fn summary(&self) -> RunSummary {
        self.sync.summary()
    }

    /// What the last exchange did.
    pub fn report(&self) -> &StepReport {
        self.sync.report()
    }

    /// The exchange, with everything it can do.
    pub fn synchronizer(&self) -> &Synchronizer {
        &self.sync
    }

    /// The exchange, with everything it can do.
    pub fn synchronizer_mut(&mut self) -> &mut Synchronizer {
        &mut self.sync
    }

    /// This rank's number.
    pub fn rank(&self) -> usize {
        self.sync.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.sync.world()
    }

    /// The wrapped optimizer, and the exchange; without what [is averaged](Self::with_iterate_average).
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
