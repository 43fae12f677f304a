//! 4-bit floats: each value of a bucket becomes the nearest of 15 floats, scaled so that the largest magnitude is the largest float.
//!
//! **Why, and when not.** 7.8 times fewer bytes than f32. A float's step grows with the value, so small values lose no more of themselves than
//! large ones: unlike [`Qsgd`](briquette_core::compress::qsgd::Qsgd) with 4 bits, which has equal steps. E3M0 has the range for vectors with values of
//! very different size, such as outer gradients of DiLoCo. E2M1 has finer steps near the largest value and a short range: for small buckets of
//! similar values. If 8 bits are affordable, [`MinMax`](briquette_core::compress::min_max::MinMax) needs no feedback.
//!
//! **Method.** Code `c` from 0 to 7 and a sign; the value is `f(c)/f(7)` times the largest magnitude `s` of the bucket:
//!
//! | code | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
//! |---|---|---|---|---|---|---|---|---|
//! | E3M0 `f` | 0 | 0.25 | 0.5 | 1 | 2 | 4 | 8 | 16 |
//! | E2M1 `f` | 0 | 0.5 | 1 | 1.5 | 2 | 3 | 4 | 6 |
//!
//! *Nearest*: the code whose float is nearest to `f(7)·|x|/s`, in f32; in the middle of two, the even code. *Random*: between neighbors `l ≤ a < u`,
//! `u` with probability `(a − l)/(u − l)`.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `float4:e3m0:B:random` | `dither:2:7:B` ([exponential dithering](super::exponential_dithering)), to the bit |
//!
//! *Random bits.* As in [`Qsgd`](briquette_core::compress::qsgd::Qsgd), and only for random rounding.
//!
//! **On the wire.** `21 + 4·⌈d/bucket⌉ + ⌈d/2⌉` bytes with E3M0 (kind 11: powers of two are an exponential grid), `17 + …` with E2M1 (kind 18).
//!
//! **Properties.** With `h = f(1)/2f(7)`, which is 1/128 for E3M0 and 1/24 for E2M1, an error is at most the larger of `|x|/3` and `h·s`, at most
//! `|x|`, and 0 for the largest magnitude. In a bucket of `n` values with energy `E`, the squared error is therefore at most
//! `min(E − s², (E − s²)/9 + (n − 1)h²s²)`, and at most `max(1/9, (n − 1)h²)·E`: nearest rounding is contractive with δ = 8/9 for buckets of up to 1821 values
//! (E3M0) or 65 (E2M1), and at least `1/n` for others. Random rounding is unbiased, with `ω·E = (E − s²)/8 + (n − 1)h²s²`.
//! Of normal values, nearest rounding keeps 0.967, 0.962 and 0.962 of the energy with E3M0 in buckets of 32, 256 and all values, and 0.990, 0.988 and
//! 0.983 with E2M1.
//!
//! **Knobs.** The format, default `e3m0`; `bucket` in values, default 256; `nearest` (default) or `random`.
//!
//! **Deviations.** Scales of the paper's E3M0 could not be read. OCP MX scales blocks of 32 by a power of two, which takes 8 bits; here the scale is an f32
//! and the largest magnitude is exact.
//!
//! **Reference.** A. Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch*, 2025 (arXiv 2501.18512),
//! outer gradients in E3M0; Open Compute Project, *Microscaling Formats (MX) Specification*, version 1.0, 2023, E2M1.
//!
//! ```
//! use briquette_core::compress::Compressor;
//! use briquette_core::{Key, Message};
//! use briquette_zoo::compress::float4::{Float4, Format};
//! let (mut message, mut decoded) = (Message::default(), [0.0; 6]);
//! Float4::new(Format::E2M1).compress_into(&[6.0, -4.4, 2.5, 1.1, -0.3, 0.2], Key::new(0), &mut message);
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [6.0, -4.0, 2.0, 1.0, -0.5, 0.0]); // 2.5 lies in the middle of codes 4 and 5
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::compress::{Compressor, ErrorBound, Level, Quantizer, bucket_size, chance};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::math::{largest, norm2};
use briquette_core::message::{Coding, Grid};
use briquette_core::{CompressionRatio, Key, Message};

/// A 4-bit number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// Three exponent bits: seven powers of two.
    E3M0,
    /// Two exponent bits and a fraction bit.
    E2M1,
}

