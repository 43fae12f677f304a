//! Burn code shared by the ports: data generated from a seed, and models.
//!
//! Each folder next to this one has a program for one process, `single.rs`, and the same for many ranks, `ranks.rs`:
//! `diff` shows the required changes. A test runs both, on threads and in processes, and compares their losses.

use std::path::{Path, PathBuf};

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::prelude::*;
use burn::tensor::activation::relu;
use burn::train::metric::NumericEntry;
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

/// Error of any of the programs.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Returns the device on which all programs compute.
pub fn device() -> Device {
    Device::flex().autodiff()
}

/// Generates numbers in [-1, 1) from `seed`.
pub fn numbers(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    })
}

/// A pattern of 8 × 8 pixels, and its class, one of four.
#[derive(Debug, Clone)]
pub struct Picture {
    pixels: Vec<f32>,
    label: i64,
}

/// Generates pictures of waves of four kinds, with noise.
pub fn pictures(seed: u64, count: usize) -> InMemDataset<Picture> {
    let mut noise = numbers(seed);
    let picture = |index: usize| {
        let label = index % 4;
        let wave = |at: usize| ((at % 8 * (label + 1) + at / 8 * label) as f32 * 0.4).sin();
        let pixels = (0..64).map(|at| wave(at) + noise.next().unwrap_or(0.0)).collect();
        Picture { pixels, label: label as i64 }
    };
    InMemDataset::new((0..count).map(picture).collect())
}

/// Batcher of pictures and their labels.
#[derive(Debug, Clone)]
pub struct Pictures;

impl Batcher<Picture, (Tensor<4>, Tensor<1, Int>)> for Pictures {
    fn batch(&self, items: Vec<Picture>, device: &Device) -> (Tensor<4>, Tensor<1, Int>) {
        let pixels: Vec<f32> = items.iter().flat_map(|picture| picture.pixels.clone()).collect();
        let labels: Vec<i64> = items.iter().map(|picture| picture.label).collect();
        let count = items.len();
        let images = Tensor::from_data(TensorData::new(pixels, [count, 1, 8, 8]), device);
        (images, Tensor::from_data(TensorData::new(labels, [count]), device))
    }
}

/// Two convolutions and a layer on top.
#[derive(Module, Debug)]
pub struct Classifier {
    /// First convolution.
    pub first: Conv2d,
    /// Second convolution.
    pub second: Conv2d,
    pool: AdaptiveAvgPool2d,
    /// Final layer.
    pub head: Linear,
}

impl Classifier {
    /// Creates an untrained model.
    pub fn new(device: &Device) -> Self {
        Classifier {
            first: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            second: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(64, 4).init(device),
        }
    }

    /// Returns the logits of each picture.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features = relu(self.second.forward(relu(self.first.forward(images))));
        self.head.forward(self.pool.forward(features).flatten(1, 3))
    }

    /// Returns the mean cross entropy.
    pub fn loss(&self, images: Tensor<4>, labels: Tensor<1, Int>) -> Tensor<1> {
        CrossEntropyLossConfig::new().init(&labels.device()).forward(self.forward(images), labels)
    }
}

impl TrainStep for Classifier {
    type Input = (Tensor<4>, Tensor<1, Int>);
    type Output = ClassificationOutput;

