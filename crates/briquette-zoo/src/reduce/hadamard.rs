//! Rotated quantization: blocks of the vector are rotated by a randomized Hadamard transform before the exchange, and back after it.
//!
//! **Why, and when not.** A quantizer's step is proportional to the largest value of a bucket. If a few values are much larger than the others, most
//! values are rounded to zero. A rotation distributes the energy of a block evenly over its values, so that few bits are enough. It gains
//! nothing for values of similar magnitude, and is useless before a sparsifier, because a rotated vector has no large values. Each rotation makes `log₂ b`
//! passes over a block in cache; an exchange makes two rotations, or three with `sent`.
//!
//! **Method.** With `H` the Hadamard matrix of a block of `b` values and `s` random signs, the same on all ranks:
//!
//! ```text
//! y = H·(s ∘ x)/√b        average = s ∘ H·(inner average of y)/√b
//! ```
//!
//! `H/√b` is orthonormal and its own inverse, and the mean over ranks commutes with it: each rank rotates once before and once after an exchange, for any
//! number of messages. Blocks lie within slots. The remainder of a slot is split into blocks of smaller powers of two.
//!
//! *Random bits.* The step's key with purpose `"hadamard"`, a lane per value; `inner` uses the step's key.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `inner` exact | `inner`, up to rounding |
//!
//! **On the wire.** The messages of `inner`.
//!
//! **Properties.** Those of `inner`: errors keep their length under rotation, and an unbiased inner average stays unbiased.
//!
//! **State.** None. Signs change at every step, so `inner` must be stateless: `gather` or `ring`.
//!
//! **Knobs.** `block` `b`, a power of two, at least 2, default 1024; `inner`, default `gather:qsgd:4`.
//!
//! **Deviations.** The paper rotates the whole vector; blocks cost less, and each has its own scale. Rotated values above the largest `f32` are replaced by it.
//!
//! **Reference.** A. T. Suresh, F. X. Yu, S. Kumar, H. B. McMahan, *Distributed Mean Estimation with Limited Communication*, ICML 2017 (arXiv
//! 1611.00429), section 3, stochastic rotated quantization; as used for gradients of 4 bits by J. Jia et al., *SDP4Bit*, NeurIPS 2024 (arXiv
//! 2410.15526).
//!
//! ```
//! use briquette_zoo::reduce::hadamard::transform;
//! let mut block = [3.0, 1.0, 0.0, 0.0];
//! transform(&mut block);
//! assert_eq!(block, [2.0, 1.0, 2.0, 1.0]);
//! transform(&mut block);
//! assert_eq!(block, [3.0, 1.0, 0.0, 0.0]);
//! ```

use std::ops::Range;

use briquette_core::compress::ErrorBound;
use briquette_core::config::{Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict, ReduceError};
use briquette_core::reduce::{Exchanged, Reducer, Round, gather::GatherConfig, ring::RingConfig};
use briquette_core::report::Report;
use briquette_core::{Key, Layout, Session, Slot, stateful};

use super::transformed::{self, Transform};

