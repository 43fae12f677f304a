//! Reader of a frame: checks, copies and sums bytes one piece at a time.

use std::ops::Range;

use crc32fast::Hasher;

use super::check;
use crate::binary16;
use crate::bits::{MAX_RICE, packed_len, padding};
use crate::error::WireError;
use crate::message::{Codes, HEADER};
use crate::wire::PIECE;

/// A frame, the position up to which it was read, and the running checksum of the bytes before `summed`.
pub(super) struct Reader<'a> {
    pub(super) content: &'a [u8],
    pub(super) at: usize,
    pub(super) summed: usize,
    pub(super) checksum: Hasher,
    /// Set if codes stay in the frame; `kept` is then their range.
    pub(super) keeps: bool,
    pub(super) kept: Option<Range<usize>>,
}

impl<'a> Reader<'a> {
    pub(super) fn left(&self) -> usize {
        self.content.len() - self.at
    }

    pub(super) fn take(&mut self, what: &'static str, needed: u64) -> Result<&'a [u8], WireError> {
        let left = self.left();
        if needed > left as u64 {
            return Err(WireError::Truncated { what, needed: needed as usize, left });
        }
        let taken = &self.content[self.at..][..needed as usize];
        self.at += needed as usize;
        Ok(taken)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, WireError> {
        Ok(self.take(what, 1)?[0])
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, WireError> {
        let bytes = self.take(what, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn rest(&mut self) -> &'a [u8] {
        let rest = &self.content[self.at..];
        self.at = self.content.len();
        rest
    }

    /// Returns the checksum of the whole frame.
    pub(super) fn checksum(self) -> u32 {
        let mut checksum = self.checksum;
        checksum.update(&self.content[self.summed..]);
        checksum.finalize()
    }

    /// Appends `count` numbers that must all be valid. Each piece is copied, checked and summed while it is in the
    /// cache.
    pub(super) fn numbers<T: Copy, const N: usize>(
        &mut self,
        (what, count): (&'static str, usize),
        out: &mut Vec<T>,
        number: impl Fn([u8; N]) -> T,
        valid: impl Fn(T) -> bool,
    ) -> Result<Option<T>, WireError> {
        let bytes = self.take(what, N as u64 * count as u64)?;
        let mut end = self.at - bytes.len();
        out.reserve(count);
        for piece in bytes.as_chunks::<N>().0.chunks(PIECE / N) {
            out.extend(piece.iter().map(|bytes| number(*bytes)));
            end += N * piece.len();
            self.checksum.update(&self.content[self.summed..end]);
            self.summed = end;
            // Checks all values first: a loop without early exit vectorizes.
            let piece = &out[out.len() - piece.len()..];
            if !piece.iter().fold(true, |all, &v| all & valid(v)) {
                return Ok(piece.iter().copied().find(|&v| !valid(v)));
            }
        }
        Ok(None)
    }

    /// Checks `count` codes of `N` bytes, and leaves or copies them, one piece at a time. A copy has room for `fields`
    /// bytes of the message in front of it.
    pub(super) fn codes<const N: usize>(
        &mut self,
        [what, one]: [&'static str; 2],
        count: usize,
        (fields, codes): (usize, &mut Codes),
        valid: impl Fn([u8; N]) -> bool,
    ) -> Result<(), WireError> {
        let bytes = self.take(what, N as u64 * count as u64)?;
        let mut end = self.at - bytes.len();
        self.kept = self.keeps.then_some(end..self.at);
        let mut out = if self.keeps { &mut [] } else { codes.sized(fields, bytes.len()) };
        for piece in bytes.chunks(PIECE) {
            if !self.keeps {
                let (copy, rest) = out.split_at_mut(piece.len());
                copy.copy_from_slice(piece);
                out = rest;
            }
            end += piece.len();
            self.checksum.update(&self.content[self.summed..end]);
            self.summed = end;
            let piece = piece.as_chunks::<N>().0;
            if !piece.iter().fold(true, |all, code| all & valid(*code)) {
                let wrong = piece.iter().find(|code| !valid(**code)).into_iter().flatten().rev();
                return check(one, wrong.fold(0, |value, byte| value << 8 | u64::from(*byte)), false);
            }
        }
        Ok(())
    }

    /// Returns the lossless code at the end of the message, and leaves or copies it.
    pub(super) fn lossless(&mut self, codes: &mut Codes) -> &'a [u8] {
        let start = self.at;
        let code = self.rest();
        self.kept = self.keeps.then_some(start..self.at);
        if !self.keeps {
            codes.sized(HEADER, code.len()).copy_from_slice(code);
        }
        code
    }

    /// Adds to the checksum all but the last `left` bytes.
    pub(super) fn sum(&mut self, left: usize) {
        let end = self.content.len() - left;
        self.checksum.update(&self.content[self.summed..end]);
        self.summed = end;
    }

    pub(super) fn bytes(
        &mut self,
        [what, one]: [&'static str; 2],
        count: usize,
        out: &mut Vec<u8>,
        valid: impl Fn(u8) -> bool,
    ) -> Result<(), WireError> {
        let invalid = self.numbers((what, count), out, |[byte]: [u8; 1]| byte, valid)?;
        invalid.map_or(Ok(()), |byte| check(one, byte, false))
    }

    pub(super) fn u16s(
        &mut self,
        [what, one]: [&'static str; 2],
        count: usize,
        out: &mut Vec<u16>,
        valid: impl Fn(u16) -> bool,
    ) -> Result<(), WireError> {
        let invalid = self.numbers((what, count), out, u16::from_le_bytes, valid)?;
        invalid.map_or(Ok(()), |bits| check(one, bits, false))
    }

    /// Reads exponents of scales.
    pub(super) fn exponents(&mut self, count: usize, out: &mut Vec<i8>) -> Result<(), WireError> {
        let valid = |exponent: i8| binary16::EXPONENTS.contains(&exponent);
        let invalid = self.numbers(("exponents", count), out, i8::from_le_bytes, valid)?;
        // A message without values has no exponents: it is of kind 1.
        check("exponents", 0_u8, count > 0)?;
        invalid.map_or(Ok(()), |exponent| check("exponent", exponent as u8, false))
    }

    /// Reads finite numbers.
    pub(super) fn f32s(&mut self, what: &'static str, count: usize, out: &mut Vec<f32>) -> Result<(), WireError> {
        let invalid = self.numbers((what, count), out, f32::from_le_bytes, f32::is_finite)?;
        invalid.map_or(Ok(()), |v| check("value that must be finite", v.to_bits(), false))
    }

    /// Reads finite pairs.
    pub(super) fn pairs(&mut self, what: &'static str, count: usize, out: &mut Vec<[f32; 2]>) -> Result<(), WireError> {
        let bytes = self.take(what, 8 * count as u64)?;
        out.extend(bytes.as_chunks::<4>().0.as_chunks::<2>().0.iter().map(|pair| pair.map(f32::from_le_bytes)));
        match out.as_flattened().iter().find(|v| !v.is_finite()) {
            Some(value) => check("value that must be finite", value.to_bits(), false),
            None => Ok(()),
        }
    }

    pub(super) fn scales(&mut self, count: usize, scales: &mut Vec<f32>) -> Result<(), WireError> {
        self.f32s("scales", count, scales)?;
        match scales.iter().find(|s| s.is_sign_negative()) {
            Some(scale) => check("scale", scale.to_bits(), false),
            None => Ok(()),
        }
    }

    /// Reads `n` packed codes of `bits` bits.
    pub(super) fn packed(&mut self, n: usize, bits: u8, codes: &mut Vec<u8>) -> Result<(), WireError> {
        self.bytes(["codes", "code"], packed_len(n, bits), codes, |_| true)?;
        padding(codes, n as u64 * u64::from(bits))
    }

    /// Reads the number of indices and their Rice parameter.
    pub(super) fn sparse(&mut self, n: usize) -> Result<(usize, u8), WireError> {
        let count = self.u32("count of indices")?;
        check("count of indices", count, count as usize <= n)?;
        let r = self.u8("Rice parameter")?;
        check("Rice parameter", r, r <= MAX_RICE)?;
        Ok((count as usize, r))
    }

    pub(super) fn bucket(&mut self) -> Result<u32, WireError> {
        let bucket = self.u32("bucket size")?;
        check("bucket size", bucket, bucket > 0)?;
        Ok(bucket)
    }

    pub(super) fn end(&self) -> Result<(), WireError> {
        match self.left() {
            0 => Ok(()),
            extra => Err(WireError::Trailing { extra }),
        }
    }
}
