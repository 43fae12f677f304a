//! The wire form of a [`Message`]: versioned, checksummed, little-endian. `docs/wire.md` is its specification.
//!
//! | payload | bytes of the whole message, `n` values |
//! |---|---|
//! | dense | `12 + 4n` |
//! | half | `12 + 2n`, with scales `12 + ⌈n/256⌉ + 2n` |
//! | sparse, `k` kept | `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + v`; `gⱼ` the gaps, `v` = `4k`, `1 + 2k`, or `8⌈k/256⌉ + k` |
//! | sparse, values coded | `21 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + 1` and the values' own payload |
//! | quantized, linear or exponential (`e` = 0 or 4) | `17 + e + 4⌈n/bucket⌉ + ⌈n·bits/8⌉` |
//! | the same in Elias codes, `ℓᵢ` the levels | `17 + e + 4⌈n/bucket⌉ + ⌈Σᵢ(elias(ℓᵢ + 1) + [ℓᵢ > 0])/8⌉` |
//! | sign | `16 + 4⌈n/bucket⌉ + ⌈n/8⌉` |
//! | two levels | `16 + 8⌈n/bucket⌉ + ⌈n/8⌉` |
//! | natural | `12 + n + ⌈n/8⌉` |
//! | affine | `16 + 8⌈n/block⌉ + n` |
//! | lossless | depends on the values; at most `12 + ⌈n/16384⌉ + 4n` |
//!
//! The decoder validates every field of a message before use: counts against the remaining bytes before it reserves
//! memory, then indices, levels, padding, and that every number is finite. Decoded messages need no further checks.
//! Decoding needs at most eight times the bytes of its input: at worst, a code takes one bit in the input and one byte
//! decoded. With coded kept values, it needs at most twenty times: at worst, an index and a code take two bits in the
//! input and five bytes decoded. With a lossless code it needs at most 33 times: at worst, a zero takes one bit in the input, which is kept, and
//! four bytes decoded.

mod read;

use crc32fast::Hasher;

use crate::bits::{Elias, best_rice, packed_len, rice_encode, unpack};
use crate::error::WireError;
pub(crate) use crate::message::HEADER;
use crate::message::{
    BLOCK, Coding, Grid, HalfKind, Message, PREFIX, Payload, Q8_BLOCK, ValueKind, Values, bucket_count,
};

const MAGIC: [u8; 2] = *b"BQ";
const VERSION: u8 = 1;
const CHECKSUM: usize = 4;
/// Bytes copied at a time: the checksum then reads them from the first-level cache.
const PIECE: usize = 1 << 14;
/// The largest binary16 magnitude that a sparse message may hold, 32752: times 2¹¹³ it is still a finite `f32`.
pub(crate) const F16_LIMIT: u16 = 0x77ff;
/// Exponents `e` for which `2^e` is normal and [`F16_LIMIT`]` · 2^e` finite.
pub(crate) const F16_EXPONENTS: std::ops::RangeInclusive<i8> = -126..=113;

impl Message {
    /// Returns the number of bytes that [`encode_into`](Message::encode_into) appends.
    pub fn encoded_len(&self) -> usize {
        HEADER + self.body_len() + CHECKSUM
    }

    fn body_len(&self) -> usize {
        let n = self.len();
        match &self.payload {
            Payload::Dense(_) => 4 * n,
            Payload::Half { exponents, .. } => exponents.len() + 2 * n,
            Payload::Sparse { indices, values } => {
                let values = match values {
                    Values::Coded(message) => 5 + message.body_len(),
                    values => values_len(values.kind().unwrap_or_default(), indices.len()),
                };
                5 + best_rice(indices).1.div_ceil(8) as usize + values
            }
            Payload::Quantized { grid, coding, bucket, codes, .. } => {
                let base = if matches!(grid, Grid::Linear { .. }) { 0 } else { 4 };
                let codes = match coding {
                    Coding::Fixed => packed_len(n, grid.bits()),
                    Coding::Elias => {
                        let (elias, mut bits) = (Elias::new(grid.bits()), 0);
                        for_codes(codes, n, grid.bits(), |block| bits += elias.length(block));
                        bits.div_ceil(8) as usize
                    }
                };
                5 + base + 4 * bucket_count(n, *bucket) + codes
            }
            Payload::Sign { bucket, .. } => 4 + 4 * bucket_count(n, *bucket) + packed_len(n, 1),
            Payload::Levels { bits, bucket, .. } => {
                usize::from(*bits > 1) + 4 + (bucket_count(n, *bucket) << (2 + bits)) + packed_len(n, *bits)
            }
            Payload::Natural { .. } => n + packed_len(n, 1),
            Payload::Lossless { coded, .. } => coded.len(),
            Payload::Affine { block, .. } => 4 + 8 * bucket_count(n, *block) + n,
        }
    }

