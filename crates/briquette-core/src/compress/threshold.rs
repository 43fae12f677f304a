//! Selection by magnitude, shared by every sparsifier that keeps large values.
//!
//! Magnitudes are compared by the bits of `|v|`, which order like the values and never round. A *floor* is such bits: values at or above it
//! pass. Zeros never pass, because a message need not contain them. No pass allocates more than the values that it keeps.

use crate::bits::{Which, for_ones, pack_where};
use crate::parallel::{self, Part, SEGMENT};
use crate::seam::ErrorBound;
use crate::{BLOCK, Message};

/// Returns the bits of `|v|`, which order like magnitudes.
pub(super) fn magnitude(v: f32) -> u32 {
    v.to_bits() & 0x7fff_ffff
}

/// The floor that passes every value but zeros.
pub const NONZERO: u32 = 1;

/// Returns the floor for a threshold of at least 0.
pub fn floor_of(threshold: f64) -> u32 {
    magnitude(threshold as f32).max(NONZERO)
}

/// Selection rule: magnitudes above `bits`, and the first `ties` equal to it.
#[derive(Debug, Clone, Copy)]
struct Cut {
    bits: u32,
    ties: usize,
}

impl Cut {
    const NONZERO: Cut = Cut { bits: 0, ties: 0 };

    /// Returns the cut that keeps `k` of the magnitudes, but no zeros.
    fn find(magnitudes: impl Iterator<Item = u32> + Clone, k: usize) -> Cut {
        let (mut prefix, mut above) = (0_u32, 0_usize);
        for (shift, width) in [(20, 11), (10, 10), (0, 10)] {
            let mut counts = [0_u32; 2048];
            let mask = (1_u32 << width) - 1;
            for m in magnitudes.clone() {
                if m >> (shift + width) == prefix {
                    counts[((m >> shift) & mask) as usize] += 1;
                }
            }
            let mut bin = mask;
            while bin > 0 && above + (counts[bin as usize] as usize) < k {
                above += counts[bin as usize] as usize;
                bin -= 1;
            }
            prefix = (prefix << width) | bin;
        }
        if prefix == 0 { Cut::NONZERO } else { Cut { bits: prefix, ties: k - above } }
    }

    /// Returns whether the next magnitude in index order is kept.
    fn keeps(&mut self, magnitude: u32) -> bool {
        let tie = magnitude == self.bits && self.ties > 0;
        self.ties -= usize::from(tie);
        tie || magnitude > self.bits
    }
}

/// Minimum length for sampling.
pub(super) const SAMPLED: usize = 1 << 15;
const SAMPLES: usize = 4096;

/// Values that passed, in the storage of the message's indices: for each its index, then its bits. A later selection among them therefore
/// does not access the vector again, where each access would touch a separate cache line.
#[derive(Debug)]
pub struct Picks<'a>(&'a mut Vec<u32>);

impl<'a> Picks<'a> {
    /// Creates an empty selection in this storage.
    pub fn new(storage: &'a mut Vec<u32>) -> Self {
        storage.clear();
        Picks(storage)
    }

    /// Returns the picks at ascending `indices`, in place of the indices.
    pub(super) fn among(x: &[f32], indices: &'a mut Vec<u32>) -> Self {
        let count = indices.len();
        indices.resize(2 * count, 0);
        for place in (0..count).rev() {
            let index = indices[place];
            (indices[2 * place], indices[2 * place + 1]) = (index, x[index as usize].to_bits());
        }
        Picks(indices)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len() / 2
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn storage(self) -> &'a mut Vec<u32> {
        self.0
    }

    #[inline(always)]
    fn push(&mut self, index: u32, v: f32) {
        self.0.extend_from_slice(&[index, v.to_bits()]);
    }

    fn magnitudes(&self) -> impl Iterator<Item = u32> + Clone {
        self.0.as_chunks::<2>().0.iter().map(|[_, bits]| bits & 0x7fff_ffff)
    }

    /// Keeps the `k` largest magnitudes, ties to the lowest index, if there are more.
    pub(super) fn retain_largest(&mut self, k: usize) {
        if k < self.len() {
            self.thin(k);
        }
    }

