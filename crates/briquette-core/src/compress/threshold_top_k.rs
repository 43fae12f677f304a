//! Threshold top-k: keeps about the `k` largest magnitudes, by a threshold estimated from a sample.
//!
//! **Why, and when not.** One pass over the vector, a few times faster than an exact selection, with as much energy per value sent. The
//! length of a message varies by up to 30 %. If every byte is planned, use [`TopK`](crate::compress::top_k::TopK); on short vectors, this *is* `TopK`.
//!
//! **Method.** Let `k = round(d/c)`. Take a random sample of `|x|`, one value from each of its equal strides. The threshold `t` is the
//! magnitude that the share `k/d` of the sample reaches (one standard deviation of the count is added, because too few picks cost a pass
//! and too many next to nothing). One pass picks all `|xᵢ| ≥ t`. More than `1.3·k` picks: the exact `k` largest of them (ties to the lowest
//! index). Fewer than `0.7·k`: the next threshold lets twice the share of the sample pass. After four passes, or if the sample would be a
//! quarter of the vector, the exact `k` largest. Zeros are never sent.
//!
//! Refining a coarser message gives the same message: the sample is the vector's, and only the kept values are searched.
//!
//! | paper | here |
//! |---|---|
//! | sparsity `1 − k/d` | `ratio` = d/k |
//! | sample `.1–1 %` | `sample` |
//! | `thr` | the floor of a pass |
//! | bounds `.8–1.3`, 10 iterations | `LEAST`, `MOST`, `PASSES` |
//!
//! **On the wire.** As `TopK`: `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for `n` picks with gaps `gⱼ`.
//!
//! **Properties.** `0.7·k ≤ n ≤ 1.3·k` for every vector and key, unless there are fewer non-zero values (then all of those are sent). The
//! `n` largest are kept, bit-exact: contractive with δ = ⌈0.7·k⌉/d, and k/d if the selection is exact. Needs error feedback.
//!
//! **Knobs.** The ratio `d/k`, default 100. `sample`, a share of the vector in (0, 1], default 0.01 as in the paper: the maximum that is
//! sampled. At least 4 096 values are sampled, at most 32 768, and no more than it takes to expect 128 picks in the sample (a standard
//! deviation of 9 %).
//!
//! **Deviations.** The paper lowers and raises its threshold by fixed factors (its code up to ten times) and accepts the final result. Here
//! the next threshold comes from the same sample, and the last resort is exact. The paper's sample grows with the vector, this one does
//! not. Clipping, momentum correction and factor masking belong to [`MomentumCorrection`](crate::wrapper::momentum_correction::MomentumCorrection).
//!
//! **Reference.** Y. Lin, S. Han, H. Mao, Y. Wang, W. J. Dally, *Deep Gradient Compression*, ICLR 2018 (arXiv
//! 1712.01887), §5 (sampling, hierarchical selection).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, threshold_top_k::ThresholdTopK};
//! let x: Vec<f32> = (0..100_000).map(|i| (i as f32 * 0.7).sin().powi(9)).collect();
//! let mut message = Message::default();
//! ThresholdTopK::fraction(0.01)?.compress_into(&x, Key::new(0), &mut message);
//! assert!((700..=1300).contains(&message.kept()));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use rand::RngCore;

use super::threshold::{NONZERO, Picks, SAMPLED, class_of, collect, kept_of, locate, magnitude, select};
use crate::error::ConfigError;
use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{BLOCK, CompressionRatio, Key, Message};

/// Bounds on picks in tenths of `k`: fewer need another pass, more are reduced to `k`.
const LEAST: usize = 7;
const MOST: usize = 13;
const PASSES: usize = 4;
/// Picks to expect in the sample: more hardly improve the threshold.
const PICKS: usize = 128;
/// Limits on the number of sampled values, whatever share is set. Beyond the upper one, an occasional second pass is cheaper.
const SAMPLES: [usize; 2] = [1 << 12, 1 << 15];

/// Keeps about the largest magnitudes; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "threshold-topk",
    help = "about the largest values (0.01), by a threshold from a sample: faster",
    places = 2,
    representatives("threshold-topk:8x")
)]
pub struct ThresholdTopK {
    #[serde(with = "crate::ratio::share")]
    #[setting(default = "100x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
    #[setting(default = Self::DEFAULT_SAMPLE, range = "(0, 1]")]
    sample: f64,
}

impl ThresholdTopK {
    /// Share of the vector that is sampled by default.
    pub const DEFAULT_SAMPLE: f64 = 0.01;

