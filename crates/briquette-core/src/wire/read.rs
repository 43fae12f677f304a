//! From bytes to a message, nothing believed.

use super::{CHECKSUM, F16_EXPONENTS, F16_LIMIT, HEADER, MAGIC, VERSION, values_len};
use crate::bits::{MAX_RICE, elias_decode, pack, packed_len, padding, rice_decode, unpack};
use crate::error::WireError;
use crate::message::{BLOCK, Coding, Grid, HalfKind, Message, Q8_BLOCK, ValueKind, Values, bucket_count};

impl Message {
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
        self.read_body(&mut reader, kind, n)?;
        reader.end()
    }

    fn read_body(&mut self, reader: &mut Reader<'_>, kind: u8, n: usize) -> Result<(), WireError> {
        match kind {
            0 => f32s(reader.take("values", 4 * n as u64)?, self.dense(n)),
            1 => half(reader, self.half(n, HalfKind::F16), n, 0x7c00),
            2 => half(reader, self.half(n, HalfKind::Bf16), n, 0x7f80),
            3 => self.read_sparse(reader, n, ValueKind::F32),
            4 => self.read_sparse(reader, n, ValueKind::F16),
            5 => self.read_sparse(reader, n, ValueKind::Q8),
            6 => self.read_quantized(reader, n, false, Coding::Fixed),
            7 => {
                let bucket = reader.bucket()?;
                let (scales, signs) = self.sign(n, bucket);
                read_scales(reader, bucket_count(n, bucket), scales)?;
                read_packed(reader, n, 1, signs)
            }
            8 => {
                let (exponents, signs) = self.natural(n);
                exponents.extend_from_slice(reader.take("exponents", n as u64)?);
                check("exponent", 0xff_u8, exponents.iter().fold(true, |all, &e| all & (e != 0xff)))?;
                read_packed(reader, n, 1, signs)
            }
            9 => {
                let bucket = reader.bucket()?;
                let (levels, bits) = self.two_level(n, bucket);
                read_pairs(reader, "levels", bucket_count(n, bucket), levels)?;
                read_packed(reader, n, 1, bits)
            }
            10 => {
                let block = reader.bucket()?;
                let (ranges, codes) = self.affine(n, block);
                read_pairs(reader, "ranges", bucket_count(n, block), ranges)?;
                check_ranges(ranges, |[low, high]| low <= high)?;
                codes.extend_from_slice(reader.take("codes", n as u64)?);
                Ok(())
            }
            11 => self.read_quantized(reader, n, true, Coding::Fixed),
            12 => self.read_quantized(reader, n, false, Coding::Elias),
            13 => self.read_quantized(reader, n, true, Coding::Elias),
            14 => self.read_coded(reader, n),
            _ => check("kind", kind, false),
        }
    }

    fn read_quantized(
        &mut self,
        reader: &mut Reader<'_>,
        n: usize,
        exponential: bool,
        coding: Coding,
    ) -> Result<(), WireError> {
        let levels = reader.u8("levels")?;
        check("levels", levels, (1..=Grid::MAX_LEVELS).contains(&levels))?;
        let grid = if exponential {
            let bits = reader.u32("base")?;
            let base = f32::from_bits(bits);
            check("base", bits, Grid::BASES.contains(&base))?;
            Grid::Exponential { base, levels }
        } else {
            Grid::Linear { levels }
        };
        let bucket = reader.bucket()?;
        let (scales, codes) = self.quantized(n, (grid, coding), bucket);
        read_scales(reader, bucket_count(n, bucket), scales)?;
        match coding {
            Coding::Fixed => {
                read_packed(reader, n, grid.bits(), codes)?;
                check_levels(codes, n, grid)
            }
            Coding::Elias => {
                let stream = reader.rest();
                // Every code takes at least a bit.
                let needed = n.div_ceil(8);
                if needed > stream.len() {
                    return Err(WireError::Truncated { what: "codes", needed, left: stream.len() });
                }
                codes.reserve(packed_len(n, grid.bits()));
                read_elias(stream, n, grid, codes)
            }
        }
    }

    fn read_sparse(&mut self, reader: &mut Reader<'_>, n: usize, kind: ValueKind) -> Result<(), WireError> {
        let (k, r) = reader.sparse(n)?;
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

    fn read_coded(&mut self, reader: &mut Reader<'_>, n: usize) -> Result<(), WireError> {
        let (k, r) = reader.sparse(n)?;
        let stream = reader.u32("bytes of indices")?;
        let stream = reader.take("indices", u64::from(stream))?;
        let kind = reader.u8("kind of the kept values")?;
        // No sparse message within a sparse one.
        check("kind of the kept values", kind, !matches!(kind, 3..=5 | 14))?;
        // Every index takes at least a bit and its low ones, and every value a bit.
        let index_bytes = (k as u64 * (1 + u64::from(r))).div_ceil(8) as usize;
        for (what, needed, left) in
            [("indices", index_bytes, stream.len()), ("kept values", k.div_ceil(8), reader.bytes.len())]
        {
            if needed > left {
                return Err(WireError::Truncated { what, needed, left });
            }
        }
        let (indices, values) = self.coded(n);
        indices.reserve(k);
        rice_decode(stream, (r, k, n as u32), indices)?;
        values.read_body(reader, kind, k)
    }
}

