//! Scaled sign: one bit per value, the sign, times the mean magnitude.
//!
//! **Why, and when not.** 32 times fewer bytes for one pass, whatever the vector. Made for error feedback: without it, it does not converge
//! in general. If few values carry the energy, top-k keeps more at equal size.
//!
//! **Method.** `C(x) = (‖x‖₁/d)·sign(x)` per bucket, with `sign(0) = sign(−0) = +1`; a zero bucket stays zero.
//!
//! | paper | here |
//! |---|---|
//! | `‖x‖₁/d` | one of `scales`, rounded to f32 |
//! | `δ` | `delta` of the error bound |
//!
//! **On the wire.** `16 + 4·⌈d/bucket⌉ + ⌈d/8⌉` bytes.
//!
//! **Properties.** `‖C(x) − x‖² = ‖x‖² − ‖x‖₁²/d` exactly, bucket by bucket (to the rounding of the scale): contractive with δ = Σ
//! ‖x_b‖₁²/d_b / ‖x‖², from 1/d for one non-zero value to 1 for equal magnitudes; 2/π for Gaussians. A mean below the smallest denormal
//! rounds to 0, and nothing is sent. Needs error feedback.
//!
//! **Knobs.** `bucket`: values per scale, default the whole vector. Combine with [`Grain::PerSlot`](crate::reduce::gather::Grain::PerSlot) for one
//! scale per tensor, as in the paper.
//!
//! **Reference.** S. P. Karimireddy, Q. Rebjock, S. Stich, M. Jaggi, *Error Feedback Fixes SignSGD and other Gradient
//! Compression Schemes*, ICML 2019 (arXiv 1901.09847): the scaled sign operator and its δ.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, scaled_sign::ScaledSign};
//! let mut message = Message::default();
//! ScaledSign::new().compress_into(&[3.0, -1.0, 0.0, -4.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [2.0, -2.0, 2.0, -2.0]); // (3 + 1 + 0 + 4)/4
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::bucket_size;
use super::buckets::{self, signs_and_sums};
use crate::bits::{pack_signs, packed_len};
use crate::error::ConfigError;
use crate::math::{norm1, norm2};
use crate::message::bucket_count;
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// Sign times mean magnitude; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "sign", help = "one bit a value and one magnitude, of all or of buckets")]
pub struct ScaledSign {
    #[setting(range = "[1, inf)")]
    bucket: Option<u32>,
}

impl ScaledSign {
    /// Creates a compressor with one scale for the whole vector.
    pub fn new() -> Self {
        ScaledSign::default()
    }

    /// Creates a compressor with one scale for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bucket` is 0 or has more than 32 bits.
    pub fn bucketed(bucket: usize) -> Result<Self, ConfigError> {
        Ok(ScaledSign { bucket: Some(bucket_size(bucket)?) })
    }
}

impl Compressor for ScaledSign {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(1)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::ScaledSign { bucket: self.bucket.map(|bucket| bucket as usize) })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let bucket = self.bucket.unwrap_or(x.len().max(1) as u32);
        let (scales, signs) = out.sign(x.len(), bucket);
        let (scales, signs) = (scales.sized(bucket_count(x.len(), bucket)), signs.sized(packed_len(x.len(), 1)));
        let mean = |sum: f64, x: &[f32]| (sum / x.len() as f64) as f32;
        match scales {
            // One scale: its sum and the signs in one pass.
            [scale] => *scale = mean(signs_and_sums(x, signs, false).magnitudes, x),
            _ => {
                let scales = (scales, |x: &[f32]| mean(norm1(x), x));
                buckets::encode((x, bucket), scales, (signs, 1), |segment, signs| pack_signs(segment.x, signs));
            }
        }
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let total = norm2(x);
        if total == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let bucket = self.bucket.map_or(x.len(), |b| b as usize);
        // With the rounded scale a: ‖x‖² − ‖x − C(x)‖² = 2a‖x‖₁ − d·a².
        let kept = |x: &[f32]| {
            let (sum, d) = (norm1(x), x.len() as f64);
            let scale = f64::from((sum / d) as f32);
            scale * (2.0 * sum - d * scale)
        };
        let kept: f64 = x.chunks(bucket).map(kept).sum();
        // The margin covers the summation order.
        ErrorBound::Contractive { delta: (kept / total - 1e-12).clamp(0.0, 1.0) }
    }
}

impl CompressorSettings for ScaledSign {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn compress(sign: ScaledSign, x: &[f32]) -> Message {
        let mut message = Message::default();
        let mut sign = sign;
        sign.compress_into(x, Key::new(0), &mut message);
        message
    }

    #[test]
    fn buckets_by_hand() {
        // Buckets of 2: (1+3)/2 = 2, (0+5)/2 = 2.5, 7/1 = 7; −0 counts as positive.
        let message = compress(ScaledSign::bucketed(2).unwrap(), &[1.0, -3.0, -0.0, -5.0, 7.0]);
        let mut decoded = [0.0; 5];
        message.decode_into(&mut decoded).unwrap();
        assert_eq!(decoded, [2.0, -2.0, 2.5, -2.5, 7.0]);
        assert_eq!(message.encoded_len(), 16 + 4 * 3 + 1);
    }

    #[test]
    fn edges_stay_finite() {
        for x in [&[][..], &[0.0; 9], &[-0.0], &[f32::MAX; 5], &[-f32::MAX, f32::MAX, 1e-45], &[1e-45, -1e-45]] {
            let message = compress(ScaledSign::new(), x);
            let mut decoded = vec![0.0; x.len()];
            message.decode_into(&mut decoded).unwrap();
            assert!(decoded.iter().all(|v| v.is_finite()));
            if x.iter().all(|v| v.abs() == x[0].abs()) {
                assert_eq!(decoded, x, "equal magnitudes are exact");
            }
        }
        assert!(ScaledSign::bucketed(0).is_err());
    }

    proptest! {
        #[test]
        fn error_equals_the_identity(x in proptest::collection::vec(-10.0_f32..10.0, 1..300), bucket in 1..70_usize) {
            let sign = ScaledSign::bucketed(bucket).unwrap();
            let identity: f64 = norm2(&x) - x.chunks(bucket).map(|x| norm1(x).powi(2) / x.len() as f64).sum::<f64>();
            let error = compress(sign, &x).error_energy(&x);
            prop_assert!((error - identity).abs() <= 1e-9 * norm2(&x), "{} {}", error, identity);
            let ErrorBound::Contractive { delta } = sign.error_bound(&x) else { panic!() };
            prop_assert!(error <= (1.0 - delta) * norm2(&x));
        }
    }
}
