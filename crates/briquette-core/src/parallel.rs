//! Long vectors, a segment of [`SEGMENT`] values at a time, on as many threads as the caller brings.
//!
//! With the cargo feature `rayon`, work that is called from inside a rayon pool (`pool.install(|| …)`) is shared by the
//! threads of that pool. Called from anywhere else, or without the feature, the caller does it all: no thread is started
//! here and no pool is touched that was not asked for ([`Threaded`](crate::wrapper) brings one).
//!
//! Results do not depend on which of these it is. Where a vector is cut depends on its length alone, random bits belong to
//! places of the vector ([`Key::lanes`](crate::Key::lanes)), and what segments give is put together in a tree of fixed
//! shape, never by completion.

/// Values of a segment: 256 KiB, read twice from a second-level cache rather than from memory.
pub(crate) const SEGMENT: usize = 1 << 16;

/// Something that can be cut at the border of a segment.
pub(crate) trait Cut: Send + Sized {
    /// The first `segments` of it, and the others.
    fn cut(self, segments: usize) -> (Self, Self);
}

/// A slice of which this many elements belong to each segment; the last one may have fewer.
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

/// Hands every segment of `work` and its number, from those of `range`, to `each`, and puts the results together with
/// `join`: always in the same tree. `None` for no segments.
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

/// Hands every segment of a vector of `len` values and its number to `each`.
pub(crate) fn for_each<W: Cut>(len: usize, work: W, each: impl Fn(usize, W) + Sync) {
    fold(0..len.div_ceil(SEGMENT), work, &each, &|(), ()| ());
}

/// The sum of what segments of `x` give, in a fixed order.
pub(crate) fn sum(x: &[f32], of: impl Fn(&[f32]) -> f64 + Sync) -> f64 {
    let segments = x.len().div_ceil(SEGMENT);
    fold(0..segments, Part(x, SEGMENT), &|_, x: Part<&[f32]>| of(x.0), &|a, b| a + b).unwrap_or(0.0)
}

/// Does both, on two threads where the caller brought them.
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
