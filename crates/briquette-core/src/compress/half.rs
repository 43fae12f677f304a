//! Half precision: every value in 16 bits.
//!
//! **Why, and when not.** Halves the bytes at almost no loss: the compressor to try first, and the baseline that stronger ones must beat.
//! `F16` keeps 11 significant bits of the larger values of a block; `Bf16` keeps 8 of every value.
//!
//! **Method.** Round to nearest, ties to even. `F16` works in blocks of 256 values. A block whose largest magnitude is from 7.6e-6 (2⁻¹⁷)
//! to 65504 is sent unscaled. Any other is scaled by the power of two that brings its largest to the upper end of the range, so that
//! neither small averages are flushed to 0 nor large ones cut off. Magnitudes beyond the largest number (3.4e38 minus the last bit of the
//! format) become that number instead of an infinity.
//!
//! **On the wire.** `12 + 2d` bytes; `⌈d/256⌉` more if a block of `F16` is scaled.
//!
//! **Properties.** Contractive, δ = 1 − 2⁻²² (`F16`) and 1 − 2⁻¹⁶ (`Bf16`) while magnitudes are 0 or in the format's normal range (from
//! 2⁻¹⁴ and 2⁻¹²⁶ on; in a scaled block from 2⁻²⁹ of its largest on). Below it the error per value is absolute, at most 2⁻²⁵ (`F16`, in a
//! scaled block 2⁻³⁹ of its largest) and 2⁻¹³⁴. `error_bound` subtracts that, and accounts for saturation, so that its δ holds for every vector
//! (0 if everything may be lost). No error feedback needed in practice.
//!
//! **Knobs.** The format.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, half::Half, HalfKind};
//! let mut message = Message::default();
//! Half::new(HalfKind::F16).compress_into(&[1.0, 0.1], Key::new(0), &mut message);
//! let mut decoded = [0.0; 2];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [1.0, 0.099_975_586]); // 0.1 ≈ 1638 · 2⁻¹⁴
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use crc32fast::Hasher;
use half::{bf16, f16};

use crate::binary16::{self, EXPONENTS, SCALED, power, scale_of};
use crate::math::norm2;
use crate::message::{HEADER, HalfKind};
use crate::parallel::{self, Part, SEGMENT};
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// Values whose codes are added to the checksum while they are in the first-level cache.
const PIECE: usize = 4096;

/// Rounds to 16 bits; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Half {
    kind: HalfKind,
}

impl Half {
    /// Creates a compressor that rounds to `kind`.
    pub fn new(kind: HalfKind) -> Self {
        Half { kind }
    }

    /// Returns the largest finite value, the relative error in the normal range, and the absolute error below it.
    fn limits(self) -> (f32, f64, f64) {
        match self.kind {
            HalfKind::F16 => (f16::MAX.to_f32() * power(i32::from(*EXPONENTS.end())), 2_f64.powi(-11), 2_f64.powi(-25)),
            HalfKind::Bf16 => (bf16::MAX.to_f32(), 2_f64.powi(-8), 2_f64.powi(-134)),
        }
    }

    /// Returns the sum over values of the squared absolute errors.
    fn absolute(self, x: &[f32]) -> f64 {
        let (.., absolute) = self.limits();
        let square = |unit: f64, len: usize| len as f64 * (absolute * unit).powi(2);
        match self.kind {
            HalfKind::F16 => x.chunks(SCALED).map(|x| square(power(scale_of(x).into()).into(), x.len())).sum(),
            HalfKind::Bf16 => square(1.0, x.len()),
        }
    }
}

/// Writes the scales of the blocks of a vector; none if no block has one.
fn scales(x: &[f32], exponents: &mut Vec<i8>) {
    exponents.resize(x.len().div_ceil(SCALED), 0);
    parallel::for_each(x.len(), (Part(x, SEGMENT), Part(&mut exponents[..], SEGMENT / SCALED)), |_, (x, exponents)| {
        block_scales(x.0, exponents.0);
    });
    if exponents.iter().all(|exponent| *exponent == 0) {
        exponents.clear();
    }
}

/// Writes codes piece by piece, given the number of a piece's first block, and returns their checksum. Returns `None` if there are no
/// values, or if `write` returns false for a piece.
fn encode(x: &[f32], bytes: &mut [u8], write: impl Fn(usize, &[f32], &mut [[u8; 2]]) -> bool + Sync) -> Option<Hasher> {
    let segment = |number: usize, (x, bytes): (Part<&[f32]>, Part<&mut [u8]>)| {
        let mut checksum = Hasher::new();
        for (piece, (x, bytes)) in x.0.chunks(PIECE).zip(bytes.0.chunks_mut(2 * PIECE)).enumerate() {
            if !write((number * SEGMENT + piece * PIECE) / SCALED, x, bytes.as_chunks_mut().0) {
                return None;
            }
            checksum.update(bytes);
        }
        Some(checksum)
    };
    let join = |first: Option<Hasher>, rest: Option<Hasher>| {
        let mut first = first?;
        first.combine(&rest?);
        Some(first)
    };
    let work = (Part(x, SEGMENT), Part(bytes, 2 * SEGMENT));
    parallel::fold(0..x.len().div_ceil(SEGMENT), work, &segment, &join).flatten()
}

