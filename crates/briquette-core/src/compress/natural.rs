//! Natural compression: random rounding of every value to an adjacent power of two, so that only sign and exponent are sent.
//!
//! **Why, and when not.** Nine bits per value, with noise of an eighth of its energy, for the price of an addition: the cheapest unbiased
//! compressor. If 8 bits must suffice, a block's range and 255 steps (`minmax` of `briquette-zoo`) lose far less. Natural compression is
//! worthwhile on vectors of enormous range, and after a sparsifier.
//!
//! **Method.** For `t ≠ 0` and `a = ⌊log₂|t|⌋`: `C(t) = sign(t)·2^(a+1)` with probability `(|t| − 2^a)/2^a`, else `sign(t)·2^a`;
//! `C(0) = 0`. The probability is the fraction field of the float: if 23 random bits are below it, the exponent field grows by one.
//! Denormals become 0 or 2⁻¹²⁶ by the same rule, also unbiased.
//!
//! *Random bits.* As in [`Qsgd`](crate::compress::qsgd::Qsgd): all 23 bits of the fraction count.
//!
//! **On the wire.** `12 + d + ⌈d/8⌉` bytes: nine bits per value, exponents and signs separate.
//!
//! **Properties.** Unbiased with ω = 1/8, reached at `|t| = 4/3·2^a`. Powers of two are exact, and order and sign are kept. For denormals
//! the noise is larger than that, but below 2⁻¹²⁶ each.
//!
//! **Deviations.** From 2¹²⁷ on, where the next power of two is not finite, values round down; gradients do not reach this range. The
//! paper's count for 64-bit floats does not apply.
//!
//! **Reference.** S. Horváth, C.-Y. Ho, Ľ. Horváth, A. N. Sahu, M. Canini, P. Richtárik, *Natural Compression for
//! Distributed Deep Learning*, 2019 (arXiv 1905.10988), definition 1 and theorem 1.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, natural::Natural};
//! let mut message = Message::default();
//! Natural.compress_into(&[0.25, -8.0, 0.0, 3.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded[..3], [0.25, -8.0, 0.0]);
//! assert!(decoded[3] == 2.0 || decoded[3] == 4.0);
//! assert_eq!(message.encoded_len(), 12 + 4 + 1);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::dither::{Dice, PART};
use crate::bits::{pack_signs, packed_len};
use crate::math::norm2;
use crate::parallel::{self, Part, SEGMENT};
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{BLOCK, CompressionRatio, Key, Message};

/// Random rounding to powers of two; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "natural", help = "9 bits: sign and exponent")]
pub struct Natural;

const FRACTION: u32 = (1 << 23) - 1;

impl Compressor for Natural {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(9)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::Natural)
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (exponents, signs) = out.natural(x.len());
        let (exponents, signs) = (exponents.sized(x.len()), signs.sized(packed_len(x.len(), 1)));
        let work = (Part(x, SEGMENT), (Part(exponents, SEGMENT), Part(signs, SEGMENT / 8)));
        parallel::for_each(x.len(), work, |number, (x, (exponents, signs))| {
            pack_signs(x.0, signs.0);
            let mut chances = [0; PART];
            for (i, (x, exponents)) in x.0.chunks(BLOCK).zip(exponents.0.chunks_mut(BLOCK)).enumerate() {
                let mut dice = Dice::new(key, number * (SEGMENT / BLOCK) + i);
                for (x, exponents) in x.chunks(PART).zip(exponents.chunks_mut(PART)) {
                    split(x, exponents, &mut chances[..x.len()]);
                    dice.round_up(&chances[..x.len()], exponents);
                }
            }
        });
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let energy = norm2(x);
        // For a denormal t, the only bound is t·(2⁻¹²⁶ − t) ≤ (2⁻¹²⁷)².
        let denormal = x.iter().filter(|v| v.is_subnormal()).count() as f64 * 2_f64.powi(-254);
        ErrorBound::Unbiased { omega: if energy > 0.0 { 0.125 + denormal / energy } else { 0.0 } }
    }
}

