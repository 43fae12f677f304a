//! Writers of messages for user-defined compressors. They reject values that the wire form cannot represent.

use crc32fast::Hasher;

use super::{Coding, Grid, HEADER, MAX_LEN, Message, Payload, ValueKind, Values, bucket_count};
use crate::bits::{pack, pack_signs, packed_len, unpack};
use crate::error::WireError;
use crate::lossless;
use crate::math::all_finite;

/// Writers for user-defined compressors. After an error, the message represents the empty vector.
///
/// ```
/// use briquette_core::Message;
/// let (mut message, mut out) = (Message::default(), [0.0; 4]);
/// message.write_sparse(4, [(1, 2.0), (3, -0.5)])?;
/// message.decode_into(&mut out)?;
/// assert_eq!(out, [0.0, 2.0, 0.0, -0.5]);
/// message.write_signs(&[3.0, -1.0, 0.5, -0.5], 2, |bucket| bucket[0])?;
/// message.decode_into(&mut out)?;
/// assert_eq!(out, [3.0, -3.0, 0.5, -0.5]);
/// message.write_levels(4, 3, 4, &[6.0], [3, -1, 0, 2])?;
/// message.decode_into(&mut out)?;
/// assert_eq!(out, [6.0, -2.0, 0.0, 4.0]);
/// assert!(message.write_sparse(4, [(3, 1.0), (1, 1.0)]).unwrap_err().to_string().contains("index"));
/// # Ok::<(), briquette_core::error::WireError>(())
/// ```
impl Message {
    /// Writes all values, exact: 4 bytes each.
    ///
    /// # Errors
    /// [`WireError::Field`] for a value that is not finite.
    pub fn write_dense(&mut self, values: &[f32]) -> Result<(), WireError> {
        self.written(values.len(), |message| {
            values.iter().try_for_each(|value| finite(*value).map(drop))?;
            message.dense(values.len()).sized(values.len()).copy_from_slice(values);
            Ok(())
        })
    }

    /// Writes all values, exact, in a [lossless code](https://github.com/briquette-rs/briquette/blob/main/docs/wire.md): at most 4 bytes each and one
    /// for every 16 384. Gradients in f32 take about 27 bits a value, values of bfloat16 about 11.
    ///
    /// # Errors
    /// As for [`write_dense`](Message::write_dense).
    pub fn write_lossless(&mut self, values: &[f32]) -> Result<(), WireError> {
        self.written(values.len(), |message| {
            let (stored, coded) = message.lossless(values.len());
            let (stored, mut at) = (stored.sized(values.len()), 0);
            let (mut checksum, mut is_finite) = (Hasher::new(), true);
            coded.write(HEADER, lossless::room(values.len()), |out| {
                lossless::encode_into(values, out, |block, bytes| {
                    stored[at..at + block.len()].copy_from_slice(block);
                    at += block.len();
                    is_finite &= all_finite(block);
                    checksum.update(bytes);
                })
            });
            coded.summed(Some(checksum));
            if !is_finite {
                values.iter().try_for_each(|value| finite(*value).map(drop))?;
            }
            Ok(())
        })
    }

    /// Writes some of `len` values, exact, by ascending index; the others are 0. A kept value takes about 4 bytes and a
    /// few bits: indices are written as Rice codes of their gaps.
    ///
    /// # Errors
    /// [`WireError::Field`] for an index that does not ascend or is not below `len`, and for a value that is not finite.
    pub fn write_sparse(&mut self, len: usize, kept: impl IntoIterator<Item = (u32, f32)>) -> Result<(), WireError> {
        self.written(len, |message| {
            let (indices, values) = message.sparse(len, ValueKind::F32);
            let Values::F32(values) = values else { unreachable!("asked for f32 values") };
            for (index, value) in kept {
                if index as usize >= len || indices.last().is_some_and(|last| *last >= index) {
                    return Err(WireError::Field { what: "index of a kept value", value: u64::from(index) });
                }
                indices.push(index);
                values.push(finite(value)?);
            }
            Ok(())
        })
    }

    /// Writes the signs of `x`, one bit each (both zeros count as positive), and the result of `magnitude` for every
    /// `bucket` values, 4 bytes each.
    ///
    /// # Errors
    /// [`WireError::Field`] for a bucket of 0 or 2³² values, and for a magnitude that is negative or not finite.
    pub fn write_signs(
        &mut self,
        x: &[f32],
        bucket: usize,
        mut magnitude: impl FnMut(&[f32]) -> f32,
    ) -> Result<(), WireError> {
        self.written(x.len(), |message| {
            let size = size(bucket)?;
            let (scales, signs) = message.sign(x.len(), size);
            let scales = scales.empty();
            x.chunks(bucket).try_for_each(|values| scale(magnitude(values)).map(|scale| scales.push(scale)))?;
            pack_signs(x, signs.sized(packed_len(x.len(), 1)));
            Ok(())
        })
    }

