//! Random rounding to powers of two: core's `compress::natural`. Whole numbers only.

use briquette_core::Key;
use cubecl::prelude::*;

use crate::random::{random_words, rounds_up, salt};
use crate::run::{Run, Vector};

/// Four exponents a word.
#[cube(launch)]
pub(crate) fn encode(x: &[f32], random: &[u32], exponents: &mut [u32], salt_high: u32, salt_low: u32) {
    let word = ABSOLUTE_POS;
    if word < exponents.len() {
        let mut packed = 0u32;
        #[unroll]
        for part in 0..4usize {
            let at = 4 * word + part;
            if at < x.len() {
                let bits = u32::reinterpret(x[at]);
                let exponent = (bits >> 23u32) & 0xffu32;
                // 254 is the highest finite exponent.
                let chance = select(exponent == 0xfeu32, 0u32, bits & 0x007f_ffffu32);
                let rounded = exponent + rounds_up(chance, random, at, salt_high, salt_low);
                packed |= rounded << comptime!(8 * part as u32);
            }
        }
        exponents[word] = packed;
    }
}

/// Queues the exponents of `x`, four a word.
pub(crate) fn exponents(run: &Run, x: &Vector, key: Key) -> Vector {
    let out = run.empty(x.len().div_ceil(4));
    if !x.is_empty() {
        let random = random_words(run, key, x.len());
        let ([high, low], cubes) = (salt(key.purpose("ties")), run.cubes_for(out.len()));
        encode::launch(run.launch(), cubes, run.dim(), x.arg(), random.arg(), out.arg(), high, low);
    }
    out
}
