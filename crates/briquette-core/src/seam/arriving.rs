//! Vectors that are still being computed: values arrive slot by slot, as gradients do during the backward pass.

use std::ops::Range;

use super::DevicePart;
use crate::Session;

/// A vector whose values arrive in parts.
///
/// The result of a reducer must not depend on arrival times: [`reduce_arriving`](crate::seam::Reducer::reduce_arriving) gives the same
/// bits as [`reduce`](crate::seam::Reducer::reduce).
pub trait Arriving {
    /// Waits until the values in `range` have arrived, and returns them. Returns at once if they have arrived already. The range consists
    /// of whole slots (parameter tensors). Values that never arrive are zero: a rank whose vector turns out to be unusable takes part in
    /// the exchange to its end, so that no other rank blocks, and reports the error afterwards.
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32];

    /// Returns the slots in their expected arrival order, the same on every rank. Empty if the order is unknown; then the last slot is
    /// expected first.
    fn order(&self) -> &[usize] {
        &[]
    }

    /// Returns the vector on its device, if it is complete and [on one](crate::seam::DeviceInput).
    fn device(&mut self) -> Option<DevicePart<'_>> {
        None
    }
}

/// A vector that is already complete.
#[derive(Debug, Clone, Copy)]
pub struct CompleteVector<'a>(pub &'a [f32]);

impl Arriving for CompleteVector<'_> {
    fn wait(&mut self, range: Range<usize>, _comm: &mut Session) -> &[f32] {
        &self.0[range]
    }
}
