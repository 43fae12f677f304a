//! Overhead of a wrapped rank over plain Burn, with the same model, data and optimizer.

use std::time::Instant;

use briquette::core::Key;
use briquette::core::comm::{Local, Session};
use briquette::{DistributedConfig, DistributedOptimizer, StepReport};
use briquette_cli::measure::median;
use briquette_examples::models::{ImageModel, ImageModelKind, TextConfig, TextModel, TextModelKind};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A model with a fixed batch.
pub trait Case: Clone {
    /// Model type.
    type Model: Module + std::fmt::Debug + 'static;
    /// Samples and labels on the device.
    type Batch: std::fmt::Debug;
    /// Builds model and optimizer.
    fn build(&self, device: &Device) -> (Self::Model, ModuleOptimizer);
    /// Returns the single batch.
    fn batch(&self, device: &Device) -> Self::Batch;
    /// Returns the loss on the batch.
    fn loss(&self, model: &Self::Model, batch: &Self::Batch) -> Tensor<1>;
    /// Returns the learning rate.
    fn lr(&self) -> f64;
}

/// An image classifier for ten classes, momentum SGD.
#[derive(Debug, Clone, Copy)]
pub struct Image {
    /// Network.
    pub kind: ImageModelKind,
    /// Number of samples.
    pub batch: usize,
}

/// ResNet-8, batch 32.
pub const RESNET8: Image = Image { kind: ImageModelKind::ResNet8, batch: 32 };

impl Case for Image {
    type Model = ImageModel;
    type Batch = (Tensor<4>, Tensor<1, Int>);
    fn build(&self, device: &Device) -> (ImageModel, ModuleOptimizer) {
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        let optim = SgdConfig::new().with_momentum(Some(momentum)).init();
        (self.kind.build(10, Key::new(1), device), optim)
    }
    fn batch(&self, device: &Device) -> Self::Batch {
        let shape = [self.batch, 3, 32, 32];
        let pixels: Vec<f32> = (0..shape.iter().product()).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        (Tensor::from_data(TensorData::new(pixels, shape), device), labels(self.batch, 10, device))
    }
    fn loss(&self, model: &ImageModel, (images, labels): &Self::Batch) -> Tensor<1> {
        cross_entropy(model.forward(images.clone()), labels)
    }
    fn lr(&self) -> f64 {
        0.01
    }
}

/// The bidirectional LSTM on texts of 48 words, Adam.
#[derive(Debug, Clone, Copy)]
pub struct Text {
    /// Number of samples.
    pub batch: usize,
}

/// The case with 32 texts.
pub const BILSTM: Text = Text { batch: 32 };

impl Case for Text {
    type Model = TextModel;
    type Batch = (Tensor<2, Int>, Tensor<1, Int>);
    fn build(&self, device: &Device) -> (TextModel, ModuleOptimizer) {
        (TextModelKind::BiLstm.build(&TextConfig::default(), Key::new(1), device), AdamConfig::new().init())
    }
    fn batch(&self, device: &Device) -> Self::Batch {
        let tokens: Vec<i64> = (0..self.batch as i64 * 48).map(|i| (i * 7919) % 20_000 + 2).collect();
        (Tensor::from_data(TensorData::new(tokens, [self.batch, 48]), device), labels(self.batch, 4, device))
    }
    fn loss(&self, model: &TextModel, (tokens, labels): &Self::Batch) -> Tensor<1> {
        cross_entropy(model.forward(tokens.clone()), labels)
    }
    fn lr(&self) -> f64 {
        1e-4
    }
}

/// A perceptron with five hidden layers of this many values, Adam: at 4 096, 70.4 million parameters.
#[derive(Debug, Clone, Copy)]
pub struct Wide {
    /// Number of values of a hidden layer.
    pub width: usize,
    /// Number of samples, of 784 values each.
    pub batch: usize,
}

/// The model of [`Wide`].
#[derive(Module, Debug)]
pub struct Perceptron {
    layers: Vec<Linear>,
}

impl Case for Wide {
    type Model = Perceptron;
    type Batch = (Tensor<2>, Tensor<1, Int>);
    fn build(&self, device: &Device) -> (Perceptron, ModuleOptimizer) {
        let sizes = [784, self.width, self.width, self.width, self.width, self.width, 10];
        let layers = sizes.windows(2).map(|size| LinearConfig::new(size[0], size[1]).init(device)).collect();
        (Perceptron { layers }, AdamConfig::new().init())
    }
    fn batch(&self, device: &Device) -> Self::Batch {
        let pixels: Vec<f32> = (0..self.batch * 784).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        (Tensor::from_data(TensorData::new(pixels, [self.batch, 784]), device), labels(self.batch, 10, device))
    }
    fn loss(&self, model: &Perceptron, (images, labels): &Self::Batch) -> Tensor<1> {
        let last = model.layers.len() - 1;
        let mut x = images.clone();
        for (index, layer) in model.layers.iter().enumerate() {
            x = layer.forward(x);
            x = if index < last { relu(x) } else { x };
        }
        cross_entropy(x, labels)
    }
    fn lr(&self) -> f64 {
        1e-4
    }
}

