//! Network trained in both ways: convolutions, and a head of fully connected layers, as in VGG.

use anyhow::{Result, bail};
use briquette::core::Key;
use briquette_datasets::{CHANNELS, SIDE};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Initializer, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use crate::models::init::initialize;

/// Sizes of a network for images of 32×32 pixels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Number of convolutions, and channels of each, between two poolings that halve the image; at most five stages.
    pub stages: Vec<(usize, usize)>,
    /// Outputs of each hidden layer of the head.
    pub hidden: Vec<usize>,
    /// Outputs of the last layer.
    pub classes: usize,
}

impl Plan {
    /// Returns VGG-11 with a quarter of the channels and two hidden layers of `head` outputs: 577 120 parameters in the
    /// convolutions.
    pub fn vgg11_slim(head: usize, classes: usize) -> Plan {
        Plan { stages: vec![(1, 16), (1, 32), (2, 64), (2, 128), (2, 128)], hidden: vec![head; 2], classes }
    }

    /// Returns the number of features of an image, which are the head's input.
    pub fn features(&self) -> usize {
        let side = SIDE >> self.stages.len();
        self.stages.last().map_or(CHANNELS, |(_, channels)| *channels) * side * side
    }

    /// Returns the number of outputs of each layer of the head.
    pub fn widths(&self) -> Vec<usize> {
        self.hidden.iter().copied().chain([self.classes]).collect()
    }

    /// Returns the number of parameters of the head.
    pub fn head_parameters(&self) -> usize {
        let widths = self.widths();
        let inputs = [self.features()].into_iter().chain(widths.iter().copied());
        let layers = inputs.zip(&widths).map(|(input, output)| input.saturating_add(1).saturating_mul(*output));
        layers.fold(0, usize::saturating_add)
    }

    /// Returns the number of all parameters.
    pub fn parameters(&self) -> usize {
        let mut input = CHANNELS;
        let channels = self.stages.iter().flat_map(|&(count, channels)| std::iter::repeat_n(channels, count));
        let convolution = |output| (9 * std::mem::replace(&mut input, output) + 1) * output;
        channels.map(convolution).sum::<usize>().saturating_add(self.head_parameters())
    }

    /// Checks that every one of `world` ranks has a column of every layer of the head.
    ///
    /// # Errors
    /// Names the narrowest layer, and the remedy.
    pub fn check(&self, world: usize) -> Result<()> {
        check_widths(&self.widths(), world)
    }

    /// Builds the network with weights drawn from `key`, the same on every rank. They follow He's initialization for
    /// ReLU, since the network has no normalization.
    pub fn build(&self, key: Key, device: &Device) -> Network {
        let mut input = CHANNELS;
        let mut stages = Vec::new();
        for &(count, output) in &self.stages {
            let stage = (0..count).map(|_| convolution([std::mem::replace(&mut input, output), output], device));
            stages.push(stage.collect());
        }
        let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        let mut input = self.features();
        let layer = |output| {
            let config = LinearConfig::new(std::mem::replace(&mut input, output), output);
            config.with_initializer(Initializer::Zeros).init(device)
        };
        let head = Head { layers: self.widths().into_iter().map(layer).collect() };
        let network = Network { convolutions: Convolutions { stages, pool }, head };
        let Network { convolutions, mut head } = initialize(network, key).expect("these layers have a rule");
        let logits = head.layers.pop().expect("a head has a layer");
        let head = Head { layers: head.map(&mut ForRelu).layers.into_iter().chain([logits]).collect() };
        Network { convolutions: convolutions.map(&mut ForRelu), head }
    }
}

/// Checks the widths; see [`Plan::check`].
pub(super) fn check_widths(widths: &[usize], world: usize) -> Result<()> {
    for (layer, width) in (1..).zip(widths) {
        if *width < world {
            bail!(
                "layer {layer} of {} of the head has {width} outputs for {world} ranks, and each rank holds one at least: \
                 take at most {width} ranks, or a wider layer",
                widths.len()
            );
        }
    }
    Ok(())
}

fn convolution(channels: [usize; 2], device: &Device) -> Conv2d {
    let config = Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1));
    config.with_initializer(Initializer::Zeros).init(device)
}

/// Rescales weights in front of a ReLU: from variance `1/(3·fan in)`, as drawn by [`initialize`], to variance `2/(fan in)`.
struct ForRelu;

impl ModuleMapper for ForRelu {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if D == 1 {
            return param; // a bias
        }
        let (id, value) = (param.id, (param.val().detach() * 6f32.sqrt()).detach());
        param.transform_for_load(value, id)
    }
}

/// Part with few parameters and many activations: data-parallel in both ways.
#[derive(Module, Debug)]
pub struct Convolutions {
    stages: Vec<Vec<Conv2d>>,
    pool: MaxPool2d,
}

impl Convolutions {
    /// Returns features `[batch, features]` of images `[batch, 3, 32, 32]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let convolve = |x, layer: &Conv2d| relu(layer.forward(x));
        let stage = |x, stage: &Vec<Conv2d>| self.pool.forward(stage.iter().fold(x, convolve));
        self.stages.iter().fold(images, stage).flatten(1, 3)
    }
}

/// Part with many parameters and few activations: fully connected layers, with ReLU between them.
#[derive(Module, Debug)]
pub struct Head {
    /// Layers in the order of the forward pass.
    pub layers: Vec<Linear>,
}

impl Head {
    /// Returns logits `[batch, classes]` of features `[batch, features]`.
    pub fn forward(&self, features: Tensor<2>) -> Tensor<2> {
        let (last, hidden) = self.layers.split_last().expect("a head has a layer");
        last.forward(hidden.iter().fold(features, |x, layer| relu(layer.forward(x))))
    }
}

/// Complete network.
#[derive(Module, Debug)]
pub struct Network {
    /// Part that is copied to each rank.
    pub convolutions: Convolutions,
    /// Part that is split over the ranks.
    pub head: Head,
}

impl Network {
    /// Returns logits `[batch, classes]` of images `[batch, 3, 32, 32]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        self.head.forward(self.convolutions.forward(images))
    }
}

/// Returns the largest difference between any parameter of two networks of one [`Plan`]; NaN if a parameter is.
///
/// # Panics
/// If they are of different plans.
pub fn largest_difference(a: &Network, b: &Network) -> f32 {
    let values = |network: &Network| {
        let mut values = Values::default();
        network.visit(&mut values);
        values.0
    };
    let (a, b) = (values(a), values(b));
    assert_eq!(a.len(), b.len(), "networks of the same plan");
    let larger = |most: f32, difference: f32| if most.is_nan() || difference <= most { most } else { difference };
    a.iter().zip(&b).map(|(a, b)| (a - b).abs()).fold(0.0, larger)
}

#[derive(Default)]
struct Values(Vec<f32>);

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let values = param.val().into_data().convert::<f32>().try_into_vec::<f32>().expect("f32 was asked for");
        self.0.extend(values);
    }
}
