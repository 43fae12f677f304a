//! The wire form of a [`Message`]: versioned, checksummed, little-endian. `docs/wire.md` is its specification.
//!
//! | payload | bytes of the whole message, `n` values |
//! |---|---|
//! | dense | `12 + 4n` |
//! | half | `12 + 2n` |
//! | sparse, `k` kept | `17 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉ + v`; `gⱼ` the gaps, `v` = `4k`, `1 + 2k`, or `8⌈k/256⌉ + k` |
//! | quantized | `17 + 4⌈n/bucket⌉ + ⌈n·bits/8⌉` |
//! | sign | `16 + 4⌈n/bucket⌉ + ⌈n/8⌉` |
//!
//! Everything that a message says of itself is checked before use: counts against the bytes that are left before
//! memory is reserved, indices, bit widths, padding, and every number for being finite. So decoding needs at most
//! six times the bytes it was given (at worst four for the index and one for the code of a value that took a byte and a
//! bit), and what decodes can be used without further checks.

use crate::bits::{MAX_RICE, best_rice, packed_len, padding, rice_decode, rice_encode};
use crate::error::WireError;
use crate::message::{HalfKind, Message, Payload, Q8_BLOCK, ValueKind, Values, bucket_count};

const MAGIC: [u8; 2] = *b"BQ";
const VERSION: u8 = 1;
/// Magic, version, kind, length.
const HEADER: usize = 8;
const CHECKSUM: usize = 4;
/// The largest binary16 magnitude a sparse message may hold, 32752: times 2¹¹³ it is still a finite `f32`.
pub(crate) const F16_LIMIT: u16 = 0x77ff;
/// Exponents `e` for which `2^e` is normal and [`F16_LIMIT`]` · 2^e` finite.
pub(crate) const F16_EXPONENTS: std::ops::RangeInclusive<i8> = -126..=113;

impl Message {
    /// The bytes [`encode_into`](Message::encode_into) appends.
    pub fn encoded_len(&self) -> usize {
        let n = self.len();
        let body = match &self.payload {
            Payload::Dense(_) => 4 * n,
            Payload::Half { .. } => 2 * n,
            Payload::Sparse { indices, values } => {
                5 + best_rice(indices).1.div_ceil(8) as usize + values_len(values.kind(), indices.len())
            }
            Payload::Quantized { bits, bucket, .. } => 5 + 4 * bucket_count(n, *bucket) + packed_len(n, *bits),
            Payload::Sign { bucket, .. } => 4 + 4 * bucket_count(n, *bucket) + packed_len(n, 1),
        };
        HEADER + body + CHECKSUM
    }

