//! Every value in 16 bits.
//!
//! **Why, and when not.** Halves the bytes at almost no loss: the compressor to try first, and the baseline that
//! stronger ones must beat. `F16` keeps 11 significant bits but flushes what is below 3e-8, and gradients are often
//! small: without loss scaling prefer `Bf16`.
//!
//! **Method.** Round to nearest, ties to even. Magnitudes beyond the largest finite number (65504 for `F16`,
//! 3.39e38 for `Bf16`) become that number instead of an infinity.
//!
//! **On the wire.** `12 + 2d` bytes.
//!
//! **Properties.** Contractive, δ = 1 − 2⁻²² (`F16`) and 1 − 2⁻¹⁶ (`Bf16`) while magnitudes are 0 or in the format's
//! normal range (from 2⁻¹⁴ and 2⁻¹²⁶ on). Below it the error is absolute, at most 2⁻²⁵ and 2⁻¹³⁴ a value; `class`
//! subtracts that, and accounts for saturation, so that its δ holds for every vector (0 where all may be lost). No
//! error feedback needed in practice; with it nothing is lost to underflow for good.
//!
//! **Knobs.** The format.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, Half, HalfKind}};
//! let mut message = Message::default();
//! Half::new(HalfKind::F16).compress_into(&[1.0, 0.1], Key::new(0), &mut message);
//! let mut decoded = [0.0; 2];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [1.0, 0.099_975_586]); // 0.1 ≈ 1638 · 2⁻¹⁴
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use crc32fast::Hasher;
use half::{bf16, f16};

use super::{Compressor, ErrorBound, Knobs, Spec};
use crate::binary16;
use crate::error::ConfigError;
use crate::math::norm2;
use crate::message::HalfKind;
use crate::parallel::{self, Part, SEGMENT};
use crate::wire::HEADER;
use crate::{CompressionFactor, Key, Message};

/// Values whose codes the checksum takes while they are in the first cache.
const PIECE: usize = 4096;

/// Rounds to 16 bits; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Half {
    kind: HalfKind,
}

impl Half {
    /// Rounds to `kind`.
    pub fn new(kind: HalfKind) -> Self {
        Half { kind }
    }

    /// Largest finite value, relative error in the normal range, absolute error below it.
    fn limits(self) -> (f32, f64, f64) {
        match self.kind {
            HalfKind::F16 => (f16::MAX.to_f32(), 2_f64.powi(-11), 2_f64.powi(-25)),
            HalfKind::Bf16 => (bf16::MAX.to_f32(), 2_f64.powi(-8), 2_f64.powi(-134)),
        }
    }
}

impl Compressor for Half {
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::of_bits(16)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let codes = out.half(x.len(), self.kind);
        let work = (Part(x, SEGMENT), Part(codes.sized(HEADER, 2 * x.len()), 2 * SEGMENT));
        let segment = |_, (x, bytes): (Part<&[f32]>, Part<&mut [u8]>)| {
            let mut checksum = Hasher::new();
            for (x, bytes) in x.0.chunks(PIECE).zip(bytes.0.chunks_mut(2 * PIECE)) {
                match self.kind {
                    HalfKind::F16 => to_f16(x, bytes.as_chunks_mut().0),
                    HalfKind::Bf16 => to_bf16(x, bytes.as_chunks_mut().0),
                }
                checksum.update(bytes);
            }
            checksum
        };
        let join = |mut first: Hasher, rest: Hasher| {
            first.combine(&rest);
            first
        };
        let checksum = parallel::fold(0..x.len().div_ceil(SEGMENT), work, &segment, &join);
        codes.summed(checksum);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let (limit, relative, absolute) = self.limits();
        let energy = norm2(x);
        if energy == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
        let worst = relative.max(1.0 - f64::from(limit / largest));
        // (a + b)² ≤ a² + b² where every value has only one of the two errors.
        let lost = worst * worst + x.len() as f64 * absolute * absolute / energy;
        ErrorBound::Contractive { delta: (1.0 - lost).max(0.0) }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_f16(x: &[f32], out: &mut [[u8; 2]]) {
    for (bytes, x) in out.iter_mut().zip(x) {
        *bytes = binary16::from_f32(*x, binary16::LARGEST);
    }
}

/// In integers: half of the last place is added, less a little where the last place is even.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_bf16(x: &[f32], out: &mut [[u8; 2]]) {
    for (bytes, x) in out.iter_mut().zip(x) {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        *bytes = ((rounded.min(0x7f7f) | (x.to_bits() >> 31) << 15) as u16).to_le_bytes();
    }
}

