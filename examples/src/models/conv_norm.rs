//! A convolution followed by BatchNorm.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Initializer, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

/// A convolution without bias, then BatchNorm, whose shift would cancel a bias anyway.
#[derive(Module, Debug)]
pub struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm,
}

impl ConvNorm {
    /// Creates a square `kernel` that keeps the image's size at stride 1; weights are zero until initialized.
    pub fn new(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Self {
        Self { conv: conv(channels, kernel, stride, device), norm: BatchNormConfig::new(channels[1]).init(device) }
    }

    /// Maps `[batch, in, height, width]` to `[batch, out, height / stride, width / stride]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(self.conv.forward(x))
    }
}

/// Creates a convolution without bias and with zero weights.
pub(super) fn conv(channels: [usize; 2], kernel: usize, stride: usize, device: &Device) -> Conv2d {
    let pad = kernel / 2;
    Conv2dConfig::new(channels, [kernel, kernel])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
        .with_bias(false)
        .with_initializer(Initializer::Zeros)
        .init(device)
}

/// Returns the mean over the image: `[batch, channels, height, width]` to `[batch, channels]`.
pub(super) fn global_average(x: Tensor<4>) -> Tensor<2> {
    let [batch, channels, height, width] = x.dims();
    x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels])
}
