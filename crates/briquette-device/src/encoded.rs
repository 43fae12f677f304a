//! Vectors encoded on the device, and their messages on the host.

use briquette_core::compress::{Compressor, HalfKind, min_max::MinMax};
use briquette_core::{Key, Message};
use cubecl::bytes::Bytes;
use cubecl::prelude::*;

use crate::collect::Kept;
use crate::dither::bits_of;
use crate::encode::Search;
use crate::error::DeviceError;
use crate::frame::{Frame, Wire};
use crate::message::{DeviceMessage, Form, ends_of};
use crate::run::{Copying, Run, Vector};
use crate::select::{CUT, KEPT};
use crate::sign;
use crate::sparse::recode;
use crate::sums::{Groups, Sums, Terms, sums};

/// A vector that the device encodes. [`read`](Encoded::read) waits for the message; until then the vector must keep its values.
#[derive(Debug)]
#[must_use = "the message is not read yet"]
pub struct Encoded {
    x: Vector,
    made: Made,
}

/// Work queued by an encoder.
#[derive(Debug)]
pub(crate) enum Made {
    /// The signed exponents are those of all blocks.
    Half {
        kind: HalfKind,
        scales: Vector,
        codes: Vector,
    },
    Sparse(Kept),
    /// A selection by a threshold that may keep too many or too few.
    Searched(Kept, Search),
    /// A sparse message whose ratio the host applies: a value that is not finite becomes the largest.
    Drawn {
        indices: Vec<u32>,
        values: Vector,
        scale: f32,
    },
    Levels {
        levels: u8,
        bucket: usize,
        scales: Vector,
        codes: Vector,
    },
    Signs {
        bucket: usize,
        scales: Scales,
        bits: Vector,
    },
    Powers {
        exponents: Vector,
        signs: Vector,
    },
    /// Blocks marked in `extreme` are for the host.
    Affine {
        block: usize,
        ranges: Vector,
        codes: Vector,
        extreme: Vector,
    },
}

/// Scales of signs.
#[derive(Debug)]
pub(crate) enum Scales {
    One,
    /// The mean of all magnitudes, from the sums of blocks.
    Whole(Vector),
    /// The mean of each bucket's magnitudes.
    Buckets(Sums),
}

impl Scales {
    pub(crate) fn means(run: &Run, x: &Vector, bucket: usize) -> Scales {
        match x.len() <= bucket {
            true => Scales::Whole(sign::magnitudes(run, x)),
            false => Scales::Buckets(sums(run, x, &Groups::of_buckets(run, x.len(), bucket), Terms::Magnitudes)),
        }
    }

    fn words(&self) -> Option<&Vector> {
        match self {
            Scales::One => None,
            Scales::Whole(words) => Some(words),
            Scales::Buckets(sums) => Some(&sums.words),
        }
    }

    fn finish(&self, words: &[u32], len: usize, bucket: usize) -> Vec<f32> {
        let totals = match self {
            Scales::One => return vec![1.0; len.min(1)],
            Scales::Whole(_) => vec![sign::total(words); len.min(1)],
            Scales::Buckets(sums) => sums.groups.totals(words),
        };
        let mean = |(i, total): (usize, f64)| (total / bucket.min(len - i * bucket) as f64) as f32;
        totals.into_iter().enumerate().map(mean).collect()
    }
}

impl Encoded {
    pub(crate) fn new(x: &Vector, made: Made) -> Encoded {
        Encoded { x: x.clone(), made }
    }

    /// Returns the length of the vector.
    pub fn len(&self) -> usize {
        self.x.len()
    }

    /// Returns whether the vector is empty.
    pub fn is_empty(&self) -> bool {
        self.x.is_empty()
    }

    /// Starts to copy the message to the host. Other vectors may be encoded meanwhile.
    pub fn start(self, run: &Run) -> Reading {
        let copying = run.start_reading(&self.parts());
        Reading { encoded: self, copying }
    }

