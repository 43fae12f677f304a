//! Random-k: keeps `k` random coordinates, drawn separately on each rank.
//!
//! **Why, and when not.** It does not look at the values: easy to analyze, a baseline for the benefit of selection by magnitude, and
//! unbiased if scaled. It keeps only `k/d` of the energy, far less than [`TopK`](crate::compress::top_k::TopK) for the same bytes. If all ranks may draw the
//! same coordinates, [`SharedRandomK`](crate::reduce::shared_random_k::SharedRandomK) needs no indices and its bytes do not grow with the world.
//!
//! **Method.** `S` = `k = round(d/c)` of `d` positions without replacement, from the private key of the rank. `C(x)ᵢ = s·xᵢ` for `i` in
//! `S`, else 0; unscaled `s = 1`, scaled `s = d/k`. A product beyond the largest finite number becomes that number. When a coarser message
//! is refined, `S` is drawn among its positions: every subset of `d` stays equally likely, and the kept values are among the coarser
//! message's.
//!
//! | paper | here |
//! |---|---|
//! | `d/k` | `ratio` |
//! | `α` or `δ` = k/d | `delta` of the error bound, unscaled |
//! | `ω` = d/k − 1 | `omega` of the error bound, scaled |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4k` bytes: `gⱼ` the gaps between the positions, `r` the best Rice
//! parameter. Zeros that are drawn are sent.
//!
//! **Properties.** Unscaled: `E‖x − C(x)‖² = (1 − k/d)‖x‖²` exactly, contractive in the mean; needs error feedback.
//! Scaled: `E C(x) = x`, `E‖x − C(x)‖² = (d/k − 1)‖x‖²` exactly (below `f32::MAX·k/d`); needs no feedback, and is
//! refused with it, because ω above 1 makes residuals grow.
//!
//! **Knobs.** The ratio `d/k`, default 100; whether to scale, default no.
//!
//! **Deviations.** GraVAC's code draws with replacement, which changes the constants. A rank could send its seed instead of the positions;
//! messages here are self-contained.
//!
//! **Reference.** S. U. Stich, J.-B. Cordonnier, M. Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018 (rand-k).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, random_k::RandomK};
//! let mut message = Message::default();
//! RandomK::fraction(0.25)?.scaled().compress_into(&[1.0; 8], Key::new(0), &mut message);
//! let mut decoded = [0.0; 8];
//! message.decode_into(&mut decoded)?;
//! assert_eq!((message.kept(), decoded.iter().sum::<f32>()), (2, 8.0)); // two of eight, four times as large
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rand::{Rng, RngCore};

use super::threshold::{fill, locate};
use crate::error::ConfigError;
use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{BLOCK, CompressionRatio, Key, Message};

/// Keeps random coordinates; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "randk",
    help = "random values (0.01); scaled, without bias",
    places = 2,
    representatives("randk:8x")
)]
pub struct RandomK {
    #[serde(with = "crate::ratio::share")]
    #[setting(default = "100x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
    #[setting(default = Scaling::Unscaled, syntax = "true")]
    scaled: Scaling,
}

/// Scaling of the kept values, a word in the text.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Scaling {
    #[serde(alias = "false")]
    Unscaled,
    #[serde(alias = "true")]
    Scaled,
}

impl RandomK {
    /// Creates a compressor that keeps this share of the values unscaled, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("fraction of values kept by random-k", fraction).map(Self::ratio)
    }

    /// Creates a compressor that keeps one value in `ratio` unscaled.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        RandomK { ratio, scaled: Scaling::Unscaled }
    }

    /// Scales values by `d/k`: unbiased, for use without error feedback.
    #[must_use]
    pub fn scaled(self) -> Self {
        RandomK { scaled: Scaling::Scaled, ..self }
    }

    fn is_scaled(&self) -> bool {
        self.scaled == Scaling::Scaled
    }

    fn write(&self, x: &[f32], indices: &[u32], values: &mut Vec<f32>) {
        fill(x, indices, values);
        if self.is_scaled() {
            let scale = x.len() as f32 / indices.len() as f32;
            values.iter_mut().for_each(|v| *v = (*v * scale).clamp(-f32::MAX, f32::MAX));
        }
    }
}

