//! The same training in three ways: data-parallel, hybrid, and in one process without any exchange.

use std::num::NonZeroUsize;

use anyhow::Result;
use briquette::core::Key;
use briquette::core::comm::{Session, run_ranks};
use briquette::{DistributedConfig, DistributedOptimizer};
use briquette_datasets::{CHANNELS, ImageSet, SIDE};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

use super::{Network, Plan, SplitHead};

/// Settings of a run.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Network.
    pub plan: Plan,
    /// Number of ranks.
    pub ranks: usize,
    /// Samples of each rank and step.
    pub batch: NonZeroUsize,
    /// Optimizer steps.
    pub steps: u64,
    /// Learning rate of SGD.
    pub lr: f64,
    /// Its momentum; 0 for none.
    pub momentum: f64,
    /// Seed of the initial weights.
    pub seed: u64,
}

/// Parallelism of the head; the convolutions are data-parallel in either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parallelism {
    /// Every rank has the whole head, and gradients are averaged.
    Data,
    /// Every rank has some columns of each layer.
    Hybrid,
}

/// Results of a rank.
#[derive(Debug)]
pub struct Trained {
    /// Whole network, with the head joined again.
    pub network: Network,
    /// Mean loss over this rank's samples, one value per step.
    pub losses: Vec<f32>,
    /// Bytes that this rank sent, one value per step.
    pub bytes: Vec<u64>,
    /// Bytes sent for the activations of the head and their gradients, one value per step.
    pub activation_bytes: Vec<u64>,
    /// Seconds of all steps, on the session's clock.
    pub seconds: f64,
}

/// Trains on the ranks of `world`; returns one result per rank.
///
/// # Errors
/// The head is too narrow; those of the session; a gradient is not finite.
pub fn train(
    settings: &Settings,
    how: Parallelism,
    world: Vec<Session>,
    images: &ImageSet,
    device: &Device,
) -> Result<Vec<Trained>> {
    settings.plan.check(world.len())?;
    let run = Run { settings, images, device };
    let rank = |comm| match how {
        Parallelism::Data => run.data_parallel(comm),
        Parallelism::Hybrid => run.hybrid(comm),
    };
    run_ranks(world, rank).into_iter().collect()
}

/// Trains in one process, on the samples of all ranks: plain Burn.
pub fn train_alone(settings: &Settings, images: &ImageSet, device: &Device) -> (Network, Vec<f32>) {
    let run = Run { settings, images, device };
    let mut network = run.network();
    let mut optim = settings.optimizer();
    let mut losses = Vec::new();
    for step in 0..settings.steps {
        let (images, labels) = run.samples(step, 0..settings.ranks);
        let loss = run.loss(network.forward(images), labels);
        losses.push(loss.clone().into_scalar());
        let grads = GradientsParams::from_grads(loss.backward(), &network);
        network = optim.step(settings.lr, network, grads);
    }
    (network, losses)
}

impl Settings {
    fn optimizer(&self) -> ModuleOptimizer {
        let given = Some(self.momentum).filter(|momentum| *momentum != 0.0);
        let momentum = given.map(|m| MomentumConfig::new().with_momentum(m).with_dampening(0.0));
        SgdConfig::new().with_momentum(momentum).init()
    }
}

/// State shared by all ranks.
struct Run<'a> {
    settings: &'a Settings,
    images: &'a ImageSet,
    device: &'a Device,
}

