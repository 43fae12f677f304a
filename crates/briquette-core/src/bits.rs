//! Bit streams: Rice codes for gaps between indices, and codes of a fixed width.
//!
//! Both fill bytes from the lowest bit up, so that a little-endian load yields the next bits in its low end.
//!
//! **Rice code** of a gap `g` with parameter `r`: `g >> r` zero bits, a one bit, then the low `r` bits of `g`, lowest
//! first. For uniformly chosen indices at density `p` the gaps are geometric, and Rice codes with
//! `r ≈ log₂(0.69/p)` stay within 0.05 bits of the entropy (R. F. Rice, *Some Practical Universal Noiseless Coding
//! Techniques*, 1979; R. G. Gallager, D. C. Van Voorhis, *Optimal Source Codes for Geometrically Distributed Integer
//! Alphabets*, 1975).

mod elias;

pub(crate) use elias::{Elias, elias_decode};

use crate::error::WireError;

/// The largest Rice parameter.
pub(crate) const MAX_RICE: u8 = 31;

/// Gaps between ascending indices: how many positions lie between one and the one before.
fn gaps(indices: &[u32]) -> impl Iterator<Item = u32> + '_ {
    let first = indices.first().copied();
    first.into_iter().chain(indices.windows(2).map(|w| w[1].wrapping_sub(w[0]).wrapping_sub(1)))
}

/// Bits of the Rice code of all gaps.
fn rice_bits(indices: &[u32], r: u8) -> u64 {
    let unary: u64 = gaps(indices).map(|g| u64::from(g >> r)).sum();
    unary + indices.len() as u64 * (1 + u64::from(r))
}

