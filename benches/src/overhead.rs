//! One rank, dense, through the whole path, against plain Burn: the same model, data and optimizer.

use std::time::Instant;

use briquette::core::Key;
use briquette::core::comm::Local;
use briquette::{Config, DistributedOptimizer};
use briquette_examples::models::{ImageModel, ImageModelKind, TextConfig, TextModel, TextModelKind};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Int, Tensor, TensorData};

/// A model with a fixed batch.
pub trait Case: Sized {
    /// The model.
    type Model: Module + std::fmt::Debug + 'static;
    /// Model and optimizer.
    fn build(&self, device: &Device) -> (Self::Model, ModuleOptimizer);
    /// The loss on the fixed batch.
    fn loss(&self, model: &Self::Model, device: &Device) -> Tensor<1>;
    /// A learning rate.
    fn lr(&self) -> f64;
}

/// ResNet-8, batch 32, momentum SGD.
#[derive(Debug, Clone, Copy)]
pub struct ResNet8;

impl Case for ResNet8 {
    type Model = ImageModel;
    fn build(&self, device: &Device) -> (ImageModel, ModuleOptimizer) {
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        let optim = SgdConfig::new().with_momentum(Some(momentum)).init();
        (ImageModelKind::ResNet8.build(10, Key::new(1), device), optim)
    }
    fn loss(&self, model: &ImageModel, device: &Device) -> Tensor<1> {
        let pixels: Vec<f32> = (0..32 * 3 * 32 * 32).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
        let images = Tensor::from_data(TensorData::new(pixels, [32, 3, 32, 32]), device);
        cross_entropy(model.forward(images), 10, device)
    }
    fn lr(&self) -> f64 {
        0.01
    }
}

/// BiLSTM on 32 texts of 48 words, Adam.
#[derive(Debug, Clone, Copy)]
pub struct BiLstm;

impl Case for BiLstm {
    type Model = TextModel;
    fn build(&self, device: &Device) -> (TextModel, ModuleOptimizer) {
        (TextModelKind::BiLstm.build(&TextConfig::default(), Key::new(1), device), AdamConfig::new().init())
    }
    fn loss(&self, model: &TextModel, device: &Device) -> Tensor<1> {
        let tokens: Vec<i64> = (0..32 * 48).map(|i| (i * 7919) % 20_000 + 2).collect();
        let tokens = Tensor::<2, Int>::from_data(TensorData::new(tokens, [32, 48]), device);
        cross_entropy(model.forward(tokens), 4, device)
    }
    fn lr(&self) -> f64 {
        1e-4
    }
}

fn cross_entropy(logits: Tensor<2>, classes: i64, device: &Device) -> Tensor<1> {
    let labels: Vec<i64> = (0..32).map(|i| i % classes).collect();
    let labels = Tensor::<1, Int>::from_data(TensorData::new(labels, [32]), device);
    CrossEntropyLossConfig::new().init(device).forward(logits, labels)
}

/// Plain Burn.
#[derive(Debug)]
pub struct Plain<C: Case>(C, Option<C::Model>, ModuleOptimizerDebug, Device);

/// Burn's optimizer does not implement `Debug`.
struct ModuleOptimizerDebug(ModuleOptimizer);

impl std::fmt::Debug for ModuleOptimizerDebug {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ModuleOptimizer")
    }
}

impl<C: Case> Plain<C> {
    /// Ready for the first step.
    pub fn new(case: C) -> Self {
        let device = Device::flex().autodiff();
        let (model, optim) = case.build(&device);
        Plain(case, Some(model), ModuleOptimizerDebug(optim), device)
    }

    /// One step; the loss before it.
    pub fn step(&mut self) -> f32 {
        let model = self.1.take().expect("a step gives the model back");
        let loss = self.0.loss(&model, &self.3);
        let value = loss.clone().into_scalar::<f32>();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.1 = Some(self.2.0.step(self.0.lr(), model, grads));
        value
    }
}

/// The same behind a world of one.
#[derive(Debug)]
pub struct Wrapped<C: Case>(C, Option<C::Model>, DistributedOptimizer, Device);

impl<C: Case> Wrapped<C> {
    /// Joined and ready for the first step.
    pub fn new(case: C) -> Self {
        let device = Device::flex().autodiff();
        let (model, optim) = case.build(&device);
        let comm = Local::world(1).remove(0);
        let mut optim = DistributedOptimizer::new(optim, comm, Config::dense(), 1);
        let model = optim.join(model).expect("a world of one agrees with itself");
        Wrapped(case, Some(model), optim, device)
    }

    /// One step; the loss before it.
    pub fn step(&mut self) -> f32 {
        let model = self.1.take().expect("a step gives the model back");
        let loss = self.0.loss(&model, &self.3);
        let value = loss.clone().into_scalar::<f32>();
        self.2.record_loss(f64::from(value));
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        self.1 = Some(self.2.step(self.0.lr(), model, grads).expect("a world of one cannot fail"));
        value
    }
}

/// Median seconds of a plain and of a wrapped step, taken in turns so that both see the same machine, and the median of
/// the ratios of neighbours.
pub fn compare<C: Case + Copy>(case: C, steps: usize) -> (f64, f64, f64) {
    let (mut plain, mut wrapped) = (Plain::new(case), Wrapped::new(case));
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
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
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
        let (mut plain, mut wrapped) = (Plain::new(BiLstm), Wrapped::new(BiLstm));
        for _ in 0..2 {
            assert_eq!(plain.step().to_bits(), wrapped.step().to_bits());
        }
    }
}
