//! Subtraction of a message from the vector that it encodes.

use std::ops::Range;

use super::{Message, Payload};
use crate::Slot;
use crate::math::{Mask, SentStatistics, subtract_sent};

impl Message {
    /// Computes `x ← x − decoded`, adds the sent energy and count of each slot to `kept`, and returns whether the
    /// remainder is finite. `x` begins at `start` of the vector that the slots describe.
    pub(crate) fn subtract_sent(
        &self,
        start: usize,
        slots: &[Slot],
        x: &mut [f32],
        kept: &mut [SentStatistics],
    ) -> bool {
        assert_eq!(x.len(), self.len, "a message is taken off the vector it was made of");
        let ranges = slots.iter().map(|slot| slot.range().start - start..slot.range().end - start);
        match &self.payload {
            Payload::Sparse { .. } => self.subtract_kept(ranges, x, kept),
            _ => ranges.zip(kept).fold(true, |finite, (range, kept)| {
                let mut all = finite;
                self.for_each_block(range.start, range.end, |at, sent| {
                    all &= subtract_sent(&mut x[at..][..sent.len()], sent, kept);
                });
                all
            }),
        }
    }

    /// Masks the velocity of the vector that this message encodes.
    pub(crate) fn mask(&self, mask: Mask, velocity: &mut [f32]) {
        assert_eq!(velocity.len(), self.len, "a message masks the velocity of its vector");
        if let Payload::Sparse { indices, values } = &self.payload {
            values.for_each(0, indices.len(), |j, value| {
                let velocity = &mut velocity[indices[j] as usize];
                *velocity = mask.apply(*velocity, value);
            });
            return;
        }
        self.for_each_block(0, self.len, |at, sent| {
            let velocity = velocity[at..][..sent.len()].iter_mut();
            velocity.zip(sent).for_each(|(velocity, sent)| *velocity = mask.apply(*velocity, *sent));
        });
    }

    fn subtract_kept(
        &self,
        ranges: impl Iterator<Item = Range<usize>>,
        x: &mut [f32],
        kept: &mut [SentStatistics],
    ) -> bool {
        let Payload::Sparse { indices, values } = &self.payload else { unreachable!("a sparse message") };
        let (mut from, mut finite) = (0, true);
        for (range, kept) in ranges.zip(kept) {
            let to = from + indices[from..].partition_point(|&index| (index as usize) < range.end);
            values.for_each(from, to, |j, value| {
                let x = &mut x[indices[j] as usize];
                // x² − (x − c)² = c·(2x − c)
                let (before, sent) = (f64::from(*x), f64::from(value));
                kept.energy += sent * (2.0 * before - sent);
                kept.values += usize::from(value != 0.0);
                // A decoded vector has no negative zeros.
                *x -= value + 0.0;
                finite &= x.is_finite();
            });
            from = to;
        }
        finite
    }
}
