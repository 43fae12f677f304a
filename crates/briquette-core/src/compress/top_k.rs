//! Top-k: keeps exactly the `k` largest magnitudes.
//!
//! **Why, and when not.** Of all ways to keep `k` values it keeps the most energy. Its messages go through an all-gather (bytes grow with
//! the world), and below a ratio of about 10 its indices cost more than they save: quantize instead.
//!
//! **Method.** `C(x)ᵢ = xᵢ` for the `k = round(d/c)` (at least 1) largest `|xᵢ|`, ties to the lowest index, else 0. Zeros are never sent: a
//! vector with fewer than `k` non-zero values gives a shorter message. The `k`-th magnitude is found by its bits (those of `|x|` as `f32`
//! order like magnitudes): three histograms over 11, 10 and 10 bits, on the stack. Long vectors first try a floor taken from 4 096 samples;
//! if at least `k` values reach it, only those are searched again. Either way the selection is exact.
//!
//! | paper | here |
//! |---|---|
//! | `d/k` | `ratio` |
//! | `α` or `δ` = k/d | `delta` of the error bound |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + v` bytes: `gⱼ` the gaps between indices (Rice codes with the best `r`, about 8.1 bits
//! per index at 1 % and 4.7 at 10 %), `v` = `4k`, `1 + 2k` or `8⌈k/256⌉ + k`.
//!
//! **Properties.** Contractive with δ = (k/d)·(1 − η²), where η² bounds the energy lost *within* the kept values:
//! - `F32`: 0; kept values are bit-exact.
//! - `F16`: 2⁻²². Values are multiples of a power of two that brings the largest to [2¹⁴, 2¹⁵), so rounding costs at
//!   most 2⁻¹¹ of a value, or 2⁻³⁹ of the largest for those 2²⁸ times smaller (k of them: below 2⁻⁴⁶ in all).
//! - `Q8`: 1/250. Blocks of 256 kept values span their smallest to largest magnitude in 127 steps, rounded to
//!   nearest: the two ends are exact, and the other 254 are off by at most `hi/254`, together `hi²/254 ≤ ‖block‖²/254`;
//!   the rest is f32 rounding. Typically far less: top-k magnitudes lie within a few octaves. No kept value becomes 0.
//!
//! Needs error feedback.
//!
//! **Knobs.** The ratio `d/k` (GraVAC explores 10 to 1000; 100 is common), and the number format of the values: default `F32`.
//!
//! **Deviations.** Zeros are not sent. Other implementations take the threshold from a sample and miss `k`; this one is exact.
//!
//! **Reference.** D. Alistarh, T. Hoefler, M. Johansson, S. Khirirat, N. Konstantinov, C. Renggli, *The Convergence of
//! Sparsified Gradient Methods*, NeurIPS 2018; S. U. Stich, J.-B. Cordonnier, M. Jaggi, *Sparsified SGD with Memory*,
//! NeurIPS 2018 (top-k as a k-contraction).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, top_k::TopK};
//! let mut message = Message::default();
//! TopK::fraction(0.4)?.compress_into(&[1.0, -5.0, 2.0, 3.0, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 5];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [0.0, -5.0, 0.0, 3.0, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::threshold::{Picks, kept_of, locate, magnitude, select};
use crate::error::ConfigError;
use crate::message::{Q8_BLOCK, ValueKind, Values, power_of_two};
use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::wire::F16_LIMIT;
use crate::{CompressionRatio, Key, Message};

/// Keeps the largest magnitudes; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "topk",
    help = "the largest values (0.01), each of them in 32, 16 or 8 bits",
    places = 2,
    representatives("topk:8x")
)]
pub struct TopK {
    #[serde(with = "crate::ratio::share")]
    #[setting(default = "100x", syntax = "FRACTION|RATIOx")]
    ratio: CompressionRatio,
    #[setting(syntax = "f32|f16|q8")]
    values: ValueKind,
}

