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

use super::{Class, Compressor, Knobs, Spec, Tunable, TunableCompressor, bucket_size};
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
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::of_bits(self.bits)
    }

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

impl std::fmt::Display for Qsgd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let norm = if self.norm == Norm::L2 { "l2" } else { "max" };
        write!(f, "qsgd:{}:{}:{norm}", self.bits, self.bucket)
    }
}

impl Spec for Qsgd {
    const SYNTAX: &'static str = "qsgd[:BITS[:BUCKET[:max|l2]]]";
    const NEEDS_FEEDBACK: bool = false;

    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        if name != "qsgd" {
            return Ok(None);
        }
        let bits = knobs.number("bits of QSGD", 4)?;
        let bucket = knobs.number("bucket of QSGD", Qsgd::DEFAULT_BUCKET)?;
        let norm = knobs.word("norm", &[("max", Norm::Max), ("l2", Norm::L2)])?;
        Qsgd::new(bits, bucket, norm).map(Some)
    }

    fn representative() -> Self {
        Qsgd { bits: 4, bucket: 64, norm: Norm::L2 }
    }

    fn tunable(self) -> Option<Box<dyn TunableCompressor>> {
        Some(Box::new(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::distance2;
    use rand::Rng;

    fn decoded(qsgd: Qsgd, x: &[f32], key: Key) -> Vec<f32> {
        let (mut message, mut qsgd, mut out) = (Message::default(), qsgd, vec![0.0; x.len()]);
        qsgd.compress_into(x, key, &mut message);
        message.decode_into(&mut out).unwrap();
        out
    }

    fn both(bits: u8, bucket: usize) -> [Qsgd; 2] {
        [Norm::L2, Norm::Max].map(|norm| Qsgd::new(bits, bucket, norm).unwrap())
    }

    #[test]
    fn codes_by_hand() {
        // L2 of (3, −4) is 5; s = 3: a = 1.8 and 2.4. Up to level 2 where u < 0.8, and to 3 where u < 0.4; a level is
        // worth 5/3. This key's first u64 gives both u.
        let mut uniforms = [0.0; BLOCK];
        draw(Key::new(9), 0, &mut uniforms);
        let levels = [1.0 + f32::from(uniforms[0] < 0.8), 2.0 + f32::from(uniforms[1] < 0.4)];
        let out = decoded(Qsgd::new(3, 512, Norm::L2).unwrap(), &[3.0, -4.0], Key::new(9));
        assert_eq!(out, [levels[0] / 3.0 * 5.0, -(levels[1] / 3.0 * 5.0)]);
        let first: u64 = Key::new(9).block(0).random();
        assert_eq!(uniforms[0], (first as u32 >> 8) as f32 / 16_777_216.0);
        assert_eq!(uniforms[1], (first >> 40) as f32 / 16_777_216.0);
    }

    #[test]
    fn zeros_one_hot_and_levels_are_exact() {
        let mut one_hot = vec![0.0; 700];
        one_hot[600] = -3.7e-5;
        for x in [vec![], vec![0.0; 600], vec![-0.0], one_hot, vec![-f32::MAX], vec![1e-45, 0.0]] {
            for qsgd in [2, 5, 8].into_iter().flat_map(|bits| both(bits, 512)) {
                assert_eq!(decoded(qsgd, &x, Key::new(1)), x, "{qsgd:?}");
                assert_eq!(qsgd.variance(&x), 0.0);
            }
        }
    }

    #[test]
    fn extremes_stay_finite_and_settings_are_checked() {
        for x in [vec![f32::MAX; 600], vec![f32::MAX, -1.0, 1e-45], vec![1e-45, -3e-45, 1e-44]] {
            for qsgd in both(4, 512) {
                assert!(decoded(qsgd, &x, Key::new(2)).iter().all(|v| v.is_finite()), "{qsgd:?}");
            }
        }
        assert!(Qsgd::new(1, 512, Norm::L2).is_err() && Qsgd::new(9, 512, Norm::L2).is_err());
        assert!(Qsgd::new(4, 0, Norm::L2).is_err());
        let mut qsgd = both(4, 512)[0];
        let bits = |c: f64, q: &mut Qsgd| {
            q.tune(CompressionFactor::new(c).unwrap());
            q.bits
        };
        assert_eq!([1.0, 4.0, 6.0, 8.0, 11.0, 100.0].map(|c| bits(c, &mut qsgd)), [8, 8, 5, 4, 3, 2]);
    }

    #[test]
    fn max_norm_constant_is_attained_and_below_the_simple_bounds() {
        for (bits, n) in [(2, 128), (4, 512), (8, 64)] {
            let qsgd = Qsgd::new(bits, n, Norm::Max).unwrap();
            let s = f64::from(level_count(bits));
            let m = (n - 1) as f64;
            let t = s / m * ((s * s + m).sqrt() - s);
            let mut x = vec![(t / s) as f32; n];
            x[0] = 1.0;
            let Class::Unbiased { omega } = qsgd.class(&x) else { panic!() };
            assert!((qsgd.variance(&x) / norm2(&x) / omega - 1.0).abs() < 1e-5);
            assert!(omega <= (n as f64).sqrt() / (2.0 * s) && omega <= n as f64 / (4.0 * s * s));
            // Equal to n(1−t)/(2s√(s² + n)) with n for m.
            assert!((omega / (m * (1.0 - t) / (2.0 * s * (s * s + m).sqrt())) - 1.0).abs() < 1e-9);
        }
    }

    /// Mean, exact variance per coordinate, and declared variance, over ten thousand draws.
    #[test]
    fn draws_are_unbiased_with_the_exact_variance() {
        const DRAWS: u64 = 10_000;
        let mut rng = Key::new(3).block(0);
        let gauss: Vec<f32> = (0..48).map(|_| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0).collect();
        let mut outlier = gauss.clone();
        outlier[5] = 300.0;
        for (x, qsgd) in [gauss, outlier, vec![0.7; 40]].iter().flat_map(|x| both(3, 20).map(|q| (x, q))) {
            let (mut mean, mut energy) = (vec![0.0_f64; x.len()], 0.0);
            for step in 0..DRAWS {
                let out = decoded(qsgd, x, Key::new(4).step(step));
                mean.iter_mut().zip(&out).for_each(|(m, v)| *m += f64::from(*v) / DRAWS as f64);
                energy += distance2(x, &out) / DRAWS as f64;
            }
            let exact = qsgd.variance(x);
            assert!((energy - exact).abs() <= 0.05 * exact + 1e-12, "{qsgd:?}: {energy}, exactly {exact}");
            let Class::Unbiased { omega } = qsgd.class(x) else { panic!() };
            assert!(exact <= omega * norm2(x), "{qsgd:?}");
            for (bucket, mean) in x.chunks(20).zip(mean.chunks(20)) {
                let unit = f64::from(qsgd.scale(bucket)) / f64::from(level_count(qsgd.bits));
                for (&x, &mean) in bucket.iter().zip(mean) {
                    let f = (f64::from(x.abs()) / unit).fract();
                    // 5.5 standard deviations; the constant covers coordinates that are hardly ever rounded up.
                    let bound = 5.5 * unit * (f * (1.0 - f) / DRAWS as f64).sqrt() + 20.0 * unit / DRAWS as f64;
                    assert!((mean - f64::from(x)).abs() <= bound, "{qsgd:?} {x}: mean {mean}");
                }
            }
        }
    }

    #[test]
    fn equal_draws_scale_with_the_vector_and_blocks_have_their_own() {
        let x: Vec<f32> = (0..BLOCK + 100).map(|i| ((i % BLOCK) as f32 * 0.37).sin()).collect();
        for qsgd in both(4, 512) {
            let base = decoded(qsgd, &x, Key::new(6));
            let scaled: Vec<f32> = x.iter().map(|v| v * 8.0).collect();
            let expected: Vec<f32> = base.iter().map(|v| v * 8.0).collect();
            assert_eq!(decoded(qsgd, &scaled, Key::new(6)), expected);
            assert_ne!(base[..100], base[BLOCK..], "other draws in the second block");
        }
    }
}
