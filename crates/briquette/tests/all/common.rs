//! Small models, data that follows from a seed, and ranks as threads.

use std::sync::Arc;
use std::time::Duration;

use briquette::core::comm::{Clock, Local, Session, run_ranks};
use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error, StepReport};
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Tensor, activation};

pub(crate) use crate::seeded::{Numbers, seeded, values};

/// Features of an input and of an output.
pub(crate) const IN: usize = 6;
pub(crate) const OUT: usize = 3;

pub(crate) fn device() -> Device {
    Device::flex().autodiff()
}

/// Two layers, no BatchNorm.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    pub(crate) first: Linear,
    pub(crate) second: Linear,
}

impl Mlp {
    pub(crate) fn new(seed: u64) -> Self {
        Mlp::wide(seed, 8)
    }

    pub(crate) fn wide(seed: u64, hidden: usize) -> Self {
        let first = LinearConfig::new(IN, hidden).init(&device());
        let second = LinearConfig::new(hidden, OUT).init(&device());
        seeded(Mlp { first, second }, seed)
    }
}

/// A convolution, BatchNorm, and a layer on top.
#[derive(Module, Debug)]
pub(crate) struct Net {
    pub(crate) conv: Conv2d,
    pub(crate) norm: BatchNorm,
    pub(crate) top: Linear,
}

impl Net {
    pub(crate) fn new(seed: u64) -> Self {
        let conv = Conv2dConfig::new([1, 4], [3, 3]).init(&device());
        let norm = BatchNormConfig::new(4).init(&device());
        let top = LinearConfig::new(16, OUT).init(&device());
        seeded(Net { conv, norm, top }, seed)
    }
}

/// Requirements of the helpers on a model.
pub(crate) trait Model: Module + std::fmt::Debug + 'static {
    /// The mean squared error on `samples` samples that follow from `data`.
    fn loss(&self, data: u64, samples: usize) -> Tensor<1>;
}

impl Model for Mlp {
    fn loss(&self, data: u64, samples: usize) -> Tensor<1> {
        let (x, y) = batch(&[(data, samples)]);
        self.error(x, y)
    }
}

impl Mlp {
    pub(crate) fn error(&self, x: Tensor<2>, y: Tensor<2>) -> Tensor<1> {
        let hidden = activation::tanh(self.first.forward(x));
        (self.second.forward(hidden) - y).square().mean()
    }
}

impl Model for Net {
    fn loss(&self, data: u64, samples: usize) -> Tensor<1> {
        let mut numbers = Numbers::new(data);
        let x = numbers.tensor([samples, 1, 4, 4], &device());
        let y = numbers.tensor([samples, OUT], &device());
        let hidden = activation::relu(self.norm.forward(self.conv.forward(x)));
        (self.top.forward(hidden.reshape([samples, 16])) - y).square().mean()
    }
}

/// The concatenated samples of several batches.
pub(crate) fn batch(parts: &[(u64, usize)]) -> (Tensor<2>, Tensor<2>) {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for &(data, samples) in parts.iter().filter(|(_, samples)| *samples > 0) {
        let mut numbers = Numbers::new(data);
        x.push(numbers.tensor([samples, IN], &device()));
        y.push(numbers.tensor([samples, OUT], &device()));
    }
    (Tensor::cat(x, 0), Tensor::cat(y, 0))
}

pub(crate) fn grads<M: Module>(model: &M, loss: &Tensor<1>) -> GradientsParams {
    GradientsParams::from_grads(loss.backward(), model)
}

/// The data of one rank's step.
pub(crate) fn data(step: u64, rank: usize) -> u64 {
    step * 101 + rank as u64 + 1
}

pub(crate) fn number(loss: &Tensor<1>) -> f64 {
    f64::from(loss.clone().into_scalar::<f32>())
}

