//! Decoder of the lossless code: trusts no byte of its input, and allocates nothing.

use multiversion::multiversion;

use super::huffman::{TABLE, fill_table};
use super::zeros::{compact, expand};
use super::{BLOCK, CODED, SHORT, STREAMS, Scratch, ZEROS, check, part};
use crate::error::WireError;

/// Maximum number of bytes of the streams of a block: 11 bits for each value.
const STREAM_BYTES: usize = BLOCK / 8 * 11 + STREAMS;
/// Symbols that the decoder takes from a stream before it reads the stream again: 5 codes of 11 bits, from any bit of a byte, are within 64 bits.
const TURN: usize = 5;

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
    buffers: Buffers,
}

struct Buffers {
    scratch: Scratch,
    /// Symbols of the values that are stored.
    kept: [u8; BLOCK],
    table: [u16; TABLE],
    /// Streams, and bytes behind them: a word is read at any bit.
    streams: [u8; STREAM_BYTES + 8],
}

impl<'a> Decoder<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        let (kept, table, streams) = ([0; BLOCK], [0; TABLE], [0; STREAM_BYTES + 8]);
        Decoder { bytes, buffers: Buffers { scratch: Scratch::new(), kept, table, streams } }
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
        decode_block(&mut self.bytes, &mut self.buffers, out)
    }

    /// Checks that no bytes are left.
    ///
    /// # Errors
    /// [`WireError::Trailing`] if there are.
    pub(crate) fn end(&self) -> Result<(), WireError> {
        if self.bytes.is_empty() { Ok(()) } else { Err(WireError::Trailing { extra: self.bytes.len() }) }
    }
}

fn take<'a>(bytes: &mut &'a [u8], what: &'static str, needed: usize) -> Result<&'a [u8], WireError> {
    let short = WireError::Truncated { what, needed, left: bytes.len() };
    let (taken, rest) = bytes.split_at_checked(needed).ok_or(short)?;
    *bytes = rest;
    Ok(taken)
}

fn decode_block(bytes: &mut &[u8], buffers: &mut Buffers, out: &mut [f32]) -> Result<(), WireError> {
    let Buffers { scratch: Scratch { symbols, stored }, kept: symbols_kept, table, streams: padded } = buffers;
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
    let single = read_table(bytes, table)?;
    let symbols = &mut symbols[..out.len()];
    let (streams, sizes) = open_streams(bytes)?;
    match single {
        Some(symbol) => read_zeros(streams, sizes, (symbol, symbols))?,
        None => read_streams(streams, sizes, padded, (table, symbols))?,
    }
    let kept = if flags & ZEROS == 0 { out.len() } else { compact(symbols, symbols_kept) };
    let high = take(bytes, "high bits of a block", kept)?;
    let low = take(bytes, "low bits of a block", if flags & SHORT == 0 { 2 * kept } else { 0 })?.as_chunks().0;
    if flags & ZEROS == 0 {
        join_coded(symbols, high, low, out);
    } else {
        join_coded(&symbols_kept[..kept], high, low, stored);
        expand(symbols, stored, out);
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
