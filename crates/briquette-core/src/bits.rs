//! Bit streams: Rice codes for gaps between indices, and fixed-width codes.
//!
//! Both fill bytes from the lowest bit up, so that a little-endian load has the next bits in its low end.
//!
//! **Rice code** of a gap `g` with parameter `r`: `g >> r` zero bits, a one bit, then the low `r` bits of `g`, lowest
//! first. For uniformly chosen indices at density `p` the gaps are geometric, and Rice codes with
//! `r ≈ log₂(0.69/p)` stay within 0.05 bits of the entropy (R. F. Rice, *Some Practical Universal Noiseless Coding
//! Techniques*, 1979; R. G. Gallager, D. C. Van Voorhis, *Optimal Source Codes for Geometrically Distributed Integer
//! Alphabets*, 1975).

mod elias;
mod pack;

pub(crate) use elias::{Elias, elias_decode};
pub(crate) use pack::pack_signs;
pub use pack::{Which, for_ones, pack, pack_where, packed_len, unpack};

use crate::error::WireError;

/// The largest Rice parameter.
pub(crate) const MAX_RICE: u8 = 31;

/// Returns the total bits of the Rice codes of all gaps. A gap is the number of positions between two consecutive
/// indices.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn rice_bits(indices: &[u32], r: u8) -> u64 {
    let Some(&first) = indices.first() else { return 0 };
    let gap = |pair: &[u32]| pair[1].wrapping_sub(pair[0]).wrapping_sub(1);
    let unary: u64 = indices.windows(2).map(|pair| u64::from(gap(pair) >> r)).sum();
    u64::from(first >> r) + unary + indices.len() as u64 * (1 + u64::from(r))
}

/// Returns the parameter with the fewest bits, and that number of bits.
///
/// `bits(r+1) − bits(r) = n − Σ ⌈(g >> r)/2⌉` grows with `r`. The count is convex, so descending from any initial guess
/// ends at the global minimum.
pub(crate) fn best_rice(indices: &[u32]) -> (u8, u64) {
    let Some(&last) = indices.last() else { return (0, 0) };
    let mean = (u64::from(last) + 1) / indices.len() as u64;
    let guess = (mean as f64 * 0.69).max(1.0).log2() as u8;
    let mut best = (guess, rice_bits(indices, guess));
    while best.0 < MAX_RICE {
        let bits = rice_bits(indices, best.0 + 1);
        if bits >= best.1 {
            break;
        }
        best = (best.0 + 1, bits);
    }
    while best.0 > 0 {
        let bits = rice_bits(indices, best.0 - 1);
        if bits > best.1 {
            break;
        }
        best = (best.0 - 1, bits);
    }
    best
}

/// Appends the Rice codes of ascending `indices`; the last byte is filled with zero bits.
pub(crate) fn rice_encode(indices: &[u32], r: u8, out: &mut Vec<u8>) {
    let mut writer = Writer { out, window: 0, used: 0 };
    let low = (1_u64 << r) - 1;
    let mut next = 0_u32;
    for &index in indices {
        let gap = index.wrapping_sub(next);
        next = index.wrapping_add(1);
        let zeros = gap >> r;
        let tail = ((u64::from(gap) & low) << 1) | 1;
        if zeros <= 24 {
            writer.put(tail << zeros, zeros + 1 + u32::from(r));
        } else {
            (0..zeros / 32).for_each(|_| writer.put(0, 32));
            writer.put(0, zeros % 32);
            writer.put(tail, 1 + u32::from(r));
        }
    }
    writer.finish();
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    window: u64,
    used: u32,
}

impl Writer<'_> {
    /// Appends the low `bits` bits of `value`; its other bits must be zero. At most 56 bits.
    fn put(&mut self, value: u64, bits: u32) {
        self.window |= value << self.used;
        self.used += bits;
        if self.used >= 64 {
            self.out.extend_from_slice(&self.window.to_le_bytes());
            self.used -= 64;
            self.window = value.checked_shr(bits - self.used).unwrap_or(0);
        }
    }

    fn finish(self) {
        let bytes = self.used.div_ceil(8) as usize;
        self.out.extend_from_slice(&self.window.to_le_bytes()[..bytes]);
    }
}

/// Number of valid bits of a [`window`].
const WINDOW: u32 = 57;

/// Returns the bits from position `at` on, lowest first: at least [`WINDOW`] of them valid, zeros past the end.
fn window(bytes: &[u8], at: u64) -> u64 {
    let byte = (at / 8) as usize;
    let word = match bytes.get(byte..).and_then(|b| b.first_chunk::<8>()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => {
            let rest = bytes.get(byte..).unwrap_or(&[]);
            rest.iter().rev().fold(0, |word, &b| (word << 8) | u64::from(b))
        }
    };
    word >> (at % 8)
}

