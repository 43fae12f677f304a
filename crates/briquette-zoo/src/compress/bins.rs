//! Binned quantization: codes of 1 to 4 bits for equal bins around the mean; a bin's values are replaced by their mean.
//!
//! **Why, and when not.** Two or three bits per value, for values whose distribution is not known: the means adapt to it. Meant for the values that a
//! sparsifier keeps (`chunk-topk:64x+bins`), which have no values near zero. Biased, so error feedback is necessary.
//!
//! **Method.** Per bucket, with mean `m` and standard deviation `σ` of its values: `2^b` bins of equal width over `m ± kσ`, the outer two open. The
//! code of a value is the number of its bin, and a bin's level is the mean of its values (0 for an empty bin).
//!
//! | paper | here |
//! |---|---|
//! | `n_bins` 4 | `bits` 2 |
//! | `range_in_sigmas` 6, the width of all bins | `sigmas` `k` 3, half of that |
//!
//! **On the wire.** `17 + 4·2^b·⌈d/bucket⌉ + ⌈b·d/8⌉` bytes, or one less with one bit.
//!
//! **Properties.** `‖x − C(x)‖² = ‖x‖² − Σ nⱼmⱼ²` (each bin is projected onto its mean `mⱼ`), so contractive with that kept share as δ. The errors of
//! each bin sum to zero. Needs error feedback.
//!
//! **Knobs.** `bits` `b` 1 to 4, default 2; `bucket` in values, the whole vector if not set; `sigmas` `k` above 0, default 1.5.
//!
//! **Deviations.** The paper's code rounds to the nearest of `2^b` centers that begin at `m − 3σ`: its bins are shifted by half a width, and the
//! highest one begins at `m + 0.75σ`. Here they are symmetric. With 2 bits on normal values, `k = 1.5` keeps 0.87 of the energy, `k = 3` 0.84.
//!
//! **Reference.** A. Sarfi, B. Thérien, J. Lidin, E. Belilovsky, *Communication Efficient LLM Pre-training with SparseLoCo*, 2025 (arXiv 2508.15706),
//! 2-bit quantization.
//!
//! ```
//! use briquette_core::compress::Compressor;
//! use briquette_core::{Key, Message};
//! use briquette_zoo::compress::bins::Bins;
//! let (mut message, mut decoded) = (Message::default(), [0.0; 6]);
//! Bins::new(2)?.compress_into(&[-5.0, -3.0, -1.0, 1.0, 3.0, 5.0], Key::new(0), &mut message);
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [-4.0, -4.0, -1.0, 1.0, 4.0, 4.0]); // σ = 3.4: edges at ±2.6 and 0
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::compress::{Compressor, ErrorBound, bucket_size};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::math::norm2;
use briquette_core::{CompressionRatio, Key, Message};

/// Codes of few bits for equal bins; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "bins",
    help = "2 bits a value (1 to 4) and the mean of each bin, of all or of buckets",
    places = 2,
    representatives("bins:2:20")
)]
pub struct Bins {
    #[setting(default = 2, range = "[1, 4]")]
    bits: u8,
    #[setting(range = "[1, inf)")]
    bucket: Option<u32>,
    #[setting(default = 1.5, range = "(0, inf)")]
    sigmas: f64,
}

impl Bins {
    /// Creates a compressor with `2^bits` levels for the whole vector.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bits` is not 1 to 4.
    pub fn new(bits: u8) -> Result<Self, ConfigError> {
        Bins { bits, ..Bins::default() }.checked()
    }

    /// Sets the number of values that share their levels.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `bucket` is 0 or has more than 32 bits.
    pub fn bucketed(self, bucket: usize) -> Result<Self, ConfigError> {
        Ok(Bins { bucket: Some(bucket_size(bucket)?), ..self })
    }

    /// Appends the codes of a bucket, and returns the number of its values in each bin and their means.
    fn encode(&self, x: &[f32], codes: &mut Vec<u8>) -> [(usize, f32); 16] {
        let (count, bins) = (x.len().max(1) as f64, 1 << self.bits);
        let mean = x.iter().map(|v| f64::from(*v)).sum::<f64>() / count;
        let deviation = (x.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / count).sqrt();
        let width = 2.0 * self.sigmas * deviation / f64::from(bins);
        let (low, per_bin) = (mean - self.sigmas * deviation, if width > 0.0 { 1.0 / width } else { 0.0 });
        let mut sums = [(0, 0.0); 16];
        for v in x {
            // Saturating: the outer bins are open.
            let code = (((f64::from(*v) - low) * per_bin) as u8).min(bins as u8 - 1);
            codes.push(code);
            let (count, sum) = &mut sums[usize::from(code)];
            (*count, *sum) = (*count + 1, *sum + f64::from(*v));
        }
        sums.map(|(count, sum)| (count, if count > 0 { (sum / count as f64) as f32 } else { 0.0 }))
    }

    fn buckets<'x>(&self, x: &'x [f32]) -> std::slice::Chunks<'x, f32> {
        x.chunks(self.bucket.map_or(x.len().max(1), |bucket| bucket as usize))
    }
}

