//! One-bit quantization with two reconstruction values: the means of the positive and of the negative half.
//!
//! **Why, and when not.** As [`ScaledSign`](briquette_core::compress::scaled_sign::ScaledSign), with a separate magnitude for either sign: better if positive and negative
//! values differ in size, equal if they do not, for four more bytes per bucket.
//!
//! **Method.** Per bucket: values of at least 0 are replaced by their mean, values below 0 by theirs.
//!
//! **On the wire.** `16 + 8·⌈d/bucket⌉ + ⌈d/8⌉` bytes.
//!
//! **Properties.** `‖x − C(x)‖² = ‖x‖² − Σ (n₊m₊² + n₋m₋²)` (each half is projected onto its mean), so contractive with that kept share as
//! δ, which is never below [`ScaledSign`](briquette_core::compress::scaled_sign::ScaledSign)'s. The residual of each half sums to zero. Needs error feedback.
//!
//! **Knobs.** `bucket` in values; the whole vector if not set.
//!
//! **Deviations.** Buckets instead of a matrix's columns. The paper's unquantized start is left to a schedule.
//!
//! **Reference.** F. Seide, H. Fu, J. Droppo, G. Li, D. Yu, *1-Bit Stochastic Gradient Descent and its Application to
//! Data-Parallel Distributed Training of Speech DNNs*, Interspeech 2014, § 3.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_zoo::compress::one_bit::OneBit;
//! let mut message = Message::default();
//! OneBit::new().compress_into(&[1.0, -4.0, 3.0, -6.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [2.0, -5.0, 2.0, -5.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use briquette_core::compress::buckets::{Sums, write_two_level};
use briquette_core::compress::{Compressor, ErrorBound, bucket_size};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::math::norm2;
use briquette_core::{CompressionRatio, Key, Message};

/// Two reconstruction values; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "one-bit",
    help = "one bit a value and the means of both halves, of all or of buckets",
    representatives("one-bit:20")
)]
pub struct OneBit {
    #[setting(range = "[1, inf)")]
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

impl Compressor for OneBit {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(1)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let bucket = self.bucket.unwrap_or(x.len().max(1) as u32);
        write_two_level((x, bucket), means, out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let total = norm2(x);
        if total == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let kept =
            |x: &[f32]| halves(Sums::of(x), x.len()).iter().map(|&(m, n)| n as f64 * f64::from(m).powi(2)).sum::<f64>();
        let kept: f64 = x.chunks(self.bucket.map_or(x.len(), |b| b as usize)).map(kept).sum();
        // The margin covers the rounding of the means.
        ErrorBound::Contractive { delta: (kept / total - 1e-6).clamp(0.0, 1.0) }
    }
}

impl CompressorSettings for OneBit {
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
    use briquette_core::laws::compress::{assert_edges, decoded};
    use briquette_core::math::distance2;
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