    /// Waits for the message and writes it to `out`: [`start`](Encoded::start) and [`finish`](Reading::finish).
    ///
    /// # Errors
    /// As for [`finish`](Reading::finish).
    pub fn read(self, run: &Run, out: &mut Message) -> Result<DeviceMessage, DeviceError> {
        self.start(run).finish(run, out)
    }

    /// Returns the vectors to read.
    fn parts(&self) -> Vec<&Vector> {
        match &self.made {
            Made::Half { scales, codes, .. } => vec![scales, codes],
            Made::Sparse(kept) | Made::Searched(kept, _) => vec![&kept.cut, &kept.indices, &kept.values],
            Made::Drawn { values, .. } => vec![values],
            Made::Levels { scales, codes, .. } => vec![scales, codes],
            Made::Signs { scales, bits, .. } => std::iter::once(bits).chain(scales.words()).collect(),
            Made::Powers { exponents, signs } => vec![exponents, signs],
            Made::Affine { ranges, codes, extreme, .. } => vec![ranges, codes, extreme],
        }
    }

    /// Writes the message of the vectors that were read. Returns its form on the device, or `None` if it has to be uploaded.
    fn finish(self, run: &Run, read: &[Bytes], out: &mut Message) -> Result<Option<Form>, DeviceError> {
        let len = self.x.len();
        let words = |part: usize, vector: &Vector| &u32::from_bytes(&read[part])[..vector.len()];
        let floats = |part: usize, vector: &Vector| &f32::from_bytes(&read[part])[..vector.len()];
        Ok(Some(match self.made {
            Made::Half { kind: HalfKind::Bf16, scales, codes } => {
                Frame::new(2, len).bytes(&read[1][..2 * len]).finish(out)?;
                Form::Half { kind: HalfKind::Bf16, scaled: false, scales, codes }
            }
            Made::Half { kind, scales, codes } => {
                let exponents: Vec<u8> = words(0, &scales).iter().map(|word| *word as u8).collect();
                let scaled = exponents.iter().any(|exponent| *exponent != 0);
                let frame = if scaled { Frame::new(15, len).bytes(&exponents) } else { Frame::new(1, len) };
                frame.bytes(&read[1][..2 * len]).finish(out)?;
                Form::Half { kind, scaled, scales, codes }
            }
            Made::Searched(kept, search) => {
                let count = words(0, &kept.cut)[KEPT] as usize;
                if let Some(other) = search.other(run, &self.x, count) {
                    return other.start(run).form(run, out);
                }
                return Encoded { x: self.x, made: Made::Sparse(kept) }.finish(run, read, out);
            }
            Made::Sparse(kept) => {
                let (count, room) = (words(0, &kept.cut)[KEPT] as usize, kept.indices.len());
                let kept = if count > room { kept.with_room(run, &self.x, count) } else { kept };
                let again = if count > room { Some(run.read_words(&[&kept.indices, &kept.values])?) } else { None };
                let (indices, values) = match &again {
                    Some(read) => (&read[0][..], &read[1][..]),
                    None => (&words(1, &kept.indices)[..count], &words(2, &kept.values)[..count]),
                };
                let pairs = indices.iter().copied().zip(values.iter().map(|bits| f32::from_bits(*bits)));
                out.write_sparse(len, pairs)?;
                Form::Sparse { cut: kept.cut, indices: kept.indices, values: kept.values }
            }
            Made::Drawn { indices, values, scale } => {
                let scaled = |v: &f32| if scale == 1.0 { *v } else { (*v * scale).clamp(-f32::MAX, f32::MAX) };
                let drawn = floats(0, &values).iter().map(scaled);
                out.write_sparse(len, indices.iter().copied().zip(drawn))?;
                return Ok(None);
            }
            Made::Levels { levels, bucket, scales, codes } => {
                let bytes = (len as u64 * u64::from(bits_of(levels))).div_ceil(8) as usize;
                let frame = Frame::new(6, len).bytes(&[levels]).word(bucket as u32);
                frame.floats(floats(0, &scales)).bytes(&read[1][..bytes]).finish(out)?;
                Form::linear(run, levels, bucket, scales, codes)
            }
            Made::Signs { bucket, scales, bits } => {
                let sums = scales.words().map_or(&[][..], |vector| words(1, vector));
                let scales = scales.finish(sums, len, bucket);
                let frame = Frame::new(7, len).word(bucket as u32).floats(&scales);
                frame.bytes(&read[0][..len.div_ceil(8)]).finish(out)?;
                Form::Either { bucket, ends: ends_of(run, &scales), bits }
            }
            Made::Powers { exponents, signs } => {
                Frame::new(8, len).bytes(&read[0][..len]).bytes(&read[1][..len.div_ceil(8)]).finish(out)?;
                Form::Powers { exponents, signs }
            }
            Made::Affine { block, ranges, codes, extreme } => {
                let (ends, marks) = (floats(0, &ranges), words(2, &extreme));
                let frame = Frame::new(10, len).word(block as u32).floats(ends);
                let codes = if marks.contains(&1) {
                    let mut bytes = read[1][..len].to_vec();
                    encode_marked(run, &self.x, block, marks, &mut bytes)?;
                    frame.bytes(&bytes).finish(out)?;
                    run.upload_bytes(&bytes)
                } else {
                    frame.bytes(&read[1][..len]).finish(out)?;
                    codes
                };
                Form::Affine { block, ranges, codes }
            }
        }))
    }
}

