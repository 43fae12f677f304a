//! A language model of characters: embeddings, a transformer of pre-norm layers that see earlier characters only, linear.

use briquette::core::Key;
use burn::module::Module;
use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::{Device, Int, Tensor};

use super::init;

/// Sizes of a language model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CharLmConfig {
    /// Number of codes.
    pub vocab: usize,
    /// Longest window.
    pub length: usize,
    /// Length of a state.
    pub width: usize,
    /// Number of layers.
    pub layers: usize,
    /// Number of attention heads.
    pub heads: usize,
}

impl CharLmConfig {
    /// Returns the default sizes: 1.2 million parameters.
    pub fn new(vocab: usize, length: usize) -> Self {
        CharLmConfig { vocab, length, width: 128, layers: 6, heads: 4 }
    }

    /// Builds the model with weights drawn from `key`.
    pub fn build(&self, key: Key, device: &Device) -> CharLm {
        let zeros = || Initializer::Zeros;
        let embedding = |rows: usize| EmbeddingConfig::new(rows, self.width).with_initializer(zeros()).init(device);
        let layers = TransformerEncoderConfig::new(self.width, 4 * self.width, self.heads, self.layers);
        let layers = layers.with_norm_first(true).with_dropout(0.0).with_initializer(zeros());
        let model = CharLm {
            characters: embedding(self.vocab),
            places: embedding(self.length),
            layers: layers.init(device),
            norm: LayerNormConfig::new(self.width).init(device),
            head: LinearConfig::new(self.width, self.vocab).with_initializer(zeros()).init(device),
        };
        init::known(model, key)
    }
}

/// A language model of characters; build it with [`CharLmConfig::build`].
#[derive(Module, Debug)]
pub struct CharLm {
    characters: Embedding,
    places: Embedding,
    layers: TransformerEncoder,
    norm: LayerNorm,
    head: Linear,
}

impl CharLm {
    /// Returns logits `[batch · characters, vocab]` of the next character after each code in `[batch, characters]`.
    pub fn forward(&self, codes: Tensor<2, Int>) -> Tensor<2> {
        let ([batch, length], device) = (codes.dims(), codes.device());
        let places = Tensor::<1, Int>::arange(0..length as i64, &device).unsqueeze::<2>();
        let states = self.characters.forward(codes) + self.places.forward(places);
        let mask = generate_autoregressive_mask(batch, length, &device);
        let states = self.layers.forward(TransformerEncoderInput::new(states).mask_attn(mask));
        let states = self.norm.forward(states);
        let [_, _, width] = states.dims();
        self.head.forward(states.reshape([batch * length, width]))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;
    use crate::models::trainable_parameters;

    #[test]
    fn it_has_a_million_parameters() {
        let model = CharLmConfig::new(97, 128).build(Key::new(1), &Device::flex());
        // Embeddings, six layers of attention (4 matrices), two layers of 4 times the width, and norms; the last norm and the head.
        let layer = 4 * (128 * 128 + 128) + 2 * 128 * 512 + 512 + 128 + 4 * 128;
        assert_eq!(trainable_parameters(&model), (97 + 128) * 128 + 6 * layer + 2 * 128 + 128 * 97 + 97);
    }

    /// A later character changes no earlier prediction.
    #[test]
    fn predictions_see_earlier_characters_only() {
        let device = Device::flex();
        let model =
            CharLmConfig { width: 16, layers: 2, heads: 2, ..CharLmConfig::new(97, 8) }.build(Key::new(3), &device);
        let logits = |last: i64| {
            let codes = Tensor::<2, Int>::from_data([[5_i64, 9, 30, 61, 2, last]], &device);
            model.forward(codes).into_data().try_to_vec::<f32>().expect("floats")
        };
        let (one, other) = (logits(7), logits(8));
        assert_eq!(one[..5 * 97], other[..5 * 97]);
        assert_ne!(one[5 * 97..], other[5 * 97..]);
    }
}