    /// Creates a compressor that keeps about this share of the values, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("fraction of values kept by threshold top-k", fraction).map(Self::ratio)
    }

    /// Creates a compressor that keeps about one value in `ratio`.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        ThresholdTopK { ratio, sample: Self::DEFAULT_SAMPLE }
    }

    /// Sets the largest share of the vector, in (0, 1], to sample for the threshold.
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn with_sample(self, sample: f64) -> Result<Self, ConfigError> {
        ThresholdTopK { sample, ..self }.checked()
    }

    /// Returns the number of values to sample; `None` if an exact selection is as cheap.
    fn samples(&self, len: usize) -> Option<usize> {
        let k = self.ratio.keep(len);
        if len < SAMPLED || k == len {
            return None;
        }
        let enough = (PICKS as u64 * len as u64 / k as u64) as usize;
        let samples = ((self.sample * len as f64) as usize).min(enough).clamp(SAMPLES[0], SAMPLES[1]);
        (samples <= len / 4).then_some(samples)
    }
}

impl ThresholdTopK {
    /// Selects by a sample of `x` among `kept`, which holds the largest values of `x`.
    fn pick_among(&self, x: &[f32], kept: &[f32], key: Key, (indices, values): (&mut Vec<u32>, &mut Vec<f32>)) {
        let k = self.ratio.keep(x.len());
        let mut picks = Picks::new(indices);
        let picked = self.samples(x.len()).is_some_and(|count| {
            // The sample uses the storage of the values: nothing else is allocated.
            draw(x, count, key, values);
            pick(kept, [k, x.len()], values, &mut picks)
        });
        let picks = if picked { picks } else { select(kept, k, picks.storage()) };
        picks.finish_into(values);
    }
}

/// Returns the largest number of picks that is not reduced to `k`.
fn most_of(k: usize) -> usize {
    (MOST * k / 10).max(k)
}

impl Tunable for ThresholdTopK {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for ThresholdTopK {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn encoding(&self) -> Option<Encoding> {
        (!self.ratio.is_dense()).then_some(Encoding::ThresholdTopK { ratio: self.ratio, sample: self.sample })
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        self.pick_among(x, x, key, out.start_sparse_f32(x.len()));
    }

    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        // A threshold below the smallest kept value passes more than MOST of the kept values, and of all values: then both ways lead to the
        // k largest. Any other threshold passes the same values.
        let enough = most_of(self.ratio.keep(x.len())) + 1;
        let Some((among, kept)) = kept_of(coarse, x.len(), enough) else { return self.compress_into(x, key, out) };
        let (indices, values) = out.start_sparse_f32(x.len());
        self.pick_among(x, kept, key, (&mut *indices, values));
        locate(indices, among);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let k = self.ratio.keep(x.len());
        class_of(if self.samples(x.len()).is_some() { (LEAST * k).div_ceil(10) } else { k }, x)
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

/// Draws one value from each of `count` equal strides, so that no burst is missed or seen twice.
fn draw(x: &[f32], count: usize, key: Key, sample: &mut Vec<f32>) {
    let border = |i: usize| (i as u64 * x.len() as u64 / count as u64) as usize;
    let mut from = 0;
    for block in 0..count.div_ceil(BLOCK) {
        let mut rng = key.block(block);
        for i in block * BLOCK..count.min((block + 1) * BLOCK) {
            let to = border(i + 1);
            // A vector has fewer than 2^32 values, so a stride does too.
            let within = (u64::from(rng.next_u32()) * (to - from) as u64) >> 32;
            sample.push(x[from + within as usize]);
            from = to;
        }
    }
}

/// Runs passes until there are enough of `k` picks from `len` values; returns false if the sample does not lead there.
fn pick(x: &[f32], [k, len]: [usize; 2], sample: &mut [f32], picks: &mut Picks<'_>) -> bool {
    let expected = k as f64 / len as f64 * sample.len() as f64;
    let mut rank = (expected + expected.sqrt()) as usize;
    for _ in 0..PASSES {
        rank = rank.clamp(1, sample.len());
        let at = sample.select_nth_unstable_by(rank - 1, |a, b| magnitude(*b).cmp(&magnitude(*a))).1;
        let floor = magnitude(*at).max(NONZERO);
        picks.clear();
        collect(x, floor, [k, most_of(k)], picks);
        if 10 * picks.len() >= LEAST * k || floor == NONZERO {
            return true;
        }
        rank *= 2;
    }
    false
}

impl CompressorSettings for ThresholdTopK {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::LARGEST
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
