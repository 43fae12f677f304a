//! One-bit quantization with two reconstruction values: the means of the positive and of the negative half.
//!
//! **Why, and when not.** As [`ScaledSign`](super::ScaledSign), with a separate magnitude for either sign: better if positive and negative
//! values differ in size, equal if they do not, for four more bytes per bucket.
//!
//! **Method.** Per bucket: values of at least 0 are replaced by their mean, values below 0 by theirs.
//!
//! **On the wire.** `16 + 8·⌈d/bucket⌉ + ⌈d/8⌉` bytes.
//!
//! **Properties.** `‖x − C(x)‖² = ‖x‖² − Σ (n₊m₊² + n₋m₋²)` (each half is projected onto its mean), so contractive with that kept share as
//! δ, which is never below [`ScaledSign`](super::ScaledSign)'s. The residual of each half sums to zero. Needs error feedback.
//!
//! **Knobs.** `bucket` in values; the whole vector if not set.
//!
//! **Deviations.** Buckets instead of a matrix's columns. The paper's unquantized start is left to a schedule.
//!
//! **Reference.** F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, *1-Bit Stochastic Gradient Descent and its Application to
//! Data-Parallel Distributed Training of Speech DNNs*, Interspeech 2014, § 3.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, OneBit}};
//! let mut message = Message::default();
//! OneBit::new().compress_into(&[1.0, -4.0, 3.0, -6.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [2.0, -5.0, 2.0, -5.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::buckets::{self, Sums, signs_and_sums};
use super::{Compressor, ErrorBound, Knobs, Spec, bucket_size};
use crate::bits::{pack_signs, packed_len};
use crate::error::ConfigError;
use crate::math::{norm1, norm2, total};
use crate::message::bucket_count;
use crate::{CompressionFactor, Key, Message};

/// Two reconstruction values; see the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OneBit {
    bucket: Option<u32>,
}

impl OneBit {
    /// Creates a compressor with two values for the whole vector.
    pub fn new() -> Self {
        OneBit::default()
    }

    /// Creates a compressor with two values for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bucket` is 0 or has more than 32 bits.
    pub fn bucketed(bucket: usize) -> Result<Self, ConfigError> {
        Ok(OneBit { bucket: Some(bucket_size(bucket)?) })
    }
}

/// Returns the mean and count of the values of at least 0, and of the others.
fn halves(sums: Sums, count: usize) -> [(f32, usize); 2] {
    let mean = |sum: f64, count: usize| if count > 0 { (sum / 2.0 / count as f64) as f32 } else { 0.0 };
    let above = count - sums.below;
    // Σ₊ + Σ₋ = all and Σ₊ − Σ₋ = magnitudes.
    let [plus, minus] = [sums.magnitudes + sums.all, sums.all - sums.magnitudes];
    [(mean(plus, above), above), (mean(minus, sums.below), sums.below)]
}

fn means(sums: Sums, count: usize) -> [f32; 2] {
    halves(sums, count).map(|(mean, _)| mean)
}

/// Returns the sums of any number of values.
fn sums(x: &[f32]) -> Sums {
    Sums { all: total(x), magnitudes: norm1(x), below: x.iter().filter(|v| **v < 0.0).count() }
}

impl Compressor for OneBit {
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::of_bits(1)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let bucket = self.bucket.unwrap_or(x.len().max(1) as u32);
        let (levels, bits) = out.two_level(x.len(), bucket);
        let (levels, bits) = (levels.sized(bucket_count(x.len(), bucket)), bits.sized(packed_len(x.len(), 1)));
        match levels {
            // One bucket: its sums and the signs in one pass.
            [both] => *both = means(signs_and_sums(x, bits, true), x.len()),
            _ => {
                let levels = (levels, |x: &[f32]| means(sums(x), x.len()));
                buckets::encode((x, bucket), levels, (bits, 1), |segment, bits| pack_signs(segment.x, bits));
            }
        }
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let total = norm2(x);
        if total == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let kept =
            |x: &[f32]| halves(sums(x), x.len()).iter().map(|&(m, n)| n as f64 * f64::from(m).powi(2)).sum::<f64>();
        let kept: f64 = x.chunks(self.bucket.map_or(x.len(), |b| b as usize)).map(kept).sum();
        // The margin covers the rounding of the means.
        ErrorBound::Contractive { delta: (kept / total - 1e-6).clamp(0.0, 1.0) }
    }
}

impl std::fmt::Display for OneBit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bucket {
            None => f.write_str("one-bit"),
            Some(bucket) => write!(f, "one-bit:{bucket}"),
        }
    }
}

impl Spec for OneBit {
    const SYNTAX: &'static str = "one-bit[:BUCKET]";
    const HELP: &'static str = "one bit a value and the means of both halves, of all or of buckets";
    const NEEDS_FEEDBACK: bool = true;
    const SPARSE: bool = false;
    const SEARCHES: bool = false;

    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        if name != "one-bit" {
            return Ok(None);
        }
        match knobs.number("bucket", "bucket of one-bit SGD", usize::MAX)? {
            usize::MAX => Ok(Some(OneBit::new())),
            bucket => OneBit::bucketed(bucket).map(Some),
        }
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn representative() -> Self {
        OneBit { bucket: Some(20) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testkit::{assert_edges, decoded};
    use crate::math::distance2;
    use proptest::prelude::*;

    #[test]
    fn buckets_by_hand() {
        // Buckets of 3: (0 + 4)/2 = 2 and −1; then 5, and nothing below 0.
        let mut one_bit = OneBit::bucketed(3).unwrap();
        assert_eq!(decoded(&mut one_bit, &[0.0, -1.0, 4.0, 5.0], Key::new(0)), [2.0, -1.0, 2.0, 5.0]);
        // Kept: 2·2² + 1·1² + 1·5² = 34 of 1 + 16 + 25 = 42. In one bucket: 3·3² + 1 = 28.
        for (one_bit, kept) in [(one_bit, 34.0), (OneBit::new(), 28.0)] {
            let ErrorBound::Contractive { delta } = one_bit.error_bound(&[0.0, -1.0, 4.0, 5.0]) else { panic!() };
            assert!((delta - kept / 42.0).abs() < 2e-6, "{delta}");
        }
    }

    #[test]
    fn edges_stay_finite_and_settings_are_checked() {
        assert_edges(&mut OneBit::new());
        assert_edges(&mut OneBit::bucketed(7).unwrap());
        assert!(OneBit::bucketed(0).is_err());
    }

    proptest! {
        #[test]
        fn what_is_left_of_each_half_sums_to_zero(x in proptest::collection::vec(-10.0_f32..10.0, 1..300)) {
            let out = decoded(&mut OneBit::new(), &x, Key::new(0));
            for negative in [false, true] {
                let left: f64 = x.iter().zip(&out).filter(|(x, _)| (**x < 0.0) == negative)
                    .map(|(x, c)| f64::from(*x) - f64::from(*c)).sum();
                prop_assert!(left.abs() < 1e-3, "{}", left);
            }
            let ErrorBound::Contractive { delta } = OneBit::new().error_bound(&x) else { panic!() };
            prop_assert!(distance2(&x, &out) <= (1.0 - delta) * norm2(&x));
        }
    }
}
