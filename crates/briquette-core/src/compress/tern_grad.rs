//! TernGrad: stochastic ternary quantization to minus the scale, zero, or plus the scale.
//!
//! **Why, and when not.** Two bits per value, unbiased, stateless. Its noise is large (`‖x‖∞‖x‖₁ − ‖x‖²`, often several times `‖x‖²`), so
//! outliers are clipped first. With error feedback [`ScaledSign`](crate::compress::scaled_sign::ScaledSign) does better in half the bits.
//!
//! **Method.** Clip to `±c·σ`, `σ² = ‖x‖²/d`. With `s = max|xᵢ|` after clipping, `C(x)ᵢ = s·sign(xᵢ)` with probability `|xᵢ|/s`, else 0.
//! Use [`Grain::PerSlot`](crate::reduce::gather::Grain::PerSlot) for one scale per layer, as in the paper.
//!
//! *Random bits.* As in [`Qsgd`](crate::compress::qsgd::Qsgd): apart from clipping, this is QSGD with one level and the max norm.
//!
//! **On the wire.** `21 + ⌈d/4⌉` bytes.
//!
//! **Properties.** Unbiased for the clipped vector, with that vector's exact variance `s‖x‖₁ − ‖x‖²`. Without clipping unbiased with ω at
//! most `(√d − 1)/2`. With clipping biased, and the error bound is the error on the given vector.
//!
//! **Knobs.** `clip`, in standard deviations (default 2.5, the paper's), or none.
//!
//! **Deviations.** `σ` is taken around zero, not around the mean, which would clip a layer of equal values to nothing. Scales are
//! rank-local. With the paper's shared scale, codes are summed in transit; see `TernaryAllReduce` in `briquette-zoo`.
//!
//! **Reference.** W. Wen, C. Xu, F. Yan, C. Wu, Y. Wang, Y. Chen, H. Li, *TernGrad: Ternary Gradients to Reduce
//! Communication in Distributed Deep Learning*, NIPS 2017 (arXiv 1705.07878), equations 1 to 3 and § 4.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, tern_grad::TernGrad};
//! let mut message = Message::default();
//! // ±4 is the scale, 0 is 0: nothing is random.
//! TernGrad::unclipped().compress_into(&[4.0, 0.0, -4.0], Key::new(0), &mut message);
//! let mut decoded = [1.0; 3];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [4.0, 0.0, -4.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::dither::{Linear, Quantizer, block_codes};
use crate::error::ConfigError;
use crate::math::{largest, norm2};
use crate::message::{Coding, Grid};
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{BLOCK, CompressionRatio, Key, Message};

/// Stochastic ternary values; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "terngrad",
    help = "minus one, zero or one times a scale; clipped at this many standard deviations (2.5)"
)]
pub struct TernGrad {
    #[serde(with = "clip")]
    #[setting(default = Some(Self::default_clip()), range = "(0, inf)", syntax = "CLIP|none")]
    clip: Option<f32>,
}

/// Text of a clip limit: a number, or `none`.
mod clip {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(clip: &Option<f32>, serializer: S) -> Result<S::Ok, S::Error> {
        match clip {
            Some(clip) => serializer.collect_str(clip),
            None => serializer.serialize_str("none"),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f32>, D::Error> {
        let text = String::deserialize(deserializer)?;
        match &*text {
            "none" => Ok(None),
            number => {
                number.parse().map(Some).map_err(|_| D::Error::custom(format!("`{text}` is not a number or none")))
            }
        }
    }
}

impl TernGrad {
    /// Returns the paper's clip limit.
    pub fn default_clip() -> f32 {
        2.5
    }

    /// Creates a compressor that clips at 2.5 standard deviations.
    pub fn new() -> Self {
        TernGrad::default()
    }

    /// Creates a compressor that clips at `deviations` standard deviations.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if that is not finite and above 0.
    pub fn clipped(deviations: f32) -> Result<Self, ConfigError> {
        TernGrad { clip: Some(deviations) }.checked()
    }

    /// Creates a compressor without clipping: unbiased.
    pub fn unclipped() -> Self {
        TernGrad { clip: None }
    }

    /// Returns the scale: the largest magnitude after clipping.
    pub fn scale(self, x: &[f32]) -> f32 {
        let limit = self.clip.map_or(f64::INFINITY, |c| f64::from(c) * (norm2(x) / x.len().max(1) as f64).sqrt());
        largest(x).min(limit as f32)
    }