impl Wide {
    /// Returns the number of parameters of the model.
    pub fn parameters(&self) -> usize {
        785 * self.width + 4 * (self.width + 1) * self.width + 10 * (self.width + 1)
    }
}

fn labels(batch: usize, classes: i64, device: &Device) -> Tensor<1, Int> {
    let labels: Vec<i64> = (0..batch as i64).map(|i| i % classes).collect();
    Tensor::from_data(TensorData::new(labels, [batch]), device)
}

fn cross_entropy(logits: Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
    CrossEntropyLossConfig::new().init(&labels.device()).forward(logits, labels.clone())
}

/// Training step by step.
pub trait Steps {
    /// Takes one step, waits until the device is done with it, and returns the loss before it.
    fn step(&mut self) -> f32;
    /// Returns the report of the last exchange, if there was one.
    fn report(&self) -> Option<&StepReport> {
        None
    }
}

/// Plain Burn.
pub struct Plain<C: Case> {
    case: C,
    model: Option<C::Model>,
    optim: ModuleOptimizer,
    batch: C::Batch,
}

// Burn's optimizer has no `Debug`.
impl<C: Case> std::fmt::Debug for Plain<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plain").field("model", &self.model).finish_non_exhaustive()
    }
}

impl<C: Case> Plain<C> {
    /// Prepares for the first step.
    pub fn new(case: C, device: &Device) -> Self {
        let device = device.clone().autodiff();
        let (model, optim) = case.build(&device);
        Plain { model: Some(model), optim, batch: case.batch(&device), case }
    }
}

impl<C: Case> Steps for Plain<C> {
    fn step(&mut self) -> f32 {
        let model = self.model.take().expect("a step gives the model back");
        let loss = self.case.loss(&model, &self.batch);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optim.step(self.case.lr(), model, grads));
        loss.device().sync().expect("the device works");
        loss.into_scalar()
    }
}

/// The same training as one rank of a world. Controllers would need the loss before the exchange; there is none here.
#[derive(Debug)]
pub struct Wrapped<C: Case> {
    case: C,
    model: Option<C::Model>,
    optim: DistributedOptimizer,
    batch: C::Batch,
}

impl<C: Case> Wrapped<C> {
    /// Joins and prepares for the first step.
    pub fn new(case: C, device: &Device, comm: Session, config: DistributedConfig) -> Self {
        let device = device.clone().autodiff();
        let (model, optim) = case.build(&device);
        let mut optim = DistributedOptimizer::new(optim, comm, config, 1);
        let model = optim.join(model).expect("ranks of one configuration");
        Wrapped { model: Some(model), optim, batch: case.batch(&device), case }
    }

    /// Creates a dense world of one.
    pub fn alone(case: C, device: &Device) -> Self {
        Wrapped::new(case, device, Local::world(1).remove(0), DistributedConfig::dense())
    }
}

impl<C: Case> Wrapped<C> {
    /// Returns its optimizer.
    pub fn optimizer(&self) -> &DistributedOptimizer {
        &self.optim
    }
}

impl<C: Case> Steps for Wrapped<C> {
    fn step(&mut self) -> f32 {
        let model = self.model.take().expect("a step gives the model back");
        let loss = {
            let forward = self.optim.forward_model(&model).expect("no rank fails");
            self.case.loss(&forward, &self.batch)
        };
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optim.step(self.case.lr(), model, grads).expect("no rank fails"));
        loss.device().sync().expect("the device works");
        loss.into_scalar()
    }

    fn report(&self) -> Option<&StepReport> {
        Some(self.optim.report())
    }
}

/// Returns the median seconds of a plain and of a wrapped step, alternating so that both run under the same machine
/// load, and the median of the ratios of neighboring steps.
pub fn compare<C: Case>(case: C, steps: usize) -> (f64, f64, f64) {
    let device = Device::flex();
    let (mut plain, mut wrapped) = (Plain::new(case.clone(), &device), Wrapped::alone(case, &device));
    for _ in 0..3 {
        let (a, b) = (plain.step(), wrapped.step());
        assert_eq!(a, b, "a world of one trains as plain Burn does");
    }
    let mut times = Vec::with_capacity(steps);
    for index in 0..steps {
        let mut pair = [0.0; 2];
        // Whoever goes second finds warmer caches: take turns.
        for which in [index % 2, 1 - index % 2] {
            let start = Instant::now();
            if which == 0 {
                plain.step()
            } else {
                wrapped.step()
            };
            pair[which] = start.elapsed().as_secs_f64();
        }
        times.push(pair);
    }
    (
        median(times.iter().map(|t| t[0]).collect()),
        median(times.iter().map(|t| t[1]).collect()),
        median(times.iter().map(|t| t[1] / t[0]).collect()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_of_one_trains_to_the_bit_as_plain_burn_does() {
        let device = Device::flex();
        let (mut plain, mut wrapped) = (Plain::new(BILSTM, &device), Wrapped::alone(BILSTM, &device));
        for _ in 0..2 {
            assert_eq!(plain.step().to_bits(), wrapped.step().to_bits());
        }
    }
}
