//! Low-rank factors of the matrices among the slots of a vector: the plan of their places, and the products, for PowerSGD.

use std::any::Any;
use std::ops::Range;
use std::sync::OnceLock;

use super::products::{columns_of, expand, project_left, project_right, rows_of};
use super::{SentStatistics, subtract_sent};
use crate::Slot;

/// Values of a block that is subtracted at a time, from the start of its slot.
const BLOCK: usize = 1024;

/// A matrix in a vector, and the places of its packed factors.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Matrix {
    /// Number of its slot.
    pub slot: usize,
    /// Its values, row by row.
    pub range: Range<usize>,
    /// Number of rows.
    pub rows: usize,
    /// Number of columns.
    pub cols: usize,
    /// Place of `P`, which is `rows × rank`, among the left factors.
    pub left: Range<usize>,
    /// Place of `Q`, which is `cols × rank`, among the right factors.
    pub right: Range<usize>,
}

/// Plan of the packed factors of a layout: its matrices, and the slots without factors.
#[derive(Debug, Default)]
pub struct LowRankPlan {
    rank: usize,
    len: usize,
    matrices: Vec<Matrix>,
    /// Numbers and ranges of the slots without factors, which are sent dense.
    dense: Vec<(usize, Range<usize>)>,
    dense_len: usize,
    left_len: usize,
    right_len: usize,
    tables: OnceLock<Box<dyn Any + Send + Sync>>,
}

impl LowRankPlan {
    /// Plans `rank` columns for each slot that is a matrix with fewer values in its factors.
    pub fn new(slots: &[Slot], rank: usize) -> Self {
        let mut plan = LowRankPlan { rank, ..LowRankPlan::default() };
        for (index, slot) in slots.iter().enumerate() {
            plan.len += slot.len();
            match slot.matrix().filter(|(n, m)| rank.saturating_mul(n + m) < n * m) {
                Some((rows, cols)) => {
                    let left = plan.left_len..plan.left_len + rows * rank;
                    let right = plan.right_len..plan.right_len + cols * rank;
                    (plan.left_len, plan.right_len) = (left.end, right.end);
                    plan.matrices.push(Matrix { slot: index, range: slot.range(), rows, cols, left, right });
                }
                None => {
                    plan.dense_len += slot.len();
                    plan.dense.push((index, slot.range()));
                }
            }
        }
        plan
    }

    /// Returns the number of columns of a factor.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of values of the vector.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the vector has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the matrices.
    pub fn matrices(&self) -> &[Matrix] {
        &self.matrices
    }

    /// Returns the ranges of the slots without factors, in order.
    pub fn dense(&self) -> impl Iterator<Item = Range<usize>> {
        self.dense.iter().map(|(_, range)| range.clone())
    }

    /// Returns the number of values of the left factors, without those of dense slots, which follow them.
    pub fn left_len(&self) -> usize {
        self.left_len
    }

    /// Returns the number of values of the right factors.
    pub fn right_len(&self) -> usize {
        self.right_len
    }

    /// Returns the number of values of dense slots.
    pub fn dense_len(&self) -> usize {
        self.dense_len
    }

    /// Returns the tables that a device has made for this plan, and lets it make them at the first call.
    ///
    /// # Panics
    /// If the first call made tables of another type.
    pub fn tables<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> &T {
        let tables: &dyn Any = &**self.tables.get_or_init(|| Box::new(make()));
        tables.downcast_ref().expect("one kind of device uses a plan")
    }

    /// Computes `P = M Q` for every matrix, then appends the dense slots.
    pub(crate) fn project_left(&self, input: &[f32], q: &[f32], left: &mut Vec<f32>, columns: &mut Vec<f32>) {
        left.clear();
        left.resize(self.left_len, 0.0);
        for matrix in &self.matrices {
            columns_of(&q[matrix.right.clone()], self.rank, columns);
            project_left(&input[matrix.range.clone()], columns, &mut left[matrix.left.clone()], self.rank);
        }
        self.dense.iter().for_each(|(_, range)| left.extend_from_slice(&input[range.clone()]));
    }

    /// Computes `Q = Mᵀ P` for every matrix.
    pub(crate) fn project_right(&self, input: &[f32], left: &[f32], right: &mut [f32], columns: &mut Vec<f32>) {
        for matrix in &self.matrices {
            columns.resize(matrix.right.len(), 0.0);
            project_right(&input[matrix.range.clone()], &left[matrix.left.clone()], columns, self.rank);
            rows_of(columns, self.rank, &mut right[matrix.right.clone()]);
        }
    }