/// Writes the exponents, and the chances of the next ones.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn split(x: &[f32], exponents: &mut [u8], chances: &mut [u32]) {
    for ((exponent, chance), x) in exponents.iter_mut().zip(chances).zip(x) {
        *exponent = (x.to_bits() >> 23) as u8;
        // 254 is the highest finite exponent.
        *chance = if *exponent == 0xfe { 0 } else { x.to_bits() & FRACTION };
    }
}

impl Natural {
    /// Returns `E‖x − C(x)‖²`, exactly.
    pub fn variance(&self, x: &[f32]) -> f64 {
        let of = |x: &f32| {
            let fraction = f64::from(x.to_bits() & FRACTION) / f64::from(FRACTION + 1);
            let unit = f64::from(f32::from_bits(x.to_bits() & !(1 << 31) & !FRACTION).max(f32::MIN_POSITIVE));
            unit * unit * fraction * (1.0 - fraction)
        };
        x.iter().map(of).sum()
    }
}

impl CompressorSettings for Natural {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::default()
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::compress::{assert_edges, assert_unbiased, decoded};

    #[test]
    fn powers_of_two_zeros_and_signs_are_exact() {
        let x = [0.0, -0.0, 1.0, -0.5, 2_f32.powi(-126), -2_f32.powi(127), 1024.0];
        for step in 0..50 {
            let out = decoded(&mut Natural, &x, Key::new(1).step(step));
            assert_eq!(out, x);
        }
        assert_edges(&mut Natural);
    }

    #[test]
    fn one_value_by_hand() {
        // 3 = 2·1.5: fraction 2²², up to 4 where the random 23 bits are below 2²², that is where their first is 0.
        for step in 0..20 {
            let key = Key::new(4).step(step);
            let mut random = [0; 1];
            key.lanes(0).halves(&mut random);
            let expected = if random[0] >> 15 == 0 { -4.0 } else { -2.0 };
            assert_eq!(decoded(&mut Natural, &[-3.0], key), [expected]);
        }
    }

    #[test]
    fn the_top_rounds_down_and_everything_stays_finite() {
        let x = [f32::MAX, -f32::MAX, 1e-45, -3e-40];
        for step in 0..50 {
            let out = decoded(&mut Natural, &x, Key::new(2).step(step));
            assert_eq!(out[..2], [2_f32.powi(127), -2_f32.powi(127)]);
            assert!(out[2] == 0.0 || out[2] == f32::MIN_POSITIVE);
        }
        assert!(decoded(&mut Natural, &[], Key::new(0)).is_empty());
    }

    #[test]
    fn draws_are_unbiased_with_the_exact_variance_and_the_bound_is_reached() {
        let x: Vec<f32> = (0..40).map(|i| (i as f32 - 19.3) * 0.37).chain([4.0 / 3.0; 8]).collect();
        assert_unbiased(&mut Natural, &x, Natural.variance(&x));
        let worst = [4.0 / 3.0_f32; 3];
        assert!((Natural.variance(&worst) / norm2(&worst) - 0.125).abs() < 1e-7);
        assert_eq!(Natural.error_bound(&worst), ErrorBound::Unbiased { omega: 0.125 });
        assert_eq!(Natural.error_bound(&[0.0; 3]), ErrorBound::Unbiased { omega: 0.0 });
    }

    #[test]
    fn equal_draws_scale_by_powers_of_two() {
        let x: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin()).collect();
        let scaled: Vec<f32> = x.iter().map(|v| v * 32.0).collect();
        let expected: Vec<f32> = decoded(&mut Natural, &x, Key::new(6)).iter().map(|v| v * 32.0).collect();
        assert_eq!(decoded(&mut Natural, &scaled, Key::new(6)), expected);
    }
}
