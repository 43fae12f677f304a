//! `k` coordinates drawn by lot, each rank its own.
//!
//! **Why, and when not.** It does not look at the values: cheap to reason about, a baseline for what choosing by
//! magnitude buys, and scaled it is unbiased. It keeps only `k/d` of the energy, far less than [`TopK`](super::TopK)
//! for the same bytes. Where all ranks may draw alike, [`SharedRandomK`](crate::reduce::SharedRandomK) needs no indices
//! and its bytes do not grow with the world.
//!
//! **Method.** `S` = `k = round(d/c)` of `d` positions without replacement, from the private key of the rank.
//! `C(x)ᵢ = s·xᵢ` for `i` in `S`, else 0; unscaled `s = 1`, scaled `s = d/k`. A product beyond the largest finite number
//! becomes that number.
//!
//! | paper | here |
//! |---|---|
//! | `d/k` | `factor` |
//! | `α` or `δ` = k/d | `delta` of the class, unscaled |
//! | `ω` = d/k − 1 | `omega` of the class, scaled |
//!
//! **On the wire.** `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 4k` bytes: `gⱼ` the gaps between the positions, `r` the best Rice
//! parameter. Zeros that are drawn are sent.
//!
//! **Properties.** Unscaled: `E‖x − C(x)‖² = (1 − k/d)‖x‖²` exactly, contractive in the mean; needs error feedback.
//! Scaled: `E C(x) = x`, `E‖x − C(x)‖² = (d/k − 1)‖x‖²` exactly (below `f32::MAX·k/d`); needs no feedback, and is
//! refused with it, because ω above 1 makes residuals grow.
//!
//! **Knobs.** The factor `d/k`, default 100; whether to scale, default no.
//!
//! **Deviations.** GraVAC's code draws with replacement, which changes the constants. A rank could send its seed in
//! place of the positions; messages here describe themselves.
//!
//! **Reference.** S. U. Stich, J.-B. Cordonnier, M. Jaggi, *Sparsified SGD with Memory*, NeurIPS 2018 (rand-k).
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, RandomK}};
//! let mut message = Message::default();
//! RandomK::fraction(0.25)?.scaled().compress_into(&[1.0; 8], Key::new(0), &mut message);
//! let mut decoded = [0.0; 8];
//! message.decode_into(&mut decoded)?;
//! assert_eq!((message.kept(), decoded.iter().sum::<f32>()), (2, 8.0)); // two of eight, four times as large
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use rand::Rng;

use super::threshold::{fill, start};
use super::{Class, Compressor, Knobs, Spec, Tunable, TunableCompressor};
use crate::error::ConfigError;
use crate::{BLOCK, CompressionFactor, Key, Message};

/// Keeps random coordinates; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomK {
    factor: CompressionFactor,
    scaled: bool,
}

impl RandomK {
    /// Keeps this share of the values as they are, in (0, 1].
    ///
    /// # Errors
    /// [`ConfigError::Range`] otherwise.
    pub fn fraction(fraction: f64) -> Result<Self, ConfigError> {
        CompressionFactor::of_share("fraction of values kept by random-k", fraction).map(Self::factor)
    }

    /// Keeps one value in `factor` as it is.
    pub fn factor(factor: CompressionFactor) -> Self {
        RandomK { factor, scaled: false }
    }

    /// Values times `d/k`: unbiased, for use without error feedback.
    #[must_use]
    pub fn scaled(self) -> Self {
        RandomK { scaled: true, ..self }
    }

    /// Whether values are scaled to be unbiased.
    pub fn is_scaled(&self) -> bool {
        self.scaled
    }
}

impl Tunable for RandomK {
    fn tune(&mut self, factor: CompressionFactor) {
        self.factor = factor;
    }
}

impl Compressor for RandomK {
    fn nominal(&self) -> CompressionFactor {
        self.factor
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let k = self.factor.keep(x.len());
        let (indices, values) = start(out, x.len());
        choose(key, x.len(), k, indices);
        fill(x, indices, values);
        if self.scaled {
            let scale = x.len() as f32 / k as f32;
            values.iter_mut().for_each(|v| *v = (*v * scale).clamp(-f32::MAX, f32::MAX));
        }
    }

    fn class(&self, x: &[f32]) -> Class {
        let share = self.factor.keep(x.len()) as f64 / x.len().max(1) as f64;
        match (x.is_empty(), self.scaled) {
            (true, _) => Class::Contractive { delta: 1.0 },
            (_, true) => Class::Unbiased { omega: 1.0 / share - 1.0 },
            (_, false) => Class::MeanContractive { delta: share },
        }
    }

    fn selects(&self) -> bool {
        !self.factor.is_dense()
    }
}

/// `k` of `len` positions in ascending order, each subset equally likely (selection sampling: D. E. Knuth,
/// *The Art of Computer Programming* 2, 3.4.2, algorithm S), one uniform number a position.
pub(crate) fn choose(key: Key, len: usize, k: usize, out: &mut Vec<u32>) {
    out.clear();
    let mut missing = k.min(len);
    for block in 0..len.div_ceil(BLOCK) {
        let mut rng = key.block(block);
        for index in block * BLOCK..len.min((block + 1) * BLOCK) {
            if rng.random::<f64>() * ((len - index) as f64) < missing as f64 {
                out.push(index as u32);
                missing -= 1;
            }
        }
    }
}

