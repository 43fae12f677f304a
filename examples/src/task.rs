//! Training task: a model, training batches, and a score.

use anyhow::{Context, Result, bail};
use briquette::core::Key;
use briquette::core::config::Config;
use briquette::strategy::BuildStrategy;
use briquette_datasets::{Augment, Download, ImageKind, ImageSet, ImageSource, Images, PIXELS};
use briquette_datasets::{CHARACTERS, CharSet, Chars, TextKind, TextSet, TextSource, Texts};
use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::cli::check_samples;
use crate::models::{
    CharLm, CharLmConfig, ImageModel, ImageModelKind, TextConfig, TextModel, TextModelKind, UnknownModel,
};
use crate::record::float;
use crate::settings::{AugmentSpec, Settings};
use crate::train::Control;

/// Position of a batch in a run.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Rank that computes.
    pub rank: usize,
    /// Pass over the data.
    pub epoch: u64,
    /// Optimizer step.
    pub step: u64,
}

/// Sums over test samples.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// Sum of the losses.
    #[serde(with = "float")]
    pub loss: f64,
    /// Samples classified correctly.
    #[serde(with = "float")]
    pub correct: f64,
    /// Number of samples.
    #[serde(with = "float")]
    pub samples: f64,
}

/// A classification task, shared by all ranks, each of which builds its own model.
pub trait Task: Sync {
    /// Model type.
    type Model: Module + 'static;
    /// Builds a model with weights drawn from the run's key.
    fn build(&self, device: &Device) -> Self::Model;
    /// Returns the class of every training sample.
    fn train_labels(&self) -> &[u8];
    /// Returns the number of test samples.
    fn test_len(&self) -> usize;
    /// Returns the fingerprints of the training and the test data. They must agree between ranks, and between parts of a run.
    fn fingerprints(&self) -> [String; 2];
    /// Returns the mean loss over some training samples.
    fn loss(&self, model: &Self::Model, indices: &[usize], place: Place, device: &Device) -> Tensor<1>;
    /// Scores an inference model on some test samples.
    fn score(&self, model: &Self::Model, indices: &[usize], device: &Device) -> Score;
    /// Returns the exchange of a rank: by default that of the settings, which an experiment may wrap.
    fn strategy(&self, config: Config, _rank: usize) -> impl BuildStrategy + 'static {
        config
    }
}

/// Images, and a network to classify them.
#[derive(Debug)]
pub struct ImageTask {
    /// Data.
    pub images: Images,
    /// Network.
    pub kind: ImageModelKind,
    /// Augmentation of training images.
    pub augment: Option<Augment>,
    /// Key of the run.
    pub key: Key,
}

impl ImageTask {
    /// Loads the dataset and the network of a run's settings.
    ///
    /// # Errors
    /// An unknown dataset or model, or files that are not available.
    pub fn load(settings: &Settings, control: &Control) -> Result<ImageTask> {
        let kind = match settings.dataset.as_str() {
            "cifar10" => ImageKind::Cifar10,
            "cifar100" => ImageKind::Cifar100,
            "generated" => ImageKind::Generated { classes: 10 },
            other => bail!("unknown --dataset `{other}`; valid are: cifar10, cifar100, generated"),
        };
        let model = settings.model.parse().context("--model")?;
        check_samples(settings, PIXELS as u64 + 1)?;
        let source = ImageSource {
            dir: settings.data.clone(),
            train_limit: settings.train_limit,
            test_limit: settings.test_limit,
            seed: settings.seed,
            download: Download { quiet: control.plain, ..Default::default() },
            ..ImageSource::new(kind)
        };
        let images = source.load()?;
        for note in &images.notes {
            control.say(format_args!("note: {note}"));
        }
        control.say(format_args!("{} training and {} test images\n", images.train.len(), images.test.len()));
        let augment = match settings.augment {
            None | Some(AugmentSpec::None) => None,
            Some(AugmentSpec::Flip) => Some(Augment::flip()),
            Some(AugmentSpec::CropFlip) => Some(Augment::crop_and_flip()),
        };
        Ok(ImageTask { images, kind: model, augment, key: Key::new(settings.seed) })
    }
}

