//! Small models whose weights and data follow from a seed, on any device.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, LstmConfig, PaddingConfig2d};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Tensor, activation};

pub(crate) use crate::seeded::Numbers;
use crate::seeded::{self, seeded};

/// Requirements of the tests on a model.
pub(crate) trait Model: Module + std::fmt::Debug + 'static {
    fn new(seed: u64, device: &Device) -> Self;
    /// The mean squared error on `samples` samples that follow from `data`.
    fn loss(&self, data: u64, samples: usize, device: &Device) -> Tensor<1>;

    fn gradients(&self, data: u64, samples: usize, device: &Device) -> GradientsParams {
        GradientsParams::from_grads(self.loss(data, samples, device).backward(), self)
    }
}

/// Two layers.
#[derive(Module, Debug)]
pub(crate) struct Mlp {
    first: Linear,
    second: Linear,
}

impl Model for Mlp {
    fn new(seed: u64, device: &Device) -> Self {
        let (first, second) = (LinearConfig::new(6, 8).init(device), LinearConfig::new(8, 3).init(device));
        seeded(Mlp { first, second }, seed)
    }

    fn loss(&self, data: u64, samples: usize, device: &Device) -> Tensor<1> {
        let mut numbers = Numbers::new(data);
        let (x, y) = (numbers.tensor([samples, 6], device), numbers.tensor([samples, 3], device));
        (self.second.forward(activation::tanh(self.first.forward(x))) - y).square().mean()
    }
}

/// A stem, one residual block, and a layer on top, with BatchNorm.
#[derive(Module, Debug)]
pub(crate) struct ResNet {
    stem: Conv2d,
    norms: Vec<BatchNorm>,
    block: Vec<Conv2d>,
    top: Linear,
}

impl Model for ResNet {
    fn new(seed: u64, device: &Device) -> Self {
        // Without a bias, which BatchNorm cancels: its gradient would be rounding alone, and Adam would step by it.
        let conv = |channels| {
            let config = Conv2dConfig::new(channels, [3, 3]).with_bias(false);
            config.with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
        };
        let norms = (0..3).map(|_| BatchNormConfig::new(4).init(device)).collect();
        let (block, top) = (vec![conv([4, 4]), conv([4, 4])], LinearConfig::new(4, 3).init(device));
        seeded(ResNet { stem: conv([1, 4]), norms, block, top }, seed)
    }

    fn loss(&self, data: u64, samples: usize, device: &Device) -> Tensor<1> {
        let mut numbers = Numbers::new(data);
        let x = numbers.tensor([samples, 1, 6, 6], device);
        let y = numbers.tensor([samples, 3], device);
        let x = activation::relu(self.norms[0].forward(self.stem.forward(x)));
        let branch = activation::relu(self.norms[1].forward(self.block[0].forward(x.clone())));
        let x = activation::relu(self.norms[2].forward(self.block[1].forward(branch)) + x);
        let pooled = x.reshape([samples, 4, 36]).mean_dim(2).reshape([samples, 4]);
        (self.top.forward(pooled) - y).square().mean()
    }
}

/// An LSTM and a layer on its last output.
#[derive(Module, Debug)]
pub(crate) struct Lstm {
    lstm: burn::nn::Lstm,
    top: Linear,
}

impl Model for Lstm {
    fn new(seed: u64, device: &Device) -> Self {
        let (lstm, top) = (LstmConfig::new(4, 6, true).init(device), LinearConfig::new(6, 3).init(device));
        seeded(Lstm { lstm, top }, seed)
    }

    fn loss(&self, data: u64, samples: usize, device: &Device) -> Tensor<1> {
        let mut numbers = Numbers::new(data);
        let (x, y) = (numbers.tensor([samples, 5, 4], device), numbers.tensor([samples, 3], device));
        let (outputs, _) = self.lstm.forward(x, None);
        let last = outputs.slice([0..samples, 4..5, 0..6]).reshape([samples, 6]);
        (self.top.forward(last) - y).square().mean()
    }
}

/// Every float tensor of a module in the order of a walk.
pub(crate) fn values<M: Module>(module: &M) -> Vec<f32> {
    seeded::values(module).into_iter().flat_map(|(_, values)| values).collect()
}

/// Values as bits, so that a comparison distinguishes 0 from -0, and compares NaNs by bits.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
