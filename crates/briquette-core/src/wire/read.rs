//! Validating decoder of messages: it trusts no field of its input.

mod reader;

use std::ops::Range;

use crc32fast::Hasher;
use reader::Reader;

use super::{CHECKSUM, F16_EXPONENTS, F16_LIMIT, MAGIC, VERSION, values_len};
use crate::binary16;
use crate::bits::{elias_decode, pack, packed_len, rice_decode, unpack};
use crate::error::WireError;
use crate::lossless::{self, Decoder};
use crate::math::all_finite;
use crate::message::{
    BLOCK, Coding, Grid, HEADER, HalfKind, Message, PREFIX, Payload, Q8_BLOCK, ValueKind, Values, bucket_count,
};

impl Message {
    /// Reads a wire form that fills `bytes` exactly, into the storage of this message.
    ///
    /// # Errors
    /// [`WireError`] names the invalid part; this message is then empty.
    pub fn decode_from(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        self.read(bytes, false).map(drop).inspect_err(|_| *self = Message::default())
    }

    /// Reads a [frame](Message::to_frame) that holds one message. If the codes can stay in place, this message takes
    /// the frame, and returns its previous frame in `frame`, emptied.
    ///
    /// # Errors
    /// As for [`decode_from`](Message::decode_from), and if the length in the frame is wrong.
    pub fn read_frame(&mut self, frame: &mut Vec<u8>) -> Result<(), WireError> {
        let left = frame.len();
        let short = WireError::Truncated { what: "length of a message", needed: PREFIX, left };
        let (prefix, bytes) = frame.split_first_chunk::<PREFIX>().ok_or(short)?;
        let len = u32::from_le_bytes(*prefix) as usize;
        if len != bytes.len() {
            *self = Message::default();
            return Err(match bytes.len().checked_sub(len) {
                Some(extra) => WireError::Trailing { extra },
                None => WireError::Truncated { what: "message", needed: len, left: bytes.len() },
            });
        }
        let kept = self.read(bytes, true).inspect_err(|_| *self = Message::default())?;
        if let (
            Some(place),
            Payload::Half { bits: codes, .. } | Payload::Affine { codes, .. } | Payload::Lossless { coded: codes, .. },
        ) = (kept, &mut self.payload)
        {
            codes.keep(frame, place.start + PREFIX..place.end + PREFIX);
        }
        Ok(())
    }

    /// Reads a message. The checksum comes last, but its error takes precedence, because the fields of a damaged frame
    /// are meaningless. If codes stayed in `bytes`, their range is returned.
    fn read(&mut self, bytes: &[u8], keeps: bool) -> Result<Option<Range<usize>>, WireError> {
        let (mut reader, expected) = open(bytes)?;
        reader.keeps = keeps;
        let read = self.read_message(&mut reader);
        let kept = reader.kept.take();
        let got = reader.checksum();
        if expected != got {
            return Err(WireError::Checksum { expected, got });
        }
        read.map(|()| kept)
    }

    fn read_message(&mut self, reader: &mut Reader<'_>) -> Result<(), WireError> {
        let kind = reader.u8("kind")?;
        let n = reader.u32("length")? as usize;
        self.read_body(reader, kind, n)?;
        reader.end()
    }

