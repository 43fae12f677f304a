//! A vector that is still being computed: its values come slot after slot, as gradients do while the backward pass runs.

use std::ops::Range;

use crate::Session;

/// A vector whose values come one part after another.
///
/// What a reducer makes of it must not depend on when they come: [`reduce_arriving`](super::Reducer::reduce_arriving) gives the bits
/// of [`reduce`](super::Reducer::reduce).
pub trait Arriving {
    /// Waits until these values are there, and returns them; at once where they were waited for before. The range is one of whole
    /// slots. What does not come at all is zero: a rank whose vector turns out to be of no use goes on, so that no other waits
    /// for it, and says so when all has been exchanged.
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32];

    /// The slots in the order in which they are expected, the same on every rank. Where nothing is known, empty: the last slot first.
    fn order(&self) -> &[usize] {
        &[]
    }
}

/// A vector that is there.
#[derive(Debug, Clone, Copy)]
pub struct Whole<'a>(pub &'a [f32]);

impl Arriving for Whole<'_> {
    fn wait(&mut self, range: Range<usize>, _comm: &mut Session) -> &[f32] {
        &self.0[range]
    }
}
