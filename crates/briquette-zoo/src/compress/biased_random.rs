//! Biased random sparsification: keeps each value with probability `q`, unscaled.
//!
//! **Why, and when not.** The simplest random sparsifier: positions are drawn independently, so blocks of a vector are independent. As
//! [`RandomK`](briquette_core::compress::random_k::RandomK) unscaled, except that the length of its messages varies.
//!
//! **Method.** `C(x)ᵢ = xᵢ` with probability `q`, else 0, independently for every `i`. Probabilities are multiples of
//! 2⁻³²: 32 random bits are compared with `⌈q·2³²⌉`.
//!
//! | paper | here |
//! |---|---|
//! | `pᵢ`, all equal to `q` | 1/`ratio` |
//! | `δ` (of B³) = 1/q | 1/`delta` of the error bound |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for the `n` values drawn, `gⱼ` the gaps between them and `r`
//! the best Rice parameter; `n` has mean `q·d` and variance `q(1 − q)d`. Zeros that are drawn are sent.
//!
//! **Properties.** `E‖x − C(x)‖² = (1 − q)‖x‖²` exactly: contractive in the mean with δ = q. In the classes B¹(q, 1) and B²(q, 1) too:
//! `E‖C(x)‖² = ⟨E C(x), x⟩ = q‖x‖²`. Kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** `q` in (0, 1], or the ratio 1/q; default 0.1.
//!
//! **Deviations.** The paper allows a separate `pᵢ ≥ q` for every coordinate; here all are `q`.
//!
//! **Reference.** A. Beznosikov, S. Horváth, P. Richtárik, M. Safaryan, *On Biased Compression for Distributed Learning*,
//! JMLR 24 (276), 2023 (arXiv 2002.12410), biased random sparsification.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_zoo::compress::biased_random::BiasedRandom;
//! let mut message = Message::default();
//! BiasedRandom::new(0.25)?.compress_into(&[1.0; 10_000], Key::new(0), &mut message);
//! // Mean 2500, standard deviation √(10 000·¼·¾) = 43.
//! assert!((2300..2700).contains(&message.kept()));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::bits::{Which, for_ones, pack_where};
use briquette_core::compress::threshold::fill;
use briquette_core::compress::{Compressor, ErrorBound, Tunable};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::{BLOCK, CompressionRatio, Key, Message};

/// Keeps each value with equal probability; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "biased-random",
    help = "each value with this probability (0.1)",
    representatives("biased-random:8x")
)]
pub struct BiasedRandom {
    #[serde(with = "briquette_core::config::share")]
    #[setting(default = "10x", syntax = "PROBABILITY|RATIOx")]
    ratio: CompressionRatio,
}

impl BiasedRandom {
    /// Creates a compressor that keeps each value with this probability, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn new(probability: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("probability of biased random sparsification", probability).map(Self::ratio)
    }

    /// Creates a compressor that keeps each value with probability `1/ratio`.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        BiasedRandom { ratio }
    }

    /// Returns the number of draws, of 2³², that keep a value.
    fn chances(&self) -> u64 {
        (2_f64.powi(32) / self.ratio.get()).ceil() as u64
    }
}

impl Tunable for BiasedRandom {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for BiasedRandom {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (indices, values) = out.start_sparse_f32(x.len());
        let (mut random, mut kept) = ([0; BLOCK], [0; BLOCK / 8]);
        for (block, x) in x.chunks(BLOCK).enumerate() {
            key.lanes(block).fill(&mut random[..x.len()]);
            pack_where(&random[..x.len()], &Below(self.chances()), &mut kept);
            for_ones(&kept[..x.len().div_ceil(8)], |place| indices.push((block * BLOCK + place) as u32));
        }
        fill(x, indices, values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let delta = self.chances() as f64 / 2_f64.powi(32);
        if x.is_empty() { ErrorBound::Contractive { delta: 1.0 } } else { ErrorBound::MeanContractive { delta } }
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

/// Number of draws that keep a value.
struct Below(u64);

impl Which<u32> for Below {
    #[inline(always)]
    fn holds(&self, value: u32) -> bool {
        u64::from(value) < self.0
    }
}

impl CompressorSettings for BiasedRandom {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, is_exact: true, is_sparse: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::laws::compress::{edges, kept, mean_and_deviation, noise};
    use briquette_core::math::norm2;

    fn with(probability: f64) -> BiasedRandom {
        BiasedRandom::new(probability).unwrap()
    }

    #[test]
    fn three_by_hand() {
        // ¼·2³² = 2³⁰: kept where the top two of its 32 bits are 0.
        let mut words = [0; 3];
        Key::new(8).lanes(0).fill(&mut words);
        let expected: Vec<u32> = (0..3).filter(|&i| words[i as usize] >> 30 == 0).collect();
        assert_eq!(kept(with(0.25), &[1.0, -2.0, 3.0], Key::new(8)), expected);
        assert_eq!(with(0.25).chances(), 1 << 30);
    }

    #[test]
    fn edges_are_finite_and_settings_are_checked() {
        for x in edges() {
            kept(with(0.5), &x, Key::new(1));
            assert_eq!(kept(with(1.0), &x, Key::new(1)).len(), x.len(), "certainty keeps everything");
        }
        assert!([0.0, 1.5, f64::NAN].map(BiasedRandom::new).iter().all(Result::is_err));
    }

    /// All values are equally likely, as are pairs from one random word, and the lost energy is that of the error bound.
    #[test]
    fn tosses_are_independent_with_the_exact_constant() {
        const DRAWS: u64 = 10_000;
        let x = noise("laplace", 41, 3);
        let (mut counts, mut pairs, mut lost) = ([0.0; 41], 0.0, Vec::new());
        for step in 0..DRAWS {
            let indices = kept(with(0.2), &x, Key::new(2).step(step));
            indices.iter().for_each(|&i| counts[i as usize] += 1.0);
            pairs += f64::from(u8::from(indices.contains(&2) && indices.contains(&3)));
            lost.push(norm2(&x) - indices.iter().map(|&i| f64::from(x[i as usize]).powi(2)).sum::<f64>());
        }
        // Mean 2000, sd √(10⁴·0.2·0.8) = 40; pairs 400, sd 19.6; 5.5 sd.
        assert!(counts.iter().all(|c: &f64| (c - 2000.0).abs() < 220.0), "{counts:?}");
        assert!((pairs - 400.0).abs() < 108.0, "{pairs}");
        let (mean, sd) = mean_and_deviation(&lost);
        assert!((mean - 0.8 * norm2(&x)).abs() <= 5.5 * sd);
    }
}
