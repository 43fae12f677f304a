//! PowerSGD: low-rank approximation of each matrix, with all-reduced factors.
//!
//! **Why, and when not.** One warm-started power-iteration step per exchange captures most of a gradient matrix in `r` columns. The factors
//! are *linear* in the input, so they can be all-reduced, and the bytes per rank do not grow with the world. Useless for vectors (biases,
//! BatchNorm), which are sent dense. Needs error feedback.
//!
//! **Method.** For each slot that is an `n × m` matrix `M` with `r·(n+m) < n·m`. All slots share two all-reduces:
//!
//! | paper | here |
//! |---|---|
//! | `P ← M Q`, all-reduce mean | `left`; the dense slots share the same all-reduce |
//! | `P̂ ← orthogonalize(P)` | modified Gram–Schmidt, f64 sums |
//! | `Q ← Mᵀ P̂`, all-reduce mean | `right`, kept as the next step's warm start |
//! | `M̂ = P̂ Qᵀ` | the average |
//!
//! **On the wire.** All-reduces of `Σ r·n + Σ dense` and of `Σ r·m` values.
//!
//! **Properties.** A projection: contractive, and exact if the mean matrix has rank at most `r` and `Q` spans its row space. Linear: the
//! result is that of single-process PowerSGD on the mean gradient.
//!
//! **State.** `Q`, equal on all ranks. During an exchange, also both factors. **Knobs.** `rank`, at least 1; the literature uses 1, 2, 4;
//! default 2.
//!
//! **On a device.** The products, the average and the residual stay [there](crate::seam::DeviceVector::left_factor). Factors and dense slots are copied
//! to the host, which all-reduces them and orthonormalizes `P`.
//!
//! **Deviations.** `sent` is `P̂ (Mᵢᵀ P̂)ᵀ`, the projection of this rank's own matrix, while the paper's residual uses the average. The
//! mean of the residuals is the same; each rank's residual is smaller. The first `Q` is uniform in (−1, 1), not normal: only its column
//! space matters. If orthogonalization leaves less than 1e-12 of the energy of a column of `P`, the column counts as linearly dependent
//! and becomes zero. The same column of `Q` then also becomes zero, and is drawn again at the next exchange.
//!
//! **Reference.** T. Vogels, S. P. Karimireddy, M. Jaggi, *PowerSGD: Practical Low-Rank Gradient Compression for
//! Distributed Optimization*, NeurIPS 2019 (arXiv 1905.13727), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{AgreedStep, power_sgd::PowerSgd, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::new([("w", vec![3, 4])]);
//! let input: Vec<f32> = (0..12).map(|i| ((i / 4 + 1) * (i % 4 + 1)) as f32).collect(); // rank 1
//! let mut average = [0.0; 12];
//! PowerSgd::new(1)?.reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &input, average: &mut average, sent: None }, &mut comm)?;
//! assert!(input.iter().zip(&average).all(|(a, b)| (a - b).abs() < 1e-4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use rand::Rng;

use crate::error::{ConfigError, ReduceError};
use crate::math::{LowRankPlan, Matrix};
use crate::report::Report;
use crate::seam::{
    Arriving, CompleteVector, ErrorBound, Exchanged, Reducer, Round, Selection, SentInput, check_average,
};
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::state::Staged;
use crate::{CompressionRatio, Key, Layout, Session, Slot, stateful};

/// Low-rank all-reduce; see the [module](self).
#[derive(Debug)]
pub struct PowerSgd {
    rank: usize,
    plan: LowRankPlan,
    /// The warm start, `m × r` per matrix, row-major. This exchange's right factor is the next warm start.
    q: Staged<Vec<f32>>,
    left: Vec<f32>,
    /// The right factor of this rank's own contribution.
    own: Vec<f32>,
    /// Scratch: one matrix's factor, column by column, and blocks of a product.
    columns: Vec<f32>,
    blocks: Vec<f32>,
    /// Set if the last exchange was on a device.
    on_device: bool,
}

impl PowerSgd {
    /// Creates a reducer that keeps `rank` columns per matrix.
    ///
    /// # Errors
    /// [`ConfigError`] if `rank` is 0.
    pub fn new(rank: usize) -> Result<Self, ConfigError> {
        PowerSgdConfig { rank }.check()?;
        let (plan, q, [left, own, columns, blocks]) = Default::default();
        Ok(PowerSgd { rank, plan, q, left, own, columns, blocks, on_device: false })
    }

    fn prepare(&mut self, slots: &[Slot], key: Key, len: usize) -> Result<(), ReduceError> {
        if self.plan.is_empty() {
            self.plan = LowRankPlan::new(slots, self.rank);
        }
        if self.plan.len() != len {
            return Err(ReduceError::Length { expected: self.plan.len(), got: len });
        }
        self.q.fit(self.plan.right_len())?;
        let (q, right) = self.q.both();
        right.copy_from_slice(q);
        for (index, matrix) in self.plan.matrices().iter().enumerate() {
            refill_zero_columns(&mut right[matrix.right.clone()], self.rank, key.bucket(index));
        }
        Ok(())
    }

