//! Lossless code of `f32` values: Huffman codes of the exponents, all other bits as they are. `docs/wire.md`, kind 17, is its specification.
//!
//! Values are coded in blocks of [`BLOCK`], each with its own table. The exponents of a block are coded in four bit streams, which the decoder reads
//! in turns: the look-ups of one stream do not wait for those of another. If the low 16 bits of all values of a block are zero (bfloat16), they are
//! omitted. Zeros of a block with many of them take the bits of their symbol only.

use multiversion::multiversion;

use crate::error::WireError;

mod huffman;
mod zeros;

use huffman::{TABLE, codes, fill_table, lengths};
use zeros::{compact, expand, omit};

/// Values that share a table of codes.
pub(crate) const BLOCK: usize = 1 << 14;
/// Bit streams of a block.
const STREAMS: usize = 4;
/// Maximum number of bytes of the streams of a block: 11 bits for each value.
const STREAM_BYTES: usize = BLOCK / 8 * 11 + STREAMS;
/// Symbols that the decoder takes from a stream before it reads the stream again: 5 codes of 11 bits, from any bit of a byte, are within 64 bits.
const TURN: usize = 5;

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
    /// Symbols of the values that are stored.
    kept: [u8; BLOCK],
    /// Values that are stored.
    stored: [f32; BLOCK],
    table: [u16; TABLE],
    /// Streams, and bytes behind them: a word is read at any bit.
    streams: [u8; STREAM_BYTES + 8],
}

impl Scratch {
    fn new() -> Self {
        Scratch {
            symbols: [0; BLOCK],
            kept: [0; BLOCK],
            stored: [0.0; BLOCK],
            table: [0; TABLE],
            streams: [0; STREAM_BYTES + 8],
        }
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

/// Decodes a code that fills `bytes` exactly. Values may be of any bits, also not finite.
///
/// # Errors
/// [`WireError`] names the invalid part; `out` is then incomplete.
pub(crate) fn decode(bytes: &[u8], out: &mut [f32]) -> Result<(), WireError> {
    let mut blocks = out.chunks_mut(BLOCK);
    let mut decoder = Decoder::new(bytes);
    blocks.try_for_each(|block| decoder.block(block))?;
    decoder.end()
}

/// Decodes a code block by block.
pub(crate) struct Decoder<'a> {
    bytes: &'a [u8],
    scratch: Scratch,
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Decoder { bytes, scratch: Scratch::new() }
    }

    /// Returns the number of bytes that are not decoded yet.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len()
    }

    /// Decodes the next block, of [`BLOCK`] values but for the last.
    ///
    /// # Errors
    /// As for [`decode`].
    pub(crate) fn block(&mut self, out: &mut [f32]) -> Result<(), WireError> {
        decode_block(&mut self.bytes, &mut self.scratch, out)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// [`WireError::Trailing`] if there are.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(WireError::Trailing { extra: self.bytes.len() }) }
    }
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

fn take<'a>(bytes: &mut &'a [u8], what: &'static str, needed: usize) -> Result<&'a [u8], WireError> {
    let short = WireError::Truncated { what, needed, left: bytes.len() };
    let (taken, rest) = bytes.split_at_checked(needed).ok_or(short)?;
    *bytes = rest;
    Ok(taken)
}

fn check(what: &'static str, value: usize, valid: bool) -> Result<(), WireError> {
    if valid { Ok(()) } else { Err(WireError::Field { what, value: value as u64 }) }
}

