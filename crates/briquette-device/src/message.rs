//! Messages in the memory of a device, decoded there.

use briquette_core::Message;
use briquette_core::compress::HalfKind;
use briquette_core::message::Coding;
use briquette_core::reduce::Mask;

use crate::add::{self, ADD, MASK, SUBTRACT};
use crate::dither::bits_of;
use crate::error::DeviceError;
use crate::frame::Wire;
use crate::half::SCALED;
use crate::run::{Run, Vector};
use crate::sparse::kept_values;

/// A message in the memory of a device: [uploaded](DeviceMessage::upload), or encoded there and [read](crate::Encoded::read).
#[derive(Debug, Clone)]
pub struct DeviceMessage {
    pub(crate) len: usize,
    pub(crate) form: Form,
}

/// Shapes of messages, as in core's payloads.
#[derive(Debug, Clone)]
pub(crate) enum Form {
    /// All values.
    Dense(Vector),
    /// Two codes a word, and a signed exponent for each block of binary16 if blocks are scaled.
    Half { kind: HalfKind, scaled: bool, scales: Vector, codes: Vector },
    /// Kept values; the last word of `cut` is their number.
    Sparse { cut: Vector, indices: Vector, values: Vector },
    /// Sign and level; `shares` is each level's share of the scale.
    Levels { levels: u8, bucket: usize, scales: Vector, shares: Vector, codes: Vector },
    /// A bit, and two values a bucket.
    Either { bucket: usize, ends: Vector, bits: Vector },
    /// Four exponents a word, and signs.
    Powers { exponents: Vector, signs: Vector },
    /// Four codes a word, between the two ends of a block.
    Affine { block: usize, ranges: Vector, codes: Vector },
}

impl Form {
    /// A linear grid: levels are whole parts of the scale.
    pub(crate) fn linear(run: &Run, levels: u8, bucket: usize, scales: Vector, codes: Vector) -> Form {
        let shares: Vec<f32> = (0..=levels).map(|level| f32::from(level) / f32::from(levels)).collect();
        Form::Levels { levels, bucket, scales, shares: run.upload(&shares), codes }
    }
}

/// Shares of an exponential grid, by repeated division in f64 as in core.
fn exponential(base: f32, levels: u8) -> Vec<f32> {
    let mut shares = vec![0.0; usize::from(levels) + 1];
    let mut share = 1.0_f64;
    for level in (1..=usize::from(levels)).rev() {
        shares[level] = share as f32;
        share /= f64::from(base);
    }
    shares
}

impl DeviceMessage {
    /// Copies a message to the device, about as many bytes as it has on the wire. Elias codes become codes of fixed width.
    ///
    /// # Errors
    /// [`DeviceError::Message`] never occurs for a message that was read from a frame or made by a compressor.
    pub fn upload(run: &Run, message: &Message) -> Result<DeviceMessage, DeviceError> {
        let len = message.len();
        if let Some(indices) = message.sparse_indices() {
            let values = kept_values(message)?;
            let cut = run.upload_words(&[0, 0, 0, 0, indices.len() as u32]);
            let form = Form::Sparse { cut, indices: run.upload_words(indices), values: run.upload(&values) };
            return Ok(DeviceMessage { len, form });
        }
        let wire = if message.coding() == Some(Coding::Elias) {
            let mut fixed = message.clone();
            fixed.set_coding(Coding::Fixed);
            Wire::of(&fixed)
        } else {
            Wire::of(message)
        };
        let mut fields = wire.payload();
        let form = match wire.kind() {
            kind @ (1 | 2) => {
                let kind = if kind == 1 { HalfKind::F16 } else { HalfKind::Bf16 };
                // A kernel's arguments are different buffers.
                Form::Half { kind, scaled: false, scales: run.empty(1), codes: run.upload_bytes(fields.rest()) }
            }
            15 => {
                let exponents = fields.bytes(len.div_ceil(SCALED)).iter();
                let words: Vec<u32> = exponents.map(|byte| i32::from(*byte as i8) as u32).collect();
                let (scales, codes) = (run.upload_words(&words), run.upload_bytes(fields.rest()));
                Form::Half { kind: HalfKind::F16, scaled: true, scales, codes }
            }
            kind @ (6 | 11) => {
                let levels = fields.byte();
                let base = (kind == 11).then(|| f32::from_bits(fields.word()));
                let bucket = fields.word() as usize;
                let scales = run.upload_bytes(fields.bytes(4 * len.div_ceil(bucket)));
                let codes = run.upload_bytes(fields.rest());
                match base {
                    None => Form::linear(run, levels, bucket, scales, codes),
                    Some(base) => {
                        let shares = run.upload(&exponential(base, levels));
                        Form::Levels { levels, bucket, scales, shares, codes }
                    }
                }
            }
            7 => {
                let bucket = fields.word() as usize;
                let scales = fields.bytes(4 * len.div_ceil(bucket)).as_chunks().0.iter();
                let scales: Vec<f32> = scales.map(|bytes| f32::from_le_bytes(*bytes)).collect();
                Form::Either { bucket, ends: ends_of(run, &scales), bits: run.upload_bytes(fields.rest()) }
            }
            8 => {
                let exponents = run.upload_bytes(fields.bytes(len));
                Form::Powers { exponents, signs: run.upload_bytes(fields.rest()) }
            }
            9 => {
                let bucket = fields.word() as usize;
                let ends = run.upload_bytes(fields.bytes(8 * len.div_ceil(bucket)));
                Form::Either { bucket, ends, bits: run.upload_bytes(fields.rest()) }
            }
            10 => {
                let block = fields.word() as usize;
                let ranges = run.upload_bytes(fields.bytes(8 * len.div_ceil(block)));
                Form::Affine { block, ranges, codes: run.upload_bytes(fields.rest()) }
            }
            _ => {
                let mut values = vec![0.0; len];
                message.decode_into(&mut values)?;
                Form::Dense(run.upload(&values))
            }
        };
        Ok(DeviceMessage { len, form })
    }