fn image_batch(set: &ImageSet, indices: &[usize], augment: Option<(&Augment, Key)>, device: &Device) -> Batch<4> {
    let batch = set.batch(indices, augment);
    let input = Tensor::from_data(TensorData::new(batch.pixels, [indices.len(), 3, 32, 32]), device);
    (input, labels(batch.labels, device))
}

type Batch<const D: usize> = (Tensor<D>, Tensor<1, Int>);

fn labels(labels: Vec<i64>, device: &Device) -> Tensor<1, Int> {
    let len = labels.len();
    Tensor::from_data(TensorData::new(labels, [len]), device)
}

fn mean_loss(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
    let device = logits.device();
    CrossEntropyLossConfig::new().init(&device).forward(logits, labels)
}

fn score(logits: Tensor<2>, labels: Tensor<1, Int>) -> Score {
    let [samples, _] = logits.dims();
    let best = logits.clone().argmax(1).squeeze_dim::<1>(1);
    let correct = best.equal(labels.clone()).int().sum().into_scalar::<i64>() as f64;
    let loss = f64::from(mean_loss(logits, labels).into_scalar::<f32>()) * samples as f64;
    Score { loss, correct, samples: samples as f64 }
}

impl Task for ImageTask {
    type Model = ImageModel;

    fn build(&self, device: &Device) -> ImageModel {
        self.kind.build(self.images.classes, self.key, device)
    }
    fn train_labels(&self) -> &[u8] {
        self.images.train.labels()
    }
    fn test_len(&self) -> usize {
        self.images.test.len()
    }
    fn fingerprints(&self) -> [String; 2] {
        [&self.images.train, &self.images.test].map(ImageSet::fingerprint)
    }
    fn loss(&self, model: &ImageModel, indices: &[usize], place: Place, device: &Device) -> Tensor<1> {
        let key = self.key.purpose("augment").step(place.epoch);
        let augment = self.augment.as_ref().map(|augment| (augment, key));
        let (input, labels) = image_batch(&self.images.train, indices, augment, device);
        mean_loss(model.forward(input), labels)
    }
    fn score(&self, model: &ImageModel, indices: &[usize], device: &Device) -> Score {
        let (input, labels) = image_batch(&self.images.test, indices, None, device);
        score(model.forward(input), labels)
    }
}

/// Texts, and a network to classify them.
#[derive(Debug)]
pub struct TextTask {
    /// Data.
    pub texts: Texts,
    /// Network.
    pub kind: TextModelKind,
    /// Sizes of the network.
    pub config: TextConfig,
    /// Key of the run.
    pub key: Key,
}

impl TextTask {
    /// Loads the dataset and the network of a run's settings.
    ///
    /// # Errors
    /// An unknown dataset or model, or files that are not available.
    pub fn load(settings: &Settings, control: &Control) -> Result<TextTask> {
        if settings.augment.is_some() {
            bail!("--augment is for images: omit it");
        }
        let model = settings.model.parse().context("--model")?;
        // About forty words, as text and as numbers.
        check_samples(settings, 500)?;
        let texts = text_source(settings, control)?.load()?;
        for note in &texts.notes {
            control.say(format_args!("note: {note}"));
        }
        control.say(format_args!("{} training and {} test texts\n", texts.train.len(), texts.test.len()));
        let config = TextConfig { vocab: texts.vocabulary.size(), classes: texts.classes, ..TextConfig::default() };
        Ok(TextTask { texts, kind: model, config, key: Key::new(settings.seed) })
    }
}

fn text_source(settings: &Settings, control: &Control) -> Result<TextSource> {
    let kind = match settings.dataset.as_str() {
        "ag-news" => TextKind::AgNews,
        "generated" => TextKind::Generated,
        other => bail!("unknown --dataset `{other}`; valid are: ag-news, generated"),
    };
    Ok(TextSource {
        dir: settings.data.clone(),
        train_limit: settings.train_limit,
        test_limit: settings.test_limit,
        seed: settings.seed,
        download: Download { quiet: control.plain, ..Default::default() },
        ..TextSource::new(kind)
    })
}

