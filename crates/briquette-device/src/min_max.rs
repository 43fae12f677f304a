//! 8-bit codes between the ends of a block: core's `compress::min_max`.
//!
//! A block whose range is too small or too large for f32 arithmetic (below 1e-30 or above 1e36) is encoded by the host in f64. Such blocks
//! are marked; only these are read.

use cubecl::prelude::*;

use crate::bits::{divided, magnitude, ordered, round_bits, sealed, unordered};
use crate::run::{Run, Vector};

/// Smallest and largest value of each block; one cube a block.
#[cube(launch)]
pub(crate) fn ranges(x: &[f32], out: &mut [f32], block: usize, #[comptime] units: u32) {
    let ends = Shared::<[Atomic<u32>]>::new_slice(2usize);
    if UNIT_POS == 0u32 {
        ends[0].store(0xffff_ffffu32);
        ends[1].store(0u32);
    }
    sync_cube();
    let start = CUBE_POS * block;
    let mut low = 0xffff_ffffu32;
    let mut high = 0u32;
    let mut at = UNIT_POS as usize;
    while at < block {
        if start + at < x.len() {
            let order = ordered(x[start + at]);
            low = select(order < low, order, low);
            high = select(order > high, order, high);
        }
        at += comptime!(units as usize);
    }
    ends[0].fetch_min(low);
    ends[1].fetch_max(high);
    sync_cube();
    if UNIT_POS == 0u32 && 2 * CUBE_POS + 1 < out.len() {
        out[2 * CUBE_POS] = unordered(ends[0].load());
        out[2 * CUBE_POS + 1] = unordered(ends[1].load());
    }
}

/// Four codes a word. `extreme[block]` becomes 1 for a block that the host encodes.
#[cube(launch)]
pub(crate) fn encode(
    x: &[f32],
    ranges: &[f32],
    codes: &mut [u32],
    extreme: &mut [u32],
    block: usize,
    zero: u32,
    #[comptime] trusted: bool,
) {
    let word = ABSOLUTE_POS;
    if word < codes.len() {
        let mut packed = 0u32;
        #[unroll]
        for part in 0..4usize {
            let at = 4 * word + part;
            if at < x.len() {
                let number = at / block;
                let low = ranges[2 * number];
                let high = ranges[2 * number + 1];
                let half_low = sealed(low * 0.5f32, zero);
                let half_range = sealed(high * 0.5f32, zero) - half_low;
                // Zeros of either sign are equal.
                if ordered(high) > ordered(low) && (magnitude(high) | magnitude(low)) != 0u32 {
                    let range = u32::reinterpret(half_range);
                    if range > comptime!(LEAST) && range < comptime!(MOST) {
                        let per_step = if comptime!(trusted) {
                            255.0f32 / half_range
                        } else {
                            divided(comptime!(LEVELS).runtime(), range)
                        };
                        let place = sealed(sealed(x[at] * 0.5f32, zero) - half_low, zero) * per_step;
                        packed |= (round_bits(place, 0u32) & 0xffu32) << comptime!(8 * part as u32);
                    } else {
                        extreme[number] = 1u32;
                    }
                }
            }
        }
        codes[word] = packed;
    }
}

const LEAST: u32 = 1e-30_f32.to_bits();
const MOST: u32 = 1e36_f32.to_bits();
const LEVELS: u32 = 255.0_f32.to_bits();

/// Queues the ranges of blocks (two floats each), the codes (four a word), and the marks of blocks for the host.
pub(crate) fn codes(run: &Run, x: &Vector, block: usize) -> (Vector, Vector, Vector) {
    let (blocks, words) = (x.len().div_ceil(block), x.len().div_ceil(4));
    let (ranges, codes, extreme) = (run.empty(2 * blocks), run.empty(words), run.zeros(blocks));
    if !x.is_empty() {
        // As many units as a small block occupies.
        let (units, block) = (run.units().min(64), block.min(x.len()));
        let (cubes, dim) = (run.cubes(blocks), CubeDim::new_1d(units));
        self::ranges::launch(run.launch(), cubes, dim, x.arg(), ranges.arg(), block, units);
        let (cubes, dim, trusted) = (run.cubes_for(words), run.dim(), run.divides());
        let (ranges, extreme) = (ranges.arg(), extreme.arg());
        encode::launch(run.launch(), cubes, dim, x.arg(), ranges, codes.arg(), extreme, block, 0, trusted);
    }
    (ranges, codes, extreme)
}
