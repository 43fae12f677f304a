//! Random bits of core's keys: the eight generators of `Key::lanes`, for every block of 4096 values.

use briquette_core::Key;
use cubecl::prelude::*;

use crate::run::{Run, TILE, Vector};
use crate::wide::{Wide, mix, word_of};

/// Words of a block: two values share one, as in `Lanes::halves`.
const WORDS: usize = TILE / 2;

/// One lane of one block a unit; word `8 · step + lane` of the block.
#[cube(launch)]
pub(crate) fn words(out: &mut [u32], salt_high: u32, salt_low: u32) {
    let unit = ABSOLUTE_POS;
    let (block, lane) = (unit / 8, (unit % 8) as u32);
    if block * comptime!(WORDS) < out.len() {
        let seed = word_of(salt_high, salt_low, block as u32);
        let step = Wide { high: 0x9e37_79b9u32, low: 0x7f4a_7c15u32 };
        // Numbers 2·lane + 1 and 2·lane + 2 of SplitMix64; the second addition of a step is in `mix`.
        let first = seed.add(&step.times(&Wide { high: 0u32, low: 2u32 * lane + 1u32 }));
        let one = mix(&first);
        let two = mix(&first.add(&step));
        let mut a = one.low;
        let mut b = one.high;
        let mut c = two.low;
        let mut d = two.high | 1u32;
        let start = block * comptime!(WORDS) + lane as usize;
        for step in 0..comptime!(WORDS / 8) {
            let sum = a + d;
            let word = ((sum << 7u32) | (sum >> 25u32)) + a;
            let shifted = b << 9u32;
            c ^= a;
            d ^= b;
            b ^= c;
            a ^= d;
            c ^= shifted;
            d = (d << 11u32) | (d >> 21u32);
            let at = start + 8 * step;
            if at < out.len() {
                out[at] = word;
            }
        }
    }
}

/// Sixteen random bits of value `at`.
#[cube]
pub(crate) fn half_of(random: &[u32], at: usize) -> u32 {
    let inside = at % comptime!(TILE);
    let word = random[at / comptime!(TILE) * comptime!(WORDS) + inside / 16 * 8 + inside % 8];
    select(inside % 16 < 8, word & 0xffffu32, word >> 16u32)
}

/// 1 with a chance in units of 2⁻²³, else 0: sixteen bits decide, and seven more if they equal the upper bits of the chance.
#[cube]
pub(crate) fn rounds_up(chance: u32, random: &[u32], at: usize, salt_high: u32, salt_low: u32) -> u32 {
    let half = half_of(random, at);
    let mut up = u32::cast_from(half < chance >> 7u32);
    if half == chance >> 7u32 {
        let more = word_of(salt_high, salt_low, at as u32).high >> 25u32;
        up = u32::cast_from(more < (chance & 0x7fu32));
    }
    up
}

/// Number that all words of a key share: `word(i) = mix(salt ^ mix(i))`. Found by inverting `mix`, a bijection.
pub(crate) fn salt(key: Key) -> [u32; 2] {
    let salt = unmixed(key.word(0)) ^ mixed(0);
    [(salt >> 32) as u32, salt as u32]
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
const FIRST: u64 = 0xbf58_476d_1ce4_e5b9;
const SECOND: u64 = 0x94d0_49bb_1331_11eb;

fn mixed(value: u64) -> u64 {
    let z = value.wrapping_add(GOLDEN);
    let z = (z ^ (z >> 30)).wrapping_mul(FIRST);
    let z = (z ^ (z >> 27)).wrapping_mul(SECOND);
    z ^ (z >> 31)
}

fn unmixed(value: u64) -> u64 {
    let unshifted = |z: u64, places: u32| (0..=64 / places).fold(0, |so_far, _| z ^ (so_far >> places));
    let z = unshifted(value, 31).wrapping_mul(inverse(SECOND));
    let z = unshifted(z, 27).wrapping_mul(inverse(FIRST));
    unshifted(z, 30).wrapping_sub(GOLDEN)
}

/// Inverse of an odd number modulo 2⁶⁴, by Newton's method: each step doubles the correct bits.
fn inverse(odd: u64) -> u64 {
    (0..6).fold(odd, |x, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x))))
}

/// Queues the random words of `len` values.
pub(crate) fn random_words(run: &Run, key: Key, len: usize) -> Vector {
    let out = run.empty(len.div_ceil(16) * 8);
    if len > 0 {
        let [high, low] = salt(key);
        words::launch(run.launch(), run.cubes_for(8 * len.div_ceil(TILE)), run.dim(), out.arg(), high, low);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_salt_gives_the_words_of_its_key() {
        for key in [Key::new(0), Key::new(u64::MAX).step(3).rank(1), Key::new(5).purpose("ties")] {
            let [high, low] = salt(key).map(u64::from);
            for index in [0, 1, 77, 1 << 31] {
                assert_eq!(mixed((high << 32 | low) ^ mixed(index)), key.word(index as usize));
            }
        }
    }
}