fn text_batch(set: &TextSet, indices: &[usize], device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let batch = set.batch(indices);
    let input = Tensor::from_data(TensorData::new(batch.tokens, [indices.len(), set.length()]), device);
    (input, labels(batch.labels, device))
}

impl Task for TextTask {
    type Model = TextModel;

    fn build(&self, device: &Device) -> TextModel {
        self.kind.build(&self.config, self.key, device)
    }
    fn train_labels(&self) -> &[u8] {
        self.texts.train.labels()
    }
    fn test_len(&self) -> usize {
        self.texts.test.len()
    }
    fn fingerprints(&self) -> [String; 2] {
        [&self.texts.train, &self.texts.test].map(TextSet::fingerprint)
    }
    fn loss(&self, model: &TextModel, indices: &[usize], _place: Place, device: &Device) -> Tensor<1> {
        let (input, labels) = text_batch(&self.texts.train, indices, device);
        mean_loss(model.forward(input), labels)
    }
    fn score(&self, model: &TextModel, indices: &[usize], device: &Device) -> Score {
        let (input, labels) = text_batch(&self.texts.test, indices, device);
        score(model.forward(input), labels)
    }
}

/// Characters of texts, and a language model.
#[derive(Debug)]
pub struct CharTask {
    /// Data.
    pub chars: Chars,
    /// Sizes of the network.
    pub config: CharLmConfig,
    /// Key of the run.
    pub key: Key,
}

/// Characters of a window.
const WINDOW: usize = 128;

impl CharTask {
    /// Loads the dataset and the network of a run's settings.
    ///
    /// # Errors
    /// An unknown dataset or model, or files that are not available.
    pub fn load(settings: &Settings, control: &Control) -> Result<CharTask> {
        if settings.augment.is_some() {
            bail!("--augment is for images: omit it");
        }
        if settings.model != "transformer" {
            let unknown = UnknownModel { name: settings.model.clone(), known: vec!["transformer"] };
            return Err(unknown).context("--model");
        }
        check_samples(settings, 500)?;
        let source = text_source(settings, control)?;
        let chars = source.load_chars(WINDOW)?;
        for note in &chars.notes {
            control.say(format_args!("note: {note}"));
        }
        let (train, test) = (chars.train.len(), chars.test.len());
        control.say(format_args!("{train} training and {test} test windows of {WINDOW} characters\n"));
        Ok(CharTask { chars, config: CharLmConfig::new(CHARACTERS, WINDOW), key: Key::new(settings.seed) })
    }
}

fn char_batch(set: &CharSet, indices: &[usize], device: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let batch = set.batch(indices);
    let inputs = Tensor::from_data(TensorData::new(batch.inputs, [indices.len(), set.length()]), device);
    (inputs, labels(batch.targets, device))
}

impl Task for CharTask {
    type Model = CharLm;

    fn build(&self, device: &Device) -> CharLm {
        self.config.build(self.key, device)
    }
    fn train_labels(&self) -> &[u8] {
        self.chars.train.labels()
    }
    fn test_len(&self) -> usize {
        self.chars.test.len()
    }
    fn fingerprints(&self) -> [String; 2] {
        [&self.chars.train, &self.chars.test].map(CharSet::fingerprint)
    }
    fn loss(&self, model: &CharLm, indices: &[usize], _place: Place, device: &Device) -> Tensor<1> {
        let (inputs, targets) = char_batch(&self.chars.train, indices, device);
        mean_loss(model.forward(inputs), targets)
    }
    /// Scores every character. The loss is in bits.
    fn score(&self, model: &CharLm, indices: &[usize], device: &Device) -> Score {
        let (inputs, targets) = char_batch(&self.chars.test, indices, device);
        let score = score(model.forward(inputs), targets);
        Score { loss: score.loss / std::f64::consts::LN_2, ..score }
    }
}
