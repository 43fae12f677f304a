//! Data-parallel training with Burn's own training loop.
//!
//! [`DataParallel`] is a [`SupervisedLearningStrategy`], so Burn's `SupervisedTraining` keeps its metrics, dashboard,
//! interrupter, early stopping and checkpointers. Every rank is a thread or a process that runs its own `SupervisedTraining`,
//! with its own model, session, and loader over its share of the data.
//!
//! ```no_run
//! use briquette::core::Session;
//! use briquette::data::ShardedDataLoaderBuilder;
//! use briquette::DataParallel;
//! # use std::sync::Arc;
//! # use burn::data::{dataloader::batcher::Batcher, dataset::Dataset};
//! use burn::optim::SgdConfig;
//! use burn::tensor::Device;
//! use burn::train::Learner;
//! use burn::train::metric::LossMetric;
//! # use burn::train::{LearnerModel, TrainStep, InferenceStep, metric::Adaptor, metric::LossInput};
//!
//! /// The same on every rank, each in a thread or a process of its own: the body of [`briquette::run`](crate::run).
//! fn train<M, I: Clone + Send + Sync + 'static, D: Dataset<I> + 'static>(
//!     session: Session, device: Device, model: M, batcher: impl Batcher<I, <M as TrainStep>::Input> + Clone + 'static, train: D, valid: D,
//! ) -> Result<(), Box<dyn std::error::Error + Send + Sync>>
//! # where M: LearnerModel + 'static, M: InferenceStep<Input = <M as TrainStep>::Input>, <M as TrainStep>::Input: Send + 'static,
//! #       <M as TrainStep>::Output: Adaptor<LossInput>, <M as InferenceStep>::Output: Adaptor<LossInput>
//! {
//!     let train = ShardedDataLoaderBuilder::new(batcher.clone(), &session).batch_size(16).shuffle(1).build(train)?;
//!     let valid = ShardedDataLoaderBuilder::new(batcher, &session).batch_size(64).build(valid)?;
//!     let optimizer = SgdConfig::new().init();
//!     let strategy = DataParallel::auto(session, 42, device).with_optimizer(&optimizer); // the learner keeps its own to itself
//!     let training = strategy.training("runs/mnist", train, valid)                       // in place of `SupervisedTraining::new`
//!         .num_epochs(10)
//!         .metrics((LossMetric::new(),))
//!         .metric_train_numeric(strategy.metrics().wire_ratio())
//!         .with_default_checkpointers()
//!         .summary();
//!     if let Some(result) = strategy.launch(training, Learner::new(model, optimizer, 0.1))? {
//!         result.model.into_record().save("runs/mnist/model")?;                          // once: on rank 0
//!     }
//!     Ok(())
//! }
//! ```
//!
//! Some resources exist once in a world: the dashboard, the files, the checkpointers, the result.
//! [`training`](DataParallel::training) and [`launch`](DataParallel::launch) assign them to rank 0. To set them up
//! yourself, pass the strategy to Burn's `with_training_strategy` instead. Then every rank has its own, and metrics are
//! rank-local.
//!
//! **Agreement.** All ranks agree on rank 0's initial weights, every step's exchange as configured, the end of an epoch, the
//! metrics of a split (training or validation), and the rank that requested the interrupt. Rank 0 decides on early stopping and
//! checkpointing, from the global metrics, and all ranks follow. Each rank validates with its own loader, on a copy of the model
//! with BatchNorm's running statistics averaged. Burn's files and the final model also have averaged statistics; training
//! continues with each rank's own. The session's timeout must be longer than the difference in validation time between ranks.
//!
//! **Uneven loaders** are supported. A rank without a batch takes part in the step with no gradient and weight 0, until every
//! rank's loader has ended. (An aggregator that is not a mean counts its zeros.) Loaders do not report their number of batches.
//! Each rank therefore sends the others **one byte before every exchange**: whether it has a batch, whether another one follows,
//! and a stop request. Under Local SGD nothing is sent between averages. An interrupt then takes effect at the next average. Each
//! epoch ends with an average. Up to `H − 1` steps without batches complete the period; they advance the step counter and the
//! learning-rate schedule.
//!
//! **Weights.** Ranks with a batch have equal weights. With [`with_samples`](DataParallel::with_samples) each rank is weighted by
//! its number of samples. Under gradient accumulation, where Burn sums gradients, the weight is the mean number per batch.
//!
//! **Failures** stop all ranks (in an elastic world, except the loss of a rank), including a gradient that is not finite, and errors
//! of a loader or a metric. Each rank's
//! `LearningResult::error` is Burn's `TrainingError::Workers`, with the failed rank as the device number. The model, with
//! BatchNorm's running statistics, is then in the state after the last complete step.

