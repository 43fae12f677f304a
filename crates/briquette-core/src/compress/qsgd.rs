//! QSGD: stochastic rounding to a few levels. Unbiased, so it needs no error feedback.
//!
//! **Why, and when not.** 4 to 16 times fewer bytes, every coordinate takes part, and averaging over ranks reduces the noise. At 2 bits the
//! noise exceeds the signal several times: with error feedback, a contractive compressor of equal size loses less.
//!
//! **Method.** Per bucket, with `a = |xᵢ|/scale·s` and `ℓ = ⌊a⌋`: the level is `ℓ + 1` with probability `a − ℓ`,
//! else `ℓ`; `C(x)ᵢ = sign(xᵢ)·level/s·scale`. The scale is the bucket's L2 norm (computed in f64, at most
//! `f32::MAX`) or its largest magnitude. A zero bucket stays zero.
//!
//! | paper | here |
//! |---|---|
//! | `s` levels | `levels`; with `bits`, `2^(bits−1) − 1`: a code is one sign bit and `bits − 1` level bits |
//! | `d_b` | `bucket` |
//! | `‖v‖₂` or max | `Norm` |
//!
//! *Random bits.* The chance `a − ℓ` has steps of 2⁻²³. Values `4096·i ..` of the vector take sixteen bits each from [`Key::lanes`]`(i)`,
//! which are compared with the upper sixteen bits of the chance. If they are equal, once in 65 536 times, the upper seven bits of
//! [`Key::purpose`]`("ties")` at the value's index are compared with the lower seven. So half as many bits are drawn, and all probabilities
//! are the same as with 23.
//!
//! **On the wire.** `17 + 4·⌈d/bucket⌉ + ⌈d·bits/8⌉` bytes with `bits = 1 + ⌈log₂(s + 1)⌉`. In Elias codes
//! `17 + 4·⌈d/bucket⌉ + ⌈Σ(elias(ℓᵢ + 1) + [ℓᵢ > 0])/8⌉`, the paper's dense regime: 1 bit for a zero, 4 for a one.
//!
//! **Properties.** Unbiased to the rounding of f32 (scales in the normal range). With `n = min(bucket, d)`:
//! - L2: ω = min(n/s², √n/s), lemma 3.1. (L1, which settings do not offer: min(n/s, n²/4s²).)
//! - Max: ω = m·t(1−t)/(s² + m·t²) with `m = n − 1`, `t = (s/m)(√(s² + m) − s)`, attained by one value of 1 and `m` of
//!   `t/s`; at most `√n/2s`. Half the bound of L2, so it is the default.
//! - L2: on average at most `s(s + √n)` of a bucket's levels are not zero, lemma 3.1: `√n` with one level.
//!
//! The exact variance is `Σ (scale/s)²·f(1−f)` with `f = a − ℓ`: [`Qsgd::variance`].
//!
//! **Knobs.** `bits` 2 to 8 (the paper uses 2, 4 and 8) or `levels` 1 to 127; `bucket` in values, default 512 (the paper's for 4 and 8
//! bits); `norm`; Elias codes or fixed-width codes (the default: they decode many times faster, and at 4 and 8 bits in buckets of 512 few
//! levels are 0). Elias codes pay off with the L2 norm, where most levels are small: with `s = √bucket` a value takes about 3 bits if
//! values are Gaussian, and at most 4, if they are equal. (The paper's `2.8·n` leaves out the lower-order terms of Elias' code, its
//! `1 + o(1)`.)
//!
//! **Deviations.** At most 127 levels: beyond that, [`Half`](crate::compress::half::Half) is as short and loses hardly anything. Elias codes are those of
//! the dense regime. The paper's sparse regime (gaps between non-zero values) is shorter if nearly all levels are zero; in that case a
//! sparsifier is the better choice.
//!
//! **Reference.** D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnović, *QSGD: Communication-Efficient SGD via Gradient
//! Quantization and Encoding*, NIPS 2017 (arXiv 1610.02132), §3.1 and §4.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, Norm, qsgd::Qsgd};
//! let mut message = Message::default();
//! // 3 bits: levels 0, 1, 2, 3 of 6.0; all three values are on a level, so nothing is random.
//! Qsgd::new(3, 512, Norm::Max)?.compress_into(&[6.0, -2.0, 4.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 3];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [6.0, -2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::dither::{Linear, Quantizer};
use super::{Norm, bucket_size};
use crate::error::ConfigError;
use crate::message::{Coding, Grid};
use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// Stochastic quantizer; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "qsgd",
    help = "this many bits (4) or levels a value, in buckets (512) with a norm each",
    places = 4,
    representatives("qsgd:4:64:l2"),
    check = Self::check_norm
)]
pub struct Qsgd {
    #[serde(rename = "bits", with = "levels")]
    #[setting(default = 7, range = "[1, 127]", syntax = "BITS|sLEVELS")]
    levels: u8,
    #[setting(default = Self::DEFAULT_BUCKET as u32, range = "[1, inf)", syntax = "512")]
    bucket: u32,
    #[setting(syntax = "max|l2")]
    norm: Norm,
    #[setting(default = Coding::Fixed, syntax = "fixed|elias")]
    coding: Coding,
}