    /// Writes `P Qᵀ` for every matrix, and `dense` to the dense slots.
    pub(crate) fn put_product(
        &self,
        (left, right): (&[f32], &[f32]),
        mut dense: &[f32],
        out: &mut [f32],
        columns: &mut Vec<f32>,
    ) {
        self.put_matrices((left, right), out, columns);
        for (_, range) in &self.dense {
            let (values, rest) = dense.split_at(range.len());
            out[range.clone()].copy_from_slice(values);
            dense = rest;
        }
    }

    /// Writes `P Qᵀ` for every matrix.
    pub(crate) fn put_matrices(&self, (left, right): (&[f32], &[f32]), out: &mut [f32], columns: &mut Vec<f32>) {
        for matrix in &self.matrices {
            columns_of(&right[matrix.right.clone()], self.rank, columns);
            expand(&left[matrix.left.clone()], columns, &mut out[matrix.range.clone()], self.rank);
        }
    }

    /// Subtracts `P Qᵀ` from every matrix of `x`, and dense slots from themselves. Adds statistics of what was subtracted to `kept`, and
    /// returns whether the remainder is finite.
    pub(crate) fn subtract_product(
        &self,
        (left, right): (&[f32], &[f32]),
        x: &mut [f32],
        kept: &mut [SentStatistics],
        (columns, scratch): (&mut Vec<f32>, &mut Vec<f32>),
    ) -> bool {
        let mut finite = true;
        for matrix in &self.matrices {
            columns_of(&right[matrix.right.clone()], self.rank, columns);
            let (x, kept) = (&mut x[matrix.range.clone()], &mut kept[matrix.slot]);
            self.for_each_block(&left[matrix.left.clone()], columns, scratch, |start, sent| {
                finite &= subtract_sent(&mut x[start..][..sent.len()], sent, kept);
            });
        }
        for (slot, range) in &self.dense {
            for x in x[range.clone()].chunks_mut(BLOCK) {
                scratch.clear();
                scratch.extend_from_slice(x);
                finite &= subtract_sent(x, scratch, &mut kept[*slot]);
            }
        }
        finite
    }

    /// Calls `each` with the start and the values of each block of a product. `columns` is `Q` column by column.
    fn for_each_block(
        &self,
        left: &[f32],
        columns: &[f32],
        scratch: &mut Vec<f32>,
        mut each: impl FnMut(usize, &[f32]),
    ) {
        let (cols, mut start) = (columns.len() / self.rank, 0);
        let rows = (4 * BLOCK).div_ceil(cols);
        scratch.clear();
        for p in left.chunks(rows * self.rank) {
            let held = scratch.len();
            scratch.resize(held + p.len() / self.rank * cols, 0.0);
            expand(p, columns, &mut scratch[held..], self.rank);
            let whole = scratch.len() / BLOCK * BLOCK;
            for block in scratch[..whole].chunks_exact(BLOCK) {
                each(start, block);
                start += BLOCK;
            }
            scratch.drain(..whole);
        }
        if !scratch.is_empty() {
            each(start, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Layout;

    /// Matrices of fewer values than a block, of several blocks with a remainder, and with rows longer than a block.
    #[test]
    fn a_product_is_subtracted_in_blocks_from_the_start_of_its_slot() {
        let layout = Layout::new([
            ("a", vec![8, 9]),
            ("b", vec![1030]),
            ("c", vec![65, 70]),
            ("d", vec![7, 1500]),
            ("e", vec![3]),
        ]);
        let (plan, values) = (LowRankPlan::new(layout.slots(), 2), |len: usize| -> Vec<f32> {
            (0..len).map(|i| (i as f32 * 0.37).sin()).collect()
        });
        let (x, p, q) = (values(layout.len()), values(plan.left_len()), values(plan.right_len()));
        let (mut sent, mut left) = (x.clone(), x.clone());
        plan.put_matrices((&p, &q), &mut sent, &mut Vec::new());
        let mut kept = vec![SentStatistics::default(); 5];
        let scratch = (&mut Vec::new(), &mut Vec::new());
        assert!(plan.subtract_product((&p, &q), &mut left, &mut kept, scratch));
        let mut plain = x;
        for (slot, kept) in layout.slots().iter().zip(kept) {
            let mut expected = SentStatistics::default();
            let blocks = plain[slot.range()].chunks_mut(BLOCK).zip(sent[slot.range()].chunks(BLOCK));
            blocks.for_each(|(x, sent)| assert!(subtract_sent(x, sent, &mut expected)));
            assert_eq!(kept, expected, "{}", slot.path());
        }
        assert_eq!(left, plain);
    }
}