    /// Appends the wire form.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let mut sink = Sink { summed: out.len(), out, checksum: Hasher::new() };
        sink.bytes(&MAGIC);
        sink.bytes(&[VERSION, kind_byte(&self.payload)]);
        sink.bytes(&(self.len() as u32).to_le_bytes());
        self.put_body(&mut sink);
        let Sink { out, checksum, .. } = sink;
        out.extend_from_slice(&checksum.finalize().to_le_bytes());
    }

    /// Returns a frame of this message alone: its length in 4 bytes, and the wire form. If the codes (of 16 bits, of
    /// 8 bits for the affine payload, or lossless) already lie in a frame, the frame is borrowed from the message. Otherwise it
    /// is written to `spare`.
    ///
    /// ```
    /// use briquette_core::{Key, Message};
    /// use briquette_core::compress::{Compressor, half::Half, HalfKind};
    /// let (mut message, mut read, mut frame) = (Message::default(), Message::default(), Vec::new());
    /// Half::new(HalfKind::Bf16).compress_into(&[1.0, -2.0], Key::new(0), &mut message);
    /// frame.extend_from_slice(message.to_frame(&mut Vec::new())?);
    /// assert_eq!(frame.len(), 4 + message.encoded_len());
    /// read.read_frame(&mut frame)?;
    /// assert_eq!(read, message);
    /// # Ok::<(), briquette_core::error::WireError>(())
    /// ```
    ///
    /// # Errors
    /// [`WireError::Field`] for a message of 4 GiB or more.
    pub fn to_frame<'a>(&'a mut self, spare: &'a mut Vec<u8>) -> Result<&'a [u8], WireError> {
        if matches!(self.payload, Payload::Half { .. } | Payload::Affine { .. } | Payload::Lossless { .. }) {
            return length(self.encoded_len()).map(|_| self.lend());
        }
        spare.clear();
        self.append_frame(spare)?;
        Ok(spare)
    }

    /// Appends the message's length in 4 bytes, and the wire form.
    ///
    /// # Errors
    /// As for [`to_frame`](Message::to_frame).
    pub fn append_frame(&self, out: &mut Vec<u8>) -> Result<(), WireError> {
        // The length is written afterwards: computing it in advance is half of the work.
        let start = out.len() + PREFIX;
        out.extend_from_slice(&[0; PREFIX]);
        self.encode_into(out);
        let prefix = length(out.len() - start)?;
        out[start - PREFIX..start].copy_from_slice(&prefix);
        Ok(())
    }

    /// Writes the fields in front of the codes, in the message's own frame, and returns the frame.
    fn lend(&mut self) -> &[u8] {
        let (kind, len) = (kind_byte(&self.payload), (self.len() as u32).to_le_bytes());
        let header = [MAGIC[0], MAGIC[1], VERSION, kind, len[0], len[1], len[2], len[3]];
        match &mut self.payload {
            Payload::Half { exponents, bits, .. } => bits.frame(|fields| {
                let (first, scales) = fields.split_at_mut(HEADER);
                first.copy_from_slice(&header);
                scales.iter_mut().zip(exponents).for_each(|(byte, exponent)| *byte = *exponent as u8);
            }),
            Payload::Affine { block, ranges, codes } => codes.frame(|fields| {
                let (first, ends) = fields.split_at_mut(HEADER + 4);
                first[..HEADER].copy_from_slice(&header);
                first[HEADER..].copy_from_slice(&block.to_le_bytes());
                let ranges = ranges.as_flattened().iter();
                ends.as_chunks_mut().0.iter_mut().zip(ranges).for_each(|(end, v)| *end = v.to_le_bytes());
            }),
            Payload::Lossless { coded, .. } => coded.frame(|fields| fields.copy_from_slice(&header)),
            _ => unreachable!("its codes stand in no frame"),
        }
    }

    fn put_body(&self, out: &mut Sink<'_>) {
        match &self.payload {
            Payload::Dense(values) => out.numbers(values, |v| v.to_le_bytes()),
            Payload::Half { exponents, bits, .. } => {
                out.numbers(exponents, i8::to_le_bytes);
                out.bytes(bits);
            }
            Payload::Sparse { indices, values } => put_sparse(indices, values, out),
            Payload::Quantized { grid, coding, bucket, scales, codes } => {
                out.bytes(&[grid.levels()]);
                if let Grid::Exponential { base, .. } = grid {
                    out.bytes(&base.to_le_bytes());
                }
                out.bytes(&bucket.to_le_bytes());
                out.numbers(scales, |v| v.to_le_bytes());
                match coding {
                    Coding::Fixed => out.bytes(codes),
                    Coding::Elias => {
                        let (bits, elias) = (grid.bits(), Elias::new(grid.bits()));
                        out.stream(|out| elias.encode(out, |each| for_codes(codes, self.len(), bits, each)));
                    }
                }
            }
            Payload::Sign { bucket, scales, signs } => {
                out.bytes(&bucket.to_le_bytes());
                out.numbers(scales, |v| v.to_le_bytes());
                out.bytes(signs);
            }
            Payload::Levels { bits, bucket, levels, codes } => {
                if *bits > 1 {
                    out.bytes(&[*bits]);
                }
                out.bytes(&bucket.to_le_bytes());
                out.numbers(levels, |v| v.to_le_bytes());
                out.bytes(codes);
            }
            Payload::Affine { block, ranges, codes } => {
                out.bytes(&block.to_le_bytes());
                out.numbers(ranges.as_flattened(), |v| v.to_le_bytes());
                out.bytes(codes);
            }
            Payload::Lossless { coded, .. } => out.bytes(coded),
            Payload::Natural { exponents, signs } => {
                out.bytes(exponents);
                out.bytes(signs);
            }
        }
    }
}

