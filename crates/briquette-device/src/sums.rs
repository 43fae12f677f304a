//! Sums in f64: norms and energies with the bits of core's `math`, which sums a segment of 65 536 values in eight lanes, and segments in a
//! tree. Lanes are summed here, [without f64](crate::double); the host combines segments.

use std::ops::Range;

use cubecl::prelude::*;

use crate::double::{plus, signed_plus, squared, widened};
use crate::error::DeviceError;
use crate::run::{Run, Vector};
use crate::wide::Wide;

/// Values of core's segments.
const SEGMENT: usize = 1 << 16;
const LANES: usize = 8;
/// Values that a unit loads before it adds them.
const AHEAD: usize = 8;

/// Terms of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Terms {
    /// `x²`: an energy.
    Squares,
    /// `|x|`.
    Magnitudes,
    /// `x`.
    Values,
}

/// One lane of one piece a unit: two words each. A sum with a value that is not finite is infinite.
#[cube(launch)]
pub(crate) fn lanes(
    x: &[f32],
    borders: &[u32],
    out: &mut [u32],
    zero: u32,
    #[comptime] squares: bool,
    #[comptime] signed: bool,
    #[comptime] doubles: bool,
) {
    let unit = ABSOLUTE_POS;
    let piece = unit / comptime!(LANES);
    if piece + 1 < borders.len() {
        let mut at = borders[piece] as usize + unit % comptime!(LANES);
        let end = borders[piece + 1] as usize;
        let mut high = 0u32;
        let mut low = 0u32;
        let mut largest = 0u32;
        // Additions wait for each other, loads need not.
        let mut values = Array::<u32>::new(comptime!(AHEAD));
        while at < end {
            #[unroll]
            for i in 0..comptime!(AHEAD) {
                let place = at + i * comptime!(LANES);
                values[i] = 0u32;
                if place < end {
                    values[i] = u32::reinterpret(x[place]);
                }
            }
            #[unroll]
            for i in 0..comptime!(AHEAD) {
                let m = values[i] & 0x7fff_ffffu32;
                largest = select(m > largest, m, largest);
                let bits = if comptime!(signed) { values[i] } else { m };
                let sum = next(&Wide { high, low }, bits, zero, squares, signed, doubles);
                high = sum.high;
                low = sum.low;
            }
            at += comptime!(AHEAD * LANES);
        }
        out[2 * unit] = select(largest < 0x7f80_0000u32, high, 0x7ff0_0000u32);
        out[2 * unit + 1] = low;
    }
}

/// Adds the term of a value, given by its bits, in the device's f64 or in whole numbers.
#[cube]
fn next(
    sum: &Wide,
    bits: u32,
    zero: u32,
    #[comptime] squares: bool,
    #[comptime] signed: bool,
    #[comptime] doubles: bool,
) -> Wide {
    if comptime!(doubles) {
        let before = f64::reinterpret((u64::cast_from(sum.high) << 32u64) | u64::cast_from(sum.low));
        let value = f64::cast_from(f32::reinterpret(bits));
        let term = if comptime!(squares) {
            f64::reinterpret(u64::reinterpret(value * value) + u64::cast_from(zero))
        } else {
            value
        };
        let bits = u64::reinterpret(before + term);
        Wide { high: u32::cast_from(bits >> 32u64), low: u32::cast_from(bits) }
    } else if comptime!(signed) {
        let size = widened(bits & 0x7fff_ffffu32);
        signed_plus(sum, &Wide { high: size.high | (bits & 0x8000_0000u32), low: size.low })
    } else {
        plus(sum, &term(bits, squares))
    }
}

#[cube]
fn term(m: u32, #[comptime] squares: bool) -> Wide {
    if comptime!(squares) { squared(m) } else { widened(m) }
}

/// Sums of the lanes of each piece, in order: two words a piece.
#[cube(launch)]
pub(crate) fn fold(lanes: &[u32], out: &mut [u32], #[comptime] count: usize, #[comptime] signed: bool) {
    let piece = ABSOLUTE_POS;
    if 2 * piece < out.len() {
        let mut high = 0u32;
        let mut low = 0u32;
        let mut finite = true.runtime();
        for lane in 0..count {
            let at = 2 * (piece * count + lane);
            let next = Wide { high: lanes[at], low: lanes[at + 1] };
            finite = finite && (next.high & 0x7fff_ffffu32) < 0x7ff0_0000u32;
            let sum = if comptime!(signed) {
                signed_plus(&Wide { high, low }, &next)
            } else {
                plus(&Wide { high, low }, &next)
            };
            high = sum.high;
            low = sum.low;
        }
        out[2 * piece] = select(finite, high, 0x7ff0_0000u32);
        out[2 * piece + 1] = low;
    }
}