    /// Writes the codes of `x`, clipped to `own`, in units of `scale`, which is at least `own`.
    pub fn codes(x: &[f32], (own, scale): (f32, f32), key: Key, codes: &mut [u8]) {
        let mut clipped = [0.0; BLOCK];
        for (block, (x, codes)) in x.chunks(BLOCK).zip(codes.chunks_mut(BLOCK)).enumerate() {
            let clipped = &mut clipped[..x.len()];
            clipped.iter_mut().zip(x).for_each(|(clipped, x)| *clipped = x.clamp(-own, own));
            block_codes(clipped, (scale, 1), (key, block), codes);
        }
    }

    /// Returns `E‖x − C(x)‖²`, exactly: the clipping error plus the variance.
    pub fn error(&self, x: &[f32]) -> f64 {
        let scale = f64::from(self.scale(x));
        let of = |v: &f32| {
            let (v, clipped) = (f64::from(v.abs()), f64::from(v.abs()).min(scale));
            (v - clipped).powi(2) + clipped * (scale - clipped)
        };
        x.iter().map(of).sum()
    }
}

impl Compressor for TernGrad {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(2)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::TernGrad { clip: self.clip })
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (grid, bucket) = (Grid::Linear { levels: 1 }, x.len().max(1) as u32);
        let quantizer = Quantizer { grid, coding: Coding::Fixed, bucket, level: Linear(1) };
        quantizer.quantize(x, |x| self.scale(x), Some(key), out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let energy = norm2(x);
        if self.clip.is_some() {
            return ErrorBound::Biased { omega: if energy > 0.0 { self.error(x) / energy } else { 0.0 } };
        }
        // The supremum over vectors of this length: one value of 1, the others of t.
        ErrorBound::Unbiased { omega: ((x.len().max(1) as f64).sqrt() - 1.0) / 2.0 }
    }
}

impl CompressorSettings for TernGrad {
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
    use crate::compress::{Norm, qsgd::Qsgd};
    use crate::laws::compress::{assert_edges, assert_unbiased, decoded};

    #[test]
    fn clipping_by_hand() {
        // ‖x‖² = 100 + 24·1 = 124, σ = √(124/25) = 2.227, limit 2.5·σ = 5.568: the only outlier becomes the scale.
        let mut x = vec![1.0; 25];
        x[3] = -10.0;
        let limit = (2.5 * (124.0_f64 / 25.0).sqrt()) as f32;
        let out = decoded(&mut TernGrad::new(), &x, Key::new(1));
        assert_eq!(out[3], -limit);
        assert!(out.iter().all(|v| [-limit, 0.0, limit].contains(v)));
        // (10 − 5.568)² + 24·1·(5.568 − 1)
        assert!((TernGrad::new().error(&x) - (4.4322_f64.powi(2) + 24.0 * 4.5678)).abs() < 0.01);
    }

    #[test]
    fn without_clipping_it_is_qsgd_with_one_level_and_the_max_norm() {
        let x: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin()).collect();
        let mut qsgd = Qsgd::with_levels(1, x.len(), Norm::Max).unwrap();
        assert_eq!(decoded(&mut TernGrad::unclipped(), &x, Key::new(3)), decoded(&mut qsgd, &x, Key::new(3)));
        assert!((TernGrad::unclipped().error(&x) / qsgd.variance(&x) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn edges_stay_finite_and_settings_are_checked() {
        assert_edges(&mut TernGrad::new());
        assert_edges(&mut TernGrad::unclipped());
        assert!(TernGrad::clipped(0.0).is_err() && TernGrad::clipped(f32::NAN).is_err());
        // A layer of equal values is not clipped.
        assert_eq!(decoded(&mut TernGrad::new(), &[0.7; 9], Key::new(0)), [0.7; 9]);
    }

    #[test]
    fn draws_are_unbiased_with_the_exact_variance_and_the_bound_is_reached() {
        let x: Vec<f32> = (0..40).map(|i| (i as f32 * 1.7).sin()).collect();
        let exact = TernGrad::unclipped().error(&x);
        assert_unbiased(&mut TernGrad::unclipped(), &x, exact);
        // One 1 and m = d − 1 values t = 1/(√d + 1): m·t(1 − t)/(1 + m·t²) = (√d − 1)/2.
        let mut worst = vec![1.0 / (20.0 + 1.0); 400];
        worst[7] = 1.0;
        let ErrorBound::Unbiased { omega } = TernGrad::unclipped().error_bound(&worst) else { panic!() };
        assert!((TernGrad::unclipped().error(&worst) / norm2(&worst) / omega - 1.0).abs() < 1e-5);
    }
}