    /// Keeps the `k` largest of more than `k` picks; returns the smallest magnitude kept.
    fn thin(&mut self, k: usize) -> u32 {
        let mut cut = Cut::find(self.magnitudes(), k);
        let least = cut.bits;
        let mut kept = 0;
        for place in 0..self.len() {
            let [index, bits] = [self.0[2 * place], self.0[2 * place + 1]];
            // Always written, and overwritten unless kept: this avoids an unpredictable branch.
            (self.0[2 * kept], self.0[2 * kept + 1]) = (index, bits);
            kept += usize::from(cut.keeps(bits & 0x7fff_ffff));
        }
        self.0.truncate(2 * kept);
        least
    }

    /// Returns the values, exactly.
    pub(super) fn values(&self) -> impl Iterator<Item = f32> + Clone {
        self.0.as_chunks::<2>().0.iter().map(|[_, bits]| f32::from_bits(*bits))
    }

    /// Leaves only the indices in their storage.
    pub(super) fn finish(self) {
        for place in 0..self.len() {
            self.0[place] = self.0[2 * place];
        }
        self.0.truncate(self.0.len() / 2);
    }

    /// Appends the values to `values`, then leaves only the indices in their storage.
    pub fn finish_into(self, values: &mut Vec<f32>) {
        values.clear();
        values.reserve_exact(self.len());
        values.extend(self.values());
        self.finish();
    }
}

/// Returns the `k` largest magnitudes, ties to the lowest index, without zeros.
pub(super) fn select<'a>(x: &[f32], k: usize, storage: &'a mut Vec<u32>) -> Picks<'a> {
    let mut picks = Picks::new(storage);
    if x.len() >= SAMPLED && k <= x.len() / 4 {
        // The floor passes up to half as many again.
        picks.0.reserve_exact(2 * room_for(k) + 512);
        collect(x, sampled_floor(x, k), [k, k], &mut picks);
        if picks.len() >= k {
            return picks;
        }
        picks.clear();
    }
    let all = k >= x.len();
    let mut cut = if all { Cut::NONZERO } else { Cut::find(x.iter().map(|&v| magnitude(v)), k) };
    scan(x, 0, cut.bits, |index, v| {
        if cut.keeps(magnitude(v)) {
            picks.push(index, v);
        }
    });
    picks
}

/// Returns a floor that probably a few more than `k` values of `x` reach.
fn sampled_floor(x: &[f32], k: usize) -> u32 {
    let mut sample = [0; SAMPLES];
    let stride = x.len() / SAMPLES;
    for (i, sample) in sample.iter_mut().enumerate() {
        // Steps within the stride, so that a period of the data (channels, rows) does not select the sample.
        *sample = magnitude(x[i * stride + i % stride]);
    }
    let expected = (k as f64 / x.len() as f64) * SAMPLES as f64;
    // Three standard deviations of the count, plus a margin for very small counts.
    let rank = (expected + 3.0 * expected.sqrt() + 4.0) as usize;
    (*sample.select_nth_unstable_by(rank.min(SAMPLES - 1), |a, b| b.cmp(a)).1).max(NONZERO)
}

/// Returns the number of picks to hold before they are reduced to `k`.
fn room_for(k: usize) -> usize {
    k + k / 4 * 3 + 512
}

/// Picks all values at or above `floor`; if there are more than `most`, the `k` largest among them instead. However low the floor is, at
/// most about `2k + 512` picks are held.
pub fn collect(x: &[f32], floor: u32, [k, most]: [usize; 2], picks: &mut Picks<'_>) {
    let (mut floor, room) = (floor, room_for(k.max(most)));
    // Growing by doubling would hold up to twice as much.
    picks.0.reserve_exact(2 * most.min(x.len()));
    let mut thinned = false;
    for (b, block) in x.chunks(BLOCK).enumerate() {
        scan(block, b * BLOCK, floor, |index, v| picks.push(index, v));
        if picks.len() > room {
            // Later values must exceed the k largest so far: ties go to the lowest index.
            floor = picks.thin(k) + 1;
            thinned = true;
        }
    }
    if thinned || picks.len() > most {
        picks.retain_largest(k);
    }
}

struct Reach(i32);

impl Which<f32> for Reach {
    #[inline(always)]
    fn holds(&self, value: f32) -> bool {
        magnitude(value) as i32 >= self.0
    }
}