/// The values of one tensor.
pub(crate) fn value<M: Module>(module: &M, path: &str) -> Vec<f32> {
    let all = values(module);
    let paths: Vec<&str> = all.iter().map(|(p, _)| p.as_str()).collect();
    let found = all.iter().find(|(p, _)| p == path);
    found.unwrap_or_else(|| panic!("{path} is not among {paths:?}")).1.clone()
}

/// Values as bits, so that a comparison distinguishes 0 from -0, and compares NaNs by bits.
pub(crate) fn bits<M: Module>(module: &M) -> Vec<(String, Vec<u32>)> {
    let bits = |v: Vec<f32>| v.into_iter().map(f32::to_bits).collect();
    values(module).into_iter().map(|(path, v)| (path, bits(v))).collect()
}

/// The largest difference between two modules of one kind.
pub(crate) fn distance<M: Module>(a: &M, b: &M) -> f32 {
    let flat = |m| values(m).into_iter().flat_map(|(_, v)| v).collect::<Vec<f32>>();
    let (a, b) = (flat(a), flat(b));
    assert_eq!(a.len(), b.len());
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Runs every rank of a world of threads and fails with the first error.
pub(crate) fn ranks<T: Send>(world: usize, body: impl Fn(Session) -> Result<T, Error> + Sync) -> Vec<T> {
    outcomes(world, body).into_iter().enumerate().map(|(r, o)| o.unwrap_or_else(|e| panic!("rank {r}: {e}"))).collect()
}

/// Runs every rank of a world of threads.
pub(crate) fn outcomes<T: Send>(
    world: usize,
    body: impl Fn(Session) -> Result<T, Error> + Sync,
) -> Vec<Result<T, Error>> {
    run_ranks(Local::builder(world).deadline(Duration::from_secs(60)).clock(Arc::new(Stopped)).build(), body)
}

/// A clock that stands still: decisions by seconds are the same in every run.
#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn seconds(&self) -> f64 {
        0.0
    }
}

pub(crate) fn top_k() -> Config {
    Config::top_k(0.1).expect("a valid fraction")
}

pub(crate) fn config(toml: &str) -> Config {
    briquette::zoo::install();
    serde_json::from_str(toml).expect("a valid configuration")
}

pub(crate) fn momentum_correction() -> Config {
    config(
        r#"{"strategy": "every-step", "feedback": {"kind": "momentum", "clip": 2.0},
            "reducer": {"kind": "gather", "compressor": "topk:8x:q8"}}"#,
    )
}

pub(crate) fn ef21() -> Config {
    config(
        r#"{"strategy": "every-step", "feedback": "ef21",
            "reducer": {"kind": "gather", "compressor": "topk:8x"}}"#,
    )
}

pub(crate) fn gravac() -> Config {
    config(
        r#"{"strategy": "every-step", "feedback": "error",
            "reducer": {"kind": "gather", "compressor": "topk:4x"},
            "controller": {"kind": "gravac", "min": 4.0, "max": 16.0, "window": 2, "epsilon": 0.5}}"#,
    )
}

pub(crate) fn power_sgd() -> Config {
    config(r#"{"strategy": "every-step", "feedback": "error", "reducer": {"kind": "power-sgd", "rank": 1}}"#)
}

pub(crate) fn adam() -> ModuleOptimizer {
    AdamConfig::new().init()
}

pub(crate) fn sgd() -> ModuleOptimizer {
    SgdConfig::new().init()
}

pub(crate) fn sgd_with_momentum() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0))).init()
}

/// One step of one rank on its own data.
pub(crate) fn train<M: Model>(
    optim: &mut DistributedOptimizer,
    model: M,
    step: u64,
    rank: usize,
) -> Result<(M, StepReport), Error> {
    let loss = model.loss(data(step, rank), 4);
    optim.record_loss(number(&loss));
    optim.record_samples(4);
    let gradients = grads(&model, &loss);
    let model = optim.step(0.02, model, gradients)?;
    Ok((model, optim.report().clone()))
}
