//! A small model, loaders over batches from a seed, and Burn's training on ranks that are threads.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use briquette::core::comm::{Local, Session, run_ranks};
use briquette::core::error::CommError;
use briquette::{DataParallel, DistributedConfig};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::{LossMetric, MetricDefinition};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};
use burn::train::{
    InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep, TrainingStrategy,
};

pub(crate) const SEED: u64 = 7;
pub(crate) const ROWS: usize = 8;

// ---- the model ----

#[derive(Module, Debug)]
pub(crate) struct Mlp {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Mlp {
    /// Values follow from the seed: Burn's own generator is one per process, and ranks race for it.
    pub(crate) fn new(seed: u64, device: &Device) -> Self {
        struct Fill(u64);
        impl ModuleMapper for Fill {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                self.0 += 1;
                let seed = self.0;
                param.map(|old| match old.is_require_grad() {
                    true => numbers(seed, old.dims(), &old.device().inner()).autodiff().require_grad(),
                    false => old,
                })
            }
        }
        let first = LinearConfig::new(3, 6).init(device);
        let norm = BatchNormConfig::new(6).init(device);
        let second = LinearConfig::new(6, 1).init(device);
        Mlp { first, norm, second }.map(&mut Fill(seed * 100))
    }

    pub(crate) fn forward(&self, batch: Batch) -> RegressionOutput {
        let hidden = self.norm.forward(self.first.forward(batch.x));
        let output = self.second.forward(activation::tanh(hidden));
        let error = output.clone() - batch.y.clone();
        RegressionOutput::new((error.clone() * error).mean(), output, batch.y)
    }
}

impl TrainStep for Mlp {
    type Input = Batch;
    type Output = RegressionOutput;
    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let item = self.forward(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Mlp {
    type Input = Batch;
    type Output = RegressionOutput;
    fn step(&self, batch: Batch) -> RegressionOutput {
        self.forward(batch)
    }
}

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// Numbers in [-1, 1), from a seed.
pub(crate) fn numbers<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Every float tensor of a module, running statistics included, as bits.
pub(crate) fn bits(model: &Mlp) -> Vec<u32> {
    struct Read(Vec<u32>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values: Vec<f32> = param.val().into_data().try_to_vec().unwrap();
            self.0.extend(values.iter().map(|v| v.to_bits()));
        }
    }
    let mut read = Read(Vec::new());
    model.visit(&mut read);
    read.0
}

/// Every float tensor of a module, running statistics included.
pub(crate) fn all_values(model: &Mlp) -> Vec<f32> {
    bits(model).into_iter().map(f32::from_bits).collect()
}

/// Returns a model with the same parameters and running statistics of its own.
pub(crate) fn apart(model: &Mlp) -> Mlp {
    Mlp::new(0, &device()).load_record(model.clone().into_record())
}

/// Every trainable value.
pub(crate) fn parameters(model: &Mlp) -> Vec<f32> {
    #[derive(Default)]
    struct Read(Vec<String>, Vec<f32>);
    impl ModuleVisitor for Read {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.0.push(name.to_owned());
        }
        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.0.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if !self.0.iter().any(|name| name.starts_with("running")) {
                self.1.extend(param.val().into_data().try_to_vec::<f32>().unwrap());
            }
        }
    }
    let mut read = Read::default();
    model.visit(&mut read);
    read.1
}

// ---- the data ----

#[derive(Debug, Clone)]
pub(crate) struct Batch {
    pub(crate) x: Tensor<2>,
    pub(crate) y: Tensor<2>,
}

/// The fault of a loader at its `i`-th batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Trouble {
    Fails(usize),
    NotFinite(usize),
}

/// `count` batches that differ between ranks.
#[derive(Debug, Clone)]
pub(crate) struct Shard {
    pub(crate) rank: usize,
    pub(crate) count: usize,
    pub(crate) rows: usize,
    pub(crate) trouble: Option<Trouble>,
    /// The fault of this rank's validation loader.
    pub(crate) valid_trouble: Option<Trouble>,
    pub(crate) device: Device,
    /// This rank's optimizer, which may differ from the others'.
    pub(crate) optimizer: fn() -> ModuleOptimizer,
}

impl Shard {
    pub(crate) fn new(rank: usize, count: usize) -> Self {
        Shard { rank, count, rows: ROWS, trouble: None, valid_trouble: None, device: device(), optimizer }
    }

    pub(crate) fn batch(&self, index: usize) -> Batch {
        let x = numbers((1 + self.rank * 1000 + index) as u64, [self.rows, 3], &self.device);
        let y = x.clone().sum_dim(1).sin();
        let y = if self.trouble == Some(Trouble::NotFinite(index)) { y / 0.0 } else { y };
        Batch { x, y }
    }
}