    /// Appends the wire form.
    pub fn encode_into(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[VERSION, kind_byte(&self.payload)]);
        out.extend_from_slice(&(self.len() as u32).to_le_bytes());
        match &self.payload {
            Payload::Dense(values) => put_f32s(values, out),
            Payload::Half { bits, .. } => put_u16s(bits, out),
            Payload::Sparse { indices, values } => {
                let (r, bits) = best_rice(indices);
                out.reserve(9 + bits.div_ceil(8) as usize + values_len(values.kind(), indices.len()));
                out.extend_from_slice(&(indices.len() as u32).to_le_bytes());
                out.push(r);
                rice_encode(indices, r, out);
                put_values(values, out);
            }
            Payload::Quantized { bits, bucket, scales, codes } => {
                out.push(*bits);
                out.extend_from_slice(&bucket.to_le_bytes());
                put_f32s(scales, out);
                out.extend_from_slice(codes);
            }
            Payload::Sign { bucket, scales, signs } => {
                out.extend_from_slice(&bucket.to_le_bytes());
                put_f32s(scales, out);
                out.extend_from_slice(signs);
            }
        }
        let checksum = crc32fast::hash(&out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Reads a wire form that fills `bytes` exactly, into the storage of this message.
    ///
    /// # Errors
    /// [`WireError`] names what is wrong; this is then the empty message.
    pub fn decode_from(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let decoded = self.read(bytes);
        if decoded.is_err() {
            *self = Message::default();
        }
        decoded
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let mut reader = open(bytes)?;
        let kind = reader.u8("kind")?;
        let n = reader.u32("length")? as usize;
        match kind {
            0 => f32s(reader.take("values", 4 * n as u64)?, self.dense(n))?,
            1 => half(&mut reader, self.half(n, HalfKind::F16), n, 0x7c00)?,
            2 => half(&mut reader, self.half(n, HalfKind::Bf16), n, 0x7f80)?,
            3 => self.read_sparse(&mut reader, n, ValueKind::F32)?,
            4 => self.read_sparse(&mut reader, n, ValueKind::F16)?,
            5 => self.read_sparse(&mut reader, n, ValueKind::Q8)?,
            6 => {
                let bits = reader.u8("bits per value")?;
                check("bits per value", bits, (2..=8).contains(&bits))?;
                let bucket = reader.bucket()?;
                let (scales, codes) = self.quantized(n, bits, bucket);
                read_buckets(&mut reader, bucket_count(n, bucket), scales)?;
                read_packed(&mut reader, n, bits, codes)?;
            }
            7 => {
                let bucket = reader.bucket()?;
                let (scales, signs) = self.sign(n, bucket);
                read_buckets(&mut reader, bucket_count(n, bucket), scales)?;
                read_packed(&mut reader, n, 1, signs)?;
            }
            _ => return check("kind", kind, false),
        }
        reader.end()
    }

    fn read_sparse(&mut self, reader: &mut Reader<'_>, n: usize, kind: ValueKind) -> Result<(), WireError> {
        let count = reader.u32("count of indices")?;
        check("count of indices", count, count as usize <= n)?;
        let k = count as usize;
        let r = reader.u8("Rice parameter")?;
        check("Rice parameter", r, r <= MAX_RICE)?;
        // The values come last and their size is known, so what stands before them is the index stream.
        let size = values_len(kind, k);
        let left = reader.bytes.len();
        let stream = left.checked_sub(size).ok_or(WireError::Truncated { what: "kept values", needed: size, left })?;
        let stream = reader.take("indices", stream as u64)?;
        let (indices, values) = self.sparse(n, kind);
        indices.reserve(k);
        rice_decode(stream, (r, k, n as u32), indices)?;
        read_values(reader, k, values)
    }
}

/// Checks magic, version and checksum; what is between them remains to be read.
fn open(bytes: &[u8]) -> Result<Reader<'_>, WireError> {
    if let Some(&got) = bytes.first_chunk::<3>()
        && got != [MAGIC[0], MAGIC[1], VERSION]
    {
        return Err(WireError::Version { expected: VERSION, got });
    }
    let (needed, left) = (HEADER + CHECKSUM, bytes.len());
    let short = WireError::Truncated { what: "header and checksum", needed, left };
    let Some((content, checksum)) = bytes.split_last_chunk::<CHECKSUM>().filter(|_| left >= needed) else {
        return Err(short);
    };
    let (expected, got) = (u32::from_le_bytes(*checksum), crc32fast::hash(content));
    if expected != got {
        return Err(WireError::Checksum { expected, got });
    }
    Ok(Reader { bytes: &content[3..] })
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8], WireError> {
        let left = self.bytes.len();
        if needed > left as u64 {
            return Err(WireError::Truncated { what, needed: needed as usize, left });
        }
        let (taken, rest) = self.bytes.split_at(needed as usize);
        self.bytes = rest;
        Ok(taken)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.take(what, 1)?[0])
    }

    fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    fn bucket(&mut self) -> Result<u32, WireError> {
        let bucket = self.u32("bucket size")?;
        check("bucket size", bucket, bucket > 0)?;
        Ok(bucket)
    }

    fn end(&self) -> Result<(), WireError> {
        match self.bytes.len() {
            0 => Ok(()),
            extra => Err(WireError::Trailing { extra }),
        }
    }
}

fn check(what: &'static str, value: impl Into<u64>, valid: bool) -> Result<(), WireError> {
    if valid { Ok(()) } else { Err(WireError::Field { what, value: value.into() }) }
}

fn kind_byte(payload: &Payload) -> u8 {
    match payload {
        Payload::Dense(_) => 0,
        Payload::Half { kind: HalfKind::F16, .. } => 1,
        Payload::Half { kind: HalfKind::Bf16, .. } => 2,
        Payload::Sparse { values: Values::F32(_), .. } => 3,
        Payload::Sparse { values: Values::F16 { .. }, .. } => 4,
        Payload::Sparse { values: Values::Q8 { .. }, .. } => 5,
        Payload::Quantized { .. } => 6,
        Payload::Sign { .. } => 7,
    }
}

/// Bytes of `k` kept values.
fn values_len(kind: ValueKind, k: usize) -> usize {
    match kind {
        ValueKind::F32 => 4 * k,
        ValueKind::F16 => 1 + 2 * k,
        ValueKind::Q8 => 8 * k.div_ceil(Q8_BLOCK) + k,
    }
}

fn put_values(values: &Values, out: &mut Vec<u8>) {
    match values {
        Values::F32(values) => put_f32s(values, out),
        Values::F16 { exponent, bits } => {
            out.extend_from_slice(&exponent.to_le_bytes());
            put_u16s(bits, out);
        }
        Values::Q8 { ranges, codes } => {
            put_f32s(ranges.as_flattened(), out);
            out.extend_from_slice(codes);
        }
    }
}

