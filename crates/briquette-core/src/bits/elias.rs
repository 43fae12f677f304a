//! Elias' omega code of an integer `k ≥ 1`: its binary digits, preceded by their number in the same code, recursively,
//! and ended by a zero bit.
//!
//! Groups are written highest bit first, as in the paper (P. Elias, *Universal Codeword Sets and Representations of the
//! Integers*, 1975). Quantized codes use the dense regime of QSGD: `omega(level + 1)` for every coordinate, and a sign
//! bit if the level is not 0.

use super::{Writer, padding, window};
use crate::error::WireError;

/// Returns the code of `k ≥ 1` in stream order, the first bit lowest, and its length.
fn omega(k: u32) -> (u64, u32) {
    let (mut code, mut length, mut group) = (0_u64, 1, k);
    while group > 1 {
        let digits = 32 - group.leading_zeros();
        code = (code << digits) | u64::from(group.reverse_bits() >> (32 - digits));
        length += digits;
        group = digits - 1;
    }
    (code, length)
}

/// Table of the code words of all codes of one width: sign bit and level.
pub(crate) struct Elias {
    words: [(u64, u32); 256],
}

impl Elias {
    /// Creates the table for codes of `bits` bits, 2 to 8.
    pub(crate) fn new(bits: u8) -> Elias {
        let sign = 1_u32 << (bits - 1);
        let word = |code: usize| {
            let (code, level) = (code as u32, code as u32 & (sign - 1));
            let (word, length) = omega(level + 1);
            if level == 0 { (word, length) } else { (word | (u64::from(code & sign != 0) << length), length + 1) }
        };
        Elias { words: std::array::from_fn(word) }
    }

    /// Returns the bits of the stream of `codes`, none of which may be a negative zero.
    pub(crate) fn length(&self, codes: &[u8]) -> u64 {
        codes.iter().map(|code| u64::from(self.words[usize::from(*code)].1)).sum()
    }

    /// Appends the stream of the codes that `blocks` passes on, none of which may be a negative zero. The last byte is
    /// filled with zero bits.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, blocks: impl FnOnce(&mut dyn FnMut(&[u8]))) {
        let mut writer = Writer { out, window: 0, used: 0 };
        blocks(&mut |codes| {
            for code in codes {
                let (word, length) = self.words[usize::from(*code)];
                writer.put(word, length);
            }
        });
        writer.finish();
    }
}

/// Reads `count` codes with levels up to `levels`, which must fill `bytes` exactly, and passes them on one by one.
///
/// # Errors
/// [`WireError`] if the stream ends early or late, a level is too high, or a padding bit is set.
pub(crate) fn elias_decode(
    bytes: &[u8],
    (count, levels, bits): (usize, u8, u8),
    mut each: impl FnMut(u8),
) -> Result<(), WireError> {
    let end = bytes.len() as u64 * 8;
    let mut at = 0;
    for _ in 0..count {
        let word = window(bytes, at);
        let (mut value, mut used) = (1_u32, 0);
        while (word >> used) & 1 == 1 {
            // A group of `value + 1` digits; this one bit is the first of them.
            let digits = value + 1;
            if digits > 8 {
                return Err(WireError::Field { what: "level", value: u64::from(value) });
            }
            value = ((word >> used) as u32).reverse_bits() >> (32 - digits);
            used += digits;
        }
        used += 1;
        let level = value - 1;
        if level > u32::from(levels) {
            return Err(WireError::Field { what: "level", value: u64::from(level) });
        }
        let negative = level > 0 && (word >> used) & 1 == 1;
        at += u64::from(used) + u64::from(level > 0);
        if at > end {
            return Err(WireError::Truncated { what: "codes", needed: bytes.len() + 1, left: bytes.len() });
        }
        each(level as u8 | (u8::from(negative) << (bits - 1)));
    }
    let needed = at.div_ceil(8) as usize;
    if needed < bytes.len() {
        return Err(WireError::Trailing { extra: bytes.len() - needed });
    }
    padding(bytes, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lengths_and_digits_are_those_of_the_code() {
        for (k, length) in [(1, 1), (2, 3), (3, 3), (4, 6), (7, 6), (8, 7), (15, 7), (16, 11), (31, 11), (32, 12)] {
            assert_eq!(omega(k).1, length, "{k}");
        }
        assert_eq!([100, 1000].map(|k| omega(k).1), [13, 17]);
        // 17 = 10001, preceded by its 5 digits less one as 100, preceded by 3 digits less one as 10: 10 100 10001 0,
        // the first bit lowest: 1, 0; 1, 0, 0; 1, 0, 0, 0, 1; 0.
        let digits = [1, 0, 1, 0, 0, 1, 0, 0, 0, 1, 0];
        let word = digits.iter().rev().fold(0, |word, digit| word << 1 | digit);
        assert_eq!(omega(17), (word, 11));
    }

    proptest! {
        #[test]
        fn streams_survive(values in proptest::collection::vec(any::<u8>(), 0..300), bits in 2..=8_u8) {
            let levels = (1_u16 << (bits - 1)) as u8 - 1;
            let codes: Vec<u8> = values.iter().map(|v| v & ((1_u16 << bits) - 1) as u8)
                .map(|c| if c & levels == 0 { 0 } else { c }).collect();
            let mut bytes = Vec::new();
            let elias = Elias::new(bits);
            elias.encode(&mut bytes, |each| codes.chunks(7).for_each(each));
            prop_assert_eq!(bytes.len() as u64, elias.length(&codes).div_ceil(8));
            let mut back = Vec::new();
            elias_decode(&bytes, (codes.len(), levels, bits), |code| back.push(code)).unwrap();
            prop_assert_eq!(back, codes);
        }

        #[test]
        fn any_bytes_give_an_error_or_codes_in_range(bytes in proptest::collection::vec(any::<u8>(), 0..40), count in 0..90_usize, levels in 1..=127_u8) {
            let mut back = Vec::new();
            let bits = 1 + (8 - levels.leading_zeros() as u8);
            let _ = elias_decode(&bytes, (count, levels, bits), |code| back.push(code));
            prop_assert!(back.iter().all(|c| c & ((1 << (bits - 1)) - 1) <= levels));
            prop_assert!(back.len() <= bytes.len() * 8);
        }
    }
}