    /// Writes levels from `-levels` to `levels` of the scale of every `bucket` values. A code means
    /// `code / levels · scale` and takes `1 + ⌈log₂(levels + 1)⌉` bits.
    ///
    /// # Errors
    /// [`WireError::Field`] for more than 127 levels or none, a bucket of 0 or 2³² values, a number of scales or codes that does
    /// not fit, a scale that is negative or not finite, and a code beyond the levels.
    pub fn write_levels(
        &mut self,
        len: usize,
        levels: u8,
        bucket: usize,
        scales: &[f32],
        codes: impl IntoIterator<Item = i8>,
    ) -> Result<(), WireError> {
        self.written(len, |message| {
            let (grid, size) = (Grid::Linear { levels }, size(bucket)?);
            if levels == 0 || levels > Grid::MAX_LEVELS {
                return Err(WireError::Field { what: "number of levels", value: u64::from(levels) });
            }
            if scales.len() != bucket_count(len, size) {
                return Err(WireError::Field { what: "number of scales", value: scales.len() as u64 });
            }
            let bits = grid.bits();
            let code = |code: i8| {
                let level = code.unsigned_abs();
                let code = level | u8::from(code < 0) << (bits - 1);
                if level > levels { Err(WireError::Field { what: "level", value: u64::from(level) }) } else { Ok(code) }
            };
            let codes = codes.into_iter().map(code).collect::<Result<Vec<u8>, _>>()?;
            if codes.len() != len {
                return Err(WireError::Field { what: "number of codes", value: codes.len() as u64 });
            }
            let (stored, packed) = message.quantized(len, (grid, Coding::Fixed), size);
            let stored = stored.empty();
            scales.iter().try_for_each(|value| scale(*value).map(|scale| stored.push(scale)))?;
            pack(&codes, bits, packed.sized(packed_len(len, bits)));
            Ok(())
        })
    }

    /// Returns the code of the levels of a quantized message; `None` for other messages.
    pub fn coding(&self) -> Option<Coding> {
        match &self.payload {
            Payload::Quantized { coding, .. } => Some(*coding),
            _ => None,
        }
    }

    /// Changes the code of the levels of a quantized message. The decoded values stay the same. Does nothing to other messages, and to levels of floats,
    /// whose codes have a fixed width.
    ///
    /// ```
    /// use briquette_core::message::{Coding, Message};
    /// let mut message = Message::default();
    /// message.write_levels(64, 7, 64, &[1.0], (0..64).map(|i| i8::from(i == 5)))?;
    /// let fixed = message.encoded_len();
    /// message.set_coding(Coding::Elias);
    /// assert_eq!([fixed, message.encoded_len()], [53, 30]);
    /// # Ok::<(), briquette_core::error::WireError>(())
    /// ```
    pub fn set_coding(&mut self, to: Coding) {
        let len = self.len;
        let Payload::Quantized { grid, coding, codes, .. } = &mut self.payload else { return };
        if matches!(grid, Grid::Float { .. }) {
            return;
        }
        let bits = grid.bits();
        if *coding != to && to == Coding::Elias {
            let (mut values, negative_zero) = (vec![0; len], 1 << (bits - 1));
            unpack(codes, bits, 0, &mut values);
            values.iter_mut().filter(|code| **code == negative_zero).for_each(|code| *code = 0);
            pack(&values, bits, codes);
        }
        *coding = to;
    }

    /// Writes codes of `bits` bits, each of which means one of the `2^bits` values of its bucket: 4 bytes for each of these. `levels` has those of
    /// all buckets, one after the other.
    ///
    /// ```
    /// use briquette_core::Message;
    /// let (mut message, mut out) = (Message::default(), [0.0; 5]);
    /// message.write_table(2, 5, &[-4.0, -1.0, 0.5, 3.0], &[3, 0, 1, 2, 3])?;
    /// message.decode_into(&mut out)?;
    /// assert_eq!((out, message.encoded_len()), ([3.0, -4.0, -1.0, 0.5, 3.0], 17 + 16 + 2));
    /// # Ok::<(), briquette_core::error::WireError>(())
    /// ```
    ///
    /// # Errors
    /// [`WireError::Field`] for `bits` outside of 1 to 4, a bucket of 0 or 2³² values, a number of levels that does not fit, a level that is not
    /// finite, and a code beyond `2^bits`.
    pub fn write_table(&mut self, bits: u8, bucket: usize, levels: &[f32], codes: &[u8]) -> Result<(), WireError> {
        self.written(codes.len(), |message| {
            if !(1..=4).contains(&bits) {
                return Err(WireError::Field { what: "bits of a code", value: u64::from(bits) });
            }
            let size = size(bucket)?;
            if levels.len() != bucket_count(codes.len(), size) << bits {
                return Err(WireError::Field { what: "number of levels", value: levels.len() as u64 });
            }
            if let Some(code) = codes.iter().find(|code| **code >> bits > 0) {
                return Err(WireError::Field { what: "code", value: u64::from(*code) });
            }
            levels.iter().try_for_each(|level| finite(*level).map(drop))?;
            let (stored, packed) = message.levels(codes.len(), bits, size);
            stored.sized(levels.len()).copy_from_slice(levels);
            pack(codes, bits, packed.sized(packed_len(codes.len(), bits)));
            Ok(())
        })
    }

