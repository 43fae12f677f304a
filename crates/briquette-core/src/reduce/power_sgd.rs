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
//! **State.** `Q`, equal on all ranks. **Knobs.** `rank`, at least 1; the literature uses 1, 2, 4; default 2.
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

mod matrix;

use matrix::{columns_of, expand, project_left, project_right, rows_of};

use crate::error::{ConfigError, ReduceError};
use crate::report::Report;
use crate::seam::{ErrorBound, Exchanged, Reducer, Round, Selection, check_average};
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::state::Staged;
use crate::{CompressionRatio, Key, Layout, Session, Slot, stateful};

/// One matrix slot and its position in the packed factors.
#[derive(Debug, Clone, PartialEq)]
struct Matrix {
    range: Range<usize>,
    rows: usize,
    cols: usize,
    left: Range<usize>,
    right: Range<usize>,
}

/// Layout of the packed factors; computed from the slots at first use.
#[derive(Debug, Default)]
struct Plan {
    rank: usize,
    len: usize,
    matrices: Vec<Matrix>,
    /// Slots that are sent dense, in the same all-reduce as the left factors.
    dense: Vec<Range<usize>>,
    left_len: usize,
    right_len: usize,
}

impl Plan {
    fn new(slots: &[Slot], rank: usize) -> Plan {
        let mut plan = Plan { rank, ..Plan::default() };
        for slot in slots {
            plan.len += slot.len();
            match slot.matrix().filter(|(n, m)| rank.saturating_mul(n + m) < n * m) {
                Some((rows, cols)) => {
                    let left = plan.left_len..plan.left_len + rows * rank;
                    let right = plan.right_len..plan.right_len + cols * rank;
                    (plan.left_len, plan.right_len) = (left.end, right.end);
                    plan.matrices.push(Matrix { range: slot.range(), rows, cols, left, right });
                }
                None => plan.dense.push(slot.range()),
            }
        }
        plan
    }

    /// Computes `P = M Q` for every matrix, then appends the dense slots.
    fn project_left(&self, input: &[f32], q: &[f32], left: &mut Vec<f32>, columns: &mut Vec<f32>) {
        left.clear();
        left.resize(self.left_len, 0.0);
        for matrix in &self.matrices {
            columns_of(&q[matrix.right.clone()], self.rank, columns);
            project_left(&input[matrix.range.clone()], columns, &mut left[matrix.left.clone()], self.rank);
        }
        for range in &self.dense {
            left.extend_from_slice(&input[range.clone()]);
        }
    }

    /// Computes `Q = Mᵀ P̂` for every matrix.
    fn project_right(&self, input: &[f32], left: &[f32], right: &mut [f32], columns: &mut Vec<f32>) {
        for matrix in &self.matrices {
            columns.resize(matrix.right.len(), 0.0);
            project_right(&input[matrix.range.clone()], &left[matrix.left.clone()], columns, self.rank);
            rows_of(columns, self.rank, &mut right[matrix.right.clone()]);
        }
    }

    /// Computes `P̂ Qᵀ`.
    fn expand(&self, left: &[f32], right: &[f32], out: &mut [f32], columns: &mut Vec<f32>) {
        for matrix in &self.matrices {
            columns_of(&right[matrix.right.clone()], self.rank, columns);
            expand(&left[matrix.left.clone()], columns, &mut out[matrix.range.clone()], self.rank);
        }
    }
}

/// Low-rank all-reduce; see the [module](self).
#[derive(Debug)]
pub struct PowerSgd {
    rank: usize,
    plan: Plan,
    /// The warm start, `m × r` per matrix, row-major. This exchange's right factor is the next warm start.
    q: Staged<Vec<f32>>,
    left: Vec<f32>,
    /// One matrix's factor, column by column.
    columns: Vec<f32>,
}

impl PowerSgd {
    /// Creates a reducer that keeps `rank` columns per matrix.
    ///
    /// # Errors
    /// [`ConfigError`] if `rank` is 0.
    pub fn new(rank: usize) -> Result<Self, ConfigError> {
        PowerSgdConfig { rank }.check()?;
        Ok(PowerSgd { rank, plan: Plan::default(), q: Staged::default(), left: Vec::new(), columns: Vec::new() })
    }

    fn prepare(&mut self, round: &Round<'_>) -> Result<(), ReduceError> {
        if self.plan.len == 0 {
            self.plan = Plan::new(round.slots, self.rank);
        }
        if self.plan.len != round.input.len() {
            return Err(ReduceError::Length { expected: self.plan.len, got: round.input.len() });
        }
        self.q.fit(self.plan.right_len)?;
        let (q, right) = self.q.both();
        right.copy_from_slice(q);
        for (index, matrix) in self.plan.matrices.iter().enumerate() {
            refill_zero_columns(&mut right[matrix.right.clone()], self.rank, round.key.bucket(index));
        }
        Ok(())
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
        self.prepare(&round)?;
        let weight = 1.0 / comm.world() as f32;
        let Round { slots, input, average, sent, .. } = round;
        let (plan, left, right, columns) = (&self.plan, &mut self.left, self.q.next_mut(), &mut self.columns);
        let exchanged = Exchanged::count(comm, Selection::All, |comm| {
            plan.project_left(input, right, left, columns);
            comm.all_reduce_sum(left)?;
            left.iter_mut().for_each(|v| *v *= weight);
            for matrix in &plan.matrices {
                orthonormalize(&mut left[matrix.left.clone()], plan.rank);
            }
            plan.project_right(input, left, right, columns);
            if let Some(sent) = sent {
                plan.expand(left, right, sent, columns);
                plan.dense.iter().for_each(|range| sent[range.clone()].copy_from_slice(&input[range.clone()]));
            }
            comm.all_reduce_sum(right)?;
            right.iter_mut().for_each(|v| *v *= weight);
            Ok(())
        })?;
        plan.expand(left, right, average, columns);
        let mut dense = &left[plan.left_len..];
        for range in &plan.dense {
            let (values, rest) = dense.split_at(range.len());
            average[range.clone()].copy_from_slice(values);
            dense = rest;
        }
        check_average(average, slots)?;
        self.q.stage();
        Ok(exchanged)
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        let is_absent = |matrix: &&Matrix| absent.contains(&matrix.range);
        let places = self.plan.matrices.iter().filter(is_absent).map(|matrix| matrix.right.clone());
        self.q.hold(&places.collect::<Vec<_>>());
    }

    fn report(&self, report: &mut Report) {
        let plan = &self.plan;
        let travels = plan.left_len + plan.right_len + plan.dense.iter().map(ExactSizeIterator::len).sum::<usize>();
        report.ratio = CompressionRatio::new(plan.len as f64 / travels.max(1) as f64).ok();
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
