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
pub(super) mod tests {
    use super::*;
    use crate::Key;
    use crate::compress::Compressor;
    use proptest::prelude::*;
    use rand::Rng;

    /// Ties, zeros of both signs, denormals, extremes.
    pub(in crate::compress) fn awkward() -> impl Strategy<Value = f32> {
        prop_oneof![
            (-3..4_i32).prop_map(|v| v as f32),
            prop::sample::select(vec![0.0, -0.0, 1e-45, -1e-45, 3e-39, f32::MAX, -f32::MAX, f32::MIN_POSITIVE]),
            any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite()),
        ]
    }

    /// What every sparsifier is tried on: its message must decode to `x` there and 0 elsewhere, finite.
    pub(in crate::compress) fn edges() -> Vec<Vec<f32>> {
        let extremes = vec![f32::MAX, -f32::MAX, f32::MAX, 1.0, -0.0, 1e-45];
        let denormals = (1..60).map(|i| f32::from_bits(i) * if i % 2 == 0 { -1.0 } else { 1.0 }).collect();
        vec![vec![], vec![-7.5], vec![0.0; 9], vec![-0.0; 9], vec![2.0; 90], vec![-f32::MAX; 40], extremes, denormals]
    }

    /// Compresses, and checks that what is kept is bit-exact; returns the kept indices.
    pub(in crate::compress) fn kept(mut compressor: impl Compressor, x: &[f32], key: Key) -> Vec<u32> {
        let mut message = Message::default();
        compressor.compress_into(x, key, &mut message);
        let mut decoded = vec![f32::NAN; x.len()];
        message.decode_into(&mut decoded).unwrap();
        let indices = message.sparse_indices().unwrap().to_vec();
        for (i, (&d, &x)) in decoded.iter().zip(x).enumerate() {
            assert_eq!(d, if indices.contains(&(i as u32)) { x } else { 0.0 });
        }
        indices
    }

    /// One of the distributions that thresholds are fitted to, by name.
    pub(in crate::compress) fn noise(name: &str, len: usize, seed: u64) -> Vec<f32> {
        let mut rng = Key::new(seed).purpose(name).block(0);
        let mut uniform = || 1.0 - rng.random::<f64>();
        let mut draw = || {
            let sign = if uniform() < 0.5 { -1.0 } else { 1.0 };
            let u = uniform();
            sign * match name {
                "gauss" => (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos(),
                "laplace" => -u.ln(),
                // Pareto with exponent 1.2: no variance.
                "heavy" => u.powf(-1.0 / 1.2) - 1.0,
                _ => unreachable!("{name} is no distribution"),
            } as f32
        };
        (0..len).map(|_| draw()).collect()
    }

    #[test]
    fn tails_by_hand() {
        let x = [3.0, -4.0, 0.0, 1.0, -1.0, 0.5, -0.0, 2.0, -2.0, 4.0];
        // 3 + 4 + 2 + 2 + 4.
        assert_eq!(tail(&x, floor_of(2.0)), Tail { count: 5, sum: 15.0 });
        assert_eq!((count(&x, floor_of(2.0)), count(&x, floor_of(0.0)), largest(&x)), (5, 8, 4.0));
        let mut indices = Vec::new();
        collect(&x, floor_of(2.0), [2, 5], &mut indices);
        assert_eq!(indices, [0, 1, 7, 8, 9]);
        indices.clear();
        collect(&x, floor_of(2.0), [2, 4], &mut indices);
        assert_eq!(indices, [1, 9], "more than 4: the 2 largest");
    }

    #[test]
    fn a_floor_far_too_low_still_gives_the_largest_in_bounded_room() {
        let rising: Vec<f32> = (0..60_000).map(|i| (i / 7) as f32).collect();
        let close = (0..60_000).map(|i| f32::from_bits(0x3f80_0000 + i / 7)).collect();
        for x in [noise("heavy", 60_000, 1), rising, close, vec![-2.5; 60_000]] {
            for k in [1, 100, 1500] {
                let (mut few, mut exact) = (Vec::new(), Vec::new());
                collect(&x, NONZERO, [k, k + k / 3], &mut few);
                let mut cut = Cut::find(x.iter().map(|&v| magnitude(v)), k);
                scan(&x, 0, cut.bits, |m| cut.keeps(m), &mut exact);
                assert_eq!(few, exact);
                assert!(few.capacity() < 2 * (4 * (k + k / 3) + 1024 + BLOCK), "{}", few.capacity());
            }
        }
    }

    proptest! {
        #[test]
        fn passes_equal_the_naive_ones(x in proptest::collection::vec(awkward(), 0..200), at in awkward()) {
            let floor = floor_of(f64::from(at.abs()));
            let naive: Vec<u32> =
                (0..x.len() as u32).filter(|&i| x[i as usize] != 0.0 && x[i as usize].abs() >= at.abs()).collect();
            let mut indices = Vec::new();
            collect(&x, floor, [0, x.len()], &mut indices);
            prop_assert_eq!(&indices, &naive);
            let Tail { count: n, sum } = tail(&x, floor);
            let expected: f64 = naive.iter().map(|&i| f64::from(x[i as usize].abs())).sum();
            prop_assert_eq!((n, count(&x, floor)), (naive.len(), naive.len()));
            prop_assert!((sum - expected).abs() <= 1e-12 * expected);
            prop_assert_eq!(largest(&x), x.iter().fold(0.0, |m: f32, v| m.max(v.abs())));
        }
    }
}