impl Compressor for Half {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(16)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::Half { kind: self.kind })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (exponents, codes) = out.half(x.len(), self.kind);
        let bytes = codes.sized(HEADER, 2 * x.len());
        let mut checksum = match self.kind {
            HalfKind::Bf16 => encode(x, bytes, |_, x, out| {
                to_bf16(x, out);
                true
            }),
            HalfKind::F16 => encode(x, bytes, |_, x, out| to_unscaled_f16(x, out)),
        };
        // Most vectors have no block with a scale, so the scales are computed only when one is found.
        if self.kind == HalfKind::F16 && checksum.is_none() {
            scales(x, exponents);
            let exponents = &exponents[..];
            checksum = encode(x, codes.sized(HEADER + exponents.len(), 2 * x.len()), |first, x, out| {
                let blocks = x.chunks(SCALED).zip(out.chunks_mut(SCALED)).zip(&exponents[first..]);
                blocks.for_each(|((x, out), exponent)| to_f16(x, power(-i32::from(*exponent)), out));
                true
            });
        }
        codes.summed(checksum);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let (limit, relative, _) = self.limits();
        let energy = norm2(x);
        if energy == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let worst = relative.max(1.0 - f64::from(limit / largest));
        // (a + b)² ≤ a² + b² because every value has only one of the two errors.
        let lost = worst * worst + self.absolute(x) / energy;
        ErrorBound::Contractive { delta: (1.0 - lost).max(0.0) }
    }
}

/// Writes the scale of each block.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn block_scales(x: &[f32], exponents: &mut [i8]) {
    exponents.iter_mut().zip(x.chunks(SCALED)).for_each(|(exponent, x)| *exponent = scale_of(x));
}

/// Converts blocks until one needs a scale, and returns whether none does.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_unscaled_f16(x: &[f32], out: &mut [[u8; 2]]) -> bool {
    x.chunks(SCALED).zip(out.chunks_mut(SCALED)).all(|(x, out)| {
        let is_unscaled = scale_of(x) == 0;
        out.iter_mut().zip(x).for_each(|(bytes, x)| *bytes = binary16::from_f32(*x, binary16::LARGEST));
        is_unscaled
    })
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_f16(x: &[f32], per_unit: f32, out: &mut [[u8; 2]]) {
    for (bytes, x) in out.iter_mut().zip(x) {
        *bytes = binary16::from_f32(*x * per_unit, binary16::LARGEST);
    }
}

/// Rounds in integer arithmetic: adds half of the last place, less a little where the last place is even.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_bf16(x: &[f32], out: &mut [[u8; 2]]) {
    for (bytes, x) in out.iter_mut().zip(x) {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        *bytes = ((rounded.min(0x7f7f) | (x.to_bits() >> 31) << 15) as u16).to_le_bytes();
    }
}

/// Settings of [`Half`], one type per format, because each has a name.
macro_rules! formats {
    ($($type:ident $name:literal $help:literal),*) => {$(
        #[doc = concat!("Settings of [`Half`] in `", $name, "`.")]
        #[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
        #[described(name = $name, help = $help)]
        pub struct $type;

        impl CompressorSettings for $type {
            fn traits(&self) -> CompressorTraits {
                CompressorTraits::default()
            }

            fn build(&self) -> Box<dyn Compressor> {
                Box::new(Half::new(HalfKind::$type))
            }
        }
    )*};
}

