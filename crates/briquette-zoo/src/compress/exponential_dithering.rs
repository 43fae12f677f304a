//! Exponential dithering: stochastic rounding to exponentially spaced levels, for many orders of magnitude in few bits.
//!
//! **Why, and when not.** With `s` levels the smallest is `b^(1−s)` of the scale, so even at 4 bits a bucket of 512 loses little to zeros.
//! At equal bits it has less noise than evenly spaced levels ([`Qsgd`](briquette_core::compress::qsgd::Qsgd)) if values differ by orders of magnitude. From about 6
//! bits on, even levels are finer where the energy is.
//!
//! **Method.** Per bucket with scale `‖x‖_p` the levels are `b^(j−s)`, `j = 1 … s`, and 0. For `a = |xᵢ|/scale` between the neighbors
//! `l ≤ a < u`, the level is `u` with probability `(a − l)/(u − l)`, else `l`. Base 2 is natural dithering.
//!
//! | paper | here |
//! |---|---|
//! | `s`, `b` | `levels`, `base` |
//! | `p` | `norm`: 1, 2 or ∞ |
//!
//! *Random bits.* As in [`Qsgd`](briquette_core::compress::qsgd::Qsgd).
//!
//! **On the wire.** `21 + 4·⌈d/bucket⌉ + ⌈d·bits/8⌉` bytes, `bits = 1 + ⌈log₂(s + 1)⌉`.
//!
//! **Properties.** Unbiased, with `n = min(bucket, d)`, `r = min(p, 2)` and `t = n^(1/r)·b^(1−s)`:
//! ω = `(b + 1/b + 2)/4 − 1 + t·min(1, t)`. The exact variance is `Σ scale²·(a − l)(u − a)`:
//! [`ExponentialDithering::variance`]. With base 2 and all 127 levels it makes the decisions of
//! [`Natural`](briquette_core::compress::natural::Natural) on a vector whose scale is a power of two.
//!
//! **Knobs.** `base` 1.01 to 65536 (default 2), `levels` 1 to 127 (default 7, that is 4 bits), `bucket` in values (default
//! 512), `norm` (default max).
//!
//! **Deviations.** Buckets, and codes of fixed width.
//!
//! **Reference.** A. Beznosikov, S. Horváth, P. Richtárik, M. Safaryan, *On Biased Compression for Distributed Learning*,
//! JMLR 2023 (arXiv 2002.12410), exponential dithering; S. Horváth et al., *Natural Compression for Distributed Deep
//! Learning*, 2019 (arXiv 1905.10988), natural dithering, theorem 7.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, Norm};
//! use briquette_zoo::compress::exponential_dithering::ExponentialDithering;
//! let mut message = Message::default();
//! // Levels 8, 4, 2 and 0: all four are on one, so nothing is random.
//! let mut dither = ExponentialDithering::new(2.0, 3, 512, Norm::Max)?;
//! dither.compress_into(&[8.0, -4.0, 2.0, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [8.0, -4.0, 2.0, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::exponential::{Levels, exponential};
use briquette_core::compress::{Compressor, ErrorBound, Norm, Tunable, bucket_size};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::message::Grid;
use briquette_core::{CompressionRatio, Key, Message};

/// Stochastic rounding to powers of a base; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "dither",
    help = "levels (7) that shrink by the base (2), in buckets (512)",
    places = 4,
    representatives("dither:2:7:64:l2"),
    combinations(
        "reducer=gather:topk:8x+dither:2:7:64:l2 feedback=error",
        "reducer=gather:biased-random:8x+dither:2:7:64:l2 feedback=error",
    )
)]
pub struct ExponentialDithering {
    #[setting(default = 2.0, range = "[1.01, 65536]")]
    base: f32,
    #[setting(default = 7, range = "[1, 127]")]
    levels: u8,
    #[setting(default = 512, range = "[1, inf)")]
    bucket: u32,
    #[setting(syntax = "max|l2|l1")]
    norm: Norm,
}

impl ExponentialDithering {
    /// Creates a compressor with `levels` of each sign, each `base` times the one below, and one scale for every `bucket` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `base` is not in 1.01 to 65536, `levels` not in 1 to 127, or `bucket` is 0 or has more than 32 bits.
    pub fn new(base: f32, levels: u8, bucket: usize, norm: Norm) -> Result<Self, ConfigError> {
        ExponentialDithering { base, levels, bucket: bucket_size(bucket)?, norm }.checked()
    }

    fn grid(self) -> Grid {
        Grid::Exponential { base: self.base, levels: self.levels }
    }

    /// Returns `E‖x − C(x)‖²`, exactly.
    pub fn variance(&self, x: &[f32]) -> f64 {
        let levels = Levels::new(self.base, self.levels);
        let bucket = |x: &[f32]| {
            let scale = self.norm.of(x);
            let of = |v: &f32| levels.variance(v.abs() / scale) * f64::from(scale).powi(2);
            if scale == 0.0 { 0.0 } else { x.iter().map(of).sum() }
        };
        x.chunks(self.bucket as usize).map(bucket).sum()
    }
}

