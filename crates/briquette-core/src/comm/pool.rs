//! Pool of reusable frames.

use super::Frame;

/// Frames for reuse, so that a steady run allocates none.
///
/// Frames move between ranks: a frame taken from this pool is returned to the pool of the rank that receives it. The
/// collectives keep this balanced, so pools neither run empty nor grow. A pool that gets more frames than are taken
/// from it drops the smallest. It keeps a few more than the largest number that was ever in use at once.
#[derive(Debug, Default)]
pub struct FramePool {
    /// Free frames, smallest capacity first.
    free: Vec<Frame>,
    /// Frames taken and not returned, counted from the minimum so far; and the maximum of this count.
    out: usize,
    most_out: usize,
    /// Empty lists, for collectives that briefly hold one frame per rank.
    lists: Vec<Vec<Frame>>,
    allocations: u64,
}

impl FramePool {
    /// Returns an empty frame with the capacity of an earlier one where possible: the largest, because the required
    /// size is unknown.
    pub fn take(&mut self) -> Frame {
        self.note_taken();
        self.free.pop().unwrap_or_default()
    }

    fn note_taken(&mut self) {
        self.out += 1;
        self.most_out = self.most_out.max(self.out);
    }

    /// Returns an empty frame with room for `bytes` bytes: the smallest that is large enough, or the largest, enlarged.
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

    /// Returns a frame with a copy of `bytes`.
    pub fn copy_of(&mut self, bytes: &[u8]) -> Frame {
        let mut frame = self.take_for(bytes.len());
        frame.extend_from_slice(bytes);
        frame
    }

    /// Returns a frame to the pool. A frame that owns no memory is not kept.
    pub fn put(&mut self, mut frame: Frame) {
        if frame.capacity() == 0 {
            return;
        }
        frame.clear();
        let at = self.free.partition_point(|other| other.capacity() < frame.capacity());
        self.free.insert(at, frame);
        self.out = self.out.saturating_sub(1);
        // Drop the smallest: a larger frame serves every use of it.
        if self.free.len() > self.most_out + SPARE {
            self.free.remove(0);
        }
    }

    /// Returns the number of frames held now.
    pub fn frames(&self) -> usize {
        self.free.len()
    }

    /// Returns the bytes of memory of the frames held now.
    pub fn capacity(&self) -> usize {
        self.free.iter().map(Vec::capacity).sum()
    }

    /// Returns how often [`take_for`](FramePool::take_for) had no frame large enough; constant after warm-up.
    pub fn allocations(&self) -> u64 {
        self.allocations
    }

    /// Returns a list for [`all_gather`](super::Session::all_gather) to fill.
    pub(super) fn take_list(&mut self) -> Vec<Frame> {
        self.lists.pop().unwrap_or_default()
    }

    /// Returns a list, and its frames, to the pool.
    pub(super) fn put_list(&mut self, mut list: Vec<Frame>) {
        for frame in list.drain(..) {
            self.put(frame);
        }
        self.lists.push(list);
    }
}

/// Number of frames held in addition to the maximum that were taken in a row.
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
            // A frame allocated elsewhere.
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
