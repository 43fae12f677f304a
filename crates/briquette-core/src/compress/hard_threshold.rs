//! Hard threshold: keeps every magnitude of at least `λ`.
//!
//! **Why, and when not.** One pass, and no target to miss: messages grow and shrink with the vector. Under error feedback no residual ever
//! reaches `λ`, which top-k does not guarantee. Not if bytes must be planned: a `λ` that is too small sends everything (with indices), one
//! that is too large sends nothing for many steps.
//!
//! **Method.** `C(x)ᵢ = xᵢ` if `|xᵢ| ≥ λ`, else 0.
//!
//! | paper | here |
//! |---|---|
//! | `λ` | `threshold` |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4n` bytes for `n` values with gaps `gⱼ`, `r` the best Rice parameter.
//!
//! **Properties.** The error is below `λ` in every coordinate: `‖x − C(x)‖² < d·λ²`, an absolute bound. Relative to `‖x‖` it is contractive
//! with δ = n/d for the `n` of this vector, which may be 0. Kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** `λ`, in the unit of the vector; above 0 and finite. No default: it depends on the model, the loss and the learning rate. It
//! is not a compression ratio, so controllers cannot adjust it, and the nominal ratio is 1.
//!
//! **Deviations.** None.
//!
//! **Reference.** A. N. Sahu, A. Dutta, A. M. Abdelmoniem, T. Banerjee, M. Canini, P. Kalnis, *Rethinking Gradient
//! Sparsification as Total Error Minimization*, NeurIPS 2021 (arXiv 2108.00951).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, hard_threshold::HardThreshold};
//! let mut message = Message::default();
//! HardThreshold::new(2.0)?.compress_into(&[1.0, -5.0, 2.0, -1.9], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [0.0, -5.0, 2.0, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::threshold::{class_of, count, floor_of, scan};
use crate::error::ConfigError;
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// Keeps magnitudes that reach a threshold; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "hard-threshold",
    help = "every value of at least this magnitude, which has no default",
    representatives("hard-threshold:0.75")
)]
pub struct HardThreshold {
    // Its default is refused: no threshold is sensible for all models.
    #[setting(range = "(0, inf)", syntax = "LAMBDA")]
    threshold: f32,
}

impl HardThreshold {
    /// Creates a compressor that keeps magnitudes of at least `threshold`, above 0 and finite.
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn new(threshold: f32) -> Result<Self, ConfigError> {
        HardThreshold { threshold }.checked()
    }

    fn floor(&self) -> u32 {
        floor_of(self.threshold.into())
    }
}

impl Compressor for HardThreshold {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::HardThreshold { threshold: self.threshold })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (indices, values) = out.start_sparse_f32(x.len());
        values.clear();
        scan(x, 0, self.floor(), |index, v| {
            indices.push(index);
            values.push(v);
        });
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        class_of(count(x, self.floor()), x)
    }

    fn selects(&self) -> bool {
        true
    }
}

impl CompressorSettings for HardThreshold {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::LARGEST
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::threshold::tests::awkward;
    use crate::laws::compress::{edges, kept};
    use proptest::prelude::*;

    fn at(threshold: f32) -> HardThreshold {
        HardThreshold::new(threshold).unwrap()
    }

    #[test]
    fn three_by_hand() {
        let x = [0.5, -0.25, 0.49, -0.5, 0.0, 8.0];
        assert_eq!(kept(at(0.5), &x, Key::new(0)), [0, 3, 5]);
        assert_eq!(at(0.5).error_bound(&x), ErrorBound::Contractive { delta: 0.5 });
        // 0.25² + 0.49², below 6·0.5².
        let mut message = Message::default();
        at(0.5).compress_into(&x, Key::new(0), &mut message);
        assert!((message.error_energy(&x) - (0.0625 + 0.2401)).abs() < 1e-6);
    }

    #[test]
    fn edges_are_finite_and_settings_are_checked() {
        for x in edges() {
            assert_eq!(kept(at(f32::from_bits(1)), &x, Key::new(0)).len(), x.iter().filter(|v| **v != 0.0).count());
            assert_eq!(kept(at(f32::MAX), &x, Key::new(0)).len(), x.iter().filter(|v| v.abs() == f32::MAX).count());
        }
        assert!([0.0, -1.0, f32::NAN, f32::INFINITY].map(HardThreshold::new).iter().all(Result::is_err));
    }

    proptest! {
        #[test]
        fn picks_equal_the_naive_ones(x in proptest::collection::vec(awkward(), 0..200), by in awkward()) {
            let threshold = by.abs().max(f32::from_bits(1));
            let naive: Vec<u32> = (0..x.len() as u32).filter(|&i| x[i as usize].abs() >= threshold).collect();
            prop_assert_eq!(kept(at(threshold), &x, Key::new(0)), naive);
        }
    }
}
