//! One bit a value: core's `compress::scaled_sign` and `compress::plain_sign`.
//!
//! The host divides a scale's sum of magnitudes by the number of values, so codes do not wait for it. One scale for the whole vector is summed
//! as core's `signs_and_sums` does, in blocks of 4096 values and sixteen lanes of four f32 values each; scales of several buckets are sums of
//! [`sums`](crate::sums()).

use briquette_core::Key;
use cubecl::prelude::*;

use crate::bits::{magnitude, sealed};
use crate::double::{plus, widened};
use crate::random::salt;
use crate::run::{Run, TILE, Vector};
use crate::sums::{doubles, fold, tree};
use crate::wide::{Wide, word_of};

/// 32 values a unit: 1 where a value is below 0. With `random`, a zero has a random sign, else 0.
#[cube(launch)]
pub(crate) fn pack(x: &[f32], signs: &mut [u32], salt_high: u32, salt_low: u32, #[comptime] random: bool) {
    let word = ABSOLUTE_POS;
    if word < signs.len() {
        let mut packed = 0u32;
        let mut drawn = 0u32;
        if comptime!(random) {
            let bits = word_of(salt_high, salt_low, (word / 2) as u32);
            drawn = select(word % 2 == 0, bits.low, bits.high);
        }
        #[unroll]
        for i in 0..32usize {
            let at = 32 * word + i;
            if at < x.len() {
                // −0 is 0x80000000, a number below 0 is above that.
                let bits = u32::reinterpret(x[at]);
                let mut bit = u32::cast_from(bits > 0x8000_0000u32);
                if comptime!(random) {
                    bit = select(bits << 1u32 == 0u32, (drawn >> comptime!(i as u32)) & 1u32, bit);
                }
                packed |= bit << comptime!(i as u32);
            }
        }
        signs[word] = packed;
    }
}

/// Queues the signs; `zeros` is the key of random signs of zeros.
pub(crate) fn signs(run: &Run, x: &Vector, zeros: Option<Key>) -> Vector {
    let out = run.empty(x.len().div_ceil(32));
    if !x.is_empty() {
        let [high, low] = zeros.map_or([0, 0], |key| salt(key.purpose("zeros")));
        let cubes = run.cubes_for(out.len());
        pack::launch(run.launch(), cubes, run.dim(), x.arg(), out.arg(), high, low, zeros.is_some());
    }
    out
}

const LANES: usize = 16;
/// Values of a group: four for each lane.
const GROUP: usize = 64;

/// Sum of one lane's magnitudes in one block, a unit each: two words. It is infinite if four magnitudes have no finite f32 sum.
#[cube(launch)]
pub(crate) fn lanes(x: &[f32], out: &mut [u32], zero: u32) {
    let unit = ABSOLUTE_POS;
    let (block, lane) = (unit / comptime!(LANES), unit % comptime!(LANES));
    if block * comptime!(TILE) < x.len() {
        let mut high = 0u32;
        let mut low = 0u32;
        let mut finite = true.runtime();
        for group in 0..comptime!(TILE / GROUP) {
            let at = block * comptime!(TILE) + group * comptime!(GROUP) + lane;
            if at < x.len() {
                let first = sealed(value_at(x, at) + value_at(x, at + comptime!(LANES)), zero);
                let last =
                    sealed(value_at(x, at + comptime!(2 * LANES)) + value_at(x, at + comptime!(3 * LANES)), zero);
                let four = magnitude(first + last);
                finite = finite && four < 0x7f80_0000u32;
                let sum = plus(&Wide { high, low }, &widened(four));
                high = sum.high;
                low = sum.low;
            }
        }
        out[2 * unit] = select(finite, high, 0x7ff0_0000u32);
        out[2 * unit + 1] = low;
    }
}

/// Magnitude at a place; 0 behind the end.
#[cube]
fn value_at(x: &[f32], at: usize) -> f32 {
    let mut value = 0u32;
    if at < x.len() {
        value = magnitude(x[at]);
    }
    f32::reinterpret(value)
}

/// Sums the blocks again whose sum is infinite, one value after another.
#[cube(launch)]
pub(crate) fn refold(x: &[f32], sums: &mut [u32]) {
    let block = ABSOLUTE_POS;
    if 2 * block < sums.len() {
        if sums[2 * block] >= 0x7ff0_0000u32 {
            let mut high = 0u32;
            let mut low = 0u32;
            for i in 0..comptime!(TILE) {
                let at = block * comptime!(TILE) + i;
                if at < x.len() {
                    let sum = plus(&Wide { high, low }, &widened(magnitude(x[at])));
                    high = sum.high;
                    low = sum.low;
                }
            }
            sums[2 * block] = high;
            sums[2 * block + 1] = low;
        }
    }
}

/// Queues the sum of magnitudes of each block, two words each.
pub(crate) fn magnitudes(run: &Run, x: &Vector) -> Vector {
    let blocks = x.len().div_ceil(TILE);
    let (parts, out) = (run.empty(2 * LANES * blocks), run.empty(2 * blocks));
    if blocks > 0 {
        lanes::launch(run.launch(), run.cubes_for(LANES * blocks), run.dim(), x.arg(), parts.arg(), 0);
        fold::launch(run.launch(), run.cubes_for(blocks), run.dim(), parts.arg(), out.arg(), LANES, false);
        refold::launch(run.launch(), run.cubes_for(blocks), run.dim(), x.arg(), out.arg());
    }
    out
}

/// Combines the sums of blocks: those of a segment in order, segments in a tree.
pub(crate) fn total(words: &[u32]) -> f64 {
    /// Blocks of a segment.
    const BLOCKS: usize = 16;
    let segments: Vec<f64> = doubles(words).chunks(BLOCKS).map(|blocks| blocks.iter().sum()).collect();
    tree(&segments)
}