    /// Exchanges the factors. The matrices are read on the device of `input` if it has kernels for the products and `sent` is not requested.
    fn reduce_factors(
        &mut self,
        average: &mut [f32],
        sent: Option<&mut [f32]>,
        slots: &[Slot],
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<(), ReduceError> {
        let (len, rank, weight) = (average.len(), comm.rank(), 1.0 / comm.world() as f32);
        let failed = |source| ReduceError::Device { rank, source };
        let (plan, left, right, columns) = (&self.plan, &mut self.left, self.q.next_mut(), &mut self.columns);
        self.on_device = match input.device(0..len, comm).filter(|_| sent.is_none()) {
            Some(mut device) => device.left_factor(plan, right, left).map_err(failed)?,
            None => false,
        };
        if !self.on_device {
            plan.project_left(input.wait(0..len, comm), right, left, columns);
        }
        comm.all_reduce_sum(left)?;
        left.iter_mut().for_each(|v| *v *= weight);
        for matrix in plan.matrices() {
            orthonormalize(&mut left[matrix.left.clone()], plan.rank());
        }
        let (factor, dense) = left.split_at(plan.left_len());
        match input.device(0..len, comm).filter(|_| self.on_device) {
            Some(mut device) => device.right_factor(plan, factor, right).map_err(failed)?,
            None => plan.project_right(input.wait(0..len, comm), factor, right, columns),
        }
        self.own.clone_from(right);
        if let Some(sent) = sent {
            plan.put_matrices((factor, right), sent, columns);
            let input = input.wait(0..len, comm);
            plan.dense().for_each(|range| sent[range.clone()].copy_from_slice(&input[range]));
        }
        comm.all_reduce_sum(right)?;
        right.iter_mut().for_each(|v| *v *= weight);
        if let Some(mut device) = input.device(0..len, comm).filter(|_| self.on_device)
            && device.put_product(plan, (factor, right), dense).map_err(failed)?
        {
            return Ok(());
        }
        plan.put_product((factor, right), dense, average, columns);
        check_average(average, slots)
    }
}

/// Redraws zero columns, which would otherwise stay zero.
fn refill_zero_columns(q: &mut [f32], rank: usize, key: Key) {
    for column in 0..rank {
        if q.iter().skip(column).step_by(rank).all(|v| *v == 0.0) {
            let mut rng = key.purpose("power-sgd").block(column);
            q.iter_mut().skip(column).step_by(rank).for_each(|v| *v = rng.random::<f32>() * 2.0 - 1.0);
        }
    }
}

/// Runs modified Gram–Schmidt over the columns of a row-major `n × rank` matrix; a dependent column becomes zero.
fn orthonormalize(p: &mut [f32], rank: usize) {
    let dot = |p: &[f32], a: usize, b: usize| -> f64 {
        p.chunks_exact(rank).map(|row| f64::from(row[a]) * f64::from(row[b])).sum()
    };
    for column in 0..rank {
        let original = dot(p, column, column);
        for earlier in 0..column {
            let along = dot(p, column, earlier) as f32;
            p.chunks_exact_mut(rank).for_each(|row| row[column] -= along * row[earlier]);
        }
        let norm2 = dot(p, column, column);
        // A remainder below the rounding error of the original column has no meaningful direction. A column of denormal numbers has a
        // length whose inverse is infinite.
        let scale = if norm2 > original * 1e-12 { (1.0 / norm2.sqrt()) as f32 } else { 0.0 };
        let scale = if scale.is_finite() { scale } else { 0.0 };
        p.chunks_exact_mut(rank).for_each(|row| row[column] *= scale);
    }
}

stateful! {
    impl Stateful for PowerSgd { q: vector("q") }
}

impl Reducer for PowerSgd {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let mut input = CompleteVector(round.input);
        self.reduce_arriving(round, &mut input, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, average, sent, .. } = round;
        self.prepare(slots, key, average.len())?;
        let exchanged =
            Exchanged::count(comm, Selection::All, |comm| self.reduce_factors(average, sent, slots, input, comm))?;
        self.q.stage();
        Ok(exchanged)
    }

    fn can_subtract_sent(&self) -> bool {
        true
    }

    fn subtracts_on_device(&self) -> bool {
        self.on_device
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        if let Some(device) = &mut input.device {
            device.subtract_product(&self.plan, input.slots);
            return true;
        }
        let factors = (&self.left[..self.plan.left_len()], &self.own[..]);
        self.plan.subtract_product(factors, input.vector, input.kept, (&mut self.columns, &mut self.blocks))
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        let is_absent = |matrix: &&Matrix| absent.contains(&matrix.range);
        let places = self.plan.matrices().iter().filter(is_absent).map(|matrix| matrix.right.clone());
        self.q.hold(&places.collect::<Vec<_>>());
    }

    fn report(&self, report: &mut Report) {
        let plan = &self.plan;
        let travels = plan.left_len() + plan.right_len() + plan.dense_len();
        report.ratio = CompressionRatio::new(plan.len() as f64 / travels.max(1) as f64).ok();
    }
}

/// Settings of [`PowerSgd`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "power-sgd", help = "an all-reduce of factors of low rank (2)")]
pub struct PowerSgdConfig {
    /// Columns kept per matrix.
    #[setting(default = 2, range = "[1, inf)")]
    pub rank: usize,
}

impl ReducerSettings for PowerSgdConfig {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(PowerSgd::new(self.rank)?))
    }

    fn requires_all_slots(&self) -> bool {
        true
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { needs_feedback: true, multiplies_matrices: true, ..ReducerTraits::default() }
    }

    /// The projection is chosen for the mean: it never lengthens a rank's error, and may leave all of it.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }
}

#[cfg(test)]
mod tests;