/// Text of a number of levels: the bits per value that hold them, or `sLEVELS`.
mod levels {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{ConfigError, Grid, Norm, Qsgd};

    pub(super) fn serialize<S: Serializer>(levels: &u8, serializer: S) -> Result<S::Ok, S::Error> {
        let bits = Grid::Linear { levels: *levels }.bits();
        match u32::from(*levels) + 1 == 1 << (bits - 1) {
            true => serializer.collect_str(&bits),
            false => serializer.collect_str(&format_args!("s{levels}")),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        let text = String::deserialize(deserializer)?;
        let number = |text: &str| text.parse().map_err(|_| ConfigError::range("bits of QSGD", "a number", text));
        let qsgd = match text.strip_prefix('s') {
            Some(levels) => number(levels).and_then(|levels| Qsgd::with_levels(levels, 1, Norm::Max)),
            None => number(&text).and_then(|bits| Qsgd::new(bits, 1, Norm::Max)),
        };
        qsgd.map(|qsgd| qsgd.levels).map_err(D::Error::custom)
    }
}

impl Qsgd {
    /// Default number of values that share a scale.
    pub const DEFAULT_BUCKET: usize = 512;

    /// Creates a quantizer with `bits` per value, including the sign, and one scale for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bits` is not in 2 to 8, or `bucket` is 0 or has more than 32 bits.
    pub fn new(bits: u8, bucket: usize, norm: Norm) -> Result<Self, ConfigError> {
        if !(2..=8).contains(&bits) {
            return Err(ConfigError::range("bits of QSGD", "2 to 8", bits));
        }
        Qsgd::with_levels((1 << (bits - 1)) - 1, bucket, norm)
    }

    /// Creates a quantizer with `levels` of each sign in addition to zero, and one scale for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `levels` is not in 1 to 127, or `bucket` is 0 or has more than 32 bits.
    pub fn with_levels(levels: u8, bucket: usize, norm: Norm) -> Result<Self, ConfigError> {
        // Settings offer no L1, code does.
        Ok(Qsgd { norm, ..Qsgd { levels, bucket: bucket_size(bucket)?, ..Qsgd::default() }.checked()? })
    }

    /// Selects Elias codes instead of fixed-width codes.
    #[must_use]
    pub fn elias(mut self) -> Self {
        self.coding = Coding::Elias;
        self
    }

    fn grid(self) -> Grid {
        Grid::Linear { levels: self.levels }
    }

    /// Returns `E‖x − C(x)‖²`, exactly.
    pub fn variance(&self, x: &[f32]) -> f64 {
        let levels = f32::from(self.levels);
        let bucket = |x: &[f32]| {
            let scale = self.norm.of(x);
            let unit = f64::from(scale) / f64::from(levels);
            let fraction = |&x: &f32| f64::from((x.abs() / scale * levels).fract());
            if scale == 0.0 { 0.0 } else { x.iter().map(fraction).map(|f| unit * unit * f * (1.0 - f)).sum() }
        };
        x.chunks(self.bucket as usize).map(bucket).sum()
    }

    fn check_norm(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.norm != Norm::L1, "norm of qsgd", "max or l2", "l1")
    }
}

impl Tunable for Qsgd {
    /// Sets the number of levels that `32/ratio` bits hold, rounded, within 2 to 8 bits.
    fn tune(&mut self, ratio: CompressionRatio) {
        let bits = ratio.bits(2..=8);
        self.levels = (1 << (bits - 1)) - 1;
    }
}

impl Compressor for Qsgd {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(self.grid().bits())
    }

    fn encoding(&self) -> Option<Encoding> {
        let euclidean = self.norm == Norm::L2;
        let Qsgd { levels, bucket, norm, coding } = *self;
        (norm != Norm::L1).then_some(Encoding::Qsgd { levels, bucket: bucket as usize, euclidean, coding })
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let level = Linear(self.levels);
        let quantizer = Quantizer { grid: self.grid(), coding: self.coding, bucket: self.bucket, level };
        quantizer.quantize(x, |x| self.norm.of(x), Some(key), out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let n = x.len().min(self.bucket as usize) as f64;
        let s = f64::from(self.levels);
        let omega = match self.norm {
            Norm::L1 => (n / s).min(n * n / (4.0 * s * s)),
            Norm::L2 => (n / (s * s)).min(n.sqrt() / s),
            Norm::Max if n <= 1.0 => 0.0,
            Norm::Max => {
                let m = n - 1.0;
                let t = s / m * ((s * s + m).sqrt() - s);
                m * t * (1.0 - t) / (s * s + m * t * t)
            }
        };
        ErrorBound::Unbiased { omega }
    }
}

impl CompressorSettings for Qsgd {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::default()
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests;
