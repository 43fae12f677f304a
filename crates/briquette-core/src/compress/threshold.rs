//! Selection by magnitude: what every sparsifier that keeps large values is made of.
//!
//! Magnitudes are compared by the bits of `|v|`, which order like the values and never round. A *floor* is such bits:
//! values at or above it pass. Zeros never do, as a message need not say them. No pass allocates beyond what it keeps.

use super::Class;
use crate::message::{ValueKind, Values};
use crate::{BLOCK, Message};

/// The bits of `|v|`, which order like magnitudes.
pub(super) fn magnitude(v: f32) -> u32 {
    v.to_bits() & 0x7fff_ffff
}

/// The floor that passes every value but zeros.
pub(super) const NONZERO: u32 = 1;

/// The floor for a threshold of at least 0.
pub(super) fn floor_of(threshold: f64) -> u32 {
    magnitude(threshold as f32).max(NONZERO)
}

/// What to keep: magnitudes above `bits`, and the first `ties` equal to it.
#[derive(Debug, Clone, Copy)]
struct Cut {
    bits: u32,
    ties: usize,
}

impl Cut {
    const NONZERO: Cut = Cut { bits: 0, ties: 0 };

    /// The cut that keeps `k` of the magnitudes, and of zeros none.
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

    /// Whether the next magnitude in index order is kept.
    fn keeps(&mut self, magnitude: u32) -> bool {
        let tie = magnitude == self.bits && self.ties > 0;
        self.ties -= usize::from(tie);
        tie || magnitude > self.bits
    }
}

/// Shorter vectors are not worth a sample.
pub(super) const SAMPLED: usize = 1 << 15;
const SAMPLES: usize = 4096;

/// Writes the indices of the `k` largest magnitudes, ties to the lowest index, without zeros, in ascending order.
pub(super) fn select(x: &[f32], k: usize, indices: &mut Vec<u32>) {
    if x.len() >= SAMPLED && k <= x.len() / 4 {
        collect(x, sampled_floor(x, k), [k, k], indices);
        if indices.len() >= k {
            return;
        }
        indices.clear();
    }
    let all = k >= x.len();
    let mut cut = if all { Cut::NONZERO } else { Cut::find(x.iter().map(|&v| magnitude(v)), k) };
    scan(x, 0, cut.bits, |m| cut.keeps(m), indices);
}

/// A floor that likely a few more than `k` values of `x` reach.
fn sampled_floor(x: &[f32], k: usize) -> u32 {
    let mut sample = [0; SAMPLES];
    let stride = x.len() / SAMPLES;
    for (i, sample) in sample.iter_mut().enumerate() {
        // Steps within the stride, so that a period of the data (channels, rows) does not select the sample.
        *sample = magnitude(x[i * stride + i % stride]);
    }
    let expected = (k as f64 / x.len() as f64) * SAMPLES as f64;
    // Three standard deviations of the count, and a little for very small counts.
    let rank = (expected + 3.0 * expected.sqrt() + 4.0) as usize;
    (*sample.select_nth_unstable_by(rank.min(SAMPLES - 1), |a, b| b.cmp(a)).1).max(NONZERO)
}

/// Appends the indices of all values at or above `floor`, in ascending order; when there are more than `most`, of the
/// `k` largest among them instead. However low the floor is, no more than about `4k + 1024` indices are ever held.
pub(super) fn collect(x: &[f32], floor: u32, [k, most]: [usize; 2], indices: &mut Vec<u32>) {
    let (mut floor, room) = (floor, 4 * k.max(most) + 1024);
    let mut thinned = false;
    for (b, block) in x.chunks(BLOCK).enumerate() {
        scan(block, b * BLOCK, floor, |m| m >= floor, indices);
        if indices.len() > room {
            // Whatever comes later must exceed the k largest so far: ties go to the lowest index.
            floor = thin(x, k, indices) + 1;
            thinned = true;
        }
    }
    if thinned || indices.len() > most {
        retain_largest(x, k, indices);
    }
}

