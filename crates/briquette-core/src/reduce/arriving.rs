//! Vectors that are still being computed: values arrive slot by slot, as gradients do during the backward pass.

use std::ops::Range;

use crate::Session;

/// A vector whose values arrive in parts.
///
/// The result of a reducer must not depend on arrival times: [`reduce_arriving`](super::Reducer::reduce_arriving) gives the bits of
/// [`reduce`](super::Reducer::reduce).
pub trait Arriving {
    /// Waits until these values have arrived and returns them; returns at once if they were waited for before. The range consists of whole
    /// slots. Values that never arrive are zero: a rank whose vector turns out to be unusable continues, so that no other rank blocks on
    /// it, and reports the error after the exchange.
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32];

    /// Returns the slots in their expected arrival order, the same on every rank. Empty if the order is unknown; then the last slot is
    /// expected first.
    fn order(&self) -> &[usize] {
        &[]
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