/// Division of a vector into consecutive groups, each with a sum of its own: slots or buckets. It depends on the layout alone, so that
/// one can be used for every step.
#[derive(Debug, Clone)]
pub struct Groups {
    pub(crate) borders: Vector,
    /// The segments of each group.
    pub(crate) pieces: Vec<Range<usize>>,
    pub(crate) len: usize,
}

impl Groups {
    /// Creates groups of these lengths, one after another from the start of the vector.
    pub fn new(run: &Run, lengths: impl IntoIterator<Item = usize>) -> Groups {
        let (borders, pieces) = cut(lengths, SEGMENT);
        let len = borders[borders.len() - 1] as usize;
        Groups { borders: run.upload_words(&borders), pieces, len }
    }

    /// Creates groups of `bucket` values; the last may have fewer.
    pub(crate) fn of_buckets(run: &Run, len: usize, bucket: usize) -> Groups {
        Groups::new(run, (0..len).step_by(bucket).map(|start| bucket.min(len - start)))
    }

    /// Returns the sum of each group.
    pub(crate) fn totals(&self, words: &[u32]) -> Vec<f64> {
        let pieces = doubles(words);
        self.pieces.iter().map(|range| tree(&pieces[range.clone()])).collect()
    }
}

/// Cuts groups into pieces of at most `size` values: the borders of all pieces, and the pieces of each group.
pub(crate) fn cut(lengths: impl IntoIterator<Item = usize>, size: usize) -> (Vec<u32>, Vec<Range<usize>>) {
    let (mut borders, mut pieces, mut end) = (vec![0], Vec::new(), 0);
    for len in lengths {
        let first = borders.len() - 1;
        borders.extend((1..=len.div_ceil(size)).map(|i| (end + len.min(i * size)) as u32));
        end += len;
        pieces.push(first..borders.len() - 1);
    }
    (borders, pieces)
}

/// Numbers in f64, from two words each, the upper one first.
pub(crate) fn doubles(words: &[u32]) -> Vec<f64> {
    let double = |[high, low]: &[u32; 2]| f64::from_bits(u64::from(*high) << 32 | u64::from(*low));
    words.as_chunks().0.iter().map(double).collect()
}

/// Sums in the tree of core's parallel loops.
pub(crate) fn tree(sums: &[f64]) -> f64 {
    match sums {
        [] => 0.0,
        [sum] => *sum,
        _ => {
            let (first, rest) = sums.split_at(sums.len() / 2);
            tree(first) + tree(rest)
        }
    }
}

/// Sums of one vector's groups, on the device.
#[derive(Debug, Clone)]
pub struct Sums {
    pub(crate) words: Vector,
    pub(crate) groups: Groups,
}

impl Sums {
    /// Waits for the sums. A sum is finite if all values of its group are.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn read(&self, run: &Run) -> Result<Vec<f64>, DeviceError> {
        Ok(self.groups.totals(&run.read_words(&[&self.words])?[0]))
    }

    /// Waits for the sums of several vectors at once.
    ///
    /// # Errors
    /// As for [`read`](Sums::read).
    pub fn read_all(run: &Run, sums: &[&Sums]) -> Result<Vec<Vec<f64>>, DeviceError> {
        let words: Vec<&Vector> = sums.iter().map(|sums| &sums.words).collect();
        Ok(run.read_words(&words)?.iter().zip(sums).map(|(words, sums)| sums.groups.totals(words)).collect())
    }
}

/// Queues the sums of the groups of `x`.
///
/// # Panics
/// If the groups are of a vector of another length.
pub fn sums(run: &Run, x: &Vector, groups: &Groups, terms: Terms) -> Sums {
    assert_eq!(x.len(), groups.len, "groups are those of the vector");
    let pieces = groups.borders.len() - 1;
    let (parts, words) = (run.empty(2 * LANES * pieces), run.empty(2 * pieces));
    if pieces > 0 {
        let (cubes, squares, signed) = (run.cubes_for(LANES * pieces), terms == Terms::Squares, terms == Terms::Values);
        let (borders, doubles) = (groups.borders.arg(), run.doubles());
        lanes::launch(run.launch(), cubes, run.dim(), x.arg(), borders, parts.arg(), 0, squares, signed, doubles);
        fold::launch(run.launch(), run.cubes_for(pieces), run.dim(), parts.arg(), words.arg(), LANES, signed);
    }
    Sums { words, groups: groups.clone() }
}
