//! Fixed-width codes. Eight codes are packed into or unpacked from a `u64` word in three steps.

/// Returns the bytes of `count` codes of `bits` bits.
pub fn packed_len(count: usize, bits: u8) -> usize {
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

/// Writes codes of `bits` (1 to 8) bits, eight codes to `bits` bytes, into the [`packed_len`] bytes of `out`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn pack(codes: &[u8], bits: u8, out: &mut [u8]) {
    by_width!(bits, pack_width(codes, out));
}

#[inline(always)]
fn pack_width<const B: usize>(codes: &[u8], out: &mut [u8]) {
    let (groups, rest) = codes.as_chunks::<8>();
    let (whole, last) = out.split_at_mut(groups.len() * B);
    for (out, group) in whole.as_chunks_mut::<B>().0.iter_mut().zip(groups) {
        let bytes = squeeze::<B>(u64::from_le_bytes(*group)).to_le_bytes();
        *out = std::array::from_fn(|i| bytes[i]);
    }
    if !rest.is_empty() {
        let mut group = [0; 8];
        group[..rest.len()].copy_from_slice(rest);
        last.copy_from_slice(&squeeze::<B>(u64::from_le_bytes(group)).to_le_bytes()[..last.len()]);
    }
}

/// Returns a mask of the low `bits` bits of each field of `width` bits.
const fn low(bits: usize, width: usize) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < 64 {
        mask |= if bits >= 64 { u64::MAX } else { (1 << bits) - 1 } << at;
        at += width;
    }
    mask
}

/// Packs eight codes, one per byte, into adjacent bits.
#[inline(always)]
fn squeeze<const B: usize>(word: u64) -> u64 {
    let pairs = (word & low(B, 16)) | ((word >> (8 - B)) & (low(B, 16) << B));
    let fours = (pairs & low(2 * B, 32)) | ((pairs >> (16 - 2 * B)) & (low(2 * B, 32) << (2 * B)));
    (fours & low(4 * B, 64)) | ((fours >> (32 - 4 * B)) & (low(4 * B, 64) << (4 * B)))
}

/// Unpacks eight codes into one byte each: the inverse of [`squeeze`].
#[inline(always)]
fn spread<const B: usize>(word: u64) -> u64 {
    let fours = (word & low(4 * B, 64)) | ((word & (low(4 * B, 64) << (4 * B))) << (32 - 4 * B));
    let pairs = (fours & low(2 * B, 32)) | ((fours & (low(2 * B, 32) << (2 * B))) << (16 - 2 * B));
    (pairs & low(B, 16)) | ((pairs & (low(B, 16) << B)) << (8 - B))
}

/// Predicate that selects the values whose bit is set.
pub trait Which<T> {
    /// Returns whether the bit of `value` is set.
    fn holds(&self, value: T) -> bool;
}

struct Negative;

impl Which<f32> for Negative {
    #[inline(always)]
    fn holds(&self, value: f32) -> bool {
        value < 0.0
    }
}

/// Writes one bit per value, 1 if it is below 0 (and 0 for both zeros), into the ⌈n/8⌉ bytes of `out`.
pub(crate) fn pack_signs(x: &[f32], out: &mut [u8]) {
    pack_where(x, &Negative, out);
}

/// Writes one bit per value, 1 if `which` holds, into the ⌈n/8⌉ bytes of `out`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn pack_where<T: Copy, W: Which<T>>(x: &[T], which: &W, out: &mut [u8]) {
    // Enough values to fill a vector register of bytes; with fewer, the compiler splits a register for every byte.
    const GROUP: usize = 64;
    let (groups, rest) = x.as_chunks::<GROUP>();
    let (whole, last) = out.split_at_mut(groups.len() * (GROUP / 8));
    for (group, out) in groups.iter().zip(whole.as_chunks_mut::<{ GROUP / 8 }>().0) {
        let mut flags = [0; GROUP];
        for (flag, value) in flags.iter_mut().zip(group) {
            *flag = u8::from(which.holds(*value));
        }
        pack_width::<1>(&flags, out);
    }
    for (x, out) in rest.chunks(8).zip(last) {
        *out = x.iter().rev().fold(0, |byte, value| byte << 1 | u8::from(which.holds(*value)));
    }
}

/// Calls `each` with the positions of the set bits, in order.
#[inline(always)]
pub fn for_ones(bits: &[u8], mut each: impl FnMut(usize)) {
    let (words, rest) = bits.as_chunks::<8>();
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    for (i, word) in words.iter().chain([&last]).enumerate() {
        let mut word = u64::from_le_bytes(*word);
        while word != 0 {
            each(64 * i + word.trailing_zeros() as usize);
            word &= word - 1;
        }
    }
}

/// Reads codes `start .. start + out.len()`, which must lie in `bytes`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn unpack(bytes: &[u8], bits: u8, start: usize, out: &mut [u8]) {
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
    for (group, packed) in groups.iter_mut().zip(packed.as_chunks::<B>().0) {
        let word = std::array::from_fn(|i| if i < B { packed[i] } else { 0 });
        *group = spread::<B>(u64::from_le_bytes(word)).to_le_bytes();
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

    /// A reference implementation, bit by bit.
    fn naive(codes: &[u8], bits: u8) -> Vec<u8> {
        let mut out = vec![0; packed_len(codes.len(), bits)];
        for (i, code) in codes.iter().enumerate() {
            for bit in 0..usize::from(bits) {
                let at = i * usize::from(bits) + bit;
                out[at / 8] |= (code >> bit & 1) << (at % 8);
            }
        }
        out
    }

    #[test]
    fn signs_are_those_of_values_below_zero_at_every_length() {
        let special = [-0.0, 0.0, f32::MAX, -f32::MAX, 1e-45, -1e-45, 1.0, -1.0, -3.5];
        for len in 0..200 {
            let x: Vec<f32> = (0..len).map(|i| special[i * i % special.len()]).collect();
            let mut out = vec![0xff; packed_len(len, 1)];
            pack_signs(&x, &mut out);
            assert_eq!(out, naive(&x.iter().map(|v| u8::from(*v < 0.0)).collect::<Vec<_>>(), 1));
        }
    }

    proptest! {
        #[test]
        fn codes_pack_as_bit_by_bit_and_unpack_from_any_start(bits in 1..=8_u8, values in proptest::collection::vec(any::<u8>(), 1..90), start in 0..90_usize) {
            let codes: Vec<u8> = values.iter().map(|v| v & (((1_u16 << bits) - 1) as u8)).collect();
            let mut bytes = vec![0xff; packed_len(codes.len(), bits)];
            pack(&codes, bits, &mut bytes);
            prop_assert_eq!(&bytes, &naive(&codes, bits));
            let start = start % codes.len();
            let mut back = vec![0; codes.len() - start];
            unpack(&bytes, bits, start, &mut back);
            prop_assert_eq!(&back[..], &codes[start..]);
        }
    }
}
