//! Residual networks for 32×32 images, in two families.
//!
//! *Small* ([`ResNetPlan::small`], depth 6n + 2): three stages of 16, 32 and 64 channels as in section 4.2 of the
//! paper, for CIFAR. Where the shape changes the shortcut is a 1×1 convolution **without** BatchNorm. (The paper pads
//! with zeros. The counts usually quoted, 272 474 for depth 20, include a BatchNorm on the projection; ours do not.)
//!
//! *Wide* ([`ResNetPlan::wide`], depths 18, 34, 50, 101): the ImageNet networks of 64 to 512 channels with the usual
//! CIFAR stem, one 3×3 convolution of stride 1 and no max-pooling, and BatchNorm on the projection. In a bottleneck
//! the 3×3 convolution carries the stride, as in most code today; the paper gives it to the first 1×1.
//!
//! Reference: K. He, X. Zhang, S. Ren, J. Sun, *Deep Residual Learning for Image Recognition*, CVPR 2016,
//! <https://arxiv.org/abs/1512.03385>, table 1 and section 4.2.

use briquette::core::Key;
use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::conv_norm::{ConvNorm, conv, global_average};
use super::init;

/// Structure of a residual network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResNetPlan {
    /// Channels of the first stage; each later stage has twice as many, at half the image size.
    pub width: usize,
    /// Blocks in each stage.
    pub blocks: Vec<usize>,
    /// Kind of block.
    pub block: BlockKind,
    /// Set if the projection on the shortcut is followed by BatchNorm.
    pub projection_norm: bool,
}

/// Kind of a residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Two 3×3 convolutions.
    Basic,
    /// 1×1, 3×3 and 1×1 convolutions; the last has four times the channels.
    Bottleneck,
}

impl BlockKind {
    fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

impl ResNetPlan {
    /// Returns the small family: `n` basic blocks in each of three stages, 6n + 2 layers.
    pub fn small(n: usize) -> Self {
        Self { width: 16, blocks: vec![n; 3], block: BlockKind::Basic, projection_norm: false }
    }

    /// Returns the wide family: four stages from 64 channels.
    pub fn wide(blocks: [usize; 4], block: BlockKind) -> Self {
        Self { width: 64, blocks: blocks.to_vec(), block, projection_norm: true }
    }

    /// Builds the network with weights drawn from `key`.
    pub fn build(&self, classes: usize, key: Key, device: &Device) -> ResNet {
        let mut channels = self.width;
        let mut stages = Vec::new();
        for (stage, &count) in self.blocks.iter().enumerate() {
            let width = self.width << stage;
            let mut blocks = Vec::new();
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                blocks.push(self.block(channels, width, stride, device));
                channels = width * self.block.expansion();
            }
            stages.push(blocks);
        }
        let head = LinearConfig::new(channels, classes).with_initializer(Initializer::Zeros).init(device);
        init::known(ResNet { stem: ConvNorm::new([3, self.width], 3, 1, device), stages, head }, key)
    }

    fn block(&self, input: usize, width: usize, stride: usize, device: &Device) -> Block {
        let output = width * self.block.expansion();
        let layers = match self.block {
            BlockKind::Basic => {
                vec![ConvNorm::new([input, width], 3, stride, device), ConvNorm::new([width, width], 3, 1, device)]
            }
            BlockKind::Bottleneck => vec![
                ConvNorm::new([input, width], 1, 1, device),
                ConvNorm::new([width, width], 3, stride, device),
                ConvNorm::new([width, output], 1, 1, device),
            ],
        };
        let shortcut = (stride != 1 || input != output).then(|| Projection {
            conv: conv([input, output], 1, stride, device),
            norm: self.projection_norm.then(|| BatchNormConfig::new(output).init(device)),
        });
        Block { layers, shortcut }
    }
}

/// A residual network; build it with [`ResNetPlan::build`].
#[derive(Module, Debug)]
pub struct ResNet {
    stem: ConvNorm,
    stages: Vec<Vec<Block>>,
    head: Linear,
}

impl ResNet {
    /// Returns logits `[batch, classes]` of images `[batch, 3, height, width]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let stem = relu(self.stem.forward(images));
        let features = self.stages.iter().flatten().fold(stem, |x, block| block.forward(x));
        self.head.forward(global_average(features))
    }
}

/// Computes `relu(layers(x) + shortcut(x))`.
#[derive(Module, Debug)]
struct Block {
    layers: Vec<ConvNorm>,
    shortcut: Option<Projection>,
}

impl Block {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let identity = match &self.shortcut {
            Some(projection) => projection.forward(x.clone()),
            None => x.clone(),
        };
        let last = self.layers.len() - 1;
        let y = self.layers.iter().enumerate().fold(x, |x, (index, layer)| {
            let y = layer.forward(x);
            if index < last { relu(y) } else { y }
        });
        relu(y + identity)
    }
}

/// Fits the shortcut to the block's output where the shape changes.
#[derive(Module, Debug)]
struct Projection {
    conv: Conv2d,
    norm: Option<BatchNorm>,
}

impl Projection {
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = self.conv.forward(x);
        match &self.norm {
            Some(norm) => norm.forward(y),
            None => y,
        }
    }
}
