//! Image classifiers by name.

use std::fmt;
use std::str::FromStr;

use briquette::core::Key;
use burn::module::Module;
use burn::tensor::{Device, Tensor};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::names::{UnknownModel, find};
use super::resnet::{BlockKind, ResNet, ResNetPlan};
use super::vgg::{Vgg, VggPlan};

/// Image classifier to build. Text, command line and serde use the same lower-case names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "lower")]
#[serde(rename_all = "lowercase")]
pub enum ImageModelKind {
    /// 77 850 parameters at 10 classes.
    ResNet8,
    /// 272 282 parameters.
    ResNet20,
    /// 466 714 parameters.
    ResNet32,
    /// 855 578 parameters.
    ResNet56,
    /// 11 173 962 parameters.
    ResNet18,
    /// 21 282 122 parameters.
    ResNet34,
    /// 23 520 842 parameters, with bottlenecks.
    ResNet50,
    /// 42 512 970 parameters, with bottlenecks.
    ResNet101,
    /// 9 228 362 parameters.
    Vgg11,
    /// 579 098 parameters: a quarter of the channels.
    #[value(name = "vgg11-slim")]
    #[serde(rename = "vgg11-slim")]
    Vgg11Slim,
    /// 14 724 042 parameters.
    Vgg16,
}

impl ImageModelKind {
    /// All kinds.
    pub const ALL: [Self; 11] = [
        Self::ResNet8,
        Self::ResNet20,
        Self::ResNet32,
        Self::ResNet56,
        Self::ResNet18,
        Self::ResNet34,
        Self::ResNet50,
        Self::ResNet101,
        Self::Vgg11,
        Self::Vgg11Slim,
        Self::Vgg16,
    ];

    /// Returns the name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::ResNet8 => "resnet8",
            Self::ResNet20 => "resnet20",
            Self::ResNet32 => "resnet32",
            Self::ResNet56 => "resnet56",
            Self::ResNet18 => "resnet18",
            Self::ResNet34 => "resnet34",
            Self::ResNet50 => "resnet50",
            Self::ResNet101 => "resnet101",
            Self::Vgg11 => "vgg11",
            Self::Vgg11Slim => "vgg11-slim",
            Self::Vgg16 => "vgg16",
        }
    }

    /// Builds the model with weights drawn from `key`.
    pub fn build(self, classes: usize, key: Key, device: &Device) -> ImageModel {
        use BlockKind::{Basic, Bottleneck};
        let resnet = |plan: ResNetPlan| ImageModel::ResNet(plan.build(classes, key, device));
        let vgg = |plan: VggPlan| ImageModel::Vgg(plan.build(classes, key, device));
        match self {
            Self::ResNet8 => resnet(ResNetPlan::small(1)),
            Self::ResNet20 => resnet(ResNetPlan::small(3)),
            Self::ResNet32 => resnet(ResNetPlan::small(5)),
            Self::ResNet56 => resnet(ResNetPlan::small(9)),
            Self::ResNet18 => resnet(ResNetPlan::wide([2, 2, 2, 2], Basic)),
            Self::ResNet34 => resnet(ResNetPlan::wide([3, 4, 6, 3], Basic)),
            Self::ResNet50 => resnet(ResNetPlan::wide([3, 4, 6, 3], Bottleneck)),
            Self::ResNet101 => resnet(ResNetPlan::wide([3, 4, 23, 3], Bottleneck)),
            Self::Vgg11 => vgg(VggPlan::Vgg11),
            Self::Vgg11Slim => vgg(VggPlan::Vgg11Slim),
            Self::Vgg16 => vgg(VggPlan::Vgg16),
        }
    }
}

impl fmt::Display for ImageModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ImageModelKind {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, UnknownModel> {
        find(&Self::ALL, Self::name, name)
    }
}

/// An image classifier.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant, reason = "one per rank, and Burn's derive does not see through a Box")]
pub enum ImageModel {
    /// A residual network.
    ResNet(ResNet),
    /// A VGG network.
    Vgg(Vgg),
}

impl ImageModel {
    /// Returns logits `[batch, classes]` of images `[batch, 3, 32, 32]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        match self {
            Self::ResNet(model) => model.forward(images),
            Self::Vgg(model) => model.forward(images),
        }
    }
}
