//! Sixteen bits a value: core's `compress::half`.
//!
//! Rounding and scaling are done on whole numbers, so that denormal numbers have the host's bits even where a device flushes them.

use cubecl::prelude::*;

use crate::bits::{digits_of, exponent_of, magnitude, rounded_right};
use crate::run::{Run, Vector};

/// Values that share a scale in binary16.
pub(crate) const SCALED: usize = 256;

/// Exponent of each block's scale, as a signed word: core's `binary16::scale_of`. One cube a block.
#[cube(launch)]
pub(crate) fn scales(x: &[f32], out: &mut [u32], #[comptime] units: u32) {
    let most = Shared::<[Atomic<u32>]>::new_slice(1usize);
    if UNIT_POS == 0u32 {
        most[0].store(0u32);
    }
    sync_cube();
    let start = CUBE_POS * comptime!(SCALED);
    let mut mine = 0u32;
    let mut at = UNIT_POS as usize;
    while at < comptime!(SCALED) {
        if start + at < x.len() {
            let m = magnitude(x[start + at]);
            mine = select(m > mine, m, mine);
        }
        at += comptime!(units as usize);
    }
    most[0].fetch_max(mine);
    sync_cube();
    if UNIT_POS == 0u32 && CUBE_POS < out.len() {
        let largest = most[0].load();
        // To eleven significant bits; the exponent field is 127 more than the exponent.
        let field = (largest + 0xfffu32 + ((largest >> 13u32) & 1u32)) >> 23u32;
        let unscaled = largest == 0u32 || largest >= 0x7f80_0000u32 || (field >= 110u32 && field <= 142u32);
        // 14 above the exponent of the scale, which is from −126 to 112; as a word that wraps below 0.
        let bounded = select(field < 15u32, 15u32, select(field > 253u32, 253u32, field));
        out[CUBE_POS] = select(unscaled, 0u32, bounded - 141u32);
    }
}

/// Binary16 number next to `v · 2^−scale`, at most the largest finite one.
#[cube]
fn binary16(v: f32, scale: u32) -> u32 {
    let m = magnitude(v);
    let digits = digits_of(m);
    // The exponent, 1024 higher; v = digits · 2^(exponent − 23).
    let exponent = exponent_of(m) + 833u32 - scale;
    let mut out = 0u32;
    if m != 0u32 {
        if exponent >= 1010u32 {
            // The highest digit adds 1 to the exponent field.
            out = ((exponent - 1010u32) << 10u32) + rounded_right(digits, 13u32);
            out = select(exponent > 1040u32, 0x7bffu32, out);
        } else {
            let down = 1010u32 - exponent + 13u32;
            if down <= 24u32 {
                out = rounded_right(digits, down);
            }
        }
    }
    select(out > 0x7bffu32, 0x7bffu32, out) | ((u32::reinterpret(v) >> 16u32) & 0x8000u32)
}

/// bfloat16 number next to `v`, at most the largest finite one.
#[cube]
fn upper(v: f32) -> u32 {
    let m = magnitude(v);
    let rounded = (m + 0x7fffu32 + ((m >> 16u32) & 1u32)) >> 16u32;
    select(rounded > 0x7f7fu32, 0x7f7fu32, rounded) | ((u32::reinterpret(v) >> 31u32) << 15u32)
}

/// Two codes a word.
#[cube(launch)]
pub(crate) fn encode(x: &[f32], scales: &[u32], codes: &mut [u32], #[comptime] brain: bool) {
    let word = ABSOLUTE_POS;
    if word < codes.len() {
        let mut packed = 0u32;
        #[unroll]
        for part in 0..2usize {
            let at = 2 * word + part;
            if at < x.len() {
                let code =
                    if comptime!(brain) { upper(x[at]) } else { binary16(x[at], scales[at / comptime!(SCALED)]) };
                packed |= code << comptime!(16 * part as u32);
            }
        }
        codes[word] = packed;
    }
}

/// Queues the scales of blocks in binary16 (a signed word each; none for bfloat16) and the codes, two a word.
pub(crate) fn halves(run: &Run, x: &Vector, brain: bool) -> (Vector, Vector) {
    let blocks = if brain { 0 } else { x.len().div_ceil(SCALED) };
    let (scales, codes) = (run.empty(if brain { 1 } else { blocks }), run.empty(x.len().div_ceil(2)));
    if blocks > 0 {
        let units = run.units().min(64);
        let (cubes, dim) = (run.cubes(blocks), CubeDim::new_1d(units));
        self::scales::launch(run.launch(), cubes, dim, x.arg(), scales.arg(), units);
    }
    if !x.is_empty() {
        let cubes = run.cubes_for(codes.len());
        encode::launch(run.launch(), cubes, run.dim(), x.arg(), scales.arg(), codes.arg(), brain);
    }
    (scales, codes)
}