impl Run<'_> {
    /// Trains with all gradients averaged.
    fn data_parallel(&self, comm: Session) -> Result<Trained> {
        let settings = self.settings;
        let rank = comm.rank();
        let mut optim =
            DistributedOptimizer::new(settings.optimizer(), comm, DistributedConfig::dense(), settings.seed);
        let mut network = optim.join(self.network())?;
        let mut record = Record::start(&mut optim);
        for step in 0..settings.steps {
            let (images, labels) = self.samples(step, rank..rank + 1);
            let loss = self.loss(network.forward(images), labels);
            let value = loss.clone().into_scalar();
            let grads = GradientsParams::from_grads(loss.backward(), &network);
            network = optim.step(settings.lr, network, grads)?;
            record.step(&mut optim, value, 0);
        }
        let seconds = optim.synchronizer_mut().session().now();
        Ok(record.end(network, seconds))
    }

    /// Trains with the convolutions averaged, and each rank's own columns of the head.
    fn hybrid(&self, comm: Session) -> Result<Trained> {
        let settings = self.settings;
        let (rank, world) = (comm.rank(), comm.world());
        let Network { convolutions, head } = self.network();
        let mut head = SplitHead::new(&head, settings.optimizer(), rank, world)?;
        let mut optim =
            DistributedOptimizer::new(settings.optimizer(), comm, DistributedConfig::dense(), settings.seed);
        let mut convolutions = optim.join(convolutions)?;
        let mut record = Record::start(&mut optim);
        for step in 0..settings.steps {
            let (images, labels) = self.samples(step, rank..rank + 1);
            let features = convolutions.forward(images);

            let comm = optim.synchronizer_mut().session();
            comm.scope().step = step;
            let before = comm.traffic().sent;
            let (logits, pieces) = head.forward(comm, features.clone())?;
            let logits = logits.require_grad();
            let loss = self.loss(logits.clone(), labels);
            let value = loss.clone().into_scalar();
            let gradient = logits.grad_remove(&mut loss.backward()).expect("the logits require a gradient");
            // The loss is the mean over all ranks' samples: each rank's own mean is 1/W of it.
            let (gradient, of_columns) = head.backward(comm, pieces, gradient / world as f32)?;
            let activation_bytes = comm.traffic().sent - before;

            // The optimizer averages over ranks, so it takes the gradient of this rank's own mean: W times the above.
            let surrogate = (features * (gradient * world as f32)).sum();
            let grads = GradientsParams::from_grads(surrogate.backward(), &convolutions);
            convolutions = optim.step(settings.lr, convolutions, grads)?;
            // Only now: the step above is refused by all ranks where a gradient is not finite.
            head = head.step(settings.lr, of_columns);
            record.step(&mut optim, value, activation_bytes);
        }
        let comm = optim.synchronizer_mut().session();
        let seconds = comm.now();
        Ok(record.end(Network { convolutions, head: head.join(comm)? }, seconds))
    }

    fn network(&self) -> Network {
        self.settings.plan.build(Key::new(self.settings.seed), self.device)
    }

    fn loss(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(self.device).forward(logits, labels)
    }

    /// Returns the samples of some ranks at a step: the images in order, from the first again after the last.
    fn samples(&self, step: u64, ranks: std::ops::Range<usize>) -> (Tensor<4>, Tensor<1, Int>) {
        let batch = self.settings.batch.get();
        let first = step as usize * self.settings.ranks * batch;
        let place = |sample| (first + sample) % self.images.len();
        let indices: Vec<_> = (ranks.start * batch..ranks.end * batch).map(place).collect();
        let batch = self.images.batch(&indices, None);
        let pixels = TensorData::new(batch.pixels, [indices.len(), CHANNELS, SIDE, SIDE]);
        let labels = TensorData::new(batch.labels, [indices.len()]);
        (Tensor::from_data(pixels, self.device), Tensor::from_data(labels, self.device))
    }
}

/// Measurements at every step.
struct Record {
    losses: Vec<f32>,
    bytes: Vec<u64>,
    activation_bytes: Vec<u64>,
    sent: u64,
}

impl Record {
    /// Starts the record. The bytes and seconds of joining belong to no step.
    fn start(optim: &mut DistributedOptimizer) -> Record {
        optim.synchronizer_mut().set_clock(0.0);
        let sent = optim.synchronizer_mut().session().traffic().sent;
        Record { losses: Vec::new(), bytes: Vec::new(), activation_bytes: Vec::new(), sent }
    }

    fn step(&mut self, optim: &mut DistributedOptimizer, loss: f32, activation_bytes: u64) {
        let before = std::mem::replace(&mut self.sent, optim.synchronizer_mut().session().traffic().sent);
        self.losses.push(loss);
        self.bytes.push(self.sent - before);
        self.activation_bytes.push(activation_bytes);
    }

    fn end(self, network: Network, seconds: f64) -> Trained {
        let Record { losses, bytes, activation_bytes, .. } = self;
        Trained { network, losses, bytes, activation_bytes, seconds }
    }
}
