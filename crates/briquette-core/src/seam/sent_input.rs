//! Residual of an exchanged vector, computed without a dense copy of the contribution.
//!
//! A reducer that still has its messages after an exchange subtracts them from the vector that they encode. Subtracting a sparse message
//! changes only the values that it holds, so error feedback needs no pass over the whole vector.

use std::ops::Range;

use super::DevicePart;
use crate::Slot;
use crate::math::SentStatistics;

/// Input of the last exchange, for [`subtract_sent`](crate::seam::Reducer::subtract_sent).
#[derive(Debug)]
#[non_exhaustive]
pub struct SentInput<'a> {
    /// The tensors inside the vector.
    pub slots: &'a [Slot],
    /// Input: the input of the exchange. Output: the input minus the contribution sent. Empty if the vector is on a device.
    pub vector: &'a mut [f32],
    /// The same on a device, for a reducer that [subtracts there](crate::seam::Reducer::subtracts_on_device).
    pub device: Option<DevicePart<'a>>,
    /// `‖x‖²` of each slot's input.
    pub energies: &'a [f64],
    /// Output: statistics of each slot's contribution.
    pub kept: &'a mut [SentStatistics],
}

impl SentInput<'_> {
    /// Returns a view of some of the slots. `slots` describes them as a separate vector; `places` and `range` are their positions in this
    /// object.
    pub(crate) fn part<'b>(
        &'b mut self,
        slots: &'b [Slot],
        places: Range<usize>,
        range: Range<usize>,
    ) -> SentInput<'b> {
        let (energies, kept) = (&self.energies[places.clone()], &mut self.kept[places]);
        let device = self.device.as_mut().map(|device| device.reborrow().part(range.clone()));
        let vector = if device.is_some() { &mut [] } else { &mut self.vector[range] };
        SentInput { slots, vector, device, energies, kept }
    }
}
