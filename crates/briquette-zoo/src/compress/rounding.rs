//! Rounding of every value to a power of a base: to the nearest one, or to one of both neighbors at random.
//!
//! **Why, and when not.** The basic form of logarithmic quantization: 8 bits, no buckets, and a bounded relative error for every single
//! value. The nearest power loses less than the random one but is biased; with error feedback that does no harm.
//!
//! **Method.** Levels `±b^k` for integer `k`, and 0. *Nearest*: the level with the smaller distance. *Random*: between neighbors
//! `l ≤ |xᵢ| < u`, `u` with probability `(|xᵢ| − l)/(u − l)`.
//!
//! *Random bits.* As in [`Qsgd`](briquette_core::compress::qsgd::Qsgd).
//!
//! **On the wire.** `25 + d` bytes: one scale, the lowest power that is at least the largest magnitude, and for every value a sign and its
//! distance below that power, in powers.
//!
//! **Properties.** Nearest: contractive with δ = `4b/(b + 1)²` (8/9 at base 2), reached by values in the middle. Random: unbiased with ω =
//! `(b + 1/b + 2)/4 − 1` (1/8 at base 2). Both ignore values more than 126 powers below the largest magnitude, which count as between 0 and
//! the lowest level (their energy is below `d·b⁻²⁵²` of the whole). Nearest is in the paper's other classes too:
//! `2/(b + 1) ≤ C(x)ᵢ/xᵢ ≤ 2b/(b + 1)` for every value, so `⟨C(x), x⟩ ≥ γ‖x‖²`, `‖C(x)‖² ≥ γ²‖x‖²` and `‖C(x)‖² ≤ β⟨C(x), x⟩` with `γ` and
//! `β` the two ends, which are tight.
//!
//! **Knobs.** `base` 1.25 to 16 (default 2), nearest or random.
//!
//! **Deviations.** 127 levels instead of all. A largest magnitude above the largest finite power of the base rounds down.
//!
//! **Reference.** A. Beznosikov, S. Horváth, P. Richtárik, M. Safaryan, *On Biased Compression for Distributed Learning*,
//! JMLR 2023 (arXiv 2002.12410): general biased rounding, general unbiased rounding.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_zoo::compress::rounding::Rounding;
//! let mut message = Message::default();
//! Rounding::nearest(2.0)?.compress_into(&[5.0, -6.5, 0.3, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [4.0, -8.0, 0.25, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::exponential::{Levels, exponential};
use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::error::ConfigError;
use briquette_core::math::{largest, norm2};
use briquette_core::message::Grid;
use briquette_core::{CompressionRatio, Key, Message};

/// Rounding to powers of a base; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "round", help = "to a power of the base (2)", places = 2)]
pub struct Rounding {
    #[setting(default = 2.0, range = "[1.25, 16]")]
    base: f32,
    #[setting(default = Mode::Nearest, syntax = "nearest|random")]
    mode: Mode,
}

/// Choice between the two neighboring powers.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Nearest,
    Random,
}

impl Rounding {
    /// Creates rounding to the nearest power of `base`: biased.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `base` is not in 1.25 to 16.
    pub fn nearest(base: f32) -> Result<Self, ConfigError> {
        Rounding { base, mode: Mode::Nearest }.checked()
    }

    /// Creates random rounding to one of the neighboring powers of `base`: unbiased.
    ///
    /// # Errors
    /// As for [`nearest`](Rounding::nearest).
    pub fn random(base: f32) -> Result<Self, ConfigError> {
        Ok(Rounding { mode: Mode::Random, ..Rounding::nearest(base)? })
    }

    fn is_random(self) -> bool {
        self.mode == Mode::Random
    }

    /// Returns the lowest finite power of the base that is at least the largest magnitude; 0 for a zero vector.
    fn scale(self, x: &[f32]) -> f32 {
        let (base, largest) = (f64::from(self.base), f64::from(largest(x)));
        if largest == 0.0 {
            return 0.0;
        }
        let mut power = 1.0_f64;
        while power < largest && power * base <= f64::from(f32::MAX) {
            power *= base;
        }
        // Not below the normal range, because a scale must be exact.
        while power / base >= largest && power / base >= f64::from(f32::MIN_POSITIVE) {
            power /= base;
        }
        power as f32
    }

    /// Returns `E‖x − C(x)‖²`, exactly.
    pub fn variance(&self, x: &[f32]) -> f64 {
        let (scale, levels) = (self.scale(x), Levels::new(self.base, Grid::MAX_LEVELS));
        let of = |v: &f32| {
            let a = (v.abs() / scale).min(1.0);
            let (_, low, high) = levels.below(a);
            let (below, above) = (f64::from(a - low), f64::from(high - a));
            let squared = if self.is_random() { below * above } else { below.min(above).powi(2) };
            squared * f64::from(scale).powi(2)
        };
        if scale == 0.0 { 0.0 } else { x.iter().map(of).sum() }
    }
}