impl Tunable for ExponentialDithering {
    /// Sets the number of levels that `32/ratio` bits hold, rounded, within 2 to 8 bits.
    fn tune(&mut self, ratio: CompressionRatio) {
        let bits = ratio.bits(2..=8);
        self.levels = (1 << (bits - 1)) - 1;
    }
}

impl Compressor for ExponentialDithering {
    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        Some(self)
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(self.grid().bits())
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        exponential((self.grid(), self.bucket), (x, Some(key)), |x| self.norm.of(x), out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let (b, n) = (f64::from(self.base), x.len().min(self.bucket as usize) as f64);
        let root = if self.norm == Norm::L1 { n } else { n.sqrt() };
        let t = root * b.powi(1 - i32::from(self.levels));
        ErrorBound::Unbiased { omega: (b + 1.0 / b + 2.0) / 4.0 - 1.0 + t * t.min(1.0) }
    }
}

impl CompressorSettings for ExponentialDithering {
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
    use briquette_core::compress::natural::Natural;
    use briquette_core::laws::compress::{assert_edges, assert_unbiased, decoded};
    use briquette_core::math::norm2;

    fn dither(base: f32, levels: u8, norm: Norm) -> ExponentialDithering {
        ExponentialDithering::new(base, levels, 20, norm).unwrap()
    }

    #[test]
    fn one_value_by_hand() {
        // Scale 8, base 2: 3 lies between 2 and 4, halfway, so it goes up where u < 1/2: a first random bit of 0.
        for step in 0..20 {
            let key = Key::new(2).step(step);
            let mut random = [0; 2];
            key.lanes(0).halves(&mut random);
            let expected = if random[1] >> 15 == 0 { -4.0 } else { -2.0 };
            assert_eq!(decoded(&mut dither(2.0, 5, Norm::Max), &[8.0, -3.0], key), [8.0, expected]);
        }
    }

    #[test]
    fn edges_stay_finite_and_settings_are_checked() {
        for (base, levels) in [(2.0, 3), (1.01, 127), (65536.0, 127), (4.0, 1)] {
            for norm in [Norm::Max, Norm::L2, Norm::L1] {
                assert_edges(&mut dither(base, levels, norm));
            }
        }
        for (base, levels, bucket) in [(1.0, 3, 1), (f32::NAN, 3, 1), (2.0, 0, 1), (2.0, 128, 1), (2.0, 3, 0)] {
            assert!(ExponentialDithering::new(base, levels, bucket, Norm::Max).is_err());
        }
    }

    #[test]
    fn constants_by_hand() {
        // 16 values; base 2 has (2 + 1/2 + 2)/4 − 1 = 1/8, base 4 has 9/16. Below the lowest level t·min(1, t) is added:
        for (base, levels, norm, omega) in [
            (2.0, 4, Norm::L2, 0.125 + 0.25),     // t = √16/8 = 1/2, so t²
            (2.0, 3, Norm::Max, 0.125 + 1.0),     // t = √16/4 = 1
            (2.0, 2, Norm::L2, 0.125 + 2.0),      // t = √16/2 = 2, so t
            (2.0, 4, Norm::L1, 0.125 + 2.0),      // t = 16/8 = 2
            (2.0, 7, Norm::L1, 0.125 + 0.0625),   // t = 16/64 = 1/4, so t²
            (4.0, 3, Norm::Max, 0.5625 + 0.0625), // t = √16/16 = 1/4, so t²
        ] {
            assert_eq!(
                dither(base, levels, norm).error_bound(&[1.0; 16]),
                ErrorBound::Unbiased { omega },
                "{base} {levels} {norm}"
            );
        }
        // Of 40 values a bucket has 20.
        let t = 20_f64.sqrt() / 8.0;
        assert_eq!(dither(2.0, 4, Norm::L2).error_bound(&[1.0; 40]), ErrorBound::Unbiased { omega: 0.125 + t * t });
    }

    #[test]
    fn draws_are_unbiased_with_the_exact_variance_below_the_declared_one() {
        let x: Vec<f32> = (0..40).map(|i| (i as f32 * 1.7).sin() * 10_f32.powi(i % 5 - 2)).collect();
        for (base, levels) in [(2.0, 3), (2.0, 15), (3.0, 7), (1.3, 30)] {
            for norm in [Norm::Max, Norm::L2, Norm::L1] {
                let mut dither = dither(base, levels, norm);
                let exact = dither.variance(&x);
                assert_unbiased(&mut dither, &x, exact);
                let ErrorBound::Unbiased { omega } = dither.error_bound(&x) else { panic!() };
                assert!(exact <= omega * norm2(&x), "{dither:?}: {exact}");
            }
        }
    }

    #[test]
    fn base_2_with_all_levels_makes_the_decisions_of_natural_compression() {
        let mut x: Vec<f32> = (0..5000).map(|i| (i as f32 * 0.37).sin() * 1e-3).collect();
        x[17] = 4.0;
        let mut all = ExponentialDithering::new(2.0, 127, x.len(), Norm::Max).unwrap();
        assert_eq!(decoded(&mut all, &x, Key::new(6)), decoded(&mut Natural, &x, Key::new(6)));
    }
}