/// Codes one by one into packed bytes.
fn read_elias(stream: &[u8], n: usize, grid: Grid, codes: &mut Vec<u8>) -> Result<(), WireError> {
    let (mut block, mut filled) = ([0; BLOCK], 0);
    elias_decode(stream, (n, grid.levels(), grid.bits()), |code| {
        block[filled] = code;
        filled += 1;
        if filled == BLOCK {
            pack(&block, grid.bits(), codes);
            filled = 0;
        }
    })?;
    pack(&block[..filled], grid.bits(), codes);
    Ok(())
}

/// Where a code could name more levels than there are.
fn check_levels(codes: &[u8], n: usize, grid: Grid) -> Result<(), WireError> {
    let (bits, levels) = (grid.bits(), grid.levels());
    let all = (1 << (bits - 1)) - 1;
    if levels == all {
        return Ok(());
    }
    let mut block = [0; BLOCK];
    for start in (0..n).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(n - start)];
        unpack(codes, bits, start, block);
        let highest = block.iter().fold(0, |highest, code| highest.max(code & all));
        check("level", highest, highest <= levels)?;
    }
    Ok(())
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

    fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.bytes)
    }

    /// How many indices, and their Rice parameter.
    fn sparse(&mut self, n: usize) -> Result<(usize, u8), WireError> {
        let count = self.u32("count of indices")?;
        check("count of indices", count, count as usize <= n)?;
        let r = self.u8("Rice parameter")?;
        check("Rice parameter", r, r <= MAX_RICE)?;
        Ok((count as usize, r))
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
            read_pairs(reader, "ranges", k.div_ceil(Q8_BLOCK), ranges)?;
            check_ranges(ranges, |[low, high]| low.is_sign_positive() && low <= high)?;
            codes.extend_from_slice(reader.take("kept values", k as u64)?);
            Ok(())
        }
        Values::Coded(_) => unreachable!("read as a message"),
    }
}

/// Finite pairs.
fn read_pairs(
    reader: &mut Reader<'_>,
    what: &'static str,
    count: usize,
    pairs: &mut Vec<[f32; 2]>,
) -> Result<(), WireError> {
    let bytes = reader.take(what, 8 * count as u64)?;
    pairs.extend(bytes.as_chunks::<4>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(f32::from_le_bytes)));
    match pairs.as_flattened().iter().find(|v| !v.is_finite()) {
        Some(value) => check("value that must be finite", value.to_bits(), false),
        None => Ok(()),
    }
}

fn check_ranges(ranges: &[[f32; 2]], valid: impl Fn([f32; 2]) -> bool) -> Result<(), WireError> {
    match ranges.iter().find(|range| !valid(**range)) {
        Some([low, high]) => check("range", u64::from(low.to_bits()) << 32 | u64::from(high.to_bits()), false),
        None => Ok(()),
    }
}

fn half(reader: &mut Reader<'_>, bits: &mut Vec<u16>, n: usize, infinite: u16) -> Result<(), WireError> {
    u16s(reader.take("values", 2 * n as u64)?, bits);
    find_invalid("value", bits, |b| b & infinite != infinite)
}

fn read_scales(reader: &mut Reader<'_>, count: usize, scales: &mut Vec<f32>) -> Result<(), WireError> {
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