impl TopK {
    /// Creates a compressor that keeps this share of the values, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionRatio::of_share("fraction of values kept by top-k", fraction).map(TopK::ratio)
    }

    /// Creates a compressor that keeps one value in `ratio`.
    pub fn ratio(ratio: CompressionRatio) -> Self {
        TopK { ratio, values: ValueKind::F32 }
    }

    /// Returns the number format of kept values.
    pub fn values(&self) -> ValueKind {
        self.values
    }

    /// Sets the number format of kept values.
    #[must_use]
    pub fn with_values(mut self, values: ValueKind) -> Self {
        self.values = values;
        self
    }
}

impl Tunable for TopK {
    fn tune(&mut self, ratio: CompressionRatio) {
        self.ratio = ratio;
    }
}

impl Compressor for TopK {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }

    fn encoding(&self) -> Option<Encoding> {
        (!self.ratio.is_dense()).then_some(Encoding::TopK { ratio: self.ratio, values: self.values })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (indices, values) = out.sparse(x.len(), self.values);
        write(select(x, self.ratio.keep(x.len()), indices), values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let lost = match self.values {
            ValueKind::F32 => 0.0,
            ValueKind::F16 => 2_f64.powi(-22) + 2_f64.powi(-44),
            ValueKind::Q8 => 1.0 / 250.0,
        };
        let kept = self.ratio.keep(x.len()) as f64 / x.len().max(1) as f64;
        ErrorBound::Contractive { delta: if x.is_empty() { 1.0 } else { kept * (1.0 - lost) } }
    }

    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        let k = self.ratio.keep(x.len());
        // The k' ≥ k largest, ties to the lowest index, contain the k largest under the same rule.
        if let Some((among, kept)) = kept_of(coarse, x.len(), k) {
            let (indices, values) = out.sparse(x.len(), self.values);
            write(select(kept, k, indices), values);
            return locate(indices, among);
        }
        match coarse.sparse_indices() {
            Some(among) if coarse.len() == x.len() && among.len() >= k => {
                let (indices, values) = out.sparse(x.len(), self.values);
                indices.extend_from_slice(among);
                let mut picks = Picks::among(x, indices);
                picks.retain_largest(k);
                write(picks, values);
            }
            _ => self.compress_into(x, key, out),
        }
    }

    fn selects(&self) -> bool {
        !self.ratio.is_dense()
    }
}

fn write(picks: Picks<'_>, values: &mut Values) {
    match values {
        Values::F32(values) => values.extend(picks.values()),
        Values::F16 { exponent, bits } => {
            let largest = picks.values().map(magnitude).max().unwrap_or(0);
            *exponent = ((largest >> 23) as i32 - 127 - 14).max(-126) as i8;
            let (unit, limit) = (power_of_two(-*exponent), f16::from_bits(F16_LIMIT).to_f32());
            bits.resize(picks.len(), 0);
            let (mut kept, mut scratch) = (picks.values(), [0.0; Q8_BLOCK]);
            for bits in bits.chunks_mut(Q8_BLOCK) {
                let scratch = &mut scratch[..bits.len()];
                for (scaled, v) in scratch.iter_mut().zip(&mut kept) {
                    *scaled = (v * unit).clamp(-limit, limit);
                }
                bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(scratch);
            }
        }
        Values::Q8 { ranges, codes } => {
            for start in (0..picks.len()).step_by(Q8_BLOCK) {
                let block = || picks.values().skip(start).take(Q8_BLOCK);
                let (low, high) = block().map(f32::abs).fold((f32::MAX, 0.0_f32), |(l, h), m| (l.min(m), h.max(m)));
                ranges.push([low, high]);
                codes.extend(block().map(|v| q8_code([low, high], v)));
            }
        }
        Values::Coded(_) => unreachable!("top-k asks for plain values"),
    }
    picks.finish();
}

fn q8_code([low, high]: [f32; 2], v: f32) -> u8 {
    let span = high - low;
    let level = if span > 0.0 { (v.abs() - low) / span * 127.0 + 0.5 } else { 0.0 };
    level as u8 | (((v.to_bits() >> 31) as u8) << 7)
}

impl CompressorSettings for TopK {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits {
            needs_feedback: true,
            is_exact: self.values == ValueKind::F32,
            is_sparse: true,
            searches: true,
            ..CompressorTraits::default()
        }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