formats! {
    F16 "f16" "every value in 16 bits, 11 of them significant",
    Bf16 "bf16" "every value in 16 bits, 8 of them significant, in the range of f32"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::distance2;
    use crate::message::Payload;

    fn decoded(kind: HalfKind, x: &[f32]) -> Vec<f32> {
        let mut message = Message::default();
        Half::new(kind).compress_into(x, Key::new(0), &mut message);
        let mut out = vec![0.0; x.len()];
        message.decode_into(&mut out).unwrap();
        out
    }

    #[test]
    fn values_by_hand() {
        // 1 + 2⁻¹¹ lies halfway between 1 and 1 + 2⁻¹⁰: ties to even, 1. 1 + 3·2⁻¹¹ ties up to 1 + 2⁻⁹.
        let x = [1.0 + 2_f32.powi(-11), 1.0 + 3.0 * 2_f32.powi(-11), -2.0, 2_f32.powi(-26), 2_f32.powi(-24)];
        assert_eq!(decoded(HalfKind::F16, &x), [1.0, 1.0 + 2_f32.powi(-9), -2.0, 0.0, 2_f32.powi(-24)]);
        // A block of small values is scaled: they keep eleven bits.
        let x = [2_f32.powi(-26), 3.0 * 2_f32.powi(-27), -2_f32.powi(-30) * (1.0 + 2_f32.powi(-11))];
        assert_eq!(decoded(HalfKind::F16, &x), [2_f32.powi(-26), 3.0 * 2_f32.powi(-27), -2_f32.powi(-30)]);
        // bfloat16 has 7 bits after the point.
        let x = [1.0 + 2_f32.powi(-8), 1.0 + 3.0 * 2_f32.powi(-8), -2.0];
        assert_eq!(decoded(HalfKind::Bf16, &x), [1.0, 1.0 + 2_f32.powi(-6), -2.0]);
    }

    #[test]
    fn sixteen_bits_are_those_of_the_scalar_conversions() {
        let mut x: Vec<f32> = (0..70_001_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        x.retain(|v| v.is_finite());
        x.extend([0.0, -0.0, f32::MAX, -f32::MAX, 1e-45, -1e-45, f32::MIN_POSITIVE, 65_519.9, 65_520.0]);
        // In a vector of all magnitudes some block is scaled, so each value is encoded alone, where it is sent unscaled.
        let bits = |kind, x: &[f32]| {
            let mut message = Message::default();
            Half::new(kind).compress_into(x, Key::new(0), &mut message);
            let Payload::Half { bits, .. } = message.payload else { unreachable!() };
            bits.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect::<Vec<_>>()
        };
        let (f16_max, bf16_max) = (f16::MAX.to_f32(), bf16::MAX.to_f32());
        let naive = |x: &[f32], to: &dyn Fn(f32) -> u16| x.iter().map(|v| to(*v)).collect::<Vec<_>>();
        assert!(bits(HalfKind::Bf16, &x) == naive(&x, &|v| bf16::from_f32(v.clamp(-bf16_max, bf16_max)).to_bits()));
        x.retain(|v| v.abs() <= f16_max);
        x.chunks_mut(SCALED).for_each(|block| block[0] = 1.0);
        assert!(bits(HalfKind::F16, &x) == naive(&x, &|v| f16::from_f32(v).to_bits()));
    }

    #[test]
    fn only_what_the_last_bit_lifts_over_the_largest_number_saturates() {
        let unit = power(112);
        assert_eq!(decoded(HalfKind::F16, &[-f32::MAX, 0.0]), [-65_504.0 * unit, 0.0]);
        assert_eq!(decoded(HalfKind::F16, &[65_519.0]), [65_504.0]);
        let large = decoded(HalfKind::F16, &[1e6, -65_519.0]);
        assert!((large[0] - 1e6).abs() <= 1e6 / 2048.0 && (large[1] + 65_519.0).abs() <= 32.0, "{large:?}");
        let largest = bf16::MAX.to_f32();
        assert_eq!(decoded(HalfKind::Bf16, &[f32::MAX, -f32::MAX]), [largest, -largest]);
    }

    #[test]
    fn declared_class_holds_in_and_out_of_the_normal_range() {
        let normal: Vec<f32> = (0..4000).map(|i| (i as f32 - 1999.5) * 1.37e-3).collect();
        for kind in [HalfKind::F16, HalfKind::Bf16] {
            for scale in [1.0, 1e-3, 1e-6, 1e-8, 1e-30, 1e5, 1e30] {
                let x: Vec<f32> = normal.iter().map(|v| v * scale).collect();
                let error = distance2(&x, &decoded(kind, &x));
                let ErrorBound::Contractive { delta } = Half::new(kind).error_bound(&x) else { panic!() };
                assert!((0.0..=1.0).contains(&delta));
                assert!(error <= (1.0 - delta) * norm2(&x), "{kind:?} {scale}");
            }
        }
        // Values of every magnitude in one vector: blocks with and without a scale.
        let x: Vec<f32> = (0..4000).map(|i| (i as f32 * 0.7).sin() * 10_f32.powi(i / 300 - 7)).collect();
        let ErrorBound::Contractive { delta } = Half::new(HalfKind::F16).error_bound(&x) else { panic!() };
        assert!(distance2(&x, &decoded(HalfKind::F16, &x)) <= (1.0 - delta) * norm2(&x));
        let small = vec![1e-8; 1000];
        let ErrorBound::Contractive { delta } = Half::new(HalfKind::F16).error_bound(&small) else { panic!() };
        assert!(1.0 - delta < 2.4e-7, "small averages are not flushed: {delta}");
        let ErrorBound::Contractive { delta } = Half::new(HalfKind::F16).error_bound(&[1.0, -0.5]) else { panic!() };
        assert!(1.0 - delta < 2.4e-7);
    }
}