fn decode_block(bytes: &mut &[u8], scratch: &mut Scratch, out: &mut [f32]) -> Result<(), WireError> {
    let flags = take(bytes, "flags of a block", 1)?[0];
    check("flags of a block", flags.into(), matches!(flags, 0..=3 | 5 | 7))?;
    if flags & CODED == 0 {
        let size = if flags & SHORT == 0 { 4 } else { 2 };
        let plain = take(bytes, "values of a block", size * out.len())?;
        match size {
            4 => out.iter_mut().zip(plain.as_chunks().0).for_each(|(out, v)| *out = f32::from_le_bytes(*v)),
            _ => out
                .iter_mut()
                .zip(plain.as_chunks().0)
                .for_each(|(out, [a, b])| *out = f32::from_le_bytes([0, 0, *a, *b])),
        }
        return Ok(());
    }
    let single = read_table(bytes, &mut scratch.table)?;
    let symbols = &mut scratch.symbols[..out.len()];
    let (streams, sizes) = open_streams(bytes)?;
    match single {
        Some(symbol) => read_zeros(streams, sizes, (symbol, symbols))?,
        None => read_streams(streams, sizes, &mut scratch.streams, (&scratch.table, symbols))?,
    }
    let kept = if flags & ZEROS == 0 { out.len() } else { compact(symbols, &mut scratch.kept) };
    let high = take(bytes, "high bits of a block", kept)?;
    let low = take(bytes, "low bits of a block", if flags & SHORT == 0 { 2 * kept } else { 0 })?.as_chunks().0;
    if flags & ZEROS == 0 {
        join_coded(symbols, high, low, out);
    } else {
        join_coded(&scratch.kept[..kept], high, low, &mut scratch.stored);
        expand(symbols, &scratch.stored, out);
    }
    Ok(())
}

/// Reads the lengths of codes, and fills the table with them, or returns the symbol of a block that has but one.
fn read_table(bytes: &mut &[u8], table: &mut [u16; TABLE]) -> Result<Option<u8>, WireError> {
    let head = take(bytes, "symbols of a block", 2)?;
    let (first, count) = (usize::from(head[0]), usize::from(head[1]) + 1);
    check("last symbol", first + count - 1, first + count <= 256)?;
    let packed = take(bytes, "lengths of codes", count.div_ceil(2))?;
    let spare = if count % 2 == 0 { 0 } else { packed[count / 2] >> 4 };
    check("padding", spare.into(), spare == 0)?;
    let mut lengths = [0; 256];
    for (i, length) in lengths[first..first + count].iter_mut().enumerate() {
        *length = packed[i / 2] >> (4 * (i % 2)) & 15;
    }
    check("length of a code", lengths[first].into(), lengths[first] > 0 && lengths[first + count - 1] > 0)?;
    if count == 1 {
        return check("length of a code", lengths[first].into(), lengths[first] == 1).map(|()| Some(first as u8));
    }
    fill_table(&lengths, table).map(|()| None)
}

/// Returns the bytes of all streams, and the size of each.
fn open_streams<'a>(bytes: &mut &'a [u8]) -> Result<(&'a [u8], [usize; STREAMS]), WireError> {
    let head = take(bytes, "sizes of streams", 2 * STREAMS)?.as_chunks().0;
    let sizes = std::array::from_fn(|stream| usize::from(u16::from_le_bytes(head[stream])));
    Ok((take(bytes, "streams", sizes.iter().sum())?, sizes))
}

/// Reads the streams of a block with one symbol: a zero bit for each value.
fn read_zeros(streams: &[u8], sizes: [usize; STREAMS], (symbol, symbols): (u8, &mut [u8])) -> Result<(), WireError> {
    for (stream, size) in sizes.into_iter().enumerate() {
        check("bytes of a stream", size, size == part(stream, symbols.len()).len().div_ceil(8))?;
    }
    check("code", streams.iter().fold(0, |all, byte| all | byte).into(), streams.iter().all(|byte| *byte == 0))?;
    symbols.fill(symbol);
    Ok(())
}

