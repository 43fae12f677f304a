//! Small models whose weights and data follow from a seed, on any device.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, LstmConfig, PaddingConfig2d};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData, activation};

/// Numbers in [-1, 1) that follow from a seed: the high bits of a linear congruential generator.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def1)
    }

    pub(crate) fn tensor<const D: usize>(&mut self, shape: [usize; D], device: &Device) -> Tensor<D> {
        let next = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(|_| next(&mut self.0)).collect();
        Tensor::from_data(TensorData::new(values, shape), device)
    }
}

/// What the facts need of a model.
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
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1)).init(device)
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

/// Fills every trainable parameter from a seed: backends draw initial weights from generators of their own.
fn seeded<M: Module>(module: M, seed: u64) -> M {
    struct Fill(Numbers);
    impl ModuleMapper for Fill {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|old| {
                if !old.is_require_grad() {
                    return old;
                }
                self.0.tensor(old.dims(), &old.device()).mul_scalar(0.5).require_grad()
            })
        }
    }
    module.map(&mut Fill(Numbers::new(seed)))
}

/// Every float tensor of a module in the order of a walk, as f32. Pending BatchNorm updates of this thread come first.
pub(crate) fn values<M: Module>(module: &M) -> Vec<f32> {
    struct Read(Vec<f32>);
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().inner().cast(DType::F32).into_data();
            self.0.extend(data.try_into_vec::<f32>().expect("cast to f32 above"));
        }
    }
    let _ = module.valid();
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// As bits, so that a comparison tells 0 from -0 and no NaN equals anything by accident.
pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The largest difference.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}
