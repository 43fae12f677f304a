//! RedSync: keeps the `k` to `2k` largest magnitudes, by bisection of a threshold.
//!
//! **Why, and when not.** Counting passes only: no sample, no randomness, no selection. It costs about ten of them. If fewer than `k`
//! values reach the mean magnitude (one huge value is enough) it sends only those: prefer [`ThresholdTopK`](briquette_core::compress::threshold_top_k::ThresholdTopK) unless
//! you study this method.
//!
//! **Method.** With `m` the mean and `M` the largest of `|x|`, thresholds are `t = m + ρ(M − m)`. Start with `ρ = 0`. If `2k` or more
//! values reach the threshold, bisect `ρ` in [0, 1] until `k ≤ n < 2k` do, at most 32 times. Magnitudes with many equal values can leave no
//! such threshold: then the exact `k` largest (ties to the lowest index) of the values that pass the last threshold with `2k` or more.
//! Zeros are never sent.
//!
//! | paper | here |
//! |---|---|
//! | `k` | `ratio` = d/k |
//! | ratio | `ρ` |
//! | nnz | `n` |
//!
//! Refining a coarser message gives the same message. The mean is the vector's, and `2k` or more of its largest values give the same counts
//! as all values wherever counts matter.
//!
//! **On the wire.** As `TopK`: `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for `n` picks with gaps `gⱼ`.
//!
//! **Properties.** `k ≤ n < 2k`, or every value of at least the mean if there are fewer than `k`. Contractive with δ = n/d for the `n`
//! sent; kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** The ratio `d/k`, default 100.
//!
//! **Deviations.** GraVAC's code stops when `ρ` is known to 0.2 and sends all values that pass; here the bound holds. Two parts of the
//! paper are left out: its trimmed selection for small layers, and its step that sends the mean of the values of one sign instead of each
//! value.
//!
//! **Reference.** J. Fang, H. Fu, G. Yang, C.-J. Hsieh, *RedSync: Reducing Synchronization Bandwidth for Distributed Deep
//! Learning Training System*, JPDC 2019 (arXiv 1808.04357), threshold binary search; the form of ρ as in the code of
//! GraVAC.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_zoo::compress::redsync::Redsync;
//! let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
//! let mut message = Message::default();
//! Redsync::fraction(0.01)?.compress_into(&x, Key::new(0), &mut message);
//! // Mean 499.5, largest 999: ρ = ½, ¾, … 31/32 gives t = 983.4.
//! assert_eq!(message.kept(), 16);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::compress::threshold::{Picks, class_of, collect, counts, floor_of, kept_of, locate};
use briquette_core::compress::{Compressor, ErrorBound, Tunable};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::math::{largest, norm1};
use briquette_core::{CompressionRatio, Key, Message};

/// Steps of the bisection.
const PASSES: usize = 32;

/// Keeps the largest magnitudes above a bisected threshold; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "redsync",
    help = "the largest values (0.01) or up to twice as many, by bisection of a threshold",
    representatives("redsync:8x"),
    combinations("reducer=gather:redsync:8x+minmax:20 feedback=error")
)]
pub struct Redsync {
    #[serde(with = "briquette_core::config::share")]
    #[setting(default = "100x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
}

impl Redsync {
    /// Creates a compressor that keeps between this share of the values, in (0, 1], and twice as many.
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("fraction of values kept by redsync", fraction).map(Self::ratio)
    }

    /// Creates a compressor that keeps between one and two values in `ratio`.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        Redsync { ratio }
    }
}

/// Number of values of `ρ` that one counting pass tests between the bounds: enough for any three steps of the bisection.
const AT_ONCE: usize = 7;

fn mean(x: &[f32]) -> f64 {
    norm1(x) / x.len().max(1) as f64
}

/// Returns the floor and the number of values that reach it, given the mean magnitude.
fn bisect(x: &[f32], mean: f64, k: usize) -> (u32, usize) {
    let most = f64::from(largest(x));
    let at = |rho: f64| floor_of(mean + rho * (most - mean));
    let (mut low, mut high) = (0.0, 1.0);
    // The highest floor known to pass at least k values, or the floor at the mean.
    let mut best = (at(low), counts(x, [at(low)])[0]);
    let mut pass = 0;
    while pass < PASSES && best.1 >= 2 * k {
        let rhos: [f64; AT_ONCE] = std::array::from_fn(|i| low + (i + 1) as f64 / 8.0 * (high - low));
        let (floors, base, step) = (rhos.map(at), low, (high - low) / 8.0);
        let counts = counts(x, floors);
        for _ in 0..3 {
            if pass == PASSES || best.1 < 2 * k {
                break;
            }
            let middle = (low + high) / 2.0;
            // One of the tested values: eighths are exact until they are too close to differ.
            let i = (((middle - base) / step).round() as usize).clamp(1, AT_ONCE) - 1;
            if counts[i] < k {
                high = middle;
            } else {
                (low, best) = (middle, (floors[i], counts[i]));
            }
            pass += 1;
        }
    }
    best
}

/// Returns all values that reach the floor, or the `k` largest of them.
fn pick<'a>(x: &[f32], floor: u32, k: usize, storage: &'a mut Vec<u32>) -> Picks<'a> {
    let mut picks = Picks::new(storage);
    collect(x, floor, [k, (2 * k).max(1) - 1], &mut picks);
    picks
}

impl Tunable for Redsync {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for Redsync {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let k = self.ratio.keep(x.len());
        let (indices, values) = out.start_sparse_f32(x.len());
        let (floor, _) = if k == x.len() { (floor_of(0.0), k) } else { bisect(x, mean(x), k) };
        pick(x, floor, k, indices).finish_into(values);
    }

    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let k = self.ratio.keep(x.len());
        // A floor that fewer than 2k values reach lies above the smallest kept value, so kept values give the same count as all values.
        let Some((among, kept)) = kept_of(coarse, x.len(), (2 * k).max(1)) else {
            return self.compress_into(x, key, out);
        };
        let (indices, values) = out.start_sparse_f32(x.len());
        pick(kept, bisect(kept, mean(x), k).0, k, indices).finish_into(values);
        locate(indices, among);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let k = self.ratio.keep(x.len());
        let sent = if k == x.len() { k } else { bisect(x, mean(x), k).1 };
        class_of(if sent < 2 * k { sent } else { k }, x)
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

impl CompressorSettings for Redsync {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::LARGEST
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
