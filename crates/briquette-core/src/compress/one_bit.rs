//! One bit a value, and what its 0 and its 1 stand for: the means of both halves.
//!
//! **Why, and when not.** As [`ScaledSign`](super::ScaledSign), with a value of its own for either sign: better where
//! positive and negative values differ in size, equal where they do not, for four bytes more a bucket.
//!
//! **Method.** Per bucket: values of at least 0 become their mean, values below 0 theirs.
//!
//! **On the wire.** `16 + 8·⌈d/bucket⌉ + ⌈d/8⌉` bytes.
//!
//! **Properties.** `‖x − C(x)‖² = ‖x‖² − Σ (n₊m₊² + n₋m₋²)` (each half is projected onto its mean), so contractive with
//! that kept share as δ; never below [`ScaledSign`](super::ScaledSign)'s. What is left of each half sums to zero. Needs error
//! feedback.
//!
//! **Knobs.** `bucket` in values; the whole vector if not set.
//!
//! **Deviations.** Buckets instead of a matrix's columns. The paper's unquantized start is a schedule's business.
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

use super::{Class, Compressor, Knobs, Spec, bucket_size};
use crate::bits::pack_signs;
use crate::error::ConfigError;
use crate::math::{norm1, norm2};
use crate::{CompressionFactor, Key, Message};

/// Two reconstruction values; see the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OneBit {
    bucket: Option<u32>,
}

impl OneBit {
    /// Two values for the whole vector.
    pub fn new() -> Self {
        OneBit::default()
    }

    /// Two values for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] when `bucket` is 0 or has more than 32 bits.
    pub fn bucketed(bucket: usize) -> Result<Self, ConfigError> {
        Ok(OneBit { bucket: Some(bucket_size(bucket)?) })
    }
}

/// Mean of the values of at least 0, mean of the others, and how many of each.
fn halves(x: &[f32]) -> [(f32, usize); 2] {
    let (mut sum, mut negative) = ([0.0_f64; 8], [0_u32; 8]);
    for chunk in x.chunks(8) {
        for ((sum, negative), &v) in sum.iter_mut().zip(&mut negative).zip(chunk) {
            *sum += f64::from(v);
            *negative += u32::from(v < 0.0);
        }
    }
    let (sum, magnitudes) = (sum.iter().sum::<f64>(), norm1(x));
    let below = negative.iter().map(|n| *n as usize).sum::<usize>();
    let above = x.len() - below;
    let mean = |sum: f64, count: usize| if count > 0 { (sum / 2.0 / count as f64) as f32 } else { 0.0 };
    // Σ₊ + Σ₋ = sum and Σ₊ − Σ₋ = magnitudes.
    [(mean(magnitudes + sum, above), above), (mean(sum - magnitudes, below), below)]
}

impl Compressor for OneBit {
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::of_bits(1)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let bucket = self.bucket.unwrap_or(x.len().max(1) as u32);
        let (levels, bits) = out.two_level(x.len(), bucket);
        levels.extend(x.chunks(bucket as usize).map(|x| halves(x).map(|(mean, _)| mean)));
        pack_signs(x, bits);
    }

    fn class(&self, x: &[f32]) -> Class {
        let total = norm2(x);
        if total == 0.0 {
            return Class::Contractive { delta: 1.0 };
        }
        let kept = |x: &[f32]| halves(x).iter().map(|&(m, n)| n as f64 * f64::from(m).powi(2)).sum::<f64>();
        let kept: f64 = x.chunks(self.bucket.map_or(x.len(), |b| b as usize)).map(kept).sum();
        // The margin covers the rounding of the means.
        Class::Contractive { delta: (kept / total - 1e-6).clamp(0.0, 1.0) }
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
    const NEEDS_FEEDBACK: bool = true;

    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        if name != "one-bit" {
            return Ok(None);
        }
        match knobs.number("bucket of one-bit SGD", usize::MAX)? {
            usize::MAX => Ok(Some(OneBit::new())),
            bucket => OneBit::bucketed(bucket).map(Some),
        }
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
            let Class::Contractive { delta } = OneBit::new().class(&x) else { panic!() };
            prop_assert!(distance2(&x, &out) <= (1.0 - delta) * norm2(&x));
        }
    }
}
