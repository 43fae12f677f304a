//! Products of PowerSGD: core's `reduce::power_sgd`, every sum in core's order.
//!
//! A matrix product of a library may use another algorithm on each device, and has other bits. All matrices of a model are in one launch, by a
//! table of their rows and one of their columns. Orthonormalization is left to the host: its input is the average of small factors, which the
//! host has, and its sums are in f64.

use briquette_core::reduce::{LowRankPlan, Matrix};
use cubecl::prelude::*;

use crate::bits::sealed;
use crate::encode;
use crate::run::{Run, Vector};

/// Partial sums of core's product of two rows.
const LANES: usize = 16;
/// Words of a table's entry.
const ENTRY: usize = 4;

/// One lane of one row a unit: the row's products with all columns of `Q`.
#[cube(launch)]
pub(crate) fn left_lanes(x: &[f32], q: &[f32], rows: &[u32], out: &mut [f32], zero: u32, #[comptime] rank: usize) {
    let unit = ABSOLUTE_POS;
    let (row, lane) = (unit / comptime!(LANES), unit % comptime!(LANES));
    if row * comptime!(ENTRY) < rows.len() {
        let start = rows[row * comptime!(ENTRY)] as usize;
        let columns = rows[row * comptime!(ENTRY) + 1] as usize;
        let right = rows[row * comptime!(ENTRY) + 3] as usize;
        #[unroll]
        for c in 0..rank {
            let mut sum = 0.0f32;
            let mut at = lane;
            while at < columns {
                sum = sealed(sum + sealed(x[start + at] * q[right + at * rank + c], zero), zero);
                at += comptime!(LANES);
            }
            out[(row * rank + c) * comptime!(LANES) + lane] = sum;
        }
    }
}

/// Sum of the lanes of each product, in pairs.
#[cube(launch)]
pub(crate) fn left_totals(lanes: &[f32], rows: &[u32], out: &mut [f32], zero: u32, #[comptime] rank: usize) {
    let unit = ABSOLUTE_POS;
    let (row, c) = (unit / rank, unit % rank);
    if row * comptime!(ENTRY) < rows.len() {
        let mut sums = Array::<f32>::new(comptime!(LANES));
        #[unroll]
        for lane in 0..comptime!(LANES) {
            sums[lane] = lanes[unit * comptime!(LANES) + lane];
        }
        #[unroll]
        for i in 0..8usize {
            sums[i] = sealed(sums[i] + sums[i + 8], zero);
        }
        #[unroll]
        for i in 0..4usize {
            sums[i] = sealed(sums[i] + sums[i + 4], zero);
        }
        let even = sealed(sums[0] + sums[2], zero);
        let odd = sealed(sums[1] + sums[3], zero);
        out[rows[row * comptime!(ENTRY) + 2] as usize + c] = even + odd;
    }
}

/// One column of one matrix a unit: its products with the columns of `P`, in the order of rows.
#[cube(launch)]
pub(crate) fn right(x: &[f32], p: &[f32], columns: &[u32], out: &mut [f32], zero: u32, #[comptime] rank: usize) {
    let entry = ABSOLUTE_POS * comptime!(ENTRY + 1);
    if entry < columns.len() {
        let start = columns[entry] as usize;
        let stride = columns[entry + 1] as usize;
        let rows = columns[entry + 2] as usize;
        let left = columns[entry + 3] as usize;
        let to = columns[entry + 4] as usize;
        #[unroll]
        for c in 0..rank {
            let mut sum = 0.0f32;
            for row in 0..rows {
                sum = sealed(sum + sealed(x[start + row * stride] * p[left + row * rank + c], zero), zero);
            }
            out[to + c] = sum;
        }
    }
}

/// One row a cube: `P Qᵀ`, every sum in the order of columns of the ratios.
#[cube(launch)]
pub(crate) fn expanded(
    p: &[f32],
    q: &[f32],
    rows: &[u32],
    out: &mut [f32],
    zero: u32,
    #[comptime] rank: usize,
    #[comptime] units: u32,
) {
    let entry = CUBE_POS * comptime!(ENTRY);
    if entry < rows.len() {
        let start = rows[entry] as usize;
        let columns = rows[entry + 1] as usize;
        let left = rows[entry + 2] as usize;
        let right = rows[entry + 3] as usize;
        let mut at = UNIT_POS as usize;
        while at < columns {
            // −0 keeps the sign of a zero.
            let mut sum = f32::reinterpret(0x8000_0000u32);
            #[unroll]
            for c in 0..rank {
                sum = sealed(sum + sealed(q[right + at * rank + c] * p[left + c], zero), zero);
            }
            out[start + at] = sum;
            at += comptime!(units as usize);
        }
    }
}