fn length(bytes: usize) -> Result<[u8; PREFIX], WireError> {
    let wrong = WireError::Field { what: "bytes of a message", value: bytes as u64 };
    u32::try_from(bytes).map(u32::to_le_bytes).map_err(|_| wrong)
}

/// Output of a frame, with its running checksum: of `out` from the frame's first byte to `summed`.
struct Sink<'a> {
    out: &'a mut Vec<u8>,
    summed: usize,
    checksum: Hasher,
}

impl Sink<'_> {
    fn bytes(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.stream(|out| out.extend_from_slice(piece));
        }
    }

    fn numbers<T: Copy, const N: usize>(&mut self, numbers: &[T], bytes: impl Fn(T) -> [u8; N]) {
        let mut piece = [0; PIECE];
        for numbers in numbers.chunks(PIECE / N) {
            let piece = &mut piece.as_chunks_mut::<N>().0[..numbers.len()];
            piece.iter_mut().zip(numbers).for_each(|(piece, v)| *piece = bytes(*v));
            self.stream(|out| out.extend_from_slice(piece.as_flattened()));
        }
    }

    /// Appends the output of `put`.
    fn stream(&mut self, put: impl FnOnce(&mut Vec<u8>)) {
        put(self.out);
        self.checksum.update(&self.out[self.summed..]);
        self.summed = self.out.len();
    }
}

/// Unpacks codes one block at a time, and calls `each` with every block.
fn for_codes(codes: &[u8], n: usize, bits: u8, mut each: impl FnMut(&[u8])) {
    let mut block = [0; BLOCK];
    for start in (0..n).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(n - start)];
        unpack(codes, bits, start, block);
        each(block);
    }
}

fn put_sparse(indices: &[u32], values: &Values, out: &mut Sink<'_>) {
    let (r, bits) = best_rice(indices);
    let stream = bits.div_ceil(8) as usize;
    out.out.reserve(9 + stream + values.kind().map_or(0, |kind| values_len(kind, indices.len())));
    out.bytes(&(indices.len() as u32).to_le_bytes());
    out.bytes(&[r]);
    if let Values::Coded(_) = values {
        out.bytes(&(stream as u32).to_le_bytes());
    }
    out.stream(|out| rice_encode(indices, r, out));
    put_values(values, out);
}

fn kind_byte(payload: &Payload) -> u8 {
    match payload {
        Payload::Dense(_) => 0,
        Payload::Half { kind: HalfKind::F16, exponents, .. } if exponents.is_empty() => 1,
        Payload::Half { kind: HalfKind::Bf16, .. } => 2,
        Payload::Sparse { values: Values::F32(_), .. } => 3,
        Payload::Sparse { values: Values::F16 { .. }, .. } => 4,
        Payload::Sparse { values: Values::Q8 { .. }, .. } => 5,
        Payload::Quantized { grid: Grid::Linear { .. }, coding: Coding::Fixed, .. } => 6,
        Payload::Sign { .. } => 7,
        Payload::Natural { .. } => 8,
        Payload::Levels { bits: 1, .. } => 9,
        Payload::Affine { .. } => 10,
        Payload::Quantized { grid: Grid::Exponential { .. }, coding: Coding::Fixed, .. } => 11,
        Payload::Quantized { grid: Grid::Linear { .. }, coding: Coding::Elias, .. } => 12,
        Payload::Quantized { grid: Grid::Exponential { .. }, coding: Coding::Elias, .. } => 13,
        Payload::Sparse { values: Values::Coded(_), .. } => 14,
        Payload::Half { kind: HalfKind::F16, .. } => 15,
        Payload::Levels { .. } => 16,
        Payload::Lossless { .. } => 17,
    }
}

/// Returns the bytes of `k` kept values.
fn values_len(kind: ValueKind, k: usize) -> usize {
    match kind {
        ValueKind::F32 => 4 * k,
        ValueKind::F16 => 1 + 2 * k,
        ValueKind::Q8 => 8 * k.div_ceil(Q8_BLOCK) + k,
    }
}

fn put_values(values: &Values, out: &mut Sink<'_>) {
    match values {
        Values::F32(values) => out.numbers(values, |v| v.to_le_bytes()),
        Values::F16 { exponent, bits } => {
            out.bytes(&exponent.to_le_bytes());
            out.numbers(bits, |v| v.to_le_bytes());
        }
        Values::Q8 { ranges, codes } => {
            out.numbers(ranges.as_flattened(), |v| v.to_le_bytes());
            out.bytes(codes);
        }
        Values::Coded(message) => {
            out.bytes(&[kind_byte(&message.payload)]);
            message.put_body(out);
        }
    }
}

#[cfg(test)]
mod tests;