    /// Creates a message of values that are on the device.
    pub(crate) fn dense(values: Vector) -> DeviceMessage {
        DeviceMessage { len: values.len(), form: Form::Dense(values) }
    }

    /// Returns the length of the vector that this message represents.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether this message represents the empty vector.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Queues `out += weight · decoded` from value `start` of `out` on, with the bits of core's `Message::add_to`.
    ///
    /// # Panics
    /// If the message ends behind `out`.
    pub fn add(&self, run: &Run, weight: f32, out: &Vector, start: usize) {
        self.apply(run, weight, (out, start), ADD);
    }

    /// Queues the decoded vector.
    pub fn decode(&self, run: &Run) -> Vector {
        let out = run.zeros(self.len);
        self.add(run, 1.0, &out, 0);
        out
    }

    /// Queues `x −= decoded` from value `start` of `x` on: the residual of the vector that this message encodes.
    ///
    /// # Panics
    /// If the message ends behind `x`.
    pub fn subtract(&self, run: &Run, x: &Vector, start: usize) {
        self.apply(run, 1.0, (x, start), SUBTRACT);
    }

    /// Queues [`Mask::apply`] to a velocity from value `start` on: masked momentum.
    ///
    /// # Panics
    /// If the message ends behind `velocity`.
    pub fn mask(&self, run: &Run, mask: Mask, velocity: &Vector, start: usize) {
        self.apply(run, mask.above, (velocity, start), MASK);
    }

    fn apply(&self, run: &Run, weight: f32, (out, start): (&Vector, usize), op: u32) {
        let end = start + self.len;
        assert!(end <= out.len(), "a message for values {start} to {end} is applied to a vector of {}", out.len());
        let work = match &self.form {
            Form::Sparse { indices, .. } => indices.len(),
            _ => self.len,
        };
        if work == 0 {
            return;
        }
        let (cubes, dim, len) = (run.cubes_for(work), run.dim(), self.len);
        let queue = run.launch();
        match &self.form {
            Form::Dense(values) => {
                add::dense::launch(queue, cubes, dim, values.arg(), out.arg(), start, len, weight, 0, op)
            }
            Form::Half { kind, scaled, scales, codes } => {
                let (codes, scales, brain) = (codes.arg(), scales.arg(), *kind == HalfKind::Bf16);
                add::half::launch(
                    queue,
                    cubes,
                    dim,
                    codes,
                    scales,
                    out.arg(),
                    start,
                    len,
                    weight,
                    0,
                    brain,
                    *scaled,
                    op,
                );
            }
            Form::Sparse { cut, indices, values } => {
                let (indices, values, cut) = (indices.arg(), values.arg(), cut.arg());
                add::sparse::launch(queue, cubes, dim, indices, values, cut, out.arg(), start, weight, 0, op);
            }
            Form::Levels { levels, bucket, scales, shares, codes } => {
                let (bits, bucket) = (usize::from(bits_of(*levels)), (*bucket).min(len));
                let (codes, scales, shares) = (codes.arg(), scales.arg(), shares.arg());
                add::levels::launch(
                    queue,
                    cubes,
                    dim,
                    codes,
                    scales,
                    shares,
                    out.arg(),
                    start,
                    len,
                    bucket,
                    weight,
                    0,
                    bits,
                    op,
                );
            }
            Form::Either { bucket, ends, bits } => {
                let (bits, ends, bucket) = (bits.arg(), ends.arg(), (*bucket).min(len));
                add::either::launch(queue, cubes, dim, bits, ends, out.arg(), start, len, bucket, weight, 0, op);
            }
            Form::Powers { exponents, signs } => {
                let (exponents, signs) = (exponents.arg(), signs.arg());
                add::powers::launch(queue, cubes, dim, exponents, signs, out.arg(), start, len, weight, 0, op);
            }
            Form::Affine { block, ranges, codes } => {
                let (codes, ranges, block) = (codes.arg(), ranges.arg(), (*block).min(len));
                add::affine::launch(queue, cubes, dim, codes, ranges, out.arg(), start, len, block, weight, 0, op);
            }
        }
    }
}

/// The two values that the bit of a sign means in each bucket.
pub(crate) fn ends_of(run: &Run, scales: &[f32]) -> Vector {
    let ends: Vec<f32> = scales.iter().flat_map(|scale| [*scale, -scale]).collect();
    run.upload(&ends)
}
