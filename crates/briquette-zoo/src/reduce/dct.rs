//! Discrete cosine transform of blocks: a compressor selects frequencies of a block instead of its values.
//!
//! **Why, and when not.** If neighboring values are similar, the energy of a block is in a few coefficients, and a sparsifier at the same ratio keeps
//! more of it. Where neighbors are independent, as in most gradients of weights whose inputs have no order, it gains nothing; it loses where
//! a few values are much larger than the others, because the transform spreads each of them over its block. Compare both on your own gradients. A
//! transform takes `b` multiplications per value; an exchange makes two, or three with `sent`, and zeros are skipped.
//!
//! **Method.** With `D` the orthonormal DCT-II of a block of `b` values, `s₀ = √(1/b)` and `sᵢ = √(2/b)` otherwise:
//!
//! ```text
//! D[i][j] = sᵢ·cos(π·(2j + 1)·i / 2b)        y = D·x        average = Dᵀ·(inner average of y)
//! ```
//!
//! The mean over ranks commutes with `D`: each rank transforms once before and once after an exchange, for any number of messages. Blocks lie within
//! slots. The remainder of a slot is a shorter block, with the transform of its own length.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `inner` exact | `inner`, up to rounding |
//! | feedback `error:β` around it | the average whose sign [`demo`](crate::sync::demo) takes |
//!
//! *Random bits.* None; `inner` uses the step's key.
//!
//! **On the wire.** The messages of `inner`.
//!
//! **Properties.** Those of `inner`: errors keep their length, so a contractive compressor keeps its constant. A selection of coefficients changes all
//! values of a block, so momentum correction masks nothing.
//!
//! **State.** That of `inner`, in the coordinates of the coefficients. The transform is the same at every step, so `inner` may have a state.
//!
//! **Knobs.** `block` `b`, 2 to 256 values, default 64; `inner`, default `gather:topk:32x`. Reducers that compress the mean again (`two-way`,
//! `artemis`, `mcm`) are refused.
//!
//! **Deviations.** DeMo transforms tiles of 64×64 of a matrix in both directions; here blocks are consecutive values. Coefficients above the largest
//! `f32` are replaced by it. Cosines come from a series of additions and products, so that all machines have the same bits.
//!
//! **Reference.** B. Peng, J. Quesnelle, D. P. Kingma, *DeMo: Decoupled Momentum Optimization*, 2024 (arXiv 2411.19870).
//!
//! ```
//! use briquette_zoo::reduce::dct::Dct2;
//! let (dct, mut block) = (Dct2::new(4), [1.0, 1.0, -1.0, -1.0]);
//! dct.forward(&mut block);
//! assert_eq!(block.map(|v| (v * 1000.0).round()), [0.0, 1848.0, 0.0, -765.0]); // 1.848² + 0.765² = 4
//! dct.inverse(&mut block);
//! assert!((block[0] - 1.0).abs() < 1e-6 && (block[3] + 1.0).abs() < 1e-6);
//! ```

use std::f64::consts::PI;
use std::ops::Range;

use briquette_core::compress::ErrorBound;
use briquette_core::config::{Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict, ReduceError};
use briquette_core::reduce::{Exchanged, Reducer, Round};
use briquette_core::report::Report;
use briquette_core::{Layout, Session, Slot, stateful};

use super::transformed::{Transform, blocks};

/// The orthonormal DCT-II of blocks of one length.
#[derive(Debug)]
pub struct Dct2 {
    /// Row `j` has the products of value `j` with all coefficients, divided by `room`.
    forward: Vec<f32>,
    /// The transpose.
    inverse: Vec<f32>,
    len: usize,
    /// A power of two, so that sums of products do not overflow.
    room: f32,
}

impl Dct2 {
    /// Computes the matrix for blocks of `len` values.
    pub fn new(len: usize) -> Self {
        let mut room = 1.0;
        while room * room < 2.0 * len as f64 {
            room *= 2.0;
        }
        let entry = |i: usize, j: usize| {
            let scale = (if i == 0 { 1.0 } else { 2.0 } / len as f64).sqrt();
            (scale * cosine((2 * j + 1) * i, len) / room) as f32
        };
        let by = |row: &dyn Fn(usize, usize) -> f32| (0..len * len).map(|at| row(at / len, at % len)).collect();
        Dct2 { forward: by(&|j, i| entry(i, j)), inverse: by(&entry), len, room: room as f32 }
    }

    /// Replaces a block by its coefficients. Results beyond the largest `f32` are replaced by it.
    ///
    /// # Panics
    /// If the block has another length.
    pub fn forward(&self, block: &mut [f32]) {
        self.multiply(&self.forward, block);
    }

    /// Replaces coefficients by their block, the inverse of [`forward`](Self::forward).
    ///
    /// # Panics
    /// If the block has another length.
    pub fn inverse(&self, block: &mut [f32]) {
        self.multiply(&self.inverse, block);
    }

