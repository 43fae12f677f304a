//! Burn's `SupervisedTraining` on several ranks: threads, a small model, batches that follow from a seed.
#![cfg(feature = "train")]

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use briquette::core::Communicator;
use briquette::core::comm::{Local, run_ranks};
use briquette::core::config::Rhythm;
use briquette::core::error::CommError;
use briquette::{Config, DataParallel, DistributedOptimizer};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData, activation};
use burn::train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::metric::{LossMetric, MetricDefinition};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};
use burn::train::{
    EarlyStoppingStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput, TrainStep,
    TrainingStrategy,
};

const SEED: u64 = 7;
const ROWS: usize = 8;

// ---- the model ----

#[derive(Module, Debug)]
struct Mlp {
    first: Linear,
    norm: BatchNorm,
    second: Linear,
}

impl Mlp {
    /// Values follow from the seed: Burn's own generator is one per process, and ranks race for it.
    fn new(seed: u64, device: &Device) -> Self {
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

    fn forward(&self, batch: Batch) -> RegressionOutput {
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

fn device() -> Device {
    Device::flex().autodiff()
}

/// In [-1, 1), from a seed.
fn numbers<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// Every float tensor of a module, running statistics included, as bits.
fn bits(model: &Mlp) -> Vec<u32> {
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

// ---- the data ----

#[derive(Debug, Clone)]
struct Batch {
    x: Tensor<2>,
    y: Tensor<2>,
}

/// What a loader does at its `i`-th batch.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trouble {
    Fails(usize),
    NotFinite(usize),
}

/// `count` batches that are another for every rank.
#[derive(Debug, Clone)]
struct Shard {
    rank: usize,
    count: usize,
    trouble: Option<Trouble>,
    device: Device,
}

impl Shard {
    fn new(rank: usize, count: usize) -> Self {
        Shard { rank, count, trouble: None, device: device() }
    }

    fn batch(&self, index: usize) -> Batch {
        let x = numbers((1 + self.rank * 1000 + index) as u64, [ROWS, 3], &self.device);
        let y = x.clone().sum_dim(1).sin();
        let y = if self.trouble == Some(Trouble::NotFinite(index)) { y / 0.0 } else { y };
        Batch { x, y }
    }
}

struct Batches<'a> {
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
        Progress::new(self.next * ROWS, self.shard.count * ROWS, None)
    }
}

impl DataLoader<Batch> for Shard {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        Box::new(Batches { shard: self, next: 0 })
    }
    fn num_items(&self) -> usize {
        self.count * ROWS
    }
    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Shard { device: device.clone(), ..self.clone() })
    }
    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<Batch>> {
        unreachable!("nobody splits a shard")
    }
}

// ---- the run ----

struct Silent;

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
struct Outcome {
    model: Mlp,
    error: Option<String>,
    interrupted: Option<String>,
}

/// One rank's training, for a test to change.
struct Rank {
    training: SupervisedTraining<Mlp>,
    strategy: DataParallel<Mlp>,
}

fn world(size: usize) -> Vec<Local> {
    Local::builder(size).deadline(Duration::from_secs(30)).build()
}

/// Trains a world of two ranks whose loaders are `shards`.
fn train(
    directory: &Path,
    config: &Config,
    shards: &[Shard],
    edit: impl Fn(usize, Rank) -> Rank + Sync,
) -> Vec<Outcome> {
    let results = run_ranks(world(shards.len()), |comm| {
        let rank = comm.rank();
        let valid = Arc::new(Shard::new(50 + rank, 2));
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
        // Every rank starts with weights of its own; joining gives it rank 0's.
        let learner = Learner::new(Mlp::new(1 + rank as u64, &device()), optimizer(), schedule);
        let result = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy))).launch(learner);
        let interrupted = result.interrupted.map(|i| i.reason.unwrap_or_default());
        Ok::<_, CommError>(Outcome { model: result.model, error: result.error.map(|e| e.to_string()), interrupted })
    });
    results.into_iter().map(Result::unwrap).collect()
}

fn optimizer() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.5).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

fn loss_of(model: &Mlp) -> f32 {
    let shard = Shard { device: Device::flex(), ..Shard::new(90, 1) };
    model.forward(shard.batch(0)).loss.into_scalar::<f32>()
}