/// A message on its way to the host.
#[derive(Debug)]
#[must_use = "the message is not written yet"]
pub struct Reading {
    encoded: Encoded,
    copying: Copying,
}

impl Reading {
    /// Waits for the message and writes it to `out`. It waits a second time if more values are kept than there is room for, or if the host
    /// must encode a block.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed, [`DeviceError::Message`] if the vector is not finite.
    pub fn finish(self, run: &Run, out: &mut Message) -> Result<DeviceMessage, DeviceError> {
        let len = self.encoded.len();
        self.form(run, out)?.map_or_else(|| DeviceMessage::upload(run, out), |form| Ok(DeviceMessage { len, form }))
    }

    fn form(self, run: &Run, out: &mut Message) -> Result<Option<Form>, DeviceError> {
        let read = run.wait(self.copying)?;
        self.encoded.finish(run, &read, out)
    }

    /// Waits for a sparse message, whose values a compressor of the host then encodes as in core's `Coded`. Top-k of everything with 16 or 8 bits
    /// gives the short values of core's `TopK`.
    ///
    /// # Errors
    /// As for [`finish`](Reading::finish).
    ///
    /// # Panics
    /// If the message is not sparse.
    pub fn finish_coded(
        self,
        run: &Run,
        values: &mut dyn Compressor,
        key: Key,
        out: &mut Message,
    ) -> Result<DeviceMessage, DeviceError> {
        self.form(run, out)?;
        recode(out, values, key)?;
        DeviceMessage::upload(run, out)
    }
}

/// Encodes the marked blocks on the host.
fn encode_marked(run: &Run, x: &Vector, block: usize, marks: &[u32], codes: &mut [u8]) -> Result<(), DeviceError> {
    let place = |number: usize| number * block..x.len().min((number + 1) * block);
    let marked = marks.iter().enumerate().filter(|(_, mark)| **mark == 1).map(|(number, _)| place(number));
    let parts: Vec<Vector> = marked.clone().map(|range| run.part(x, range)).collect();
    let read = run.read_words(&parts.iter().collect::<Vec<_>>())?;
    let (mut message, mut compressor) = (Message::default(), MinMax::new());
    if let Ok(whole) = MinMax::blocks(block) {
        compressor = whole;
    }
    for (range, words) in marked.zip(read) {
        let values: Vec<f32> = words.into_iter().map(f32::from_bits).collect();
        compressor.compress_into(&values, Key::new(0), &mut message);
        let wire = Wire::of(&message);
        let mut fields = wire.payload();
        // The size of a block, and the ends of this one.
        fields.bytes(12);
        codes[range].copy_from_slice(fields.rest());
    }
    Ok(())
}

const _: () = assert!(KEPT + 1 == CUT);