    fn step(&self, (images, labels): Self::Input) -> TrainOutput<ClassificationOutput> {
        let output = InferenceStep::step(self, (images, labels));
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl InferenceStep for Classifier {
    type Input = (Tensor<4>, Tensor<1, Int>);
    type Output = ClassificationOutput;

    fn step(&self, (images, labels): Self::Input) -> ClassificationOutput {
        let output = self.forward(images);
        let loss = CrossEntropyLossConfig::new().init(&labels.device()).forward(output.clone(), labels.clone());
        ClassificationOutput::new(loss, output, labels)
    }
}

/// Returns the directory for a learner's files: the program's first argument, or a folder shared by all programs.
pub fn directory() -> PathBuf {
    std::env::args().nth(1).map_or_else(|| PathBuf::from("runs/learner"), PathBuf::from)
}

/// Returns the validation loss of each epoch, from Burn's logs.
pub fn last_losses(directory: &Path) -> Result<Vec<f32>, Failure> {
    let files = (1..).map(|epoch| directory.join(format!("valid/epoch-{epoch}/Loss.log")));
    let texts = files.take_while(|file| file.exists()).map(std::fs::read_to_string);
    let last = |text: String| Ok(NumericEntry::deserialize(text.lines().last().unwrap_or_default())?.current() as f32);
    texts.map(|text| last(text?)).collect()
}

/// Returns the value of a loss.
pub fn value(loss: Tensor<1>) -> f32 {
    loss.into_scalar()
}

/// A sentence, labeled by whether more of its words are even than odd.
#[derive(Debug, Clone)]
pub struct Sentence {
    words: Vec<i64>,
    label: i64,
}

/// Generates sentences of eight words.
pub fn sentences(seed: u64, count: usize) -> InMemDataset<Sentence> {
    let mut random = numbers(seed);
    let sentence = |_| {
        let words: Vec<i64> = random.by_ref().take(8).map(|v| ((v + 1.0) * 16.0) as i64).collect();
        let label = i64::from(words.iter().filter(|word| *word % 2 == 0).count() > 4);
        Sentence { words, label }
    };
    InMemDataset::new((0..count).map(sentence).collect())
}

/// Batcher of sentences and their labels.
#[derive(Debug, Clone)]
pub struct Sentences;

impl Batcher<Sentence, (Tensor<2, Int>, Tensor<1, Int>)> for Sentences {
    fn batch(&self, items: Vec<Sentence>, device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
        let words: Vec<i64> = items.iter().flat_map(|sentence| sentence.words.clone()).collect();
        let labels: Vec<i64> = items.iter().map(|sentence| sentence.label).collect();
        let count = items.len();
        let texts = Tensor::from_data(TensorData::new(words, [count, 8]), device);
        (texts, Tensor::from_data(TensorData::new(labels, [count]), device))
    }
}

/// A small encoder, without dropout.
#[derive(Module, Debug)]
pub struct Reader {
    words: Embedding,
    encoder: TransformerEncoder,
    head: Linear,
}

impl Reader {
    /// Creates an untrained model.
    pub fn new(device: &Device) -> Self {
        Reader {
            words: EmbeddingConfig::new(32, 16).init(device),
            encoder: TransformerEncoderConfig::new(16, 32, 2, 1).with_dropout(0.0).init(device),
            head: LinearConfig::new(16, 2).init(device),
        }
    }

    /// Returns the mean cross entropy.
    pub fn loss(&self, texts: Tensor<2, Int>, labels: Tensor<1, Int>) -> Tensor<1> {
        let encoded = self.encoder.forward(TransformerEncoderInput::new(self.words.forward(texts)));
        let out: Tensor<2> = self.head.forward(encoded.mean_dim(1).squeeze_dim(1));
        CrossEntropyLossConfig::new().init(&labels.device()).forward(out, labels)
    }
}

/// Noise from which a point is generated, and a real point.
#[derive(Debug, Clone)]
pub struct Draw {
    noise: [f32; 4],
    point: [f32; 2],
}

/// Generates points around (2, -1).
pub fn draws(seed: u64, count: usize) -> InMemDataset<Draw> {
    let mut random = numbers(seed);
    let mut next = || random.next().unwrap_or(0.0);
    let mut draw = |_| {
        let noise = std::array::from_fn(|_| next());
        Draw { noise, point: [2.0 + 0.5 * next(), -1.0 + 0.3 * next()] }
    };
    InMemDataset::new((0..count).map(&mut draw).collect())
}

/// Batcher of noise and points.
#[derive(Debug, Clone)]
pub struct Draws;

impl Batcher<Draw, (Tensor<2>, Tensor<2>)> for Draws {
    fn batch(&self, items: Vec<Draw>, device: &Device) -> (Tensor<2>, Tensor<2>) {
        let (noise, points) = items.iter().map(|draw| (draw.noise, draw.point)).unzip::<_, _, Vec<_>, Vec<_>>();
        let tensor = |values: Vec<f32>| {
            let columns = values.len() / items.len().max(1);
            Tensor::from_data(TensorData::new(values, [items.len(), columns]), device)
        };
        (tensor(noise.concat()), tensor(points.concat()))
    }
}

/// Two layers.
#[derive(Module, Debug)]
pub struct Network {
    inner: Linear,
    outer: Linear,
}

impl Network {
    /// Creates an untrained generator, which turns noise into points.
    pub fn generator(device: &Device) -> Self {
        Network { inner: LinearConfig::new(4, 16).init(device), outer: LinearConfig::new(16, 2).init(device) }
    }

    /// Creates an untrained critic, which rates points, 1 for real ones.
    pub fn critic(device: &Device) -> Self {
        Network { inner: LinearConfig::new(2, 16).init(device), outer: LinearConfig::new(16, 1).init(device) }
    }

    /// Returns the output for each row.
    pub fn forward(&self, rows: Tensor<2>) -> Tensor<2> {
        self.outer.forward(burn::tensor::activation::tanh(self.inner.forward(rows)))
    }

    /// Returns the mean squared distance of the rates of some points from `wanted`.
    pub fn miss(&self, points: Tensor<2>, wanted: f32) -> Tensor<1> {
        (self.forward(points) - wanted).square().mean()
    }
}

/// Returns the squared distance between the means of two clouds.
pub fn distance(made: Tensor<2>, real: Tensor<2>) -> Tensor<1> {
    (made.mean_dim(0) - real.mean_dim(0)).square().sum()
}
