//! Residual of an exchanged vector, computed without a dense copy of the contribution.
//!
//! A reducer that still has its messages after an exchange subtracts them from the vector that they encode. A sparse message touches only
//! the kept values, so error feedback needs no pass over the whole vector.

use std::ops::Range;

use crate::Slot;

/// Contribution sent for a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct SentStatistics {
    /// `‖x‖² − ‖x − sent‖²`.
    pub energy: f64,
    /// Number of values sent as something other than 0.
    pub values: usize,
}

/// Input of the last exchange, for [`subtract_sent`](super::Reducer::subtract_sent).
#[derive(Debug)]
#[non_exhaustive]
pub struct Unsent<'a> {
    /// The tensors inside the vector.
    pub slots: &'a [Slot],
    /// Input: the input of the exchange. Output: the input minus the contribution sent.
    pub vector: &'a mut [f32],
    /// `‖x‖²` of each slot's input.
    pub energies: &'a [f64],
    /// Output: statistics of each slot's contribution.
    pub kept: &'a mut [SentStatistics],
}

impl Unsent<'_> {
    /// Returns the view of some of the slots. `slots` describes them as a separate vector; `places` and `range` are their positions in this
    /// one.
    pub(crate) fn part<'b>(&'b mut self, slots: &'b [Slot], places: Range<usize>, range: Range<usize>) -> Unsent<'b> {
        let (energies, kept) = (&self.energies[places.clone()], &mut self.kept[places]);
        Unsent { slots, vector: &mut self.vector[range], energies, kept }
    }
}