mod elastic;
mod epoch;
mod launch;
mod metrics;
mod progress;
mod records;
mod run;
mod screen;
mod signal;
mod world;

use briquette_core::Session;
use briquette_core::config::Config;
use briquette_core::membership::Regroup;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, TensorReadError};
use burn::train::checkpoint::CheckpointingStrategy;
use burn::train::metric::{Adaptor, LossInput};
use burn::train::{
    Learner, LearnerModel, SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainStep,
    TrainingComponents, ValidLoader,
};

pub use self::metrics::{ExchangeMetric, ExchangeMetrics};
use self::records::Saving;
use self::run::Run;
use self::screen::Screen;
use self::world::Ledger;
use crate::checkpoint::WorldChange;
use crate::data::{CurrentShard, Shard};
use crate::error::Error;
use crate::randomness::Randomness;
use crate::strategy::BuildStrategy;
use crate::synchronizer::Synchronizer;

/// Data-parallel training for Burn's `SupervisedTraining`; see the [module](self).
pub struct DataParallel<M: LearnerModel> {
    device: Device,
    /// The rank's place, which changes in an elastic world.
    shard: CurrentShard,
    metrics: ExchangeMetrics,
    /// State of the run, which takes it. There is only one run.
    own: Mutex<Option<RunState<M>>>,
    /// The error that ended that run.
    failure: Mutex<Option<Error>>,
}

type Loss<M> = fn(&<M as TrainStep>::Output) -> Result<f64, TensorReadError>;
type Samples<M> = Box<dyn Fn(&<M as TrainStep>::Input) -> usize + Send>;

/// State of a run that cannot be passed to `fit`.
struct RunState<M: LearnerModel> {
    sync: Synchronizer,
    shard: CurrentShard,
    loss: Option<Loss<M>>,
    samples: Option<Samples<M>>,
    /// A copy of the learner's optimizer.
    optimizer: Option<ModuleOptimizer>,
    saving: Saving,
    outlets: Option<Outlets>,
    /// The random numbers of forward passes.
    random: Option<Randomness>,
}

/// Outputs of metrics, in a run that is [launched](DataParallel::launch).
struct Outlets {
    ledger: Ledger,
    screen: Screen,
}

impl<M: LearnerModel> std::fmt::Debug for DataParallel<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("DataParallel").field("sync", &own.as_ref().map(|own| &own.sync)).finish_non_exhaustive()
    }
}

impl<M: LearnerModel> DataParallel<M> {
    /// Creates the strategy for one run of this rank on `device`, with a compression ratio that is chosen at run time:
    /// [`Config::auto`]. Also pass [the optimizer](Self::with_optimizer). The decisions and the time saved are logged at the end.
    pub fn auto(session: impl Into<Session>, seed: u64, device: Device) -> Self
    where
        <M as TrainStep>::Output: Adaptor<LossInput>,
    {
        Self::new(session, Config::auto(), seed, device)
    }