/// Calls `each` with the values that reach `floor`, in order; `start` is the first value's index.
pub(super) fn scan(x: &[f32], start: usize, floor: u32, mut each: impl FnMut(u32, f32)) {
    // One bit per value: looking at all of them at once costs less than skipping chunks without any.
    let mut reach = [0; BLOCK / 8];
    for (i, block) in x.chunks(BLOCK).enumerate() {
        let reach = &mut reach[..block.len().div_ceil(8)];
        pack_where(block, &Reach(floor as i32), reach);
        for_ones(reach, |place| each((start + i * BLOCK + place) as u32, block[place]));
    }
}

/// Statistics of the values at or above a floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tail {
    /// Number of the values.
    pub count: usize,
    /// Sum of their magnitudes.
    pub sum: f64,
}

impl Tail {
    fn and(self, other: Tail) -> Tail {
        Tail { count: self.count + other.count, sum: self.sum + other.sum }
    }
}

/// Counts and sums the values that reach `floor`, in a fixed order.
pub fn tail(x: &[f32], floor: u32) -> Tail {
    let segments = x.len().div_ceil(SEGMENT);
    let tail = parallel::fold(0..segments, Part(x, SEGMENT), &|_, x| tail_of(x.0, floor), &Tail::and);
    tail.unwrap_or(Tail { count: 0, sum: 0.0 })
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn tail_of(x: &[f32], floor: u32) -> Tail {
    const LANES: usize = 16;
    let (mut counts, mut sums) = ([0_u32; LANES], [0.0_f64; LANES]);
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut add = |lane: usize, v: f32| {
        let m = magnitude(v);
        let passes = m as i32 >= floor as i32;
        counts[lane] += u32::from(passes);
        sums[lane] += f64::from(f32::from_bits(if passes { m } else { 0 }));
    };
    for chunk in chunks {
        (0..LANES).for_each(|lane| add(lane, chunk[lane]));
    }
    (0..rest.len()).for_each(|lane| add(lane, rest[lane]));
    Tail { count: counts.iter().map(|&c| c as usize).sum(), sum: sums.iter().sum() }
}

/// Returns the number of values that reach each of the floors, in one pass.
pub fn counts<const N: usize>(x: &[f32], floors: [u32; N]) -> [usize; N] {
    let join = |a: [usize; N], b: [usize; N]| std::array::from_fn(|i| a[i] + b[i]);
    let each = |_, x: Part<&[f32]>| counts_of(x.0, floors).map(|count| count as usize);
    parallel::fold(0..x.len().div_ceil(SEGMENT), Part(x, SEGMENT), &each, &join).unwrap_or([0; N])
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn counts_of<const N: usize>(x: &[f32], floors: [u32; N]) -> [u32; N] {
    let mut counts = [0; N];
    // A block at a time, so that all but the first floor find it in the cache.
    for block in x.chunks(BLOCK) {
        for (count, floor) in counts.iter_mut().zip(floors) {
            *count += block.iter().map(|&v| u32::from(magnitude(v) as i32 >= floor as i32)).sum::<u32>();
        }
    }
    counts
}

/// Returns the number of values that reach `floor`.
pub(super) fn count(x: &[f32], floor: u32) -> usize {
    counts(x, [floor])[0]
}

/// Returns the indices and values that `coarse` kept of a vector of `len`, if it kept `least` values or more, exactly.
pub fn kept_of(coarse: &Message, len: usize, least: usize) -> Option<(&[u32], &[f32])> {
    coarse.sparse_f32().filter(|(indices, _)| coarse.len() == len && indices.len() >= least)
}

/// Converts positions among kept values to indices of the vector.
pub fn locate(places: &mut [u32], kept: &[u32]) {
    places.iter_mut().for_each(|place| *place = kept[*place as usize]);
}

/// Writes the selected values unchanged.
pub fn fill(x: &[f32], indices: &[u32], values: &mut Vec<f32>) {
    values.clear();
    values.extend(indices.iter().map(|&i| x[i as usize]));
}

/// Returns the error bound of keeping the `k` largest: no selection of `k` values loses less, and equal magnitudes are the worst case.
pub fn class_of(k: usize, x: &[f32]) -> ErrorBound {
    ErrorBound::Contractive { delta: if x.is_empty() { 1.0 } else { k as f64 / x.len() as f64 } }
}

#[cfg(test)]
pub(super) mod tests;
