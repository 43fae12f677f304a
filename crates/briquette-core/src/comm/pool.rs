//! Frames to be used again.

use super::Frame;

/// Frames waiting to be used again, so that a steady run allocates none.
///
/// Frames travel: one taken here is given back to the pool of the rank that receives it. The collectives keep that
/// balanced, so pools neither run dry nor grow. A pool that is given more frames than are ever taken from it drops the smallest: it holds
/// no more than were once taken in a row, and a few.
#[derive(Debug, Default)]
pub struct FramePool {
    /// Smallest capacity first.
    free: Vec<Frame>,
    /// Frames taken and not given back, since there were fewest such; and the most of them so far.
    out: usize,
    most_out: usize,
    /// Emptied lists, for collectives that hold one frame per rank for a moment.
    lists: Vec<Vec<Frame>>,
    allocations: u64,
}

impl FramePool {
    /// An empty frame with the capacity of an earlier one where possible: the largest, as the need is not known.
    pub fn take(&mut self) -> Frame {
        self.note_taken();
        self.free.pop().unwrap_or_default()
    }

    fn note_taken(&mut self) {
        self.out += 1;
        self.most_out = self.most_out.max(self.out);
    }

    /// An empty frame with room for `bytes` bytes: the smallest that has it, or the largest, enlarged.
    pub fn take_for(&mut self, bytes: usize) -> Frame {
        let fits = self.free.partition_point(|frame| frame.capacity() < bytes);
        if fits < self.free.len() {
            self.note_taken();
            return self.free.remove(fits);
        }
        if bytes == 0 {
            return Frame::new();
        }
        let mut frame = self.take();
        frame.reserve_exact(bytes);
        self.allocations += 1;
        frame
    }

    /// A frame holding a copy of `bytes`.
    pub fn copy_of(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.take_for(bytes.len());
        frame.extend_from_slice(bytes);
        frame
    }

    /// Gives a frame back. One that owns no memory is not kept.
    pub fn put(&mut self, mut frame: Frame) {
        if frame.capacity() == 0 {
            return;
        }
        frame.clear();
        let at = self.free.partition_point(|other| other.capacity() < frame.capacity());
        self.free.insert(at, frame);
        self.out = self.out.saturating_sub(1);
        // The smallest: whatever fits it fits a larger one.
        if self.free.len() > self.most_out + SPARE {
            self.free.remove(0);
        }
    }

    /// Frames held now.
    pub fn frames(&self) -> usize {
        self.free.len()
    }

    /// Bytes of memory behind the frames held now.
    pub fn capacity(&self) -> usize {
        self.free.iter().map(Vec::capacity).sum()
    }

    /// How often [`take_for`](FramePool::take_for) had no frame large enough; constant after warm-up.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// A list for [`all_gather`](super::Session::all_gather) to fill.
    pub(super) fn take_list(&mut self) -> Vec<Frame> {
        self.lists.pop().unwrap_or_default()
    }

    /// Gives a list back, and its frames to the pool.
    pub(super) fn put_list(&mut self, mut list: Vec<Frame>) {
        for frame in list.drain(..) {
            self.put(frame);
        }
        self.lists.push(list);
    }
}

/// Frames that are held in addition to the most that were once taken in a row.
const SPARE: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_that_is_given_more_than_is_taken_does_not_grow() {
        let mut pool = FramePool::default();
        for _ in 0..1000 {
            let taken = [pool.take_for(50), pool.take_for(50)];
            taken.into_iter().for_each(|frame| pool.put(frame));
            // Made elsewhere.
            pool.put(Vec::with_capacity(60));
        }
        assert_eq!((pool.frames(), pool.allocations()), (2 + SPARE, 2));
    }

    #[test]
    fn a_burst_is_held_for_the_next_one() {
        let mut pool = FramePool::default();
        for _ in 0..3 {
            let taken: Vec<_> = (0..100).map(|_| pool.take_for(50)).collect();
            taken.into_iter().for_each(|frame| pool.put(frame));
        }
        assert_eq!((pool.frames(), pool.allocations()), (100, 100));
    }

    #[test]
    fn pool_gives_the_smallest_frame_that_fits_and_enlarges_the_largest() {
        let mut pool = FramePool::default();
        for bytes in [100, 10, 1000] {
            pool.put(Vec::with_capacity(bytes));
        }
        assert_eq!(pool.take_for(50).capacity(), 100);
        assert_eq!(pool.take_for(2000).capacity(), 2000);
        assert_eq!((pool.frames(), pool.capacity(), pool.allocations()), (1, 10, 1));
        assert_eq!(pool.copy_of(b"rank").as_slice(), b"rank");
    }

    #[test]
    fn pool_does_not_keep_frames_without_memory() {
        let mut pool = FramePool::default();
        pool.put(Vec::new());
        assert_eq!(pool.frames(), 0);
    }
}
