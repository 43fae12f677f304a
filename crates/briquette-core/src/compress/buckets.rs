//! Encoding loop of quantizers: one table entry per bucket and one code per value.

use crate::bits::{pack_signs, packed_len};
use crate::math::{norm1, total};
use crate::message::{HEADER, bucket_count, for_buckets};
use crate::parallel::{self, Part, SEGMENT};
use crate::{BLOCK, Message};

/// The values that one call encodes, beginning at value `start` of the vector, and the table from bucket `first` on.
#[derive(Debug, Clone, Copy)]
pub struct Segment<'a, T> {
    pub(super) start: usize,
    /// The values.
    pub x: &'a [f32],
    table: &'a [T],
    first: usize,
}

impl<T: Copy> Segment<'_, T> {
    /// Calls `each` with the table entry of a bucket and the range of its values in this segment.
    #[inline(always)]
    pub fn for_buckets(&self, bucket: u32, mut each: impl FnMut(T, std::ops::Range<usize>)) {
        for_buckets(bucket, self.start, self.x.len(), |b, range| each(self.table[b - self.first], range));
    }

    /// Splits the segment at multiples of `len` in the vector, which need not divide buckets. Each block comes with its number.
    pub(super) fn blocks(&self, len: usize) -> impl Iterator<Item = (usize, Segment<'_, T>)> {
        let first = self.start / len;
        self.x.chunks(len).enumerate().map(move |(i, x)| {
            let start = self.start + i * len;
            (first + i, Segment { start, x, ..*self })
        })
    }
}

/// Fills `table` with the entry `of` every bucket of `x`, and the codes of `bits` bits with the output of `encode` for each segment.
///
/// If buckets divide a segment, its codes are written right after its table entries, while its values are cached. Otherwise the whole table
/// is written first.
pub(super) fn encode<T: Copy + Send + Sync>(
    (x, bucket): (&[f32], u32),
    (table, of): (&mut [T], impl Fn(&[f32]) -> T + Sync),
    (codes, bits): (&mut [u8], u8),
    encode: impl Fn(Segment<'_, T>, &mut [u8]) + Sync,
) {
    debug_assert_eq!(table.len(), bucket_count(x.len(), bucket));
    let size = bucket as usize;
    let fill = |x: &[f32], table: &mut [T]| {
        table.iter_mut().zip(x.chunks(size)).for_each(|(entry, x)| *entry = of(x));
    };
    let bytes = SEGMENT / 8 * usize::from(bits);
    if SEGMENT.is_multiple_of(size) {
        let work = (Part(x, SEGMENT), (Part(table, SEGMENT / size), Part(codes, bytes)));
        parallel::for_each(x.len(), work, |number, (x, (table, codes))| {
            fill(x.0, table.0);
            let (start, first) = (number * SEGMENT, number * (SEGMENT / size));
            encode(Segment { start, x: x.0, table: table.0, first }, codes.0);
        });
        return;
    }
    // As many buckets at a time as fill about a segment; a bucket of many segments is parallelized by `of`.
    let together = (SEGMENT / size).max(1);
    let lots = table.len().div_ceil(together);
    let work = (Part(x, together * size), Part(&mut *table, together));
    parallel::fold(0..lots, work, &|_, (x, table)| fill(x.0, table.0), &|(), ()| ());
    let (table, work) = (&*table, (Part(x, SEGMENT), Part(codes, bytes)));
    parallel::for_each(x.len(), work, |number, (x, codes)| {
        encode(Segment { start: number * SEGMENT, x: x.0, table, first: 0 }, codes.0);
    });
}

/// Writes a message with one bit per value, its sign, and the two values that `levels` makes of the sums and the count of each bucket: of
/// 0, then of 1.
pub fn write_two_level((x, bucket): (&[f32], u32), levels: impl Fn(Sums, usize) -> [f32; 2] + Sync, out: &mut Message) {
    let (table, bits) = out.levels(x.len(), 1, bucket);
    let (table, bits) = (table.sized(2 * bucket_count(x.len(), bucket)), bits.sized(packed_len(x.len(), 1)));
    match table.as_chunks_mut().0 {
        // One bucket: its sums and the signs in one pass.
        [both] => *both = levels(signs_and_sums(x, bits, true), x.len()),
        table => {
            let table = (table, |x: &[f32]| levels(Sums::of(x), x.len()));
            encode((x, bucket), table, (bits, 1), |segment, bits| pack_signs(segment.x, bits));
        }
    }
}

/// Writes a message with 8 bits per value: the `range` of each block, and the codes between its ends that `codes` writes for each segment.
pub(super) fn write_affine(
    (x, block): (&[f32], u32),
    range: impl Fn(&[f32]) -> [f32; 2] + Sync,
    codes: impl Fn(Segment<'_, [f32; 2]>, &mut [u8]) + Sync,
    out: &mut Message,
) {
    let (ranges, stored) = out.affine(x.len(), block);
    let ranges = ranges.sized(bucket_count(x.len(), block));
    let stored = stored.sized(HEADER + 4 + 8 * ranges.len(), x.len());
    encode((x, block), (ranges, range), (stored, 8), codes);
}

/// Packs the signs of `x`, on all threads.
pub(super) fn signs(x: &[f32], signs: &mut [u8]) {
    let work = (Part(x, SEGMENT), Part(signs, SEGMENT / 8));
    parallel::for_each(x.len(), work, |_, (x, signs)| pack_signs(x.0, signs.0));
}

/// Sums of a vector, in a fixed order.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Sums {
    /// Sum of the values; 0 if it was not requested.
    pub all: f64,
    /// Sum of the magnitudes.
    pub magnitudes: f64,
    /// Number of values below 0.
    pub below: usize,
}

impl Sums {
    /// Returns the sums of any number of values.
    pub fn of(x: &[f32]) -> Sums {
        Sums { all: total(x), magnitudes: norm1(x), below: x.iter().filter(|v| **v < 0.0).count() }
    }

    fn and(self, other: Sums) -> Sums {
        Sums {
            all: self.all + other.all,
            magnitudes: self.magnitudes + other.magnitudes,
            below: self.below + other.below,
        }
    }
}

/// Packs the signs of `x` and returns its sums, in one pass over memory. The sum of the values is computed only if `all` is set.
pub(super) fn signs_and_sums(x: &[f32], signs: &mut [u8], all: bool) -> Sums {
    let segment = |_, (x, signs): (Part<&[f32]>, Part<&mut [u8]>)| {
        let blocks = x.0.chunks(BLOCK).zip(signs.0.chunks_mut(BLOCK / 8));
        let sums = |(x, signs): (&[f32], &mut [u8])| {
            let (magnitudes, below) = block_sums(x, signs);
            Sums { all: if all { total(x) } else { 0.0 }, magnitudes, below }
        };
        blocks.map(sums).fold(Sums::default(), Sums::and)
    };
    let work = (Part(x, SEGMENT), Part(signs, SEGMENT / 8));
    parallel::fold(0..x.len().div_ceil(SEGMENT), work, &segment, &Sums::and).unwrap_or_default()
}

/// Packs the signs; returns the sum of magnitudes and the number of values below 0.
fn block_sums(x: &[f32], signs: &mut [u8]) -> (f64, usize) {
    let (magnitudes, below) = quick_sums(x, signs);
    // The sum of four of the largest numbers overflows.
    (if magnitudes.is_finite() { magnitudes } else { x.iter().map(|v| f64::from(v.abs())).sum() }, below)
}

/// Computes the same, adding four values at a time in single precision.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn quick_sums(x: &[f32], signs: &mut [u8]) -> (f64, usize) {
    /// Few enough that processors start on the next group before this one is done.
    const GROUP: usize = 64;
    const LANES: usize = 16;
    let (mut magnitudes, mut below) = ([0.0; LANES], 0);
    for (x, signs) in x.chunks(GROUP).zip(signs.chunks_mut(GROUP / 8)) {
        // The last group is padded with zeros, which change nothing.
        let mut group = [0.0; GROUP];
        let group = x.as_array().unwrap_or_else(|| {
            group[..x.len()].copy_from_slice(x);
            &group
        });
        for lane in 0..LANES {
            let four: [f32; GROUP / LANES] = std::array::from_fn(|part| group[part * LANES + lane].abs());
            magnitudes[lane] += f64::from((four[0] + four[1]) + (four[2] + four[3]));
        }
        let packed = signs_of(group);
        below += packed.count_ones() as usize;
        signs.copy_from_slice(&packed.to_le_bytes()[..signs.len()]);
    }
    (magnitudes.iter().sum(), below)
}