/// Reads `count` ascending indices below `len`, which must fill `bytes` exactly.
///
/// # Errors
/// [`WireError`] if the stream ends early or late, an index is too large, or a padding bit is set.
pub(crate) fn rice_decode(
    bytes: &[u8],
    (r, count, len): (u8, usize, u32),
    out: &mut Vec<u32>,
) -> Result<(), WireError> {
    // Every code has its one bit and its low bits.
    let needed = (count as u64 * (1 + u64::from(r))).div_ceil(8);
    if needed > bytes.len() as u64 {
        return Err(WireError::Truncated { what: "indices", needed: needed as usize, left: bytes.len() });
    }
    out.reserve(count);
    let low = (1_u64 << r) - 1;
    let (mut at, mut next) = (0_u64, 0_u64);
    // The bits from `at` on; the first `left` of them are valid. Several codes are read from one window, because the
    // position of the next window depends on the length of every code before, and each load waits for memory.
    let (mut word, mut left) = (0_u64, 0);
    for _ in 0..count {
        let mut zeros = word.trailing_zeros();
        let mut gap = 0;
        if zeros + 1 + u32::from(r) > left {
            (word, left) = (window(bytes, at), WINDOW);
            zeros = word.trailing_zeros();
            if zeros >= 25 {
                (gap, at) = long_run(bytes, at)?;
                (word, zeros) = (window(bytes, at), 0);
                if gap > u64::from(len >> r) {
                    return Err(WireError::Field { what: "gap between indices", value: gap });
                }
            }
        }
        gap = ((gap + u64::from(zeros)) << r) | ((word >> zeros >> 1) & low);
        let used = zeros + 1 + u32::from(r);
        (word, left, at) = (word >> used, left - used, at + u64::from(used));
        next += gap;
        if next >= u64::from(len) {
            return Err(WireError::Field { what: "index", value: next });
        }
        out.push(next as u32);
        next += 1;
    }
    let needed = at.div_ceil(8) as usize;
    if needed > bytes.len() {
        return Err(WireError::Truncated { what: "indices", needed, left: bytes.len() });
    }
    if needed < bytes.len() {
        return Err(WireError::Trailing { extra: bytes.len() - needed });
    }
    padding(bytes, at)
}

/// Counts the zeros from `start` on. Returns the count, and the position of the one bit that ends them.
fn long_run(bytes: &[u8], start: u64) -> Result<(u64, u64), WireError> {
    let mut at = start;
    while at < bytes.len() as u64 * 8 {
        let zeros = u64::from(window(bytes, at).trailing_zeros());
        if zeros < 57 {
            return Ok((at + zeros - start, at + zeros));
        }
        at += 56;
    }
    Err(WireError::Truncated { what: "indices", needed: bytes.len() + 1, left: bytes.len() })
}

/// Checks the padding from position `at` to the end of the last byte.
///
/// # Errors
/// [`WireError::Field`] if one of these bits is set.
pub(crate) fn padding(bytes: &[u8], at: u64) -> Result<(), WireError> {
    match bytes.last() {
        Some(last) if !at.is_multiple_of(8) && last >> (at % 8) != 0 => {
            Err(WireError::Field { what: "padding", value: u64::from(last >> (at % 8)) })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rice_code_by_hand() {
        // Indices 1, 6, 7: gaps 1, 4, 0. With r = 1: "0 1", 1 → 1 1; 4 → 0 0 1 0; 0 → 1 0. In stream order
        // 1 1 0 0 1 0 1 0, lowest bit first: 0b0101_0011.
        let mut out = Vec::new();
        rice_encode(&[1, 6, 7], 1, &mut out);
        assert_eq!(out, [0b0101_0011]);
        // bits(0) = 3 + 5 = 8, bits(1) = 6 + 0 + 2 + 0 = 8, bits(2) = 9 + 1 = 10: a tie, the smaller r wins.
        assert_eq!(best_rice(&[1, 6, 7]), (0, 8));
    }

    #[test]
    fn an_index_after_a_very_long_gap_survives() {
        for r in 0..=MAX_RICE {
            let indices = [0, 1, 4000, 4001, 70_000];
            let mut bytes = Vec::new();
            rice_encode(&indices, r, &mut bytes);
            let mut back = Vec::new();
            rice_decode(&bytes, (r, 5, 70_001), &mut back).unwrap();
            assert_eq!(back, indices);
        }
        let (r, bits) = best_rice(&[u32::MAX - 1]);
        assert_eq!((r, bits), (31, 33));
    }

    fn ascending() -> impl Strategy<Value = Vec<u32>> {
        proptest::collection::btree_set(prop_oneof![0..50_u32, 0..100_000_u32], 0..200)
            .prop_map(|set| set.into_iter().collect())
    }

    proptest! {
        #[test]
        fn rice_round_trip_has_the_announced_length_and_no_other_parameter_is_better(indices in ascending()) {
            let (r, bits) = best_rice(&indices);
            prop_assert!((0..=MAX_RICE).all(|other| rice_bits(&indices, other) >= bits));
            let mut bytes = Vec::new();
            rice_encode(&indices, r, &mut bytes);
            prop_assert_eq!(bytes.len() as u64, bits.div_ceil(8));
            let mut back = Vec::new();
            rice_decode(&bytes, (r, indices.len(), 100_000), &mut back).unwrap();
            prop_assert_eq!(back, indices);
        }

        #[test]
        fn rice_decode_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..60), r in 0..=MAX_RICE, count in 0..70_usize) {
            let mut out = Vec::new();
            let _ = rice_decode(&bytes, (r, count, 1000), &mut out);
            prop_assert!(out.iter().all(|&i| i < 1000) && out.is_sorted());
        }
    }
}