impl Compressor for Rounding {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(8)
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let grid = Grid::Exponential { base: self.base, levels: Grid::MAX_LEVELS };
        let bucket = x.len().max(1) as u32;
        let key = self.is_random().then_some(key);
        exponential((grid, bucket), (x, key), |x| self.scale(x), out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let (b, energy) = (f64::from(self.base), norm2(x));
        if energy == 0.0 {
            return if self.is_random() {
                ErrorBound::Unbiased { omega: 0.0 }
            } else {
                ErrorBound::Contractive { delta: 1.0 }
            };
        }
        let scale = f64::from(self.scale(x));
        let above = x.iter().map(|v| (f64::from(v.abs()) - scale).max(0.0).powi(2)).sum::<f64>();
        // The values below the lowest level, and the rounding of levels to f32.
        let below = x.len() as f64 * (scale * b.powi(1 - i32::from(Grid::MAX_LEVELS))).powi(2).max(2_f64.powi(-298));
        let lost = (above + below) / energy + 1e-6;
        if self.is_random() {
            ErrorBound::Unbiased { omega: (b + 1.0 / b + 2.0) / 4.0 - 1.0 + lost }
        } else {
            ErrorBound::Contractive { delta: (4.0 * b / (b + 1.0).powi(2) - lost).max(0.0) }
        }
    }
}

impl CompressorSettings for Rounding {
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
    use briquette_core::laws::compress::{assert_edges, assert_unbiased, decoded};
    use briquette_core::math::distance2;
    use proptest::prelude::*;

    #[test]
    fn thirds_by_hand() {
        // Base 3: 9, 3, 1, 1/3. 6 is the middle of 3 and 9: 5.9 goes down, 6.1 up.
        let mut nearest = Rounding::nearest(3.0).unwrap();
        let out = decoded(&mut nearest, &[5.9, -6.1, 1.0, 0.5], Key::new(0));
        assert_eq!(out, [3.0, -9.0, 1.0, 1.0 / 3.0]);
    }

    #[test]
    fn edges_stay_finite_and_settings_are_checked() {
        for base in [1.25, 2.0, 16.0] {
            assert_edges(&mut Rounding::nearest(base).unwrap());
            assert_edges(&mut Rounding::random(base).unwrap());
        }
        assert!(Rounding::nearest(1.2).is_err() && Rounding::random(17.0).is_err());
        assert!(Rounding::nearest(f32::NAN).is_err());
    }

    #[test]
    fn the_declared_constants_are_reached() {
        for base in [1.5_f32, 2.0, 4.0] {
            // The middle of two levels is the worst case of the nearest; √b times the lower level is the worst at random.
            let middle = [base; 9].map(|b| (1.0 + b) / 2.0);
            let nearest = Rounding::nearest(base).unwrap();
            let ErrorBound::Contractive { delta } = nearest.error_bound(&middle) else { panic!() };
            assert!((1.0 - nearest.variance(&middle) / norm2(&middle) - delta).abs() < 1e-5);
            let random = Rounding::random(base).unwrap();
            let worst = [2.0 * base / (1.0 + base); 9];
            let ErrorBound::Unbiased { omega } = random.error_bound(&worst) else { panic!() };
            assert!((random.variance(&worst) / norm2(&worst) - omega).abs() < 1e-5, "{base}");
        }
    }

    #[test]
    fn nearest_shrinks_and_stretches_as_far_as_declared_and_no_further() {
        for base in [1.5_f32, 2.0, 4.0] {
            let (least, most) = (2.0 / (base + 1.0), 2.0 * base / (base + 1.0));
            let middle = (1.0 + base) / 2.0;
            let wave = (0..2000).map(|i| (i as f32 * 0.37).sin() * 10_f32.powi(i % 9 - 4));
            let x: Vec<f32> = wave.chain([middle * 0.9999, -middle * 1.0001]).collect();
            let out = decoded(&mut Rounding::nearest(base).unwrap(), &x, Key::new(0));
            let ratios: Vec<f32> = x.iter().zip(&out).filter(|(x, _)| **x != 0.0).map(|(x, c)| c / x).collect();
            assert!(ratios.iter().all(|r| (least * 0.99999..most * 1.00001).contains(r)), "base {base}");
            let [shrunk, stretched] = ratios[ratios.len() - 2..] else { panic!() };
            assert!((shrunk / least - 1.0).abs() < 2e-4 && (stretched / most - 1.0).abs() < 2e-4, "base {base}");
        }
    }

    /// 1 is a level; 0.625 lies between ½ and 1, to the nearest ⅛ away: ⅛², and ⅛·⅜ at random.
    #[test]
    fn variances_by_hand() {
        let x = [1.0, -0.625];
        assert_eq!(Rounding::nearest(2.0).unwrap().variance(&x), 0.015625);
        assert_eq!(Rounding::random(2.0).unwrap().variance(&x), 0.046875);
        let out = decoded(&mut Rounding::nearest(2.0).unwrap(), &x, Key::new(0));
        assert_eq!((distance2(&x, &out), &out[..]), (0.015625, &[1.0, -0.5][..]));
    }

    #[test]
    fn random_draws_are_unbiased_with_the_exact_variance() {
        let x: Vec<f32> = (0..40).map(|i| (i as f32 * 1.7).sin() * 10_f32.powi(i % 5 - 2)).collect();
        for base in [1.3, 2.0, 5.0] {
            let mut random = Rounding::random(base).unwrap();
            let exact = random.variance(&x);
            assert_unbiased(&mut random, &x, exact);
        }
    }

    proptest! {
        #[test]
        fn nearest_is_what_a_search_over_all_powers_finds(x in proptest::collection::vec(-1e6_f32..1e6, 1..50), base in 1.25_f32..16.0) {
            let mut nearest = Rounding::nearest(base).unwrap();
            let out = decoded(&mut nearest, &x, Key::new(0));
            let naive: f64 = x.iter().map(|v| {
                let v = f64::from(v.abs());
                (-300..300).map(|k| (v - f64::from(base).powi(k)).powi(2)).fold(v * v, f64::min)
            }).sum();
            prop_assert!((distance2(&x, &out) - naive).abs() <= 1e-5 * norm2(&x));
        }
    }
}
