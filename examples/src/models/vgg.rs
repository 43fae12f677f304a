//! VGG with BatchNorm for 32×32 images.
//!
//! The convolutions of the paper's configurations A (VGG-11) and D (VGG-16), each followed by BatchNorm and ReLU. Five
//! poolings leave one pixel of 512 channels, and one linear layer reads it instead of the paper's three, as is usual
//! for CIFAR. Convolutions have no bias, because BatchNorm cancels it.
//!
//! Reference: K. Simonyan, A. Zisserman, *Very Deep Convolutional Networks for Large-Scale Image Recognition*,
//! ICLR 2015, <https://arxiv.org/abs/1409.1556>, table 1.

use briquette::core::Key;
use burn::module::Module;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::conv_norm::{ConvNorm, global_average};
use super::init;

/// Configuration of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VggPlan {
    /// Configuration A: eight convolutions.
    Vgg11,
    /// The same with a quarter of the channels: 16 times fewer parameters, for two cores.
    Vgg11Slim,
    /// Configuration D: thirteen convolutions.
    Vgg16,
}

impl VggPlan {
    /// Returns the numbers of convolutions between two poolings.
    fn convolutions(self) -> [usize; 5] {
        match self {
            Self::Vgg11 | Self::Vgg11Slim => [1, 1, 2, 2, 2],
            Self::Vgg16 => [2, 2, 3, 3, 3],
        }
    }

    /// Returns the channels of the convolutions between two poolings.
    fn channels(self) -> [usize; 5] {
        let channels = [64, 128, 256, 512, 512];
        if self == Self::Vgg11Slim { channels.map(|count| count / 4) } else { channels }
    }

    /// Builds the network with weights drawn from `key`.
    pub fn build(self, classes: usize, key: Key, device: &Device) -> Vgg {
        let mut input = 3;
        let mut stages = Vec::new();
        for (count, output) in self.convolutions().into_iter().zip(self.channels()) {
            let mut stage = Vec::new();
            for _ in 0..count {
                stage.push(ConvNorm::new([input, output], 3, 1, device));
                input = output;
            }
            stages.push(stage);
        }
        let head = LinearConfig::new(input, classes).with_initializer(Initializer::Zeros).init(device);
        let pool = MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        init::known(Vgg { stages, pool, head }, key)
    }
}

/// A VGG network; build it with [`VggPlan::build`].
#[derive(Module, Debug)]
pub struct Vgg {
    stages: Vec<Vec<ConvNorm>>,
    pool: MaxPool2d,
    head: Linear,
}

impl Vgg {
    /// Returns logits `[batch, classes]` of images `[batch, 3, height, width]`, at least 32×32.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features = self.stages.iter().fold(images, |x, stage| {
            let y = stage.iter().fold(x, |x, layer| relu(layer.forward(x)));
            self.pool.forward(y)
        });
        self.head.forward(global_average(features))
    }
}