/// The parameter with the fewest bits, and how many bits that is.
///
/// `bits(r+1) − bits(r) = n − Σ ⌈(g >> r)/2⌉` grows with `r`: the count is convex, so walking downhill from any guess
/// ends at the best of all parameters.
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
    for gap in gaps(indices) {
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
    /// Appends the low `bits` bits of `value`, which has no others; at most 56.
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

/// Bits from position `at` on, lowest first: at least 57 of them true, zeros past the end.
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

/// Reads `count` ascending indices below `len` that fill `bytes` to the last.
///
/// # Errors
/// When the stream ends early or late, an index is too large, or a padding bit is set.
pub(crate) fn rice_decode(
    bytes: &[u8],
    (r, count, len): (u8, usize, u32),
    out: &mut Vec<u32>,
) -> Result<(), WireError> {
    let low = (1_u64 << r) - 1;
    let mut at = 0_u64;
    let mut next = 0_u64;
    for _ in 0..count {
        let mut word = window(bytes, at);
        let mut zeros = word.trailing_zeros();
        let mut gap = 0;
        if zeros >= 25 {
            (gap, at) = long_run(bytes, at)?;
            word = window(bytes, at);
            zeros = 0;
            if gap > u64::from(len >> r) {
                return Err(WireError::Field { what: "gap between indices", value: gap });
            }
        }
        gap = ((gap + u64::from(zeros)) << r) | ((word >> zeros >> 1) & low);
        at += u64::from(zeros) + 1 + u64::from(r);
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

/// Counts zeros from `at` on; the count and the place of the one bit that ends them.
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

/// # Errors
/// When a bit from position `at` to the end of the last byte is set.
pub(crate) fn padding(bytes: &[u8], at: u64) -> Result<(), WireError> {
    match bytes.last() {
        Some(last) if !at.is_multiple_of(8) && last >> (at % 8) != 0 => {
            Err(WireError::Field { what: "padding", value: u64::from(last >> (at % 8)) })
        }
        _ => Ok(()),
    }
}

/// Bytes of `count` codes of `bits` bits.
pub(crate) fn packed_len(count: usize, bits: u8) -> usize {
    (count as u64 * u64::from(bits)).div_ceil(8) as usize
}

macro_rules! by_width {
    ($bits:expr, $f:ident($($arg:expr),*)) => {
        match $bits {
            1 => $f::<1>($($arg),*),
            2 => $f::<2>($($arg),*),
            3 => $f::<3>($($arg),*),
            4 => $f::<4>($($arg),*),
            5 => $f::<5>($($arg),*),
            6 => $f::<6>($($arg),*),
            7 => $f::<7>($($arg),*),
            _ => $f::<8>($($arg),*),
        }
    };
}

/// Appends codes of `bits` (1 to 8) bits, eight codes to `bits` bytes. Appends whole bytes, so that all calls but the
/// last must bring a multiple of eight codes.
#[multiversion::multiversion(targets("x86_64+avx2"))]
pub(crate) fn pack(codes: &[u8], bits: u8, out: &mut Vec<u8>) {
    by_width!(bits, pack_width(codes, out));
}

#[inline(always)]
fn pack_width<const B: usize>(codes: &[u8], out: &mut Vec<u8>) {
    let word = |group: &[u8]| group.iter().enumerate().fold(0_u64, |word, (i, &c)| word | (u64::from(c) << (i * B)));
    let (groups, rest) = codes.as_chunks::<8>();
    for group in groups {
        out.extend_from_slice(&word(group).to_le_bytes()[..B]);
    }
    out.extend_from_slice(&word(rest).to_le_bytes()[..packed_len(rest.len(), B as u8)]);
}

/// Appends one bit a value, 1 where it is below 0 (and 0 for both zeros). All calls but the last must bring a multiple of
/// eight values.
#[multiversion::multiversion(targets("x86_64+avx2"))]
pub(crate) fn pack_signs(x: &[f32], out: &mut Vec<u8>) {
    let byte = |x: &[f32]| x.iter().enumerate().fold(0, |byte, (i, &v)| byte | (u8::from(v < 0.0) << i));
    let (chunks, rest) = x.as_chunks::<8>();
    out.extend(chunks.iter().map(|chunk| byte(chunk)));
    if !rest.is_empty() {
        out.push(byte(rest));
    }
}

/// Reads codes `start .. start + out.len()`, which must lie in `bytes`.
#[multiversion::multiversion(targets("x86_64+avx2"))]
pub(crate) fn unpack(bytes: &[u8], bits: u8, start: usize, out: &mut [u8]) {
    by_width!(bits, unpack_width(bytes, start, out));
}

#[inline(always)]
fn unpack_width<const B: usize>(bytes: &[u8], start: usize, out: &mut [u8]) {
    let head = (start.next_multiple_of(8) - start).min(out.len());
    let (first, out) = out.split_at_mut(head);
    for (i, code) in first.iter_mut().enumerate() {
        *code = code_at::<B>(bytes, start + i);
    }
    let start = start + head;
    let (groups, rest) = out.as_chunks_mut::<8>();
    let whole = groups.len();
    let packed = bytes.get(start / 8 * B..).unwrap_or(&[]);
    for (group, packed) in groups.iter_mut().zip(packed.chunks_exact(B)) {
        let mut word = [0; 8];
        word[..B].copy_from_slice(packed);
        let word = u64::from_le_bytes(word);
        for (i, code) in group.iter_mut().enumerate() {
            *code = ((word >> (i * B)) & ((1 << B) - 1)) as u8;
        }
    }
    for (i, code) in rest.iter_mut().enumerate() {
        *code = code_at::<B>(bytes, start + whole * 8 + i);
    }
}

fn code_at<const B: usize>(bytes: &[u8], index: usize) -> u8 {
    let at = index as u64 * B as u64;
    let byte = (at / 8) as usize;
    let high = bytes.get(byte + 1).copied().unwrap_or(0);
    let word = u16::from_le_bytes([bytes[byte], high]);
    ((word >> (at % 8)) & ((1 << B) - 1)) as u8
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

        #[test]
        fn codes_unpack_from_any_start(bits in 1..=8_u8, values in proptest::collection::vec(any::<u8>(), 1..90), start in 0..90_usize) {
            let codes: Vec<u8> = values.iter().map(|v| v & (((1_u16 << bits) - 1) as u8)).collect();
            let mut bytes = Vec::new();
            pack(&codes, bits, &mut bytes);
            prop_assert_eq!(bytes.len(), packed_len(codes.len(), bits));
            let start = start % codes.len();
            let mut back = vec![0; codes.len() - start];
            unpack(&bytes, bits, start, &mut back);
            prop_assert_eq!(&back[..], &codes[start..]);
        }
    }
}