    fn written(
        &mut self,
        len: usize,
        write: impl FnOnce(&mut Message) -> Result<(), WireError>,
    ) -> Result<(), WireError> {
        let written = match len <= MAX_LEN {
            true => write(self),
            false => Err(WireError::Field { what: "number of values", value: len as u64 }),
        };
        written.inspect_err(|_| *self = Message::default())
    }
}

fn finite(value: f32) -> Result<f32, WireError> {
    match value.is_finite() {
        true => Ok(value),
        false => Err(WireError::Field { what: "value that is not finite", value: u64::from(value.to_bits()) }),
    }
}

fn scale(value: f32) -> Result<f32, WireError> {
    match value.is_finite() && value.is_sign_positive() {
        true => Ok(value),
        false => Err(WireError::Field { what: "scale", value: u64::from(value.to_bits()) }),
    }
}

fn size(bucket: usize) -> Result<u32, WireError> {
    let wrong = WireError::Field { what: "values of a bucket", value: bucket as u64 };
    u32::try_from(bucket).ok().filter(|size| *size > 0).ok_or(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes and decodes the message, and returns its values.
    fn round_trip(message: &Message) -> Vec<f32> {
        let (mut bytes, mut back) = (Vec::new(), Message::default());
        message.encode_into(&mut bytes);
        back.decode_from(&bytes).unwrap();
        assert_eq!(&back, message);
        let mut out = vec![f32::NAN; message.len()];
        back.decode_into(&mut out).unwrap();
        out
    }

    #[test]
    fn what_is_written_survives_the_wire() {
        let mut message = Message::default();
        message.write_dense(&[1.0, -2.5, 0.0]).unwrap();
        assert_eq!(round_trip(&message), [1.0, -2.5, 0.0]);
        message.write_sparse(2000, [(0, 7.0), (3, -1.0), (1999, 0.5)]).unwrap();
        let out = round_trip(&message);
        assert_eq!((out[0], out[3], out[1999], out.iter().filter(|v| **v != 0.0).count()), (7.0, -1.0, 0.5, 3));
        let x: Vec<f32> = (0..100).map(|i| i as f32 - 50.5).collect();
        message.write_signs(&x, 30, |bucket| bucket.len() as f32).unwrap();
        let expected: Vec<f32> =
            x.iter().enumerate().map(|(i, v)| v.signum() * if i < 90 { 30.0 } else { 10.0 }).collect();
        assert_eq!(round_trip(&message), expected);
        for levels in [1, 2, 7, 100, 127] {
            let codes = (0..50).map(|i| ((i * 37) % (2 * i32::from(levels) + 1) - i32::from(levels)) as i8);
            message.write_levels(50, levels, 20, &[1.0, 0.0, 2.0], codes.clone()).unwrap();
            let share = |code: i8| f32::from(code) / f32::from(levels);
            let scale = |i: usize| [1.0, 0.0, 2.0][i / 20];
            let expected = codes.enumerate().map(|(i, code)| share(code) * scale(i));
            for (got, expected) in round_trip(&message).into_iter().zip(expected) {
                assert!((got - expected).abs() <= 1e-6, "{levels}: {got}, {expected}");
            }
        }
    }

    #[test]
    fn what_the_wire_cannot_say_is_refused_and_leaves_nothing() {
        let mut message = Message::default();
        type Write = fn(&mut Message) -> Result<(), WireError>;
        let writes: [(&str, Write); 12] = [
            ("not finite", |m| m.write_dense(&[1.0, f32::NAN])),
            ("index", |m| m.write_sparse(3, [(3, 1.0)])),
            ("index", |m| m.write_sparse(3, [(1, 1.0), (1, 2.0)])),
            ("not finite", |m| m.write_sparse(3, [(1, f32::INFINITY)])),
            ("bucket", |m| m.write_signs(&[1.0], 0, |_| 1.0)),
            ("scale", |m| m.write_signs(&[1.0], 1, |_| -1.0)),
            ("scale", |m| m.write_levels(1, 1, 1, &[f32::NAN], [1])),
            ("levels", |m| m.write_levels(1, 0, 1, &[1.0], [0])),
            ("levels", |m| m.write_levels(1, 128, 1, &[1.0], [0])),
            ("scales", |m| m.write_levels(3, 1, 2, &[1.0], [0, 0, 0])),
            ("codes", |m| m.write_levels(3, 1, 3, &[1.0], [0, 0])),
            ("level", |m| m.write_levels(1, 3, 1, &[1.0], [4])),
        ];
        for (words, write) in writes {
            message.write_dense(&[9.0]).unwrap();
            let error = write(&mut message).unwrap_err().to_string();
            assert!(error.contains(words), "{words}: {error}");
            assert_eq!(message, Message::default(), "{words}");
        }
    }
}