/// Decodes the symbols of all streams.
fn read_streams(
    streams: &[u8],
    sizes: [usize; STREAMS],
    padded: &mut [u8; STREAM_BYTES + 8],
    (table, symbols): (&[u16; TABLE], &mut [u8]),
) -> Result<(), WireError> {
    check("bytes of streams", streams.len(), streams.len() <= STREAM_BYTES)?;
    padded[..streams.len()].copy_from_slice(streams);
    // What a wrong code reads behind the streams is the same on every rank.
    padded[streams.len()..][..8].fill(0);
    let mut start = 0;
    let starts = sizes.map(|size| {
        start += size;
        8 * (start - size)
    });
    let ends = decode_streams(&padded[..streams.len() + 8], starts, (table, symbols));
    for ((end, start), size) in ends.into_iter().zip(starts).zip(sizes) {
        check("bytes of a stream", size, (end - start).div_ceil(8) == size)?;
        let padding = if end % 8 == 0 { 0 } else { padded[end / 8] >> (end % 8) };
        check("padding", padding.into(), padding == 0)?;
    }
    Ok(())
}

/// Decodes a symbol of each stream in turn, and returns the bits at which the streams end. A position never exceeds the buffer: each symbol of
/// a stream takes at most 11 bits.
#[multiversion(targets("x86_64+avx2+bmi1+bmi2"))]
fn decode_streams(
    bytes: &[u8],
    mut at: [usize; STREAMS],
    (table, symbols): (&[u16; TABLE], &mut [u8]),
) -> [usize; STREAMS] {
    let len = symbols.len();
    let (a, rest) = symbols.split_at_mut(part(0, len).len());
    let (b, rest) = rest.split_at_mut(part(1, len).len());
    let (c, d) = rest.split_at_mut(part(2, len).len());
    // Beyond the buffer there are zeros: the sizes of such streams are wrong, and refused.
    let word = |at: usize| match bytes.get(at / 8..).and_then(|bytes| bytes.first_chunk()) {
        Some(word) => u64::from_le_bytes(*word) >> (at % 8),
        None => 0,
    };
    let turns = d.len() / TURN;
    let chunks = a.as_chunks_mut::<TURN>().0.iter_mut().zip(b.as_chunks_mut::<TURN>().0);
    let chunks = chunks.zip(c.as_chunks_mut::<TURN>().0).zip(d.as_chunks_mut::<TURN>().0);
    for (((a, b), c), d) in chunks {
        let mut words = at.map(word);
        let mut used = [0; STREAMS];
        for turn in 0..TURN {
            let entries = words.map(|word| u32::from(table[word as usize & (TABLE - 1)]));
            [a[turn], b[turn], c[turn], d[turn]] = entries.map(|entry| (entry >> 8) as u8);
            for stream in 0..STREAMS {
                words[stream] >>= entries[stream] & 63;
                used[stream] += entries[stream];
            }
        }
        at.iter_mut().zip(used).for_each(|(at, used)| *at += (used & 0xff) as usize);
    }
    for (at, symbols) in at.iter_mut().zip([a, b, c, d]) {
        for symbol in symbols.iter_mut().skip(turns * TURN) {
            let entry = table[word(*at) as usize & (TABLE - 1)];
            *symbol = (entry >> 8) as u8;
            *at += usize::from(entry & 0xff);
        }
    }
    at
}

fn join_coded(symbols: &[u8], high: &[u8], low: &[[u8; 2]], out: &mut [f32]) {
    if low.is_empty() { join_short(symbols, high, out) } else { join(symbols, high, low, out) }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn join(symbols: &[u8], high: &[u8], low: &[[u8; 2]], out: &mut [f32]) {
    for (((out, symbol), high), low) in out.iter_mut().zip(symbols).zip(high).zip(low) {
        let low = u32::from(u16::from_le_bytes(*low));
        *out = f32::from_bits(
            u32::from(high & 0x80) << 24 | u32::from(*symbol) << 23 | u32::from(high & 0x7f) << 16 | low,
        );
    }
}

#[multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn join_short(symbols: &[u8], high: &[u8], out: &mut [f32]) {
    for ((out, symbol), high) in out.iter_mut().zip(symbols).zip(high) {
        *out = f32::from_bits(u32::from(high & 0x80) << 24 | u32::from(*symbol) << 23 | u32::from(high & 0x7f) << 16);
    }
}

#[cfg(test)]
mod tests;