    fn read_body(&mut self, reader: &mut Reader<'_>, kind: u8, n: usize) -> Result<(), WireError> {
        match kind {
            0 => reader.f32s("values", n, self.dense(n).empty()),
            1 => {
                let codes = (HEADER, self.half(n, HalfKind::F16).1);
                reader.codes(["values", "value"], n, codes, is_finite_f16)
            }
            2 => {
                let codes = (HEADER, self.half(n, HalfKind::Bf16).1);
                reader.codes(["values", "value"], n, codes, |b| u16::from_le_bytes(b) & 0x7f80 != 0x7f80)
            }
            3 => self.read_sparse(reader, n, ValueKind::F32),
            4 => self.read_sparse(reader, n, ValueKind::F16),
            5 => self.read_sparse(reader, n, ValueKind::Q8),
            6 | 11 | 18 => self.read_quantized(reader, n, kind, Coding::Fixed),
            7 => {
                let bucket = reader.bucket()?;
                let (scales, signs) = self.sign(n, bucket);
                reader.scales(bucket_count(n, bucket), scales.empty())?;
                reader.packed(n, 1, signs.empty())
            }
            8 => {
                let (exponents, signs) = self.natural(n);
                reader.bytes(["exponents", "exponent"], n, exponents.empty(), |e| e != 0xff)?;
                reader.packed(n, 1, signs.empty())
            }
            9 => self.read_levels(reader, n, 1),
            10 => {
                let block = reader.bucket()?;
                let (ranges, codes) = self.affine(n, block);
                let ranges = ranges.empty();
                reader.pairs("ranges", bucket_count(n, block), ranges)?;
                check_ranges(ranges, |[low, high]| low <= high)?;
                reader.codes(["codes", "code"], n, (HEADER + 4 + 8 * ranges.len(), codes), |[_]: [u8; 1]| true)
            }
            12 | 13 => self.read_quantized(reader, n, kind, Coding::Elias),
            14 => self.read_coded(reader, n),
            15 => {
                let (exponents, codes) = self.half(n, HalfKind::F16);
                reader.exponents(n.div_ceil(binary16::SCALED), exponents)?;
                reader.codes(["values", "value"], n, (HEADER + exponents.len(), codes), is_finite_f16)
            }
            16 => {
                let bits = reader.u8("bits")?;
                check("bits", bits, (2..=4).contains(&bits))?;
                self.read_levels(reader, n, bits)
            }
            17 => self.read_lossless(reader, n),
            _ => check("kind", kind, false),
        }
    }

    fn read_levels(&mut self, reader: &mut Reader<'_>, n: usize, bits: u8) -> Result<(), WireError> {
        let bucket = reader.bucket()?;
        let (levels, codes) = self.levels(n, bits, bucket);
        reader.f32s("levels", bucket_count(n, bucket) << bits, levels.empty())?;
        reader.packed(n, bits, codes.empty())
    }

    fn read_lossless(&mut self, reader: &mut Reader<'_>, n: usize) -> Result<(), WireError> {
        let (needed, left) = (lossless::least_bytes(n), reader.left());
        if needed > left {
            return Err(WireError::Truncated { what: "codes", needed, left });
        }
        let (values, coded) = self.lossless(n);
        let mut decoder = Decoder::new(reader.lossless(coded));
        for block in values.sized(n).chunks_mut(lossless::BLOCK) {
            decoder.block(block)?;
            if !all_finite(block) {
                let wrong = block.iter().find(|v| !v.is_finite());
                return check("value that must be finite", wrong.map_or(0, |v| v.to_bits()), false);
            }
            reader.sum(decoder.left());
        }
        decoder.end()
    }

