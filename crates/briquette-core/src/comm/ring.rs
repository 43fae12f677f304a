//! Ring algorithm of an all-reduce, for frames with any contents.

use std::ops::Range;

use super::collectives::expect_size;
use super::{Frame, RING_FRAME, Session};
use crate::error::CommError;

/// Number of frames of the ring that a rank sends before it waits for the first.
const RING_AHEAD: usize = 4;

/// Stage of a frame that a rank sends in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hop {
    /// This rank's own values, at the start of the ring.
    Start,
    /// The sum of the previous ranks, which was [collected](Hops::collect), and of this one.
    Sum,
    /// Like `Sum`, but this rank completes the sum over all ranks.
    Whole,
    /// The sum of all ranks, which was [delivered](Hops::deliver).
    Onward,
}

/// Operations of a rank on the values of one vector in the ring. Each rank sends each value once before it is
/// delivered: with `Start`, `Sum` or `Whole`.
pub(crate) trait Hops {
    /// Returns the minimum bytes of a frame of this many values.
    fn bytes(&self, values: usize) -> usize;
    /// Returns whether a frame of this many values may have this many bytes.
    fn fits(&self, values: usize, bytes: usize) -> bool {
        bytes == self.bytes(values)
    }
    /// Replaces the contents of `frame`, which has room for [`bytes`](Self::bytes).
    fn send(&mut self, place: Range<usize>, hop: Hop, frame: &mut Frame);
    /// Receives the sum of the previous ranks, in a frame of the right size.
    fn collect(&mut self, place: Range<usize>, frame: &[u8]);
    /// Receives the sum of all ranks, in a frame of the right size.
    fn deliver(&mut self, place: Range<usize>, frame: &[u8]);
}

/// Runs a ring reduce-scatter and all-gather. Chunk `c` starts at rank `c` and is summed in the order `c, c+1, …`. It
/// passes the ring twice: first it collects, then it delivers. It is sent in frames of at most [`RING_FRAME`] values. A
/// few of them are always in flight, so that the addition of a frame overlaps with the transfer of the next.
pub(super) fn ring(comm: &mut Session, len: usize, hops: &mut impl Hops) -> Result<(), CommError> {
    let (rank, world) = (comm.rank(), comm.world());
    let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
    let frames = len.div_ceil(world).div_ceil(RING_FRAME.min(comm.piece(4 * RING_FRAME) / 4).max(1)).max(1);
    // Range of the values in the frame with this number that a rank sends.
    let place = |sender: usize, number: usize| -> Range<usize> {
        let chunk = chunk((sender + 2 * world - number / frames) % world, len, world);
        let frame = self::chunk(number % frames, chunk.len(), frames);
        chunk.start + frame.start..chunk.start + frame.end
    };
    let hop = |number: usize| match number / frames {
        hop if hop >= world => Hop::Onward,
        hop if hop + 1 == world => Hop::Whole,
        0 => Hop::Start,
        _ => Hop::Sum,
    };
    let send = |comm: &mut Session, hops: &mut _, number: usize| {
        let values = place(rank, number);
        let mut frame = comm.pool().take_for(Hops::bytes(hops, values.len()));
        Hops::send(hops, values, hop(number), &mut frame);
        comm.send(next, frame)
    };
    let (total, ahead) = (2 * (world - 1) * frames, frames.min(RING_AHEAD));
    (0..ahead.min(total)).try_for_each(|number| send(comm, hops, number))?;
    for number in 0..total {
        let frame = comm.recv(previous)?;
        let values = place(previous, number);
        if !hops.fits(values.len(), frame.len()) {
            expect_size(comm, previous, hops.bytes(values.len()), &frame)?;
        }
        if number < total / 2 {
            hops.collect(values, &frame);
        } else {
            hops.deliver(values, &frame);
        }
        comm.pool().put(frame);
        if number + ahead < total {
            send(comm, hops, number + ahead)?;
        }
    }
    Ok(())
}

/// Returns the values of chunk `c` of `len` values cut into `world`: `[c·len/world, (c+1)·len/world)`.
pub(super) fn chunk(c: usize, len: usize, world: usize) -> Range<usize> {
    c * len / world..(c + 1) * len / world
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_vector() {
        for (len, world) in [(0, 3), (2, 5), (10, 3), (5003, 5)] {
            let ends: Vec<usize> = (0..world).flat_map(|c| chunk(c, len, world)).collect();
            assert_eq!(ends, (0..len).collect::<Vec<_>>());
        }
    }
}