/// Packs one bit per value, the first value lowest.
#[inline(always)]
fn signs_of(group: &[f32; 64]) -> u64 {
    let mut flags = [0; 64];
    for (flag, v) in flags.iter_mut().zip(group) {
        *flag = u8::from(*v < 0.0);
    }
    let bytes = flags.as_chunks::<8>().0;
    // Multiplying eight flags, one per byte, by this constant collects them in the highest byte.
    let byte = |i: usize| (u64::from_le_bytes(bytes[i]).wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8;
    u64::from_le_bytes(std::array::from_fn(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_the_largest_numbers_are_sums() {
        let sums = signs_and_sums(&[f32::MAX; 100], &mut [0; 13], false);
        assert_eq!(sums.magnitudes, 100.0 * f64::from(f32::MAX));
    }

    #[test]
    fn signs_and_sums_are_the_plain_ones() {
        for len in [0, 1, 7, 63, 64, 65, 200, SEGMENT, 2 * SEGMENT + 77] {
            // Multiples of one half: sums are exact in any order.
            let x: Vec<f32> = (0..len).map(|i| [0.0, -0.0, 1.5, -2.0, -0.5][i * i % 5]).collect();
            let (mut once, mut twice) = (vec![0xff; len.div_ceil(8)], vec![0xff; len.div_ceil(8)]);
            let sums = signs_and_sums(&x, &mut once, true);
            signs(&x, &mut twice);
            assert_eq!(once, twice);
            let plain = |of: &dyn Fn(f64) -> f64| x.iter().map(|v| of(f64::from(*v))).sum::<f64>();
            assert_eq!((sums.all, sums.magnitudes), (plain(&|v| v), plain(&f64::abs)));
            assert_eq!(sums.below, x.iter().filter(|v| **v < 0.0).count());
            assert_eq!(signs_and_sums(&x, &mut twice, false), Sums { all: 0.0, ..sums });
        }
    }
}