/// Appends the indices of those values at or above `floor` that `keeps` agrees to, in order; `start` is the first
/// value's.
fn scan(block: &[f32], start: usize, floor: u32, mut keeps: impl FnMut(u32) -> bool, indices: &mut Vec<u32>) {
    /// Of 16, 8, 32 and 64 the fastest on a Gaussian at 1 %, where 85 % of the chunks are skipped.
    const CHUNK: usize = 16;
    let (chunks, rest) = block.as_chunks::<CHUNK>();
    for (c, chunk) in chunks.iter().enumerate() {
        // Most chunks hold nothing: look at all at once (signed, because SSE2 compares so).
        if chunk.iter().fold(true, |none, &v| none & ((magnitude(v) as i32) < floor as i32)) {
            continue;
        }
        let mut found = [0; CHUNK];
        let mut count = 0;
        for (i, &v) in chunk.iter().enumerate() {
            found[count] = (start + c * CHUNK + i) as u32;
            count += usize::from(keeps(magnitude(v)));
        }
        indices.extend_from_slice(&found[..count]);
    }
    let start = start + chunks.len() * CHUNK;
    indices.extend((rest.iter().enumerate()).filter(|(_, v)| keeps(magnitude(**v))).map(|(i, _)| (start + i) as u32));
}

/// Keeps of ascending `indices` those of the `k` largest magnitudes.
pub(super) fn retain_largest(x: &[f32], k: usize, indices: &mut Vec<u32>) {
    if k < indices.len() {
        thin(x, k, indices);
    }
}

/// The same for more than `k` indices; returns the smallest magnitude kept.
fn thin(x: &[f32], k: usize, indices: &mut Vec<u32>) -> u32 {
    let mut cut = Cut::find(indices.iter().map(|&i| magnitude(x[i as usize])), k);
    indices.retain(|&i| cut.keeps(magnitude(x[i as usize])));
    cut.bits
}

/// The values at or above a floor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tail {
    pub(super) count: usize,
    /// Of their magnitudes.
    pub(super) sum: f64,
}

const LANES: usize = 8;

/// Counts and sums what reaches `floor`, in a fixed order.
pub(super) fn tail(x: &[f32], floor: u32) -> Tail {
    let (mut counts, mut sums) = ([0_u32; LANES], [0.0_f64; LANES]);
    let (chunks, rest) = x.as_chunks::<LANES>();
    let mut add = |lane: usize, v: f32| {
        let m = magnitude(v);
        let passes = m as i32 >= floor as i32;
        counts[lane] += u32::from(passes);
        sums[lane] += f64::from(f32::from_bits(if passes { m } else { 0 }));
    };
    for chunk in chunks {
        for (lane, &v) in chunk.iter().enumerate() {
            add(lane, v);
        }
    }
    for (lane, &v) in rest.iter().enumerate() {
        add(lane, v);
    }
    Tail { count: counts.iter().map(|&c| c as usize).sum(), sum: sums.iter().sum() }
}

/// How many values reach `floor`.
pub(super) fn count(x: &[f32], floor: u32) -> usize {
    let mut counts = [0_u32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (count, &v) in counts.iter_mut().zip(chunk) {
            *count += u32::from(magnitude(v) as i32 >= floor as i32);
        }
    }
    counts.iter().map(|&c| c as usize).sum::<usize>() + rest.iter().filter(|&&v| magnitude(v) >= floor).count()
}

/// The largest magnitude; 0 for the empty vector.
pub(super) fn largest(x: &[f32]) -> f32 {
    let mut most = [0_i32; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (most, &v) in most.iter_mut().zip(chunk) {
            *most = (*most).max(magnitude(v) as i32);
        }
    }
    let bits = most.iter().copied().chain(rest.iter().map(|&v| magnitude(v) as i32)).max();
    f32::from_bits(bits.unwrap_or(0) as u32)
}

/// The empty storage of a sparse message with exact values.
pub(super) fn start(out: &mut Message, len: usize) -> (&mut Vec<u32>, &mut Vec<f32>) {
    match out.sparse(len, ValueKind::F32) {
        (indices, Values::F32(values)) => (indices, values),
        _ => unreachable!("storage of the kind asked for"),
    }
}

/// Writes the chosen values as they are.
pub(super) fn fill(x: &[f32], indices: &[u32], values: &mut Vec<f32>) {
    values.clear();
    values.extend(indices.iter().map(|&i| x[i as usize]));
}

/// The class of what keeps the `k` largest: no choice of `k` loses less, and all equal is the worst case.
pub(super) fn class_of(k: usize, x: &[f32]) -> Class {
    Class::Contractive { delta: if x.is_empty() { 1.0 } else { k as f64 / x.len() as f64 } }
}

#[cfg(test)]
pub(super) mod tests;