    /// Creates the strategy for one run of this rank, on `device`. `seed` and `config` must be the same on every rank.
    /// Controllers use the loss that [`LossMetric`](burn::train::metric::LossMetric) displays.
    pub fn new(comm: impl Into<Session>, config: impl BuildStrategy + 'static, seed: u64, device: Device) -> Self
    where
        <M as TrainStep>::Output: Adaptor<LossInput>,
    {
        Self::without_loss(comm, config, seed, device)
            .edit(|own| own.loss = Some(metrics::loss_of::<<M as TrainStep>::Output>))
    }

    /// As [`new`](Self::new), for a model whose training output has no loss to display. Controllers that use the loss receive
    /// none.
    pub fn without_loss(
        comm: impl Into<Session>,
        config: impl BuildStrategy + 'static,
        seed: u64,
        device: Device,
    ) -> Self {
        let (sync, saving) = (Synchronizer::new(comm, config, seed), Saving::default());
        let shard = CurrentShard::from(Shard { rank: sync.rank(), world: sync.world() });
        let (loss, samples, optimizer, outlets, random) = Default::default();
        let own = RunState { sync, shard: shard.clone(), loss, samples, optimizer, saving, outlets, random };
        let device = if device.is_autodiff() { device } else { device.autodiff() };
        let (metrics, failure) = (ExchangeMetrics::default(), Mutex::new(None));
        DataParallel { device, shard, metrics, own: Mutex::new(Some(own)), failure }
    }

    /// Passes a copy of the learner's optimizer, because Burn's learner does not expose its own. Ranks then compare their
    /// optimizers when they join. The optimizer also determines a feedback that [depends on
    /// it](briquette_core::wrapper::by_optimizer::ByOptimizer), as with [`auto`](Self::auto); without it that feedback is error
    /// feedback. The copy must equal the learner's optimizer: with another momentum the velocities are wrong.
    #[must_use]
    pub fn with_optimizer(self, optimizer: &ModuleOptimizer) -> Self {
        self.edit(|own| own.optimizer = Some(optimizer.clone()))
    }

    /// Weights ranks by the number of samples in their batches, as counted by `samples`, instead of equally.
    #[must_use]
    pub fn with_samples(self, samples: impl Fn(&<M as TrainStep>::Input) -> usize + Send + 'static) -> Self {
        self.edit(|own| own.samples = Some(Box::new(samples)))
    }

    /// Seeds the random numbers that the model draws in training (dropout, noise). They differ between ranks and between batches,
    /// and are the same when the run is repeated or resumed, on threads and on processes. The seed may be that of
    /// [`new`](Self::new).
    ///
    /// A process has one random generator. Ranks that are threads therefore take turns at forward and backward passes, which
    /// Burn's learner runs in one call: a world of four threads is up to four times slower. Ranks that are processes do not
    /// wait. See [`Randomness`].
    #[must_use]
    pub fn with_randomness(self, seed: u64) -> Self {
        let random = Randomness::new(seed, self.rank(), &self.device);
        self.edit(|own| own.random = Some(random))
    }

    /// Makes the world elastic: training continues when a rank is lost, and new ranks can enter it.
    /// [`run_elastic`](crate::run_elastic) makes the membership. Call it on every rank, and pass the strategy to the loaders:
    /// `ShardedDataLoaderBuilder::new(batcher, &strategy)`.
    ///
    /// - **A lost rank.** The survivors repeat the step with the same gradients in the smaller world. The unprocessed samples of the
    ///   lost rank are skipped in this epoch; the next one is divided among the current ranks.
    /// - **A new rank** takes part without batches until the epoch ends.
    /// - **Metrics** of a split in which a rank is lost are those of the survivors.
    /// - **Rank 0's outputs.** If rank 0 is lost, the next rank takes over dashboard, metric files, result, and checkpoint files (those
    ///   of Burn in their default place). Metric files of the current split are overwritten. Early stopping has counted the epochs since the
    ///   rank entered.
    /// - **Patience.** Ranks notice a loss at the end of a validation pass: [`Run::patience`](crate::Run::patience) must be longer.
    /// - **Strategies** that exchange gradients at every step; with `during_backward`, after the backward pass.
    #[must_use]
    pub fn with_membership(self, membership: impl Regroup + 'static) -> Self {
        self.with_sync(|sync| sync.with_membership(membership))
    }

    /// See [`Synchronizer::with_local_weight_decay`].
    #[must_use]
    pub fn with_local_weight_decay(self, weight_decay: f64) -> Self {
        self.with_sync(|sync| sync.with_local_weight_decay(weight_decay))
    }

    /// See [`Synchronizer::with_rebroadcast`].
    #[must_use]
    pub fn with_rebroadcast(self, steps: u64) -> Self {
        self.with_sync(|sync| sync.with_rebroadcast(steps))
    }

    /// See [`Synchronizer::with_run_steps`].
    #[must_use]
    pub fn with_run_steps(self, steps: u64) -> Self {
        self.with_sync(|sync| sync.with_run_steps(steps))
    }

    /// See [`Synchronizer::with_replica_check`].
    #[must_use]
    pub fn with_replica_check(self, steps: u64) -> Self {
        self.with_sync(|sync| sync.with_replica_check(steps))
    }

    /// See [`Synchronizer::with_run_setting`]. Burn's learner does not expose its optimizer and schedule, so pass the text of
    /// their configurations, and a fingerprint of the data.
    #[must_use]
    pub fn with_run_setting(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with_sync(|sync| sync.with_run_setting(name, value))
    }

    /// See [`Synchronizer::with_world_setting`].
    #[must_use]
    pub fn with_world_setting(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with_sync(|sync| sync.with_world_setting(name, value))
    }

    /// See [`Synchronizer::with_size_setting`].
    #[must_use]
    pub fn with_size_setting(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with_sync(|sync| sync.with_size_setting(name, value))
    }

    fn with_sync(self, edit: impl FnOnce(Synchronizer) -> Synchronizer) -> Self {
        let own = self.own.into_inner().unwrap_or_else(PoisonError::into_inner);
        let own = own.map(|own| RunState { sync: edit(own.sync), ..own });
        DataParallel { own: Mutex::new(own), ..self }
    }

    /// Saves the state of each rank (model, optimizer, schedule, residuals, controller) in `directory/epoch-…`: replicated state
    /// once, and one file for each rank. Ranks on several machines may use different directories, if each rank later finds its
    /// own files.
    ///
    /// By default it saves when Burn's checkpointers save, and keeps the same epochs: the last two, and the one with the
    /// lowest validation loss on rank 0. If you pass another checkpointing strategy to Burn, pass the same to
    /// [`with_checkpointing_strategy`](Self::with_checkpointing_strategy).
    ///
    /// To resume, build the same strategy and call Burn's `.checkpoint(epoch)`, both on every rank. If a rank cannot load that
    /// epoch, all ranks resume from the newest earlier epoch that all can load, and log a warning. The resumed run is
    /// bit-identical to an uninterrupted one if the loader yields the same batches. (Burn's own loaders do not repeat their
    /// shuffles.)
    #[must_use]
    pub fn with_checkpoints(self, directory: impl Into<PathBuf>) -> Self {
        self.edit(|own| (own.saving.directory, own.saving.is_given) = (Some(directory.into()), true))
    }

    /// Sets the checkpointing strategy of [`with_checkpoints`](Self::with_checkpoints), which determines when to save and
    /// what to keep. Only rank 0's is used.
    #[must_use]
    pub fn with_checkpointing_strategy(self, strategy: impl CheckpointingStrategy + 'static) -> Self {
        self.edit(|own| own.saving.strategy = Box::new(strategy))
    }

    /// Sets the treatment of a checkpoint from a world of another size when resuming. By default it is an error.
    #[must_use]
    pub fn with_world_change(self, change: WorldChange) -> Self {
        self.edit(|own| own.saving.change = change)
    }

    /// The metrics of the exchanges, for Burn's `metric_train_numeric`.
    pub fn metrics(&self) -> ExchangeMetrics {
        self.metrics.clone()
    }

    fn with_own<T>(&self, body: impl FnOnce(&mut RunState<M>) -> T) -> Option<T> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(body)
    }