impl Format {
    /// Returns the magnitudes of the codes.
    fn floats(self) -> [f32; 8] {
        match self {
            Format::E3M0 => [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0],
            Format::E2M1 => [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
        }
    }

    /// Returns the same numbers as shares of the largest, as the message has them.
    fn grid(self) -> Grid {
        match self {
            Format::E3M0 => Grid::Exponential { base: 2.0, levels: 7 },
            Format::E2M1 => Grid::Float { exponent: 2, fraction: 1 },
        }
    }
}

/// Choice between the two neighboring floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    Nearest,
    Random,
}

/// Values in 4-bit floats; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "float4",
    help = "4-bit floats (e3m0 or e2m1), scaled by the largest magnitude of buckets (256)",
    places = 3,
    representatives("float4:e3m0:20", "float4:e2m1:20", "float4:e2m1:20:random"),
    combinations("reducer=gather:topk:8x+float4:e3m0 feedback=error")
)]
pub struct Float4 {
    #[setting(default = Format::E3M0, syntax = "e3m0|e2m1")]
    format: Format,
    #[setting(default = 256, range = "[1, inf)")]
    bucket: u32,
    #[setting(default = Mode::Nearest, syntax = "nearest|random")]
    mode: Mode,
}

impl Float4 {
    /// Creates rounding to the nearest float, with buckets of 256 values: biased.
    pub fn new(format: Format) -> Self {
        Float4 { format, ..Float4::default() }
    }

    /// Sets random rounding: unbiased.
    #[must_use]
    pub fn random(self) -> Self {
        Float4 { mode: Mode::Random, ..self }
    }

    /// Sets the number of values that share a scale.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bucket` is 0 or has more than 32 bits.
    pub fn bucketed(self, bucket: usize) -> Result<Self, ConfigError> {
        Ok(Float4 { bucket: bucket_size(bucket)?, ..self })
    }
}

/// Finds the nearest float of a share of the scale; in the middle of two, the one with the even code.
#[derive(Clone, Copy)]
struct Nearest {
    top: f32,
    middles: [f32; 7],
}

impl Nearest {
    fn new(floats: [f32; 8]) -> Nearest {
        Nearest { top: floats[7], middles: std::array::from_fn(|code| (floats[code] + floats[code + 1]) / 2.0) }
    }
}

impl Level for Nearest {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let a = share * self.top;
        let passed = |code: usize| {
            u32::from(if code.is_multiple_of(2) { a > self.middles[code] } else { a >= self.middles[code] })
        };
        ((0..7).map(passed).sum(), 0)
    }
}

/// Finds the float below a share of the scale, and the chance of the next one.
#[derive(Clone, Copy)]
struct Below([f32; 8]);

impl Level for Below {
    #[inline(always)]
    fn level(&self, share: f32) -> (u32, u32) {
        let a = share * self.0[7];
        let code = (1..8).map(|code| usize::from(a >= self.0[code])).sum::<usize>();
        let (low, high) = (self.0[code], self.0[7.min(code + 1)]);
        // The largest has no next one.
        (code as u32, if high > low { chance((a - low) / (high - low)) } else { 0 })
    }
}

impl Compressor for Float4 {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(4)
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (grid, floats, bucket) = (self.format.grid(), self.format.floats(), self.bucket);
        match self.mode {
            Mode::Nearest => {
                let level = Nearest::new(floats);
                Quantizer { grid, coding: Coding::Fixed, bucket, level }.quantize(x, largest, None, out);
            }
            Mode::Random => {
                Quantizer { grid, coding: Coding::Fixed, bucket, level: Below(floats) }.quantize(
                    x,
                    largest,
                    Some(key),
                    out,
                );
            }
        }
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let (total, floats) = (norm2(x), self.format.floats());
        let h = f64::from(floats[1] / floats[7]) / 2.0;
        let lost = |bucket: &[f32]| {
            let (scale, energy, others) =
                (f64::from(largest(bucket)).powi(2), norm2(bucket), bucket.len() as f64 - 1.0);
            let (rest, lowest) = ((energy - scale).max(0.0), others * h * h * scale);
            match self.mode {
                Mode::Nearest => rest.min(rest / 9.0 + lowest),
                Mode::Random => rest / 8.0 + lowest,
            }
        };
        // The margin covers the rounding of shares.
        let lost = if total > 0.0 { x.chunks(self.bucket as usize).map(lost).sum::<f64>() / total + 1e-6 } else { 0.0 };
        match self.mode {
            Mode::Nearest => ErrorBound::Contractive { delta: (1.0 - lost).max(0.0) },
            Mode::Random => ErrorBound::Unbiased { omega: lost },
        }
    }
}

impl CompressorSettings for Float4 {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: self.mode == Mode::Nearest, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
