//! Lossless code of `f32` values: Huffman codes of the exponents, with all other bits unchanged. `docs/wire.md`, kind 17, is its specification.
//!
//! Values are coded in blocks of [`BLOCK`] values, each with its own code table. The exponents of a block are coded in four bit streams, which the
//! decoder reads in turns: the look-ups of one stream do not wait for those of another. If the low 16 bits of all values of a block are zero (bfloat16),
//! they are omitted. In a block with many zeros, a zero takes only the bits of its symbol.

use multiversion::multiversion;

use crate::error::WireError;

mod decode;
mod huffman;
mod zeros;

pub(crate) use decode::{Decoder, decode};
use huffman::{codes, lengths};
use zeros::omit;

/// Values that share a table of codes.
pub(crate) const BLOCK: usize = 1 << 14;
/// Bit streams of a block.
const STREAMS: usize = 4;
/// Flag of a block: exponents are coded.
const CODED: u8 = 1;
/// Flag of a block: the low 16 bits of all values are zero, and omitted.
const SHORT: u8 = 2;
/// Flag of a block: positive zeros have the symbol [`ZERO`] and no other bits.
const ZEROS: u8 = 4;
/// The exponent of no finite value.
const ZERO: u8 = 255;

/// Returns the maximum number of bytes of a code of this many values.
pub(crate) fn most_bytes(values: usize) -> usize {
    4 * values + values.div_ceil(BLOCK)
}

/// Returns the minimum number of bytes of a code of this many values: one bit each.
pub(crate) fn least_bytes(values: usize) -> usize {
    values.div_ceil(8)
}

/// Buffers for a block, on the stack: what decoding allocates is bounded by its input.
struct Scratch {
    symbols: [u8; BLOCK],
    /// Values that are stored.
    stored: [f32; BLOCK],
}

impl Scratch {
    fn new() -> Self {
        Scratch { symbols: [0; BLOCK], stored: [0.0; BLOCK] }
    }
}

/// Appends the code of the values.
pub(crate) fn encode(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + room(values.len()), 0);
    let written = encode_into(values, &mut out[start..], |_, _| ());
    out.truncate(start + written);
}

/// Returns the bytes that [`encode_into`] needs: streams are written a word at a time.
pub(crate) fn room(values: usize) -> usize {
    most_bytes(values) + size_of::<u64>()
}

/// Writes the code of the values, returns its size, and calls `each` with every block and its bytes, which are in the cache.
pub(crate) fn encode_into(values: &[f32], out: &mut [u8], mut each: impl FnMut(&[f32], &[u8])) -> usize {
    let (mut scratch, mut at) = (Scratch::new(), 0);
    for block in values.chunks(BLOCK) {
        let size = encode_block(block, &mut scratch, &mut out[at..]);
        each(block, &out[at..at + size]);
        at += size;
    }
    at
}

/// Writes the code of a block, and returns its size.
fn encode_block(values: &[f32], scratch: &mut Scratch, out: &mut [u8]) -> usize {
    let symbols = &mut scratch.symbols[..values.len()];
    let short = if exponents(values, symbols) & 0xffff == 0 { SHORT } else { 0 };
    let mut counts = histogram(symbols);
    let (mut flags, mut stored) = (CODED | short, values);
    // Omitting a few zeros takes more time than it saves bytes. Values that are not finite have the symbol of zeros.
    if counts[0] as usize > values.len() / 16 && counts[usize::from(ZERO)] == 0 {
        let kept = omit(values, symbols, &mut scratch.stored);
        let zeros = (values.len() - kept) as u32;
        (counts[0], counts[usize::from(ZERO)]) = (counts[0] - zeros, zeros);
        (flags, stored) = (flags | ZEROS, &scratch.stored[..kept]);
    }
    let lengths = lengths(&counts);
    let (first, last) = (used(&lengths).next().unwrap_or(0), used(&lengths).next_back().unwrap_or(0));
    let bits: usize = counts.iter().zip(&lengths).map(|(count, length)| *count as usize * usize::from(*length)).sum();
    let raw_bytes = if short == 0 { 3 } else { 1 } * stored.len();
    let coded = 3 + (last - first) / 2 + 1 + 2 * STREAMS + STREAMS + bits / 8 + raw_bytes;
    if coded > if short == 0 { 4 } else { 2 } * values.len() {
        return put_plain(values, short, out);
    }
    let (head, out) = out.split_at_mut(3 + (last - first) / 2 + 1);
    head[..3].copy_from_slice(&[flags, first as u8, (last - first) as u8]);
    let pairs = lengths[first..=last].chunks(2).map(|pair| pair[0] | pair.get(1).unwrap_or(&0) << 4);
    head[3..].iter_mut().zip(pairs).for_each(|(byte, pair)| *byte = pair);
    let streams = put_streams(symbols, &codes(&lengths), out);
    let (high, low) = out[streams..streams + raw_bytes].split_at_mut(stored.len());
    put_high(stored, high);
    put_low(stored, low.as_chunks_mut().0);
    head.len() + streams + raw_bytes
}

