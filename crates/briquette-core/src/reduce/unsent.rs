//! What stays behind of a vector that was exchanged, without a vector of what was sent.
//!
//! A reducer that still has its messages after an exchange takes them off the vector they were made of. Of a sparse message that
//! touches the kept values alone: a memory of what was not sent costs no pass over the vector.

use std::ops::Range;

use crate::Slot;

/// What was sent of a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Kept {
    /// `‖x‖² − ‖x − sent‖²`.
    pub energy: f64,
    /// Values that were sent as something other than 0.
    pub values: usize,
}

/// The vector of the last exchange, for [`take_off`](super::Reducer::take_off).
#[derive(Debug)]
pub struct Unsent<'a> {
    /// The tensors inside the vector.
    pub slots: &'a [Slot],
    /// In: the input of the exchange. Out: that less what was sent.
    pub vector: &'a mut [f32],
    /// `‖x‖²` of each slot's input.
    pub energies: &'a [f64],
    /// Out, of each slot.
    pub kept: &'a mut [Kept],
}

impl Unsent<'_> {
    /// The share of some of the slots, which are `slots` in a vector of their own, at `range` of this one.
    pub(crate) fn part<'b>(&'b mut self, slots: &'b [Slot], places: Range<usize>, range: Range<usize>) -> Unsent<'b> {
        let (energies, kept) = (&self.energies[places.clone()], &mut self.kept[places]);
        Unsent { slots, vector: &mut self.vector[range], energies, kept }
    }
}
