//! SIDCo: keeps about the `k` largest magnitudes, by a threshold fitted to their distribution.
//!
//! **Why, and when not.** A few passes of counting and summing, no sample, no sort, no randomness. Made for gradients, whose magnitudes
//! fall off about exponentially. [`ThresholdTopK`](briquette_core::compress::threshold_top_k::ThresholdTopK) needs one pass where this needs five or so.
//!
//! **Method.** If magnitudes exceed `t` by an exponential of mean `β`, the threshold that only the share `p` of them reaches is
//! `t + β·ln(1/p)`. Start with `t = 0`. In each of `M = ⌈ln(d/k)/ln 4⌉` stages, take `β` and the count `n` from the values beyond the
//! current `t`, and advance by an equal part of the remaining `ln(n/k)`. Each stage therefore fits a tail of a quarter or more of the
//! previous one, and the whole need not be exponential. Then refit with the whole of `ln(n/k)`, up or down, until `0.8·k ≤ n ≤ 1.2·k`, at
//! most 24 times. A step beyond a threshold already found too low or too high is replaced by the middle between those. Equal magnitudes can
//! leave no such threshold: then the exact `k` largest are kept (ties to the lowest index). Zeros are never sent.
//!
//! | paper | here |
//! |---|---|
//! | `δ` (target ratio) | 1/`ratio` |
//! | `δ₁` (first-stage ratio) | `STAGE` = 1/4 at least |
//! | `η` (threshold) | `t` |
//! | `β̂` (scale) | the mean excess over `t` |
//! | `ε_L`, `ε_H` | 0.2 |
//!
//! **On the wire.** As `TopK`: `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for `n` picks with gaps `gⱼ`.
//!
//! **Properties.** `0.8·k ≤ n ≤ 1.2·k`, or all non-zero values if there are fewer. On exponential magnitudes `n` is `k` to the sampling
//! error of the fit. Contractive with δ = n/d for the `n` sent; kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** The ratio `d/k`, default 100.
//!
//! **Deviations.** The paper adapts the number of stages from step to step, by the results of recent steps, which is state. Here the number
//! follows from the target, and refits within the step reach the tolerance. Of its three fits (exponential, gamma, generalized Pareto) only
//! the first is implemented.
//!
//! **Reference.** A. M. Abdelmoniem, A. Elzanaty, M.-S. Alouini, M. Canini, *An Efficient Statistical-based Gradient
//! Compression Technique for Distributed Training Systems*, MLSys 2021 (arXiv 2101.10761), algorithm 1 (SIDCo-E).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_zoo::compress::sidco::Sidco;
//! // The quantiles of an exponential distribution.
//! let x: Vec<f32> = (0..10_000).map(|i| -(1.0 - (i as f32 + 0.5) / 10_000.0).ln()).collect();
//! let mut message = Message::default();
//! Sidco::fraction(0.01)?.compress_into(&x, Key::new(0), &mut message);
//! assert!((97..=103).contains(&message.kept()));
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use briquette_core::compress::threshold::{NONZERO, Picks, Tail, class_of, collect, floor_of, tail};
use briquette_core::compress::{Compressor, ErrorBound, Tunable};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::{CompressionRatio, Key, Message};

/// The smallest share of a tail that a stage keeps.
const STAGE: f64 = 0.25;
const REFITS: u32 = 24;

/// Keeps the largest magnitudes above a fitted threshold; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "sidco",
    help = "about the largest values (0.01), by a fitted threshold",
    representatives("sidco:8x")
)]
pub struct Sidco {
    #[serde(with = "briquette_core::config::share")]
    #[setting(default = "100x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
}

impl Sidco {
    /// Creates a compressor that keeps about this share of the values, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("fraction of values kept by sidco", fraction).map(Self::ratio)
    }

    /// Creates a compressor that keeps about one value in `ratio`.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        Sidco { ratio }
    }
}

/// Returns the largest number of picks that is accepted for `k`.
fn most(k: usize) -> usize {
    (12 * k / 10).max(k)
}

fn enough(n: usize, k: usize) -> bool {
    10 * n >= 8 * k && n <= most(k)
}

/// Returns a floor and the number of values that reach it. The number is within the tolerance,
/// smaller if there are too few non-zero values, or larger if no threshold is within the tolerance.
fn fit(x: &[f32], k: usize) -> (u32, usize) {
    let (mut threshold, mut seen) = (0.0, tail(x, NONZERO));
    // The highest threshold that passes too many.
    let mut best = (NONZERO, seen.count);
    if seen.count <= most(k) {
        return best;
    }
    let (mut low, mut high) = (0.0, f64::INFINITY);
    let stages = ((x.len() as f64 / k as f64).ln() / -STAGE.ln()).ceil().max(1.0) as u32;
    for stage in 0..stages + REFITS {
        let part = f64::from(stages.saturating_sub(stage).max(1));
        let mut next = threshold + excess(seen, threshold) * (seen.count as f64 / k as f64).ln() / part;
        if !(next > low && next < high) {
            next = if high.is_finite() { (low + high) / 2.0 } else { 2.0 * low };
        }
        let found = tail(x, floor_of(next));
        // The last stage aims at k itself; earlier ones come near it only by chance.
        if stage + 1 >= stages && enough(found.count, k) {
            return (floor_of(next), found.count);
        }
        if found.count > k {
            (low, best) = (next, (floor_of(next), found.count));
        } else {
            high = next;
        }
        if found.count > 0 {
            (threshold, seen) = (next, found);
        }
    }
    best
}

/// Returns the mean excess of a tail's values over its threshold.
fn excess(tail: Tail, threshold: f64) -> f64 {
    (tail.sum / tail.count as f64 - threshold).max(0.0)
}

impl Tunable for Sidco {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for Sidco {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let k = self.ratio.keep(x.len());
        let (indices, values) = out.start_sparse_f32(x.len());
        let (floor, _) = if k == x.len() { (NONZERO, k) } else { fit(x, k) };
        let mut picks = Picks::new(indices);
        collect(x, floor, [k, most(k)], &mut picks);
        picks.finish_into(values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let k = self.ratio.keep(x.len());
        let sent = if k == x.len() { k } else { fit(x, k).1 };
        class_of(if sent > most(k) { k } else { sent }, x)
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

impl CompressorSettings for Sidco {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::LARGEST
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