impl Tunable for RandomK {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for RandomK {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn encoding(&self) -> Option<Encoding> {
        (!self.ratio.is_dense())
            .then_some(Encoding::RandomK { ratio: self.ratio, scaled: self.scaled == Scaling::Scaled })
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (indices, values) = out.start_sparse_f32(x.len());
        choose(key, x.len(), self.ratio.keep(x.len()), indices);
        self.write(x, indices, values);
    }

    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let k = self.ratio.keep(x.len());
        let among = coarse.sparse_indices().filter(|among| coarse.len() == x.len() && among.len() >= k);
        let Some(among) = among else { return self.compress_into(x, key, out) };
        let (indices, values) = out.start_sparse_f32(x.len());
        // A separate random stream: the stream that drew `among` would favor some of its positions.
        choose(key.purpose("refine").bucket(among.len()), among.len(), k, indices);
        locate(indices, among);
        self.write(x, indices, values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let share = self.ratio.keep(x.len()) as f64 / x.len().max(1) as f64;
        match (x.is_empty(), self.is_scaled()) {
            (true, _) => ErrorBound::Contractive { delta: 1.0 },
            (_, true) => ErrorBound::Unbiased { omega: 1.0 / share - 1.0 },
            (_, false) => ErrorBound::MeanContractive { delta: share },
        }
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

/// Up to one position in this many, drawing and sorting positions is faster than a decision per position.
const FEW: usize = 16;

/// Draws `k` of `len` positions in ascending order, each subset equally likely.
pub(crate) fn choose(key: Key, len: usize, k: usize, out: &mut Vec<u32>) {
    out.clear();
    // Short vectors gain nothing.
    if len >= BLOCK && k <= len / FEW { draw(key, len, k, out) } else { sample(key, len, k.min(len), out) }
}

/// Draws by selection sampling, one uniform number per position (D. E. Knuth, *The Art of Computer Programming* 2, 3.4.2, algorithm S).
fn sample(key: Key, len: usize, k: usize, out: &mut Vec<u32>) {
    let mut missing = k;
    for block in 0..len.div_ceil(BLOCK) {
        let mut rng = key.block(block);
        for index in block * BLOCK..len.min((block + 1) * BLOCK) {
            if rng.random::<f64>() * ((len - index) as f64) < missing as f64 {
                out.push(index as u32);
                missing -= 1;
            }
        }
    }
}

/// Draws positions until `k` are different. Each round draws as many as are still missing, so never too many.
fn draw(key: Key, len: usize, k: usize, out: &mut Vec<u32>) {
    let (mut rng, mut drawn) = (key.block(0), 0);
    let mut position = || {
        if drawn % BLOCK == 0 {
            rng = key.block(drawn / BLOCK);
        }
        drawn += 1;
        // No position is more likely than another by more than 2⁻³² of its chance.
        ((u128::from(rng.next_u64()) * len as u128) >> 64) as u32
    };
    while out.len() < k {
        let known = out.len();
        out.extend((known..k).map(|_| position()));
        out[known..].sort_unstable();
        if known > 0 {
            merge(out, known);
        }
        out.dedup();
    }
}

/// Merges two sorted parts, the second of which starts at `border`.
fn merge(all: &mut Vec<u32>, border: usize) {
    let len = all.len();
    // From the highest down. The second part is the short one and is read from a copy at the end.
    all.extend_from_within(border..);
    let (mut first, mut second) = (border, all.len());
    for place in (0..len).rev() {
        let from =
            if first > 0 && (second == len || all[first - 1] > all[second - 1]) { &mut first } else { &mut second };
        *from -= 1;
        all[place] = all[*from];
    }
    all.truncate(len);
}

impl CompressorSettings for RandomK {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits {
            needs_feedback: !self.is_scaled(),
            is_exact: !self.is_scaled(),
            is_sparse: true,
            ..CompressorTraits::default()
        }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
