//! Residual of an exchanged vector, computed without a dense copy of the contribution.
//!
//! A reducer that still has its messages after an exchange subtracts them from the vector that they encode. Subtracting a sparse message
//! changes only the values that it holds, so error feedback needs no pass over the whole vector.

use std::ops::Range;

use super::{DeviceMemory, DevicePart};
use crate::math::{Mask, SentStatistics};
use crate::{Message, Slot};

/// Velocity of the vector, of which the reducer masks what it has sent.
#[derive(Debug, Default)]
pub enum SentVelocity<'a> {
    /// No velocity.
    #[default]
    None,
    /// Velocity on the host.
    Host(&'a mut [f32], Mask),
    /// Velocity of the whole vector, on the device of the vector.
    Device(&'a mut dyn DeviceMemory, Mask),
}

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
    /// Output: [masked](Mask::apply) in each place that a [sparsifier selected](crate::seam::Selection).
    pub velocity: SentVelocity<'a>,
    /// `‖x‖²` of each slot's input.
    pub energies: &'a [f64],
    /// Output: statistics of each slot's contribution.
    pub kept: &'a mut [SentStatistics],
}

impl SentVelocity<'_> {
    /// Borrows the velocity.
    pub(crate) fn reborrow(&mut self) -> SentVelocity<'_> {
        match self {
            SentVelocity::None => SentVelocity::None,
            SentVelocity::Host(velocity, mask) => SentVelocity::Host(velocity, *mask),
            SentVelocity::Device(velocity, mask) => SentVelocity::Device(&mut **velocity, *mask),
        }
    }
}

impl<'a> SentInput<'a> {
    /// Creates the input of a vector without a velocity, on the host or, if `vector` is empty, on a device.
    pub(crate) fn new(
        slots: &'a [Slot],
        vector: &'a mut [f32],
        device: Option<DevicePart<'a>>,
        energies: &'a [f64],
        kept: &'a mut [SentStatistics],
    ) -> Self {
        SentInput { slots, vector, device, velocity: SentVelocity::None, energies, kept }
    }

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
        let velocity = match self.velocity.reborrow() {
            SentVelocity::Host(velocity, mask) => SentVelocity::Host(&mut velocity[range.clone()], mask),
            other => other,
        };
        let vector = if device.is_some() { &mut [] } else { &mut self.vector[range] };
        SentInput { slots, vector, device, velocity, energies, kept }
    }

    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        self.device.as_ref().map_or(self.vector.len(), DevicePart::len)
    }

    /// Waits for what subtractions on a device have measured: completes `kept`, and returns whether the remainder is finite. On the host, everything is
    /// known already. Called for a whole vector.
    pub(crate) fn settle(&mut self) -> bool {
        self.device.as_mut().is_none_or(|device| device.subtracted(self.kept))
    }

    /// Subtracts a message from this view, of which it encodes all values; see [`subtract_sent`](crate::seam::Reducer::subtract_sent). Masks the
    /// velocity if a sparsifier selected the values.
    pub(crate) fn subtract(&mut self, message: &Message, is_selected: bool) -> bool {
        match &mut self.velocity {
            SentVelocity::Host(velocity, mask) if is_selected => message.mask(*mask, velocity),
            SentVelocity::Device(velocity, mask) if is_selected => {
                self.device.iter_mut().for_each(|device| device.mask(message, *mask, &mut **velocity));
            }
            _ => {}
        }
        match &mut self.device {
            // Measured when all messages are subtracted.
            Some(device) => {
                device.subtract(message, self.slots);
                true
            }
            None => {
                let start = self.slots.first().map_or(0, |slot| slot.range().start);
                message.subtract_sent(start, self.slots, self.vector, self.kept)
            }
        }
    }
}