impl std::fmt::Display for Half {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.kind == HalfKind::F16 { "f16" } else { "bf16" })
    }
}

impl Spec for Half {
    const SYNTAX: &'static str = "f16, bf16";
    const HELP: &'static str = "every value in 16 bits";
    const NEEDS_FEEDBACK: bool = false;
    const SPARSE: bool = false;
    const SEARCHES: bool = false;

    fn parse(name: &str, _knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        Ok(match name {
            "f16" => Some(Half::new(HalfKind::F16)),
            "bf16" => Some(Half::new(HalfKind::Bf16)),
            _ => None,
        })
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn representative() -> Self {
        Half::new(HalfKind::F16)
    }
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
        // bfloat16 has 7 bits after the point.
        let x = [1.0 + 2_f32.powi(-8), 1.0 + 3.0 * 2_f32.powi(-8), -2.0];
        assert_eq!(decoded(HalfKind::Bf16, &x), [1.0, 1.0 + 2_f32.powi(-6), -2.0]);
    }

    #[test]
    fn sixteen_bits_are_those_of_the_scalar_conversions() {
        let mut x: Vec<f32> = (0..70_001_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        x.retain(|v| v.is_finite());
        x.extend([0.0, -0.0, f32::MAX, -f32::MAX, 1e-45, -1e-45, f32::MIN_POSITIVE, 65_519.9, 65_520.0]);
        let bits = |kind| {
            let mut message = Message::default();
            Half::new(kind).compress_into(&x, Key::new(0), &mut message);
            let Payload::Half { bits, .. } = message.payload else { unreachable!() };
            bits.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect::<Vec<_>>()
        };
        let (f16_max, bf16_max) = (f16::MAX.to_f32(), bf16::MAX.to_f32());
        let naive = |to: &dyn Fn(f32) -> u16| x.iter().map(|v| to(*v)).collect::<Vec<_>>();
        assert!(bits(HalfKind::F16) == naive(&|v| f16::from_f32(v.clamp(-f16_max, f16_max)).to_bits()));
        assert!(bits(HalfKind::Bf16) == naive(&|v| bf16::from_f32(v.clamp(-bf16_max, bf16_max)).to_bits()));
    }

    #[test]
    fn overflow_saturates() {
        assert_eq!(decoded(HalfKind::F16, &[1e6, -f32::MAX, 65_519.0]), [65_504.0, -65_504.0, 65_504.0]);
        let largest = bf16::MAX.to_f32();
        assert_eq!(decoded(HalfKind::Bf16, &[f32::MAX, -f32::MAX]), [largest, -largest]);
    }

    #[test]
    fn declared_class_holds_in_and_out_of_the_normal_range() {
        let normal: Vec<f32> = (0..4000).map(|i| (i as f32 - 1999.5) * 1.37e-3).collect();
        for kind in [HalfKind::F16, HalfKind::Bf16] {
            for scale in [1.0, 1e-6, 1e-8, 1e-30, 1e5, 1e30] {
                let x: Vec<f32> = normal.iter().map(|v| v * scale).collect();
                let error = distance2(&x, &decoded(kind, &x));
                let ErrorBound::Contractive { delta } = Half::new(kind).error_bound(&x) else { panic!() };
                assert!((0.0..=1.0).contains(&delta));
                assert!(error <= (1.0 - delta) * norm2(&x), "{kind:?} {scale}");
            }
        }
        let ErrorBound::Contractive { delta } = Half::new(HalfKind::F16).error_bound(&[1.0, -0.5]) else { panic!() };
        assert!(1.0 - delta < 2.4e-7);
    }
}
