//! Parallel loops over long vectors, in segments of [`SEGMENT`] values, on the caller's threads.
//!
//! With the cargo feature `rayon`, work called from inside a rayon pool (`pool.install(|| …)`) is shared by the threads
//! of that pool. Called from anywhere else, or without the feature, the caller does all the work. This module starts no
//! thread and uses no pool that the caller did not request ([`Threaded`](crate::wrapper) provides one).
//!
//! Results do not depend on the threads. The boundaries of segments depend on the vector's length alone, random bits
//! depend on the position in the vector ([`Key::lanes`](crate::Key::lanes)), and partial results are combined in a tree
//! of fixed shape, never in order of completion.

/// Values of a segment: 256 KiB, so that the second read comes from the second-level cache rather than from memory.
pub(crate) const SEGMENT: usize = 1 << 16;

/// Work that can be split at a segment boundary.
pub(crate) trait Cut: Send + Sized {
    /// Returns the first `segments` segments, and the others.
    fn cut(self, segments: usize) -> (Self, Self);
}

/// A slice with this many elements per segment; the last segment may have fewer.
pub(crate) struct Part<S>(pub(crate) S, pub(crate) usize);

impl<T: Sync> Cut for Part<&[T]> {
    fn cut(self, segments: usize) -> (Self, Self) {
        let (first, rest) = self.0.split_at((segments * self.1).min(self.0.len()));
        (Part(first, self.1), Part(rest, self.1))
    }
}

impl<T: Send> Cut for Part<&mut [T]> {
    fn cut(self, segments: usize) -> (Self, Self) {
        let border = (segments * self.1).min(self.0.len());
        let (first, rest) = self.0.split_at_mut(border);
        (Part(first, self.1), Part(rest, self.1))
    }
}

impl<A: Cut, B: Cut> Cut for (A, B) {
    fn cut(self, segments: usize) -> (Self, Self) {
        let ((a, rest_a), (b, rest_b)) = (self.0.cut(segments), self.1.cut(segments));
        ((a, b), (rest_a, rest_b))
    }
}

/// Calls `each` with the number (from `range`) and the data of every segment of `work`, and combines the results with
/// `join`, always in the same tree. `None` for no segments.
pub(crate) fn fold<W: Cut, R: Send>(
    range: std::ops::Range<usize>,
    work: W,
    each: &(impl Fn(usize, W) -> R + Sync),
    join: &(impl Fn(R, R) -> R + Sync),
) -> Option<R> {
    match range.len() {
        0 => None,
        1 => Some(each(range.start, work)),
        count => {
            let middle = range.start + count / 2;
            let (first, rest) = work.cut(count / 2);
            let (first, rest) =
                both(|| fold(range.start..middle, first, each, join), || fold(middle..range.end, rest, each, join));
            Some(join(first?, rest?))
        }
    }
}

/// Calls `each` with the number and the data of every segment of a vector of `len` values.
pub(crate) fn for_each<W: Cut>(len: usize, work: W, each: impl Fn(usize, W) + Sync) {
    fold(0..len.div_ceil(SEGMENT), work, &each, &|(), ()| ());
}

/// Returns the sum of `of` over the segments of `x`, in a fixed order.
pub(crate) fn sum(x: &[f32], of: impl Fn(&[f32]) -> f64 + Sync) -> f64 {
    let segments = x.len().div_ceil(SEGMENT);
    fold(0..segments, Part(x, SEGMENT), &|_, x: Part<&[f32]>| of(x.0), &|a, b| a + b).unwrap_or(0.0)
}

/// Runs both closures, on two threads if the caller runs in a pool.
fn both<A: Send, B: Send>(a: impl FnOnce() -> A + Send, b: impl FnOnce() -> B + Send) -> (A, B) {
    #[cfg(feature = "rayon")]
    if rayon::current_thread_index().is_some() {
        return rayon::join(a, b);
    }
    (a(), b())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_segment_is_handed_over_once_with_its_number_and_its_part_of_everything() {
        for len in [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 5 * SEGMENT + 7] {
            let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let mut first = vec![-1.0; len.div_ceil(SEGMENT)];
            for_each(len, (Part(&x[..], SEGMENT), Part(&mut first[..], 1)), |number, (x, first)| {
                assert_eq!((x.0[0], first.0.len()), ((number * SEGMENT) as f32, 1));
                first.0[0] = x.0.len() as f32;
            });
            assert_eq!(first.iter().sum::<f32>(), len as f32);
            assert_eq!(sum(&x, |x| x.len() as f64), len as f64);
        }
    }
}