/// Values at their places in a vector.
#[cube(launch)]
pub(crate) fn scattered(values: &[f32], places: &[u32], out: &mut [f32]) {
    let at = ABSOLUTE_POS;
    if at < places.len() {
        out[places[at] as usize] = values[at];
    }
}

/// Core's plan of the matrices of a model, as tables on the device.
#[derive(Debug, Clone)]
pub struct LowRank {
    rank: usize,
    rows: Vector,
    columns: Vector,
    /// Places of the values of dense slots.
    dense: Vector,
    left_len: usize,
    right_len: usize,
}

impl LowRank {
    /// Copies the tables to the device.
    pub fn new(run: &Run, plan: &LowRankPlan) -> LowRank {
        let (rank, mut rows, mut columns) = (plan.rank(), Vec::new(), Vec::new());
        for Matrix { range, rows: count, cols, left, right, .. } in plan.matrices() {
            let row = |i: usize| [range.start + i * cols, *cols, left.start + i * rank, right.start];
            let column = |j: usize| [range.start + j, *cols, *count, left.start, right.start + j * rank];
            rows.extend((0..*count).flat_map(row).map(|word| word as u32));
            columns.extend((0..*cols).flat_map(column).map(|word| word as u32));
        }
        let dense: Vec<u32> = plan.dense().flatten().map(|place| place as u32).collect();
        let [rows, columns, dense] = [rows, columns, dense].map(|words| run.upload_words(&words));
        LowRank { rank, rows, columns, dense, left_len: plan.left_len(), right_len: plan.right_len() }
    }

    /// Queues the values of dense slots of `x`.
    pub(crate) fn dense(&self, run: &Run, x: &Vector) -> Vector {
        encode::gather_at(run, x, &self.dense)
    }

    /// Queues `values` to the dense slots of `out`.
    pub(crate) fn put_dense(&self, run: &Run, values: &Vector, out: &Vector) {
        if !self.dense.is_empty() {
            let cubes = run.cubes_for(self.dense.len());
            scattered::launch(run.launch(), cubes, run.dim(), values.arg(), self.dense.arg(), out.arg());
        }
    }

    /// Queues `P = M Q` for every matrix of `x`.
    pub fn left(&self, run: &Run, x: &Vector, q: &Vector) -> Vector {
        let (rank, rows, out) = (self.rank, self.rows.len() / ENTRY, run.empty(self.left_len));
        if rows > 0 {
            let lanes = run.empty(rows * rank * LANES);
            let (cubes, table) = (run.cubes_for(rows * LANES), self.rows.arg());
            left_lanes::launch(run.launch(), cubes, run.dim(), x.arg(), q.arg(), table, lanes.arg(), 0, rank);
            let (cubes, table) = (run.cubes_for(rows * rank), self.rows.arg());
            left_totals::launch(run.launch(), cubes, run.dim(), lanes.arg(), table, out.arg(), 0, rank);
        }
        out
    }

    /// Queues `Q = Mᵀ P` for every matrix of `x`.
    pub fn right(&self, run: &Run, x: &Vector, p: &Vector) -> Vector {
        let (columns, out) = (self.columns.len() / (ENTRY + 1), run.empty(self.right_len));
        if columns > 0 {
            let (cubes, table) = (run.cubes_for(columns), self.columns.arg());
            right::launch(run.launch(), cubes, run.dim(), x.arg(), p.arg(), table, out.arg(), 0, self.rank);
        }
        out
    }

    /// Queues `P Qᵀ` for every matrix, in its place of `out`.
    pub fn expand(&self, run: &Run, p: &Vector, q: &Vector, out: &Vector) {
        let rows = self.rows.len() / ENTRY;
        if rows > 0 {
            let (cubes, dim, rank, units) = (run.cubes(rows), run.dim(), self.rank, run.units());
            expanded::launch(run.launch(), cubes, dim, p.arg(), q.arg(), self.rows.arg(), out.arg(), 0, rank, units);
        }
    }
}