/// Writes a block whose exponents are not coded.
fn put_plain(values: &[f32], short: u8, out: &mut [u8]) -> usize {
    out[0] = short;
    match short {
        0 => out[1..].as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, v)| *out = v.to_le_bytes()),
        _ => {
            let out = out[1..].as_chunks_mut().0.iter_mut();
            out.zip(values).for_each(|(out, v)| *out = ((v.to_bits() >> 16) as u16).to_le_bytes());
        }
    }
    1 + if short == 0 { 4 } else { 2 } * values.len()
}

/// Writes the sizes of the streams, and the streams, and returns the number of bytes.
fn put_streams(symbols: &[u8], codes: &[(u16, u8); 256], out: &mut [u8]) -> usize {
    let table = codes.map(|(code, length)| u32::from(code) << 8 | u32::from(length));
    let mut at = 2 * STREAMS;
    for stream in 0..STREAMS {
        let size = put_stream(&symbols[part(stream, symbols.len())], &table, &mut out[at..]);
        out[2 * stream..][..2].copy_from_slice(&(size as u16).to_le_bytes());
        at += size;
    }
    at
}

/// Returns the symbols of a stream: a quarter of the block, the last one shorter.
fn part(stream: usize, len: usize) -> std::ops::Range<usize> {
    let quarter = len.div_ceil(STREAMS);
    (stream * quarter).min(len)..((stream + 1) * quarter).min(len)
}

fn used(lengths: &[u8; 256]) -> impl DoubleEndedIterator<Item = usize> {
    lengths.iter().enumerate().filter(|(_, length)| **length > 0).map(|(symbol, _)| symbol)
}

/// Writes the exponents, and returns all bits that are set in any value.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn exponents(values: &[f32], symbols: &mut [u8]) -> u32 {
    let mut all = 0;
    for (symbol, value) in symbols.iter_mut().zip(values) {
        *symbol = (value.to_bits() >> 23) as u8;
        all |= value.to_bits();
    }
    all
}

/// Counts in four tables: the same symbol again does not wait for its counter.
fn histogram(symbols: &[u8]) -> [u32; 256] {
    let mut counts = [[0; 256]; 4];
    let (chunks, rest) = symbols.as_chunks::<4>();
    for chunk in chunks {
        counts.iter_mut().zip(chunk).for_each(|(counts, symbol)| counts[usize::from(*symbol)] += 1);
    }
    rest.iter().for_each(|symbol| counts[0][usize::from(*symbol)] += 1);
    std::array::from_fn(|symbol| counts.iter().map(|counts: &[u32; 256]| counts[symbol]).sum())
}

/// Writes a stream and up to 7 bytes more, and returns its size.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2"))]
fn put_stream(symbols: &[u8], table: &[u32; 256], out: &mut [u8]) -> usize {
    let (mut bits, mut filled, mut at) = (0_u64, 0, 0);
    let (chunks, rest) = symbols.as_chunks::<4>();
    for chunk in chunks {
        // Joined in pairs: fewer steps wait for the one before.
        let [a, b, c, d] = chunk.map(|symbol| table[usize::from(symbol)]);
        let (ab, cd) = (a >> 8 | (b >> 8) << (a & 31), c >> 8 | (d >> 8) << (c & 31));
        bits |= (u64::from(ab) | u64::from(cd) << ((a + b) & 31)) << filled;
        filled += (a + b + c + d) & 63;
        out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
        at += (filled >> 3) as usize;
        bits >>= filled & !7;
        filled &= 7;
    }
    for symbol in rest {
        let code = table[usize::from(*symbol)];
        bits |= u64::from(code >> 8) << filled;
        filled += code & 31;
    }
    out[at..at + 8].copy_from_slice(&bits.to_le_bytes());
    at + (filled as usize).div_ceil(8)
}

/// Signs and the high 7 bits of fractions.
#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn put_high(values: &[f32], out: &mut [u8]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = (value.to_bits() >> 24) as u8 & 0x80 | (value.to_bits() >> 16) as u8 & 0x7f;
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn put_low(values: &[f32], out: &mut [[u8; 2]]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out = (value.to_bits() as u16).to_le_bytes();
    }
}

fn check(what: &'static str, value: usize, valid: bool) -> Result<(), WireError> {
    if valid { Ok(()) } else { Err(WireError::Field { what, value: value as u64 }) }
}

#[cfg(test)]
mod tests;