impl std::fmt::Display for RandomK {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "randk:{}{}", self.factor, if self.scaled { ":scaled" } else { "" })
    }
}

impl Spec for RandomK {
    const SYNTAX: &'static str = "randk[:FRACTION|FACTORx[:unscaled|scaled]]";
    const NEEDS_FEEDBACK: bool = true;

    fn parse(name: &str, knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        if name != "randk" {
            return Ok(None);
        }
        let factor = knobs.share("fraction of values kept by random-k", 0.01)?;
        let scaled = knobs.word("scaling of random-k", &[("unscaled", false), ("scaled", true)])?;
        Ok(Some(RandomK { factor, scaled }))
    }

    fn representative() -> Self {
        RandomK::factor(CompressionFactor::new(8.0).expect("8 is at least 1"))
    }

    fn tunable(self) -> Option<Box<dyn TunableCompressor>> {
        Some(Box::new(self))
    }

    fn needs_feedback(&self) -> bool {
        !self.scaled
    }

    fn refuses_feedback(&self) -> bool {
        self.scaled
    }
}

#[cfg(test)]
mod tests {
    use super::super::threshold::tests::{edges, kept};
    use super::*;
    use crate::math::{distance2, norm2};

    fn fraction(share: f64) -> RandomK {
        RandomK::fraction(share).unwrap()
    }

    fn decoded(mut random_k: RandomK, x: &[f32], key: Key) -> Vec<f32> {
        let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
        random_k.compress_into(x, key, &mut message);
        message.decode_into(&mut out).unwrap();
        out
    }

    #[test]
    fn two_of_four_by_hand() {
        // Position i is taken when u·(positions left) < (still missing); the first four uniforms of this key decide.
        let mut rng = Key::new(5).block(0);
        let (mut missing, mut expected) = (2.0, [0.0; 4]);
        let x = [3.0, -4.0, -0.0, 7.0];
        for (i, left) in [4.0, 3.0, 2.0, 1.0].into_iter().enumerate() {
            if rng.random::<f64>() * left < missing {
                missing -= 1.0;
                expected[i] = 2.0 * x[i];
            }
        }
        assert_eq!(decoded(fraction(0.5).scaled(), &x, Key::new(5)), expected);
        assert_eq!(kept(fraction(0.5), &x, Key::new(5)).len(), 2);
    }

    #[test]
    fn edges_are_finite() {
        for x in edges() {
            assert_eq!(kept(fraction(0.5), &x, Key::new(1)).len(), x.len().div_ceil(2));
            assert!(decoded(fraction(0.1).scaled(), &x, Key::new(2)).iter().all(|v| v.is_finite()));
            assert_eq!(decoded(fraction(1.0).scaled(), &x, Key::new(3)), x);
        }
        assert!([0.0, 1.5, f64::NAN].map(RandomK::fraction).iter().all(Result::is_err));
    }

    #[test]
    fn ranks_and_steps_draw_for_themselves() {
        let x = vec![1.0; 1000];
        let draw = |rank, step| kept(fraction(0.1), &x, Key::new(1).step(step).rank(rank));
        assert_eq!(draw(0, 0), draw(0, 0));
        assert!(draw(0, 0) != draw(1, 0) && draw(0, 0) != draw(0, 1));
    }

    /// Mean, and the variance, which the closed form gives exactly: `(d/k − 1)·xᵢ²` a coordinate.
    #[test]
    fn scaled_draws_are_unbiased_with_the_exact_variance() {
        const DRAWS: u64 = 10_000;
        let mut outlier: Vec<f32> = (0..60).map(|i| (i as f32 * 1.3).sin()).collect();
        outlier[7] = 200.0;
        let gauss = super::super::threshold::tests::noise("gauss", 60, 4);
        let one_hot = (0..60).map(|i| if i == 11 { -3.0 } else { 0.0 }).collect();
        for x in [gauss, outlier, one_hot, vec![0.7; 60], vec![1e-40; 60]] {
            let (random_k, omega) = (fraction(0.2).scaled(), 4.0);
            assert_eq!(random_k.class(&x), Class::Unbiased { omega });
            let (mut mean, mut energies) = (vec![0.0_f64; x.len()], Vec::new());
            for step in 0..DRAWS {
                let out = decoded(random_k, &x, Key::new(6).step(step));
                mean.iter_mut().zip(&out).for_each(|(m, v)| *m += f64::from(*v) / DRAWS as f64);
                energies.push(distance2(&x, &out));
            }
            for (&x, &mean) in x.iter().zip(&mean) {
                let sd = (omega / DRAWS as f64).sqrt() * f64::from(x.abs());
                assert!((mean - f64::from(x)).abs() <= 5.5 * sd + 1e-44, "{x}: mean {mean}");
            }
            let (energy, sd) = crate::math::mean_and_deviation(&energies);
            let exact = omega * norm2(&x);
            assert!((energy - exact).abs() <= 5.5 * sd + 1e-6 * exact, "{energy}, exactly {exact}");
        }
    }

    #[test]
    fn unscaled_draws_lose_what_the_class_says() {
        let x = super::super::threshold::tests::noise("laplace", 60, 4);
        let energies: Vec<f64> =
            (0..10_000).map(|s| distance2(&x, &decoded(fraction(0.2), &x, Key::new(7).step(s)))).collect();
        let (energy, sd) = crate::math::mean_and_deviation(&energies);
        assert!((energy - 0.8 * norm2(&x)).abs() <= 5.5 * sd);
    }
}
