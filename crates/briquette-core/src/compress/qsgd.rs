//! Stochastic rounding to a few levels: unbiased, so it needs no error feedback.
//!
//! **Why, and when not.** 4 to 16 times fewer bytes, every coordinate takes part, and averages over ranks wash the
//! noise out. At 2 bits the noise exceeds the signal several times: where error feedback is
//! available, a contractive compressor of equal size loses less.
//!
//! **Method.** Per bucket, with `a = |xᵢ|/scale·s` and `ℓ = ⌊a⌋`: the level is `ℓ + 1` with probability `a − ℓ`,
//! else `ℓ`; `C(x)ᵢ = sign(xᵢ)·level/s·scale`. The scale is the bucket's L2 norm (computed in f64, at most
//! `f32::MAX`) or its largest magnitude. A zero bucket stays zero.
//!
//! | paper | here |
//! |---|---|
//! | `s` levels | `2^(bits−1) − 1`: a code is one sign bit and `bits − 1` level bits |
//! | `d_b` | `bucket` |
//! | `‖v‖₂` or max | `Norm` |
//!
//! *Random bits.* Values `4096·i ..` of the vector use `key.block(i)`. Its `j`-th `u64` serves values `2j` (low half)
//! and `2j + 1` (high half) of that block; the upper 24 bits `u` of a half round up where `u·2⁻²⁴ < a − ℓ`.
//!
//! **On the wire.** `17 + 4·⌈d/bucket⌉ + ⌈d·bits/8⌉` bytes.
//!
//! **Properties.** Unbiased to the rounding of f32 (scales in the normal range). With `n = min(bucket, d)`:
//! - L2: ω = min(n/s², √n/s), lemma 3.1.
//! - Max: ω = m·t(1−t)/(s² + m·t²) with `m = n − 1`, `t = (s/m)(√(s² + m) − s)`, attained by one value of 1 and `m` of
//!   `t/s`; at most `√n/2s`. Half the bound of L2, so it is the default.
//!
//! The exact variance is `Σ (scale/s)²·f(1−f)` with `f = a − ℓ`: [`Qsgd::variance`].
//!
//! **Knobs.** `bits` 2 to 8 (the paper uses 2, 4 and 8), `bucket` in values, default 512 (the paper's for 4 and 8 bits),
//! `norm`.
//!
//! **Deviations.** Codes of fixed width instead of Elias codes: at 4 and 8 bits in buckets of 512 few levels are 0,
//! and fixed codes decode many times faster. At 2 bits with L2 an entropy code would be far shorter.
//!
//! **Reference.** D. Alistarh, D. Grubic, J. Li, R. Tomioka, M. Vojnović, *QSGD: Communication-Efficient SGD via Gradient
//! Quantization and Encoding*, NIPS 2017 (arXiv 1610.02132), §3.1 and §4.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, Norm, Qsgd}};
//! let mut message = Message::default();
//! // 3 bits: levels 0, 1, 2, 3 of 6.0; all three values are on a level, so nothing is random.
//! Qsgd::new(3, 512, Norm::Max)?.compress_into(&[6.0, -2.0, 4.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 3];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [6.0, -2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rand::RngCore;

use super::{Class, Compressor, Tunable, bucket_size};
use crate::bits::pack;
use crate::error::ConfigError;
use crate::math::norm2;
use crate::message::{for_buckets, level_count};
use crate::{BLOCK, CompressionFactor, Key, Message};

/// What a bucket's levels are fractions of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// The Euclidean norm: many zeros.
    L2,
    /// The largest magnitude: less variance.
    #[default]
    Max,
}

/// Stochastic quantizer; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Qsgd {
    bits: u8,
    bucket: u32,
    norm: Norm,
}

impl Qsgd {
    /// Values that share a scale, unless told otherwise.
    pub const DEFAULT_BUCKET: usize = 512;