    fn read_quantized(&mut self, reader: &mut Reader<'_>, n: usize, kind: u8, coding: Coding) -> Result<(), WireError> {
        let grid = read_grid(reader, kind)?;
        let bucket = reader.bucket()?;
        let (scales, codes) = self.quantized(n, (grid, coding), bucket);
        reader.scales(bucket_count(n, bucket), scales.empty())?;
        let codes = codes.empty();
        match coding {
            Coding::Fixed => {
                reader.packed(n, grid.bits(), codes)?;
                check_levels(codes, n, grid)
            }
            Coding::Elias => {
                let stream = reader.rest();
                // Every code takes at least one bit.
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
        // The values come last and their size is known, so the bytes before them are the index stream.
        let size = values_len(kind, k);
        let left = reader.left();
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
        // A sparse message cannot contain a sparse message.
        check("kind of the kept values", kind, !matches!(kind, 3..=5 | 14))?;
        // Every index takes at least one bit and its low bits, and every value at least one bit.
        let index_bytes = (k as u64 * (1 + u64::from(r))).div_ceil(8) as usize;
        for (what, needed, left) in
            [("indices", index_bytes, stream.len()), ("kept values", k.div_ceil(8), reader.left())]
        {
            if needed > left {
                return Err(WireError::Truncated { what, needed, left });
            }
        }
        let (indices, values) = self.coded(n);
        indices.reserve(k);
        rice_decode(stream, (r, k, n as u32), indices)?;
        reader.keeps = false;
        values.read_body(reader, kind, k)
    }
}

fn read_grid(reader: &mut Reader<'_>, kind: u8) -> Result<Grid, WireError> {
    if kind == 18 {
        let format = reader.u8("format")?;
        let (exponent, fraction) = (format >> 4, format & 0xf);
        check("format", format, exponent > 0 && exponent + fraction <= 7)?;
        return Ok(Grid::Float { exponent, fraction });
    }
    let levels = reader.u8("levels")?;
    check("levels", levels, (1..=Grid::MAX_LEVELS).contains(&levels))?;
    if !matches!(kind, 11 | 13) {
        return Ok(Grid::Linear { levels });
    }
    let bits = reader.u32("base")?;
    let base = f32::from_bits(bits);
    check("base", bits, Grid::BASES.contains(&base))?;
    Ok(Grid::Exponential { base, levels })
}

fn is_finite_f16(bytes: [u8; 2]) -> bool {
    u16::from_le_bytes(bytes) & 0x7c00 != 0x7c00
}

/// Decodes Elias codes one by one into packed bytes.
fn read_elias(stream: &[u8], n: usize, grid: Grid, codes: &mut Vec<u8>) -> Result<(), WireError> {
    let (mut block, mut filled) = ([0; BLOCK], 0);
    let append = |block: &[u8], codes: &mut Vec<u8>| {
        let start = codes.len();
        codes.resize(start + packed_len(block.len(), grid.bits()), 0);
        pack(block, grid.bits(), &mut codes[start..]);
    };
    elias_decode(stream, (n, grid.levels(), grid.bits()), |code| {
        block[filled] = code;
        filled += 1;
        if filled == BLOCK {
            append(&block, codes);
            filled = 0;
        }
    })?;
    append(&block[..filled], codes);
    Ok(())
}

/// Checks the levels, if a code has room for more levels than the grid has.
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

/// Checks magic and version, and splits off the checksum; the content between them remains to be read.
fn open(bytes: &[u8]) -> Result<(Reader<'_>, u32), WireError> {
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
    let reader = Reader { content, at: 3, summed: 0, checksum: Hasher::new(), keeps: false, kept: None };
    Ok((reader, u32::from_le_bytes(*checksum)))
}

fn check(what: &'static str, value: impl Into<u64>, valid: bool) -> Result<(), WireError> {
    if valid { Ok(()) } else { Err(WireError::Field { what, value: value.into() }) }
}

fn check_ranges(ranges: &[[f32; 2]], valid: impl Fn([f32; 2]) -> bool) -> Result<(), WireError> {
    match ranges.iter().find(|range| !valid(**range)) {
        Some([low, high]) => check("range", u64::from(low.to_bits()) << 32 | u64::from(high.to_bits()), false),
        None => Ok(()),
    }
}

fn read_values(reader: &mut Reader<'_>, k: usize, values: &mut Values) -> Result<(), WireError> {
    match values {
        Values::F32(values) => reader.f32s("kept values", k, values),
        Values::F16 { exponent, bits } => {
            let byte = reader.u8("exponent")?;
            *exponent = byte as i8;
            check("exponent", byte, F16_EXPONENTS.contains(exponent))?;
            reader.u16s(["kept values", "kept value"], k, bits, |b| b & 0x7fff <= F16_LIMIT)
        }
        Values::Q8 { ranges, codes } => {
            reader.pairs("ranges", k.div_ceil(Q8_BLOCK), ranges)?;
            check_ranges(ranges, |[low, high]| low.is_sign_positive() && low <= high)?;
            reader.bytes(["kept values", "kept value"], k, codes, |_| true)
        }
        Values::Coded(_) => unreachable!("read as a message"),
    }
}