fn assert_agree(outcomes: &[Outcome]) {
    for outcome in outcomes {
        assert_eq!((&outcome.error, &outcome.interrupted), (&None, &None));
        assert_eq!(bits(&outcome.model), bits(&outcomes[0].model));
    }
}

fn top_k() -> Config {
    Config::top_k(0.2).unwrap()
}

fn local_sgd() -> Config {
    Config::Periodic(Rhythm { every: 4 })
}

#[test]
fn ranks_end_with_the_same_bits_and_a_lower_loss() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 6), Shard::new(1, 6)];
    let outcomes = train(directory.path(), &Config::dense(), &shards, |_, rank| Rank {
        training: rank.training.num_epochs(8),
        ..rank
    });
    assert_agree(&outcomes);
    let (before, after) = (loss_of(&Mlp::new(1, &device()).valid()), loss_of(&outcomes[0].model));
    assert!(after < 0.5 * before, "{before} to {after}");
}

#[test]
fn steps_are_those_of_the_distributed_optimizer() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 5), Shard::new(1, 5)];
    let ours = train(directory.path(), &top_k(), &shards, |_, rank| rank);
    assert_agree(&ours);
    let by_hand = run_ranks(world(2), |comm| {
        let shard = &shards[comm.rank()];
        let mut optim = DistributedOptimizer::new(optimizer(), comm, top_k(), SEED);
        let mut schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        let mut model = optim.join(Mlp::new(1, &device())).unwrap();
        for _ in 0..2 {
            for index in 0..5 {
                let loss = model.forward(shard.batch(index)).loss;
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                let lr = schedule.step();
                model = optim.step(lr, model, grads).unwrap();
            }
            model = optim.synchronizer_mut().average_buffers(model).unwrap();
        }
        Ok::<_, CommError>(bits(&model.valid()))
    });
    assert_eq!(bits(&ours[0].model), by_hand.into_iter().next().unwrap().unwrap());
}

#[test]
fn loaders_of_different_lengths_end_together() {
    for config in [Config::dense(), top_k(), local_sgd()] {
        for counts in [[5, 2], [0, 3], [4, 4], [0, 0]] {
            for accumulation in [None, Some(2)] {
                let directory = tempfile::tempdir().unwrap();
                let shards = [Shard::new(0, counts[0]), Shard::new(1, counts[1])];
                let outcomes = train(directory.path(), &config, &shards, |_, rank| Rank {
                    training: match accumulation {
                        Some(batches) => rank.training.grads_accumulation(batches),
                        None => rank.training,
                    },
                    strategy: rank.strategy.with_samples(|batch: &Batch| batch.x.dims()[0]),
                });
                assert_agree(&outcomes);
            }
        }
    }
}

#[test]
fn an_interrupt_on_one_rank_stops_all() {
    for config in [Config::dense(), local_sgd()] {
        let directory = tempfile::tempdir().unwrap();
        let shards = [Shard::new(0, 3), Shard::new(1, 3)];
        let outcomes = train(directory.path(), &config, &shards, |rank, Rank { training, strategy }| {
            let training = training.num_epochs(100_000);
            let interrupter = training.interrupter();
            let batches = AtomicUsize::new(0);
            let strategy = strategy.with_samples(move |_| {
                if rank == 1 && batches.fetch_add(1, Ordering::Relaxed) == 4 {
                    interrupter.stop(Some("enough"));
                }
                1
            });
            Rank { training, strategy }
        });
        let said: Vec<_> = outcomes.iter().map(|o| (o.error.as_deref(), o.interrupted.as_deref())).collect();
        assert_eq!(said, [(None, Some("rank 1 stopped the run")), (None, Some("enough"))]);
    }
}

/// Stops after two epochs, and looks metrics up where Burn keeps them.
#[derive(Clone, Default)]
struct Look {
    seen: Arc<Mutex<Vec<Option<f64>>>>,
}

impl EarlyStoppingStrategy for Look {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let names = ["Compression Factor", "Gain", "Wire Factor", "Bytes Sent", "Bytes Received", "Loss"];
        *self.seen.lock().unwrap() =
            names.map(|name| store.find_metric(name, epoch, Aggregate::Mean, &Split::Train)).to_vec();
        epoch == 2
    }
}

