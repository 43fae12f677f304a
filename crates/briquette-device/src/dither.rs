//! Levels of a bucket's scale, rounded at random: core's `compress::qsgd` and `compress::tern_grad`.
//!
//! Every value has the random bits that core draws for it. Codes are packed as on the wire, 32 values a unit.

use briquette_core::Key;
use cubecl::prelude::*;

use crate::bits::{magnitude, round_bits, sealed, share_of};
use crate::random::{random_words, rounds_up, salt};
use crate::run::{Run, Vector};

/// Largest magnitude of each bucket: one cube a bucket, in pieces if `cubes` says so.
#[cube(launch)]
pub(crate) fn largest(x: &[f32], out: &[Atomic<u32>], bucket: usize, share: usize, #[comptime] units: u32) {
    let most = Shared::<[Atomic<u32>]>::new_slice(1usize);
    if UNIT_POS == 0u32 {
        most[0].store(0u32);
    }
    sync_cube();
    // A bucket has whole shares, except for its last one.
    let shares = (bucket + share - 1) / share;
    let number = CUBE_POS / shares;
    let start = number * bucket + CUBE_POS % shares * share;
    let end = select((number + 1) * bucket < start + share, (number + 1) * bucket, start + share);
    let mut mine = 0u32;
    let mut at = start + UNIT_POS as usize;
    while at < end {
        if at < x.len() {
            let m = magnitude(x[at]);
            mine = select(m > mine, m, mine);
        }
        at += comptime!(units as usize);
    }
    most[0].fetch_max(mine);
    sync_cube();
    if UNIT_POS == 0u32 && number < out.len() {
        out[number].fetch_max(most[0].load());
    }
}

/// Values that one cube searches for the largest.
const SHARE: usize = 1 << 14;

/// Queues the largest magnitude of each bucket.
pub(crate) fn largest_of(run: &Run, x: &Vector, bucket: usize) -> Vector {
    let bucket = bucket.min(x.len()).max(1);
    let buckets = x.len().div_ceil(bucket);
    let out = run.zeros(buckets);
    if buckets > 0 {
        let (share, units) = (SHARE.min(bucket), run.units().min(64));
        let (cubes, dim) = (run.cubes(buckets * bucket.div_ceil(share)), CubeDim::new_1d(units));
        largest::launch(run.launch(), cubes, dim, x.arg(), out.arg(), bucket, share, units);
    }
    out
}

#[cube(launch)]
pub(crate) fn encode(
    x: &[f32],
    scales: &[f32],
    random: &[u32],
    codes: &mut [u32],
    bucket: usize,
    salt_high: u32,
    salt_low: u32,
    levels: f32,
    zero: u32,
    #[comptime] bits: usize,
    #[comptime] trusted: bool,
) {
    let start = 32 * ABSOLUTE_POS;
    if start < x.len() {
        let mut packed = Array::<u32>::new(bits);
        #[unroll]
        for word in 0..bits {
            packed[word] = 0u32;
        }
        #[unroll]
        for i in 0..32usize {
            let at = start + i;
            if at < x.len() {
                let value = magnitude(x[at]);
                let scale = magnitude(scales[at / bucket]);
                let mut code = 0u32;
                if scale != 0u32 && value != 0u32 {
                    // Clipped values exceed the scale.
                    let mut share = 1.0f32;
                    if value < scale {
                        share = sealed(share_of(value, scale, trusted), zero);
                    }
                    let place = sealed(share * levels, zero);
                    let level = u32::cast_from(place);
                    let chance = round_bits(place - f32::cast_from(level), 23u32);
                    code = level + rounds_up(chance, random, at, salt_high, salt_low);
                }
                code |= (u32::reinterpret(x[at]) >> 31u32) << comptime!(bits as u32 - 1);
                let word = comptime!(i * bits / 32);
                let shift = comptime!((i * bits % 32) as u32);
                packed[word] |= code << shift;
                if comptime!(shift as usize + bits > 32) {
                    packed[comptime!(word + 1)] |= code >> comptime!(32 - shift);
                }
            }
        }
        #[unroll]
        for word in 0..bits {
            if bits * ABSOLUTE_POS + word < codes.len() {
                codes[bits * ABSOLUTE_POS + word] = packed[word];
            }
        }
    }
}

/// Bits of a code with this many levels, and a sign.
pub(crate) fn bits_of(levels: u8) -> u8 {
    1 + (8 - levels.leading_zeros() as u8)
}

/// Queues the codes of `x` in units of the scales of its buckets.
pub(crate) fn codes(run: &Run, x: &Vector, (levels, bucket): (u8, usize), scales: &Vector, key: Key) -> Vector {
    let bits = usize::from(bits_of(levels));
    let codes = run.empty((x.len() * bits).div_ceil(32));
    if !x.is_empty() {
        let random = random_words(run, key, x.len());
        let [high, low] = salt(key.purpose("ties"));
        encode::launch(
            run.launch(),
            run.cubes_for(x.len().div_ceil(32)),
            run.dim(),
            x.arg(),
            scales.arg(),
            random.arg(),
            codes.arg(),
            bucket.min(x.len()),
            high,
            low,
            f32::from(levels),
            0,
            bits,
            run.divides(),
        );
    }
    codes
}