    fn rank(&self) -> usize {
        self.with_own(|own| own.sync.rank()).unwrap_or_default()
    }

    fn edit(mut self, change: impl FnOnce(&mut RunState<M>)) -> Self {
        if let Some(own) = self.own.get_mut().unwrap_or_else(PoisonError::into_inner) {
            change(own);
        }
        self
    }
}

/// Returns the shard of this rank, which follows the changes of an elastic world.
impl<M: LearnerModel> From<&DataParallel<M>> for CurrentShard {
    fn from(strategy: &DataParallel<M>) -> CurrentShard {
        strategy.shard.clone()
    }
}

impl<M: LearnerModel> SupervisedLearningStrategy<M> for DataParallel<M> {
    fn fit(
        &self,
        components: TrainingComponents<M>,
        mut learner: Learner<M>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
        starting_epoch: usize,
    ) -> (M, SupervisedTrainingEventProcessor<M>) {
        let Some(own) = self.own.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            let problem = "a `DataParallel` is for one run: make another, with a session of its own";
            components.interrupter.fail(run::training_error(0, problem));
            return (learner.model(), components.event_processor);
        };
        learner.fork(&self.device);
        let (train, valid) = (train.to_device(&self.device), valid.to_device(&self.device.clone().inner()));
        let (metrics, generation) = (self.metrics.clone(), own.sync.generation().map(|generation| generation.number));
        let (first_epoch, first_data_epoch, is_scheduled) = (starting_epoch, own.shard.start(), false);
        let mut run = Run {
            own,
            learner,
            components,
            train,
            valid,
            metrics,
            first_epoch,
            first_data_epoch,
            generation,
            is_scheduled,
        };
        let failure = run.train_all(starting_epoch).err();
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = failure;
        (run.learner.model(), run.components.event_processor)
    }
}