#[test]
fn metrics_reach_burn_and_rank_0_stops_all_early() {
    let directory = tempfile::tempdir().unwrap();
    let look = Look::default();
    let shards = [Shard::new(0, 3), Shard::new(1, 3)];
    let outcomes = train(directory.path(), &top_k(), &shards, |rank, Rank { training, strategy }| {
        let metrics = strategy.metrics();
        let mut training = training
            .num_epochs(100_000)
            .metric_train_numeric(metrics.factor())
            .metric_train_numeric(metrics.gain())
            .metric_train_numeric(metrics.wire_factor())
            .metric_train_numeric(metrics.sent())
            .metric_train_numeric(metrics.received());
        if rank == 0 {
            training = training.early_stopping(look.clone());
        }
        Rank { training, strategy }
    });
    assert_agree(&outcomes);
    println!("{:?}", look.seen);
    let seen: Vec<f64> = look.seen.lock().unwrap().iter().map(|v| v.unwrap()).collect();
    let [factor, gain, wire, sent, received, loss] = seen[..] else { panic!("{seen:?}") };
    assert_eq!(factor, 5.0);
    assert!(gain > 0.2 && gain <= 1.0, "{gain}");
    // The model has 43 values: a dense ring would send 172 bytes, the header alone takes 82.
    assert!(sent > 82.0 && sent < 400.0 && received > 82.0, "{sent} {received}");
    assert!((wire - 172.0 / sent).abs() < 1e-9, "{wire} {sent}");
    assert!(loss.is_finite());
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    let shards = [Shard::new(0, 5), Shard::new(1, 4)];
    let run = |directory: &Path, epochs: usize, from: Option<usize>| {
        let outcomes = train(directory, &top_k(), &shards, |rank, Rank { training, strategy }| {
            let mut training = training.num_epochs(epochs);
            if rank == 0 {
                training = training.with_default_checkpointers();
            }
            if let Some(epoch) = from {
                training = training.checkpoint(epoch);
            }
            Rank { training, strategy: strategy.with_checkpoints(directory.join("ranks")) }
        });
        assert_agree(&outcomes);
        bits(&outcomes[0].model)
    };
    let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(straight.path(), 5, None);
    let half = run(broken.path(), 3, None);
    assert_ne!(half, expected);
    assert_eq!(run(broken.path(), 5, Some(3)), expected);
    // Ours and Burn's are of the same epochs.
    let epochs = |directory: &Path, start: &str, end: &str| {
        let names = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let number = |name: String| name.strip_prefix(start)?.strip_suffix(end)?.parse::<usize>().ok();
        let mut epochs: Vec<usize> = names.filter_map(number).collect();
        epochs.sort_unstable();
        epochs
    };
    let burns = epochs(&straight.path().join("rank-0/checkpoint"), "model-", ".bpk");
    assert_eq!(epochs(&straight.path().join("ranks"), "epoch-", ""), burns);
    assert!(burns.ends_with(&[4, 5]), "{burns:?}");
}

#[test]
fn resuming_without_every_ranks_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 2), Shard::new(1, 2)];
    let outcomes = train(directory.path(), &top_k(), &shards, |_, Rank { training, strategy }| Rank {
        training: training.checkpoint(1),
        strategy,
    });
    assert!(outcomes[0].error.as_ref().unwrap().contains("with_checkpoints"), "{:?}", outcomes[0].error);
    let outcomes = train(directory.path(), &top_k(), &shards, |rank, Rank { training, strategy }| Rank {
        training: training.num_epochs(2 + rank),
        strategy,
    });
    assert!(outcomes[1].error.as_ref().unwrap().contains("number of epochs is 2"), "{:?}", outcomes[1].error);
}

#[test]
fn a_failure_on_one_rank_is_an_error_on_all_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut shards = [Shard::new(0, 4), Shard::new(1, 4)];
    shards[1].trouble = Some(Trouble::Fails(2));
    let errors: Vec<String> =
        train(directory.path(), &top_k(), &shards, |_, r| r).into_iter().map(|o| o.error.unwrap()).collect();
    assert!(errors[0].contains("rank 1 stopped the run") && errors[0].contains("on fire"), "{}", errors[0]);
    assert!(errors[1].contains("on fire"), "{}", errors[1]);
    shards[1].trouble = Some(Trouble::NotFinite(1));
    for outcome in train(directory.path(), &top_k(), &shards, |_, r| r) {
        let error = outcome.error.unwrap();
        assert!(error.contains("step 1") && error.contains("rank 1") && error.contains("first.weight"), "{error}");
    }
}
