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

    /// Returns the device vector that this is all or a part of, or `None` for a vector on the host. Does not wait.
    fn on_device(&self) -> Option<DevicePlace> {
        None
    }

    /// Waits until the values in `range` have arrived on their device, and returns them there. Returns `None` for a vector on the host. The rules
    /// for ranges and for values that never arrive are those of [`wait`](Arriving::wait).
    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        let _ = (range, comm);
        None
    }
}

/// The device vector of an [arriving](Arriving) vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePlace {
    /// Number of values of the whole device vector.
    pub len: usize,
    /// Set if the whole vector was complete before the exchange.
    pub is_complete: bool,
}

/// A vector that is already complete.
#[derive(Debug, Clone, Copy)]
pub struct CompleteVector<'a>(pub &'a [f32]);

impl Arriving for CompleteVector<'_> {
    fn wait(&mut self, range: Range<usize>, _comm: &mut Session) -> &[f32] {
        &self.0[range]
    }
}