    /// `bits` a value, sign included; one scale for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] when `bits` is not in 2 to 8, or `bucket` is 0 or has more than 32 bits.
    pub fn new(bits: u8, bucket: usize, norm: Norm) -> Result<Self, ConfigError> {
        if !(2..=8).contains(&bits) {
            return Err(ConfigError::range("bits of QSGD", "2 to 8", bits));
        }
        Ok(Qsgd { bits, bucket: bucket_size(bucket)?, norm })
    }

    /// `E‖x − C(x)‖²`, exactly.
    pub fn variance(&self, x: &[f32]) -> f64 {
        let levels = f32::from(level_count(self.bits));
        let bucket = |x: &[f32]| {
            let scale = self.scale(x);
            let unit = f64::from(scale) / f64::from(levels);
            let fraction = |&x: &f32| f64::from((x.abs() / scale * levels).fract());
            if scale == 0.0 { 0.0 } else { x.iter().map(fraction).map(|f| unit * unit * f * (1.0 - f)).sum() }
        };
        x.chunks(self.bucket as usize).map(bucket).sum()
    }

    /// At least every `|x|`: rounding to f32 keeps the order.
    fn scale(&self, x: &[f32]) -> f32 {
        match self.norm {
            Norm::L2 => (norm2(x).sqrt() as f32).min(f32::MAX),
            Norm::Max => x.iter().fold(0.0, |m, v| if v.abs() > m { v.abs() } else { m }),
        }
    }
}

impl Tunable for Qsgd {
    /// Sets `bits` to `32/factor`, rounded, within 2 to 8.
    fn tune(&mut self, factor: CompressionFactor) {
        self.bits = (32.0 / factor.get()).round().clamp(2.0, 8.0) as u8;
    }
}

impl Compressor for Qsgd {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (scales, packed) = out.quantized(x.len(), self.bits, self.bucket);
        scales.extend(x.chunks(self.bucket as usize).map(|x| self.scale(x)));
        let mut uniforms = [0.0; BLOCK];
        let mut codes = [0; BLOCK];
        for (index, x) in x.chunks(BLOCK).enumerate() {
            let codes = &mut codes[..x.len()];
            draw(key, index, &mut uniforms);
            for_buckets(self.bucket, index * BLOCK, x.len(), |b, range| {
                let (x, uniforms) = (&x[range.clone()], &uniforms[range.clone()]);
                quantize(x, (scales[b], self.bits), uniforms, &mut codes[range]);
            });
            pack(codes, self.bits, packed);
        }
    }

    fn class(&self, x: &[f32]) -> Class {
        let n = x.len().min(self.bucket as usize) as f64;
        let s = f64::from(level_count(self.bits));
        let omega = match self.norm {
            Norm::L2 => (n / (s * s)).min(n.sqrt() / s),
            Norm::Max if n <= 1.0 => 0.0,
            Norm::Max => {
                let m = n - 1.0;
                let t = s / m * ((s * s + m).sqrt() - s);
                m * t * (1.0 - t) / (s * s + m * t * t)
            }
        };
        Class::Unbiased { omega }
    }
}

/// The uniform numbers in [0, 1) of one block.
fn draw(key: Key, block: usize, uniforms: &mut [f32; BLOCK]) {
    let mut rng = key.block(block);
    for [low, high] in uniforms.as_chunks_mut::<2>().0 {
        let word = rng.next_u64();
        *low = (word as u32 >> 8) as i32 as f32 * 2_f32.powi(-24);
        *high = (word >> 40) as i32 as f32 * 2_f32.powi(-24);
    }
}

/// Codes of a part of one bucket.
fn quantize(x: &[f32], (scale, bits): (f32, u8), uniforms: &[f32], codes: &mut [u8]) {
    if scale == 0.0 {
        return codes.fill(0);
    }
    let levels = f32::from(level_count(bits));
    for ((code, &x), &uniform) in codes.iter_mut().zip(x).zip(uniforms) {
        let a = x.abs() / scale * levels;
        let floor = a as i32;
        let level = floor + i32::from(uniform < a - floor as f32);
        *code = level as u8 | ((x.to_bits() >> 31) as u8) << (bits - 1);
    }
}