/// Applies the orthonormal Hadamard transform of a block whose length is a power of two. Results beyond the largest `f32` are
/// replaced by it.
///
/// # Panics
/// If the length is not a power of two.
pub fn transform(block: &mut [f32]) {
    let len = block.len();
    assert!(len.is_power_of_two(), "the length of a block must be a power of two, got {len}");
    // Sums of values that are divided by their number do not overflow.
    let part = 1.0 / len as f32;
    block.iter_mut().for_each(|v| *v *= part);
    let mut half = 1;
    while half < len {
        for pair in block.chunks_exact_mut(2 * half) {
            let (low, high) = pair.split_at_mut(half);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = (len as f32).sqrt();
    block.iter_mut().for_each(|v| *v = (*v * scale).clamp(f32::MIN, f32::MAX));
}

/// Random signs of a step's values.
#[derive(Debug, Default)]
struct Signs(Vec<u32>);

impl Signs {
    fn draw(&mut self, key: Key, len: usize) {
        self.0.resize(len, 0);
        let key = key.purpose("hadamard");
        for (index, bits) in self.0.chunks_mut(LANES).enumerate() {
            key.lanes(index).fill(bits);
        }
    }

    /// Changes the signs of values.
    fn apply(&self, x: &mut [f32]) {
        const SIGN: u32 = 1 << 31;
        x.iter_mut().zip(&self.0).for_each(|(v, bits)| *v = f32::from_bits(v.to_bits() ^ (bits & SIGN)));
    }
}

/// Number of values drawn from one generator.
const LANES: usize = 4096;

/// Returns the ranges of blocks of at most `block` values.
fn blocks(slots: &[Slot], block: usize) -> impl Iterator<Item = Range<usize>> {
    transformed::blocks(slots, move |left| block.min(1 << left.ilog2()))
}

/// The rotation of a step.
#[derive(Debug)]
struct Rotation {
    block: usize,
    signs: Signs,
}

impl Transform for Rotation {
    fn forward(&self, x: &mut [f32], slots: &[Slot]) {
        self.signs.apply(x);
        blocks(slots, self.block).for_each(|range| transform(&mut x[range]));
    }

    fn inverse(&self, x: &mut [f32], slots: &[Slot]) {
        blocks(slots, self.block).for_each(|range| transform(&mut x[range]));
        self.signs.apply(x);
    }
}

/// Rotates the vectors of an inner reducer; see the [module](self).
#[derive(Debug)]
pub struct Hadamard<R> {
    rotation: Rotation,
    inner: R,
    rotated: Vec<f32>,
}

impl<R: Reducer> Hadamard<R> {
    /// Creates a reducer that rotates blocks of at most `block` values around `inner`, which must not have a state.
    ///
    /// # Errors
    /// [`ConfigError`] if `block` is no power of two, or 1.
    pub fn new(block: usize, inner: R) -> Result<Self, ConfigError> {
        HadamardConfig { block, ..HadamardConfig::default() }.check()?;
        Ok(Hadamard { rotation: Rotation { block, signs: Signs::default() }, inner, rotated: Vec::new() })
    }
}

stateful! {
    impl<R: Reducer> Stateful for Hadamard<R> { inner: part("inner") }
}

impl<R: Reducer> Reducer for Hadamard<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.rotation.signs.draw(round.key, round.input.len());
        self.rotation.reduce((&mut self.inner, &mut self.rotated), round, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

/// Settings of [`Hadamard`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "hadamard",
    help = "rotates blocks of values (1024) around another reducer, so that few bits suffice (gather:qsgd:4)",
    representatives("hadamard:32,inner=(gather:qsgd:4:64:l2)", "hadamard:8,inner=(ring:int8)"),
    combinations(
        "reducer=hadamard:16,inner=(gather:qsgd:4:64:l2) feedback=none controller=none bucket_values=32",
        "reducer=hadamard:16,inner=(gather:sign) feedback=error controller=none bucket_values=32",
    ),
    check = Self::check_block
)]
pub struct HadamardConfig {
    /// Values of a block, a power of two.
    #[setting(default = 1024, range = "[2, inf)")]
    pub block: usize,
    /// The reducer of the rotated vector.
    #[setting(default = "gather:qsgd:4", syntax = "(REDUCER)")]
    pub inner: ReducerConfig,
}

impl HadamardConfig {
    fn check_block(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.block.is_power_of_two(), "block of hadamard", "a power of two", self.block)
    }

    /// Returns whether the inner reducer has no state.
    fn is_stateless(&self) -> bool {
        self.inner.is::<GatherConfig>() || self.inner.is::<RingConfig>()
    }
}

