//! Biased random sparsification: keeps each value with probability `q`, unscaled.
//!
//! **Why, and when not.** The simplest random sparsifier: positions are drawn independently, so blocks of a vector are independent. As
//! [`RandomK`](super::RandomK) unscaled, except that the length of its messages varies.
//!
//! **Method.** `C(x)ᵢ = xᵢ` with probability `q`, else 0, independently for every `i`. Probabilities are multiples of
//! 2⁻³²: 32 random bits are compared with `⌈q·2³²⌉`.
//!
//! | paper | here |
//! |---|---|
//! | `pᵢ`, all equal to `q` | 1/`factor` |
//! | `δ` (of B³) = 1/q | 1/`delta` of the error bound |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for the `n` values drawn, `gⱼ` the gaps between them and `r`
//! the best Rice parameter; `n` has mean `q·d` and variance `q(1 − q)d`. Zeros that are drawn are sent.
//!
//! **Properties.** `E‖x − C(x)‖² = (1 − q)‖x‖²` exactly: contractive in the mean with δ = q. In the classes B¹(q, 1) and B²(q, 1) too:
//! `E‖C(x)‖² = ⟨E C(x), x⟩ = q‖x‖²`. Kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** `q` in (0, 1], or the factor 1/q; default 0.1.
//!
//! **Deviations.** The paper allows a separate `pᵢ ≥ q` for every coordinate; here all are `q`.
//!
//! **Reference.** A. Beznosikov, S. Horváth, P. Richtárik, M. Safaryan, *On Biased Compression for Distributed Learning*,
//! JMLR 24 (276), 2023 (arXiv 2002.12410), biased random sparsification.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{BiasedRandom, Compressor}};
//! let mut message = Message::default();
//! BiasedRandom::new(0.25)?.compress_into(&[1.0; 10_000], Key::new(0), &mut message);
//! // Mean 2500, standard deviation √(10 000·¼·¾) = 43.
//! assert!((2300..2700).contains(&message.kept()));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::threshold::{fill, start};
use super::{Compressor, ErrorBound, Knobs, Spec, Tunable};
use crate::bits::{Which, for_ones, pack_where};
use crate::error::ConfigError;
use crate::{BLOCK, CompressionFactor, Key, Message};

/// Keeps each value with equal probability; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BiasedRandom {
    factor: CompressionFactor,
}

impl BiasedRandom {
    /// Creates a compressor that keeps each value with this probability, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn new(probability: f64) -> Result<Self, ConfigError> {
        CompressionFactor::of_share("probability of biased random sparsification", probability).map(Self::factor)
    }

    /// Creates a compressor that keeps each value with probability `1/factor`.
    pub fn factor(factor: CompressionFactor) -> Self {
        BiasedRandom { factor }
    }

    /// Returns the number of draws, of 2³², that keep a value.
    fn chances(&self) -> u64 {
        (2_f64.powi(32) / self.factor.get()).ceil() as u64
    }
}

impl Tunable for BiasedRandom {
    fn tune(&mut self, factor: CompressionFactor) {
        self.factor = factor;
    }
}

impl Compressor for BiasedRandom {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionFactor {
        self.factor
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (indices, values) = start(out, x.len());
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
        !self.factor.is_dense()
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

impl std::fmt::Display for BiasedRandom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "biased-random:{}", self.factor)
    }
}

impl Spec for BiasedRandom {
    const SYNTAX: &'static str = "biased-random[:PROBABILITY|FACTORx]";
    const HELP: &'static str = "each value with this probability (0.1)";
    const NEEDS_FEEDBACK: bool = true;
    const SPARSE: bool = true;
    const SEARCHES: bool = false;

    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        if name != "biased-random" {
            return Ok(None);
        }
        let factor = knobs.share("factor", "probability of biased random sparsification", 0.1)?;
        Ok(Some(BiasedRandom { factor }))
    }

    fn is_exact(&self) -> bool {
        true
    }

    fn representative() -> Self {
        BiasedRandom::factor(CompressionFactor::new(8.0).expect("8 is at least 1"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::threshold::tests::{edges, kept, noise};
    use crate::math::{mean_and_deviation, norm2};

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