    /// Adds the rows of a matrix in order, each times its value. Zeros add nothing, to the bit.
    fn multiply(&self, rows: &[f32], block: &mut [f32]) {
        assert_eq!(block.len(), self.len, "the length of a block");
        let mut sums = [0.0; LARGEST];
        let sums = &mut sums[..self.len];
        for (value, row) in block.iter().zip(rows.chunks_exact(self.len)).filter(|(value, _)| **value != 0.0) {
            sums.iter_mut().zip(row).for_each(|(sum, entry)| *sum += value * entry);
        }
        block.iter_mut().zip(sums).for_each(|(v, sum)| *v = (*sum * self.room).clamp(f32::MIN, f32::MAX));
    }
}

/// The largest block.
const LARGEST: usize = 256;

/// Returns `cos(π·m / 2n)`. Functions of the system's library differ between machines in the last bit.
fn cosine(m: usize, n: usize) -> f64 {
    let turned = m % (4 * n);
    let half = turned.min(4 * n - turned);
    let (quarter, sign) = if half > n { (2 * n - half, -1.0) } else { (half, 1.0) };
    let x2 = (0.5 * PI * quarter as f64 / n as f64).powi(2);
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..=12 {
        term *= -x2 / f64::from((2 * k - 1) * (2 * k));
        sum += term;
    }
    sign * sum
}

/// Transforms of the lengths that a vector's blocks have.
#[derive(Debug)]
struct Blocks {
    size: usize,
    /// By length.
    transforms: Vec<Option<Dct2>>,
}

impl Blocks {
    /// Computes the transforms that are missing.
    fn prepare(&mut self, slots: &[Slot]) {
        for range in self.ranges(slots) {
            self.transforms[range.len()].get_or_insert_with(|| Dct2::new(range.len()));
        }
    }

    fn ranges<'s>(&self, slots: &'s [Slot]) -> impl Iterator<Item = Range<usize>> + use<'s> {
        let size = self.size;
        blocks(slots, move |left| left.min(size))
    }

    fn of(&self, range: &Range<usize>) -> &Dct2 {
        self.transforms[range.len()].as_ref().expect("prepared for these slots")
    }
}

impl Transform for Blocks {
    fn forward(&self, x: &mut [f32], slots: &[Slot]) {
        self.ranges(slots).for_each(|range| self.of(&range).forward(&mut x[range]));
    }

    fn inverse(&self, x: &mut [f32], slots: &[Slot]) {
        self.ranges(slots).for_each(|range| self.of(&range).inverse(&mut x[range]));
    }
}

/// Transforms the vectors of an inner reducer; see the [module](self).
#[derive(Debug)]
pub struct Dct<R> {
    blocks: Blocks,
    inner: R,
    coefficients: Vec<f32>,
}

impl<R: Reducer> Dct<R> {
    /// Creates a reducer that transforms blocks of at most `block` values around `inner`.
    ///
    /// # Errors
    /// [`ConfigError`] if `block` is below 2 or above 256.
    pub fn new(block: usize, inner: R) -> Result<Self, ConfigError> {
        DctConfig { block, ..DctConfig::default() }.check()?;
        let blocks = Blocks { size: block, transforms: (0..=block).map(|_| None).collect() };
        Ok(Dct { blocks, inner, coefficients: Vec::new() })
    }
}

stateful! {
    impl<R: Reducer> Stateful for Dct<R> { inner: part("inner") }
}

impl<R: Reducer> Reducer for Dct<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        self.blocks.prepare(round.slots);
        self.blocks.reduce((&mut self.inner, &mut self.coefficients), round, comm)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

/// Settings of [`Dct`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "dct",
    help = "cosine transform of blocks of values (64) around another reducer, which selects frequencies (gather:topk:32x)",
    representatives("dct:16,inner=(gather:topk:8x)", "dct:8,inner=(power-sgd:1)"),
    combinations(
        "reducer=dct:8,inner=(gather:topk:4x) feedback=error:0.75 controller=none bucket_values=32",
        "reducer=dct:16,inner=(gather:qsgd:4:64:l2) feedback=diana controller=none bucket_values=32",
        "reducer=dct:5,inner=(ring:int8) feedback=error controller=none bucket_values=32",
    )
)]
pub struct DctConfig {
    /// Values of a block.
    #[setting(default = 64, range = "[2, 256]")]
    pub block: usize,
    /// The reducer of the coefficients.
    #[setting(default = "gather:topk:32x", syntax = "(REDUCER)")]
    pub inner: ReducerConfig,
}

impl ReducerSettings for DctConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        Ok(Box::new(Dct::new(self.block, self.inner.get().build(exchange, layout)?)?))
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

    fn requires_plain_sgd(&self) -> bool {
        self.inner.get().requires_plain_sgd()
    }

    fn min_ranks(&self) -> usize {
        self.inner.get().min_ranks()
    }

    fn check_world(&self, world: usize) -> Result<(), Conflict> {
        self.inner.get().check_world(world)
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        if self.inner.get().downlink(1).is_some() {
            let why =
                "what it sends is the mean of the ranks' messages, and the other reducer compresses the mean once more";
            let instead = format!("use {} alone, or dct around gather", self.inner.name());
            return Err(Conflict::new("reducer dct", format!("reducer {}", self.inner), why, instead));
        }
        self.inner.get().check_within(exchange)
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        self.inner.get().error_bound(len)
    }

    fn amplification(&self, len: usize) -> Option<f64> {
        self.inner.get().amplification(len)
    }
}

#[cfg(test)]
mod tests;