impl Compressor for Bins {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(self.bits)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (mut codes, mut levels) = (Vec::with_capacity(x.len()), Vec::new());
        for bucket in self.buckets(x) {
            let means = self.encode(bucket, &mut codes);
            levels.extend(means[..1 << self.bits].iter().map(|(_, mean)| mean));
        }
        let bucket = self.bucket.map_or(x.len().max(1), |bucket| bucket as usize);
        out.write_table(self.bits, bucket, &levels, &codes).expect("means of finite values, and codes of their number");
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let total = norm2(x);
        if total == 0.0 {
            return ErrorBound::Contractive { delta: 1.0 };
        }
        let kept = |bucket: &[f32]| {
            let means = self.encode(bucket, &mut Vec::new());
            means.iter().map(|(count, mean)| *count as f64 * f64::from(*mean).powi(2)).sum::<f64>()
        };
        let kept: f64 = self.buckets(x).map(kept).sum();
        // The margin covers the rounding of the means.
        ErrorBound::Contractive { delta: (kept / total - 1e-6).clamp(0.0, 1.0) }
    }
}

impl CompressorSettings for Bins {
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
    use briquette_core::compress::coded::Coded;
    use briquette_core::laws::compress::{assert_edges, decoded, noise};
    use briquette_core::math::distance2;
    use proptest::prelude::*;

    use crate::compress::chunk_top_k::ChunkTopK;
    use crate::compress::one_bit::OneBit;

    /// Mean 0, σ = √(25 + 9)/2 … by hand: the values ±5 and ±3 have σ = √17 = 4.12, and edges at 0 and ±3.09.
    #[test]
    fn four_bins_by_hand() {
        let mut message = Message::default();
        Bins::new(2).unwrap().compress_into(&[5.0, 3.0, -3.0, -5.0], Key::new(0), &mut message);
        assert_eq!(message.encoded_len(), 17 + 16 + 1);
        let mut out = [0.0; 4];
        message.decode_into(&mut out).unwrap();
        assert_eq!(out, [5.0, 3.0, -3.0, -5.0]);
        // Equal values have no deviation: the lowest bin has all of them.
        assert_eq!(decoded(&mut Bins::new(3).unwrap(), &[7.0; 5], Key::new(0)), [7.0; 5]);
    }

    /// One bit divides at the mean, as OneBit does at 0.
    #[test]
    fn one_bit_of_values_with_mean_zero_is_one_bit() {
        let mut x = noise("gauss", 1000, 3);
        let mean = x.iter().sum::<f32>() / 1000.0;
        x.iter_mut().for_each(|v| *v -= mean);
        let rest = x.iter().map(|v| f64::from(*v)).sum::<f64>();
        x[0] -= rest as f32;
        let (bins, halves) =
            (decoded(&mut Bins::new(1).unwrap(), &x, Key::new(0)), decoded(&mut OneBit::new(), &x, Key::new(0)));
        assert!(bins.iter().zip(&halves).all(|(a, b)| (a - b).abs() < 1e-5));
    }

    proptest! {
        /// Every value is replaced by the mean of the values with its code, in f64.
        #[test]
        fn levels_are_the_means_of_their_bins(
            x in proptest::collection::vec(-1e3_f32..1e3, 1..300), bits in 1_u8..=4, bucket in 1_usize..100,
        ) {
            let mut bins = Bins::new(bits).unwrap().bucketed(bucket).unwrap();
            let out = decoded(&mut bins, &x, Key::new(0));
            for (x, out) in x.chunks(bucket).zip(out.chunks(bucket)) {
                for level in out {
                    let own: Vec<f64> = x.iter().zip(out).filter(|(_, o)| *o == level).map(|(v, _)| f64::from(*v)).collect();
                    let mean = own.iter().sum::<f64>() / own.len() as f64;
                    prop_assert!((mean - f64::from(*level)).abs() <= 1e-4 * (1.0 + mean.abs()), "{mean} {level}");
                }
            }
            let lost = distance2(&x, &out);
            let ErrorBound::Contractive { delta } = bins.error_bound(&x) else { panic!() };
            prop_assert!(lost <= (1.0 - delta) * norm2(&x) * (1.0 + 1e-9));
        }
    }

    /// Claim: SparseLoCo's message, 64 of each 4096 values in 2 bits, is 146 times smaller than f32 with indices of 12 bits; with Rice codes it
    /// is more than 210 times smaller.
    #[test]
    fn a_message_of_sparse_loco_is_more_than_210_times_smaller() {
        let x = noise("gauss", 1 << 20, 5);
        let mut message = Message::default();
        let chunks = ChunkTopK::new(1.0 / 64.0, 4096).unwrap();
        Coded::new(chunks, Bins::new(2).unwrap()).compress_into(&x, Key::new(0), &mut message);
        let ratio = (4 << 20) as f64 / message.encoded_len() as f64;
        let fixed_width = 32.0 * 64.0 / 14.0_f64;
        assert!((fixed_width - 146.0).abs() < 0.5 && ratio > 210.0, "{ratio}");
    }

    /// The constants of the module's note.
    #[test]
    fn more_energy_is_kept_with_a_narrow_range() {
        let x = noise("gauss", 100_000, 9);
        let kept = |sigmas: f64| {
            1.0 - distance2(&x, &decoded(&mut Bins { sigmas, ..Bins::default() }, &x, Key::new(0))) / norm2(&x)
        };
        assert!((kept(1.5) - 0.87).abs() < 0.005 && (kept(3.0) - 0.84).abs() < 0.005, "{} {}", kept(1.5), kept(3.0));
    }

    #[test]
    fn edges_stay_finite() {
        assert_edges(&mut Bins::new(2).unwrap());
        assert_edges(&mut Bins::new(4).unwrap().bucketed(3).unwrap());
    }

    #[test]
    fn settings_out_of_range_are_named() {
        assert!(Bins::new(0).unwrap_err().to_string().contains("bits of bins must be 1 to 4"));
        assert!(Bins::new(5).is_err() && Bins::new(2).unwrap().bucketed(0).is_err());
    }
}