fn read_values(reader: &mut Reader<'_>, k: usize, values: &mut Values) -> Result<(), WireError> {
    match values {
        Values::F32(values) => f32s(reader.take("kept values", 4 * k as u64)?, values),
        Values::F16 { exponent, bits } => {
            let byte = reader.u8("exponent")?;
            *exponent = byte as i8;
            check("exponent", byte, F16_EXPONENTS.contains(exponent))?;
            u16s(reader.take("kept values", 2 * k as u64)?, bits);
            find_invalid("kept value", bits, |b| b & 0x7fff <= F16_LIMIT)
        }
        Values::Q8 { ranges, codes } => {
            let bytes = reader.take("ranges", 8 * k.div_ceil(Q8_BLOCK) as u64)?;
            let f32_at = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            ranges.extend(bytes.chunks_exact(8).map(|b| [f32_at(b), f32_at(&b[4..])]));
            for &[low, high] in ranges.iter() {
                let valid = low.is_sign_positive() && low <= high && high.is_finite();
                check("range", u64::from(low.to_bits()) << 32 | u64::from(high.to_bits()), valid)?;
            }
            codes.extend_from_slice(reader.take("kept values", k as u64)?);
            Ok(())
        }
    }
}

fn half(reader: &mut Reader<'_>, bits: &mut Vec<u16>, n: usize, infinite: u16) -> Result<(), WireError> {
    u16s(reader.take("values", 2 * n as u64)?, bits);
    find_invalid("value", bits, |b| b & infinite != infinite)
}

fn read_buckets(reader: &mut Reader<'_>, count: usize, scales: &mut Vec<f32>) -> Result<(), WireError> {
    f32s(reader.take("scales", 4 * count as u64)?, scales)?;
    match scales.iter().find(|s| s.is_sign_negative()) {
        Some(scale) => check("scale", scale.to_bits(), false),
        None => Ok(()),
    }
}

fn read_packed(reader: &mut Reader<'_>, n: usize, bits: u8, codes: &mut Vec<u8>) -> Result<(), WireError> {
    codes.extend_from_slice(reader.take("codes", packed_len(n, bits) as u64)?);
    padding(codes, n as u64 * u64::from(bits))
}

fn put_f32s(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn put_u16s(values: &[u16], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn f32s(bytes: &[u8], out: &mut Vec<f32>) -> Result<(), WireError> {
    out.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)));
    // Looks at all first: a loop without early exit vectorises.
    if out.iter().fold(true, |all, v| all & v.is_finite()) {
        return Ok(());
    }
    let value = out.iter().find(|v| !v.is_finite()).map_or(0, |v| v.to_bits());
    check("value that must be finite", value, false)
}

fn u16s(bytes: &[u8], out: &mut Vec<u16>) {
    out.extend(bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)));
}

fn find_invalid(what: &'static str, bits: &[u16], valid: impl Fn(u16) -> bool) -> Result<(), WireError> {
    if bits.iter().fold(true, |all, &b| all & valid(b)) {
        return Ok(());
    }
    check(what, bits.iter().copied().find(|&b| !valid(b)).unwrap_or(0), false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(message: &Message) -> usize {
        match &message.payload {
            Payload::Dense(values) => 4 * values.capacity(),
            Payload::Half { bits, .. } => 2 * bits.capacity(),
            Payload::Sparse { indices, values } => {
                4 * indices.capacity()
                    + match values {
                        Values::F32(values) => 4 * values.capacity(),
                        Values::F16 { bits, .. } => 2 * bits.capacity(),
                        Values::Q8 { ranges, codes } => 8 * ranges.capacity() + codes.capacity(),
                    }
            }
            Payload::Quantized { scales, codes, .. } => 4 * scales.capacity() + codes.capacity(),
            Payload::Sign { scales, signs, .. } => 4 * scales.capacity() + signs.capacity(),
        }
    }

    /// The densest frames of each kind, decoded into fresh storage.
    #[test]
    fn decoding_takes_at_most_six_times_the_bytes_of_the_frame() {
        let n = 5000;
        for kind in [ValueKind::F32, ValueKind::F16, ValueKind::Q8] {
            let mut message = Message::default();
            let (indices, values) = message.sparse(n, kind);
            indices.extend(0..n as u32);
            match values {
                Values::F32(values) => values.resize(n, 1.0),
                Values::F16 { bits, .. } => bits.resize(n, 0),
                Values::Q8 { ranges, codes } => {
                    ranges.resize(n.div_ceil(Q8_BLOCK), [0.5, 1.0]);
                    codes.resize(n, 255);
                }
            }
            let (mut bytes, mut fresh) = (Vec::new(), Message::default());
            message.encode_into(&mut bytes);
            fresh.decode_from(&bytes).unwrap();
            assert_eq!(fresh, message);
            assert!(memory(&fresh) <= 6 * bytes.len(), "{kind:?}: {} for {}", memory(&fresh), bytes.len());
        }
    }

    #[test]
    fn compressing_and_decoding_again_keeps_the_storage() {
        let (mut message, mut bytes) = (Message::default(), Vec::new());
        message.dense(100).resize(100, 1.0);
        message.encode_into(&mut bytes);
        let Payload::Dense(values) = &message.payload else { unreachable!() };
        let place = values.as_ptr();
        message.decode_from(&bytes).unwrap();
        message.dense(50).resize(50, 2.0);
        let Payload::Dense(values) = &message.payload else { unreachable!() };
        assert_eq!(values.as_ptr(), place);
    }
}