pub(crate) struct Batches<'a> {
    shard: &'a Shard,
    next: usize,
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch, DatasetError>;
    fn next(&mut self) -> Option<Self::Item> {
        let index = self.next;
        self.next += 1;
        if self.shard.trouble == Some(Trouble::Fails(index)) {
            return Some(Err(DatasetError::new(std::io::Error::other("the disk is on fire"))));
        }
        (index < self.shard.count).then(|| Ok(self.shard.batch(index)))
    }
}

impl DataLoaderIterator<Batch> for Batches<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.next * self.shard.rows, self.shard.count * self.shard.rows, None)
    }
}

impl DataLoader<Batch> for Shard {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        Box::new(Batches { shard: self, next: 0 })
    }
    fn num_items(&self) -> usize {
        self.count * self.rows
    }
    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Shard { device: device.clone(), ..self.clone() })
    }
    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<Batch>> {
        unreachable!("nobody splits a shard")
    }
}

// ---- the run ----

pub(crate) struct Silent;

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, _: MetricState) {}
    fn update_valid(&mut self, _: MetricState) {}
}
impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _: EvaluationName, _: MetricState) {}
}
impl TrainingProgressLogger for Silent {
    fn start(&mut self, _: usize, _: usize, _: Option<usize>, _: Option<&str>) {}
    fn update_epoch(&mut self, _: usize) {}
    fn start_split(&mut self, _: &str, _: usize) {}
    fn update_split(&mut self, _: usize) {}
    fn end_split(&mut self) {}
    fn end(&mut self) {}
    fn log_event_training(&mut self, _: String) {}
}
impl EvaluationProgressLogger for Silent {
    fn start_global_progress(&mut self, _: usize) {}
    fn start_test(&mut self, _: &str, _: usize) {}
    fn update_test_progress(&mut self, _: usize) {}
    fn end_test(&mut self) {}
    fn end_global_progress(&mut self) {}
    fn log_event_evaluation(&mut self, _: String) {}
}
impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}
    fn register_metric(&mut self, _: MetricDefinition) {}
}

#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) model: Mlp,
    pub(crate) error: Option<String>,
    pub(crate) interrupted: Option<String>,
}

/// One rank's training, for a test to change.
pub(crate) struct Rank {
    pub(crate) training: SupervisedTraining<Mlp>,
    pub(crate) strategy: DataParallel<Mlp>,
}

pub(crate) fn world(size: usize) -> Vec<Session> {
    Local::builder(size).deadline(Duration::from_secs(30)).build()
}

/// Trains a world of two ranks whose loaders are `shards`.
pub(crate) fn train(
    directory: &Path,
    config: &DistributedConfig,
    shards: &[Shard],
    edit: impl Fn(usize, Rank) -> Rank + Sync,
) -> Vec<Outcome> {
    let results = run_ranks(world(shards.len()), |comm| {
        let rank = comm.rank();
        let valid = Arc::new(Shard { trouble: shards[rank].valid_trouble, ..Shard::new(50 + rank, 2) });
        let training =
            SupervisedTraining::new(directory.join(format!("rank-{rank}")), Arc::new(shards[rank].clone()), valid)
                .renderer(Box::new(Silent))
                .with_application_logger(None)
                .metric_train_numeric(LossMetric::new())
                .metric_valid_numeric(LossMetric::new())
                .num_epochs(2);
        let strategy = DataParallel::new(comm, config.clone(), SEED, device());
        let Rank { training, strategy } = edit(rank, Rank { training, strategy });
        let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        // Every rank starts with its own weights; joining gives it rank 0's.
        let learner = Learner::new(Mlp::new(1 + rank as u64, &device()), (shards[rank].optimizer)(), schedule);
        let result = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy))).launch(learner);
        let interrupted = result.interrupted.map(|i| i.reason.unwrap_or_default());
        Ok::<_, CommError>(Outcome { model: result.model, error: result.error.map(|e| e.to_string()), interrupted })
    });
    results.into_iter().map(Result::unwrap).collect()
}

/// A batch of the rows with these seeds.
pub(crate) fn rows(seeds: &[u64], device: &Device) -> Batch {
    let x = Tensor::cat(seeds.iter().map(|seed| numbers(1 + seed, [1, 3], device)).collect(), 0);
    let y = x.clone().sum_dim(1).sin();
    Batch { x, y }
}

pub(crate) fn optimizer() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.5).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

pub(crate) fn loss_of(model: &Mlp) -> f32 {
    let shard = Shard { device: Device::flex(), ..Shard::new(90, 1) };
    model.forward(shard.batch(0)).loss.into_scalar::<f32>()
}

pub(crate) fn assert_agree(outcomes: &[Outcome]) {
    for outcome in outcomes {
        assert_eq!((&outcome.error, &outcome.interrupted), (&None, &None));
        assert_eq!(bits(&outcome.model), bits(&outcomes[0].model));
    }
}

pub(crate) fn top_k() -> DistributedConfig {
    DistributedConfig::top_k(0.2).unwrap()
}

pub(crate) fn local_sgd() -> DistributedConfig {
    DistributedConfig::local_sgd(4)
}
