//! Text classifiers by name: embedding, one LSTM layer, masked mean, linear.

use std::fmt;
use std::str::FromStr;

use briquette::core::Key;
use burn::module::Module;
use burn::nn::{Embedding, EmbeddingConfig, Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::init;
use super::lstm::Lstm;
use super::names::{UnknownModel, find};

/// Sizes of a text classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TextConfig {
    /// Rows of the embedding: the words, and the special tokens (padding, which is 0, and unknown).
    pub vocab: usize,
    /// Length of a word's embedding.
    pub embedding: usize,
    /// Length of the state, per direction.
    pub hidden: usize,
    /// Number of classes.
    pub classes: usize,
}

impl Default for TextConfig {
    /// Sizes for AG-News: 20 000 words and two special tokens, four classes.
    fn default() -> Self {
        Self { vocab: 20_002, embedding: 64, hidden: 96, classes: 4 }
    }
}

/// Text classifier to build. Text, command line and serde use the same lower-case names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "lower")]
#[serde(rename_all = "lowercase")]
pub enum TextModelKind {
    /// Reads the text forwards.
    Lstm,
    /// Reads it both ways: 1 405 316 parameters at the default sizes.
    BiLstm,
}

impl TextModelKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Lstm, Self::BiLstm];

    /// Returns the name by which it is chosen.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lstm => "lstm",
            Self::BiLstm => "bilstm",
        }
    }

    /// Builds the model with weights drawn from `key`.
    pub fn build(self, config: &TextConfig, key: Key, device: &Device) -> TextModel {
        let bidirectional = self == Self::BiLstm;
        let features = config.hidden * (1 + usize::from(bidirectional));
        let zeros = Initializer::Zeros;
        let model = TextModel {
            embedding: EmbeddingConfig::new(config.vocab, config.embedding)
                .with_initializer(zeros.clone())
                .init(device),
            lstm: Lstm::new(config.embedding, config.hidden, bidirectional, device),
            head: LinearConfig::new(features, config.classes).with_initializer(zeros).init(device),
        };
        init::known(model, key)
    }
}

impl fmt::Display for TextModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TextModelKind {
    type Err = UnknownModel;

    fn from_str(name: &str) -> Result<Self, UnknownModel> {
        find(&Self::ALL, Self::name, name)
    }
}

/// A text classifier; build it with [`TextModelKind::build`].
#[derive(Module, Debug)]
pub struct TextModel {
    embedding: Embedding,
    lstm: Lstm,
    head: Linear,
}

impl TextModel {
    /// Returns logits `[batch, classes]` of token ids `[batch, words]`. Padding (0) at either end changes nothing.
    pub fn forward(&self, tokens: Tensor<2, Int>) -> Tensor<2> {
        let real = tokens.clone().not_equal_elem(0).float();
        let words = self.embedding.forward(tokens);
        self.head.forward(self.lstm.mean_state(words, real))
    }
}