impl ReducerSettings for HadamardConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        Ok(Box::new(Hadamard::new(self.block, self.inner.get().build(exchange, layout)?)?))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits {
            is_dense: false,
            is_exact: false,
            aggregates: false,
            multiplies_matrices: true,
            ..self.inner.get().traits()
        }
    }

    fn min_ranks(&self) -> usize {
        self.inner.get().min_ranks()
    }

    fn check_world(&self, world: usize) -> Result<(), Conflict> {
        self.inner.get().check_world(world)
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        let conflict =
            |why, instead| Err(Conflict::new("reducer hadamard", format!("reducer {}", self.inner), why, instead));
        if !self.is_stateless() {
            return conflict(
                "its rotation differs from step to step, and reducers with state would mix vectors of different rotations",
                "use inner=(gather:…) or inner=(ring:…)",
            );
        }
        if self.inner.get().compressor().is_some_and(|config| config.compressor().get().traits().is_sparse) {
            return conflict("a rotated vector has no large values to select", "use a quantizer such as gather:qsgd:4");
        }
        self.inner.get().check_within(exchange)
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        self.inner.get().error_bound(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduce::transformed::testkit::reduced;
    use briquette_core::comm::Local;
    use briquette_core::config::Config;
    use briquette_core::laws::compress::noise;
    use briquette_core::math::{distance2, norm2};
    use briquette_core::reduce::{AgreedStep, dense::Dense};
    use proptest::prelude::*;

    /// Two values: their sum and their difference, divided by √2.
    #[test]
    fn golden() {
        let mut pair = [3.0, -1.0];
        transform(&mut pair);
        assert_eq!(pair, [2.0 / 2.0_f32.sqrt(), 4.0 / 2.0_f32.sqrt()]);
        let slots = Layout::new([("a", vec![11]), ("b", vec![0]), ("c", vec![3])]);
        let cut: Vec<_> = blocks(slots.slots(), 4).collect();
        assert_eq!(cut, [0..4, 4..8, 8..10, 10..11, 11..13, 13..14]);
    }

    proptest! {
        /// The matrix itself, in f64: `H[i][j] = (−1)^(bits of i & j)`.
        #[test]
        fn it_is_the_hadamard_matrix(x in proptest::collection::vec(-10.0_f32..10.0, 64), size in 0_u32..7) {
            let len = 1_usize << size;
            let mut ours = x[..len].to_vec();
            transform(&mut ours);
            for (i, ours) in ours.iter().enumerate() {
                let signed = |(j, v): (usize, &f32)| if (i & j).count_ones() % 2 == 0 { f64::from(*v) } else { -f64::from(*v) };
                let expected = x[..len].iter().enumerate().map(signed).sum::<f64>() / (len as f64).sqrt();
                prop_assert!((f64::from(*ours) - expected).abs() < 1e-4, "{ours} {expected}");
            }
        }
    }

    #[test]
    fn an_exact_inner_reducer_gives_the_mean() {
        let layout = Layout::new([("a", vec![7]), ("b", vec![30])]);
        let inputs = [noise("gauss", 37, 1), noise("gauss", 37, 2)];
        let mut rotated = Hadamard::new(8, Dense).unwrap();
        let mut comm = Local::world(1).remove(0);
        let mut average = vec![0.0; 37];
        let round = Round {
            key: Key::new(1),
            slots: layout.slots(),
            agreed_step: &AgreedStep::default(),
            input: &inputs[0],
            average: &mut average,
            sent: None,
        };
        rotated.exchange(round, &mut comm).unwrap();
        assert!(average.iter().zip(&inputs[0]).all(|(a, b)| (a - b).abs() < 1e-5));
        let of_ring = reduced("reducer=hadamard:8,inner=(ring:bf16)", &layout, &inputs);
        let near = |i: usize| (of_ring[0][0][i] - 0.5 * (inputs[0][i] + inputs[1][i])).abs() < 0.05;
        assert!((0..37).all(near) && of_ring[0][0] == of_ring[1][0]);
    }

    /// Claim: the error of few bits falls where a few values are much larger than the others, and stays where they have similar sizes.
    #[test]
    fn few_bits_suffice_for_values_of_different_sizes() {
        let layout = Layout::flat(1 << 14);
        let similar = noise("gauss", 1 << 14, 5);
        let spiky: Vec<f32> =
            similar.iter().enumerate().map(|(i, v)| if i % 256 == 0 { 50.0 * v } else { *v }).collect();
        let error = |text: &str, x: &Vec<f32>| {
            let [_, sent] = reduced(text, &layout, std::slice::from_ref(x)).remove(0);
            distance2(x, &sent) / norm2(x)
        };
        let both = |x| {
            ["reducer=gather:qsgd:4:1024", "reducer=hadamard:1024,inner=(gather:qsgd:4:1024)"]
                .map(|text| error(text, x))
        };
        let [[plain, rotated], [plain_similar, rotated_similar]] = [both(&spiky), both(&similar)];
        assert!(rotated < 0.5 * plain, "{rotated} against {plain}");
        assert!((rotated_similar / plain_similar - 1.0).abs() < 0.3, "{rotated_similar} against {plain_similar}");
    }

    /// Without signs, a block of equal values would become a single value, which any quantizer sends exactly.
    #[test]
    fn signs_are_random_and_differ_from_step_to_step() {
        let x = vec![1.0; 1024];
        let [_, sent] =
            reduced("reducer=hadamard:1024,inner=(gather:qsgd:4:1024)", &Layout::flat(1024), std::slice::from_ref(&x))
                .remove(0);
        let lost = distance2(&x, &sent) / norm2(&x);
        assert!((0.01..0.2).contains(&lost), "{lost}");
        let signs = |step| {
            let (mut signs, mut values) = (Signs::default(), vec![1.0; 5000]);
            signs.draw(Key::new(3).step(step), values.len());
            signs.apply(&mut values);
            values
        };
        let mean = |values: &[f32]| values.iter().sum::<f32>() / values.len() as f32;
        assert!(signs(0) != signs(1) && mean(&signs(0)).abs() < 0.05);
    }

    #[test]
    fn the_largest_values_stay_finite() {
        let mut block = [f32::MAX; 16];
        transform(&mut block);
        assert!(block.iter().all(|v| v.is_finite()) && block[0] == f32::MAX && block[1] == 0.0);
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        crate::install();
        let build = |text: &str| text.parse::<Config>().and_then(|config| config.build(&Layout::flat(8), 2).map(drop));
        for (text, words) in [
            ("reducer=hadamard:12", "block of hadamard must be a power of two, got 12"),
            ("reducer=hadamard:1", "block of hadamard must be at least 2"),
            ("reducer=hadamard:8,inner=(power-sgd:1)", "its rotation differs from step to step"),
            ("reducer=hadamard:8,inner=(gather:topk:8x) feedback=error", "no large values to select"),
        ] {
            let error = build(text).unwrap_err().to_string();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
