//! What a compressor makes of a vector: self-describing, so that decoding needs neither the compressor nor context.
//!
//! A [`Message`] holds exactly what its wire form says (`docs/wire.md`), bit-packed where the wire is: a rank's own
//! message and its encoded, sent and decoded copy are equal, and so is everything computed from them.
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, TopK}};
//! let mut message = Message::default();
//! TopK::fraction(0.5)?.compress_into(&[3.0, -4.0, 1.0, 0.0], Key::new(0), &mut message);
//! let mut sum = [1.0; 4];
//! message.add_to(0.5, &mut sum)?;
//! assert_eq!(sum, [2.5, -1.0, 1.0, 1.0]);
//! assert_eq!(message.kept_energy(&[3.0, -4.0, 1.0, 0.0]), 25.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::bits::unpack;
use crate::error::WireError;
use crate::math::{distance2, norm2};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

/// Values decoded at a time, into a scratch on the stack.
const BLOCK: usize = 1024;
/// Kept values that share a range in the [`ValueKind::Q8`] form.
pub(crate) const Q8_BLOCK: usize = 256;
/// The largest vector a message can stand for; split longer ones into buckets.
pub(crate) const MAX_LEN: usize = u32::MAX as usize;

/// A 16-bit number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HalfKind {
    /// IEEE binary16: 11 significant bits, 6e-8 to 65504.
    F16,
    /// bfloat16: 8 significant bits, the range of `f32`.
    Bf16,
}

/// How a sparse message writes its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueKind {
    /// 32 bits, exact.
    #[default]
    F32,
    /// 16 bits: binary16 times a power of two shared by the message.
    F16,
    /// 8 bits: a sign and 127 steps between the smallest and the largest magnitude of 256 values.
    Q8,
}

/// A compressed vector of fewer than 2³² values. Storage is reused: compressors and
/// [`decode_from`](Message::decode_from) write into the vectors an earlier message of the same shape left.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Values of the vector this stands for.
    pub(crate) len: usize,
    pub(crate) payload: Payload,
}

/// The shapes that serve every compressor. Invariant: lengths agree with `Message::len`, indices ascend below it,
/// and every decoded value is finite.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Payload {
    /// Every value, exactly.
    Dense(Vec<f32>),
    /// Every value in 16 bits.
    Half { kind: HalfKind, bits: Vec<u16> },
    /// Some values; the rest is zero.
    Sparse { indices: Vec<u32>, values: Values },
    /// Sign-and-level codes of `bits` bits, bit-packed; one scale per bucket of `bucket` values.
    Quantized { bits: u8, bucket: u32, scales: Vec<f32>, codes: Vec<u8> },
    /// One bit each, one magnitude per bucket of `bucket` values.
    Sign { bucket: u32, scales: Vec<f32>, signs: Vec<u8> },
}

/// The values of a sparse message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Values {
    F32(Vec<f32>),
    /// Binary16 numbers times `2^exponent`.
    F16 {
        exponent: i8,
        bits: Vec<u16>,
    },
    /// Sign in bit 7, level in bits 0 to 6; `[low, high]` per [`Q8_BLOCK`] values.
    Q8 {
        ranges: Vec<[f32; 2]>,
        codes: Vec<u8>,
    },
}

impl Values {
    pub(crate) fn empty(kind: ValueKind) -> Values {
        match kind {
            ValueKind::F32 => Values::F32(Vec::new()),
            ValueKind::F16 => Values::F16 { exponent: 0, bits: Vec::new() },
            ValueKind::Q8 => Values::Q8 { ranges: Vec::new(), codes: Vec::new() },
        }
    }

    pub(crate) fn kind(&self) -> ValueKind {
        match self {
            Values::F32(_) => ValueKind::F32,
            Values::F16 { .. } => ValueKind::F16,
            Values::Q8 { .. } => ValueKind::Q8,
        }
    }

    /// Calls `each` with the places `from .. to` among the kept values and their values.
    fn for_each(&self, from: usize, to: usize, mut each: impl FnMut(usize, f32)) {
        match self {
            Values::F32(values) => (from..to).zip(&values[from..to]).for_each(|(j, &v)| each(j, v)),
            Values::F16 { exponent, bits } => {
                let unit = power_of_two(*exponent);
                (from..to).zip(&bits[from..to]).for_each(|(j, &b)| each(j, half::f16::from_bits(b).to_f32() * unit));
            }
            Values::Q8 { ranges, codes } => {
                (from..to).zip(&codes[from..to]).for_each(|(j, &code)| each(j, q8_value(ranges[j / Q8_BLOCK], code)));
            }
        }
    }
}

/// `2^exponent`, for exponents from −126 on.
pub(crate) fn power_of_two(exponent: i8) -> f32 {
    f32::from_bits(((i32::from(exponent) + 127) as u32) << 23)
}

/// What a [`ValueKind::Q8`] code stands for. Never beyond `high`, so that it stays finite.
pub(crate) fn q8_value([low, high]: [f32; 2], code: u8) -> f32 {
    let magnitude = (low + f32::from(code & 0x7f) / 127.0 * (high - low)).min(high);
    f32::from_bits(magnitude.to_bits() | (u32::from(code >> 7) << 31))
}

impl Default for Message {
    /// The empty vector, dense.
    fn default() -> Self {
        Message { len: 0, payload: Payload::Dense(Vec::new()) }
    }
}

impl Message {
    /// Values of the vector this stands for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether this stands for the empty vector.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Coordinates carried: all, or those a sparsifier kept.
    pub fn kept(&self) -> usize {
        match &self.payload {
            Payload::Sparse { indices, .. } => indices.len(),
            _ => self.len,
        }
    }

    /// The kept coordinates of a sparse message, in ascending order; `None` for the other shapes.
    pub(crate) fn sparse_indices(&self) -> Option<&[u32]> {
        match &self.payload {
            Payload::Sparse { indices, .. } => Some(indices),
            _ => None,
        }
    }

    /// `out += weight · decoded`.
    ///
    /// # Errors
    /// [`WireError::Length`] when `out` has another length; `out` is then untouched.
    pub fn add_to(&self, weight: f32, out: &mut [f32]) -> Result<(), WireError> {
        if out.len() != self.len {
            return Err(WireError::Length { expected: out.len(), got: self.len });
        }
        self.add_range(0, weight, out)
    }

    /// `out += weight · decoded[start .. start + out.len()]`, bit for bit what [`add_to`](Message::add_to) adds there.
    ///
    /// # Errors
    /// [`WireError::Length`] when the range ends beyond the vector; `out` is then untouched.
    pub fn add_range(&self, start: usize, weight: f32, out: &mut [f32]) -> Result<(), WireError> {
        let end = start.saturating_add(out.len());
        if end > self.len {
            return Err(WireError::Length { expected: end, got: self.len });
        }
        match &self.payload {
            Payload::Dense(values) => add(&values[start..end], weight, out),
            Payload::Sparse { indices, values } => {
                let place = |position: usize| indices.partition_point(|&i| (i as usize) < position);
                let (from, to) = (place(start), place(end));
                values.for_each(from, to, |j, v| out[indices[j] as usize - start] += weight * v);
            }
            _ => {
                let mut scratch = [0.0; BLOCK];
                for (i, out) in out.chunks_mut(BLOCK).enumerate() {
                    let scratch = &mut scratch[..out.len()];
                    self.decode_block(start + i * BLOCK, scratch);
                    add(scratch, weight, out);
                }
            }
        }
        Ok(())
    }

    /// Writes the decoded vector.
    ///
    /// # Errors
    /// As for [`add_to`](Message::add_to).
    pub fn decode_into(&self, out: &mut [f32]) -> Result<(), WireError> {
        if out.len() == self.len {
            out.fill(0.0);
        }
        self.add_to(1.0, out)
    }

    /// `‖x − decoded‖²`, summed in a fixed order.
    ///
    /// # Panics
    /// When `x` has another length than the vector this was made of.
    pub fn error_energy(&self, x: &[f32]) -> f64 {
        assert_eq!(x.len(), self.len, "a message is compared with the vector it was made of");
        match &self.payload {
            Payload::Dense(values) => distance2(x, values),
            // Rounding may leave a tiny negative number where everything is kept.
            Payload::Sparse { .. } => (norm2(x) - self.kept_energy(x)).max(0.0),
            _ => {
                let mut scratch = [0.0; BLOCK];
                let energy = |(i, x): (usize, &[f32])| {
                    let scratch = &mut scratch[..x.len()];
                    self.decode_block(i * BLOCK, scratch);
                    distance2(x, scratch)
                };
                x.chunks(BLOCK).enumerate().map(energy).sum()
            }
        }
    }

    /// `‖x‖² − ‖x − decoded‖²`; of a sparse message from the kept coordinates alone. Divided by `‖x‖²` it is the gain.
    ///
    /// # Panics
    /// As for [`error_energy`](Message::error_energy).
    pub fn kept_energy(&self, x: &[f32]) -> f64 {
        assert_eq!(x.len(), self.len, "a message is compared with the vector it was made of");
        let Payload::Sparse { indices, values } = &self.payload else {
            return norm2(x) - self.error_energy(x);
        };
        let mut energy = 0.0;
        values.for_each(0, indices.len(), |j, value| {
            // x² − (x − c)² = c·(2x − c)
            let (x, c) = (f64::from(x[indices[j] as usize]), f64::from(value));
            energy += c * (2.0 * x - c);
        });
        energy
    }

    /// Decodes `start .. start + out.len()` (at most [`BLOCK`] values) of a shape that keeps every coordinate.
    fn decode_block(&self, start: usize, out: &mut [f32]) {
        match &self.payload {
            Payload::Dense(values) => out.copy_from_slice(&values[start..start + out.len()]),
            Payload::Half { kind, bits } => {
                let bits = &bits[start..start + out.len()];
                match kind {
                    HalfKind::F16 => bits.reinterpret_cast::<half::f16>().convert_to_f32_slice(out),
                    HalfKind::Bf16 => bits.reinterpret_cast::<half::bf16>().convert_to_f32_slice(out),
                }
            }
            Payload::Quantized { bits, bucket, scales, codes } => {
                let mut block = [0; BLOCK];
                let block = &mut block[..out.len()];
                unpack(codes, *bits, start, block);
                let levels = f32::from(level_count(*bits));
                for_buckets(*bucket, start, out.len(), |b, range| {
                    for (out, &code) in out[range.clone()].iter_mut().zip(&block[range]) {
                        let value = f32::from(code & level_count(*bits)) / levels * scales[b];
                        *out = f32::from_bits(value.to_bits() | (u32::from(code >> (bits - 1)) << 31));
                    }
                });
            }
            Payload::Sign { bucket, scales, signs } => {
                let mut block = [0; BLOCK];
                let block = &mut block[..out.len()];
                unpack(signs, 1, start, block);
                for_buckets(*bucket, start, out.len(), |b, range| {
                    for (out, &sign) in out[range.clone()].iter_mut().zip(&block[range]) {
                        *out = f32::from_bits(scales[b].to_bits() | (u32::from(sign) << 31));
                    }
                });
            }
            Payload::Sparse { .. } => unreachable!("sparse messages are never decoded by block"),
        }
    }
}

/// The largest level that `bits` bits hold beside the sign.
pub(crate) fn level_count(bits: u8) -> u8 {
    (1_u8 << (bits - 1)) - 1
}

/// Buckets of a vector of `len` values.
pub(crate) fn bucket_count(len: usize, bucket: u32) -> usize {
    len.div_ceil(bucket as usize)
}

/// Cuts `start .. start + len` at bucket borders: calls `each` with the bucket and the range relative to `start`.
pub(crate) fn for_buckets(bucket: u32, start: usize, len: usize, mut each: impl FnMut(usize, std::ops::Range<usize>)) {
    let (bucket, end) = (bucket as usize, start + len);
    let mut at = start;
    while at < end {
        let stop = (at / bucket * bucket).saturating_add(bucket).min(end);
        each(at / bucket, at - start..stop - start);
        at = stop;
    }
}

fn add(values: &[f32], weight: f32, out: &mut [f32]) {
    for (out, value) in out.iter_mut().zip(values) {
        *out += weight * value;
    }
}

/// Empty storage of a shape, taken from the earlier message where it has the same one.
impl Message {
    /// # Panics
    /// When `len` is 2³² or more: an index and the wire form have 32 bits.
    fn start(&mut self, len: usize) {
        assert!(len <= MAX_LEN, "a message holds fewer than 2^32 values, got {len}: exchange in buckets");
        self.len = len;
    }

    pub(crate) fn dense(&mut self, len: usize) -> &mut Vec<f32> {
        self.start(len);
        if !matches!(self.payload, Payload::Dense(_)) {
            self.payload = Payload::Dense(Vec::new());
        }
        let Payload::Dense(values) = &mut self.payload else { unreachable!() };
        values.clear();
        values
    }

    pub(crate) fn half(&mut self, len: usize, want: HalfKind) -> &mut Vec<u16> {
        self.start(len);
        if !matches!(self.payload, Payload::Half { .. }) {
            self.payload = Payload::Half { kind: want, bits: Vec::new() };
        }
        let Payload::Half { kind, bits } = &mut self.payload else { unreachable!() };
        *kind = want;
        bits.clear();
        bits
    }

    pub(crate) fn sparse(&mut self, len: usize, kind: ValueKind) -> (&mut Vec<u32>, &mut Values) {
        self.start(len);
        if !matches!(&self.payload, Payload::Sparse { values, .. } if values.kind() == kind) {
            self.payload = Payload::Sparse { indices: Vec::new(), values: Values::empty(kind) };
        }
        let Payload::Sparse { indices, values } = &mut self.payload else { unreachable!() };
        indices.clear();
        match values {
            Values::F32(values) => values.clear(),
            Values::F16 { bits, .. } => bits.clear(),
            Values::Q8 { ranges, codes } => {
                ranges.clear();
                codes.clear();
            }
        }
        (indices, values)
    }

    pub(crate) fn quantized(&mut self, len: usize, width: u8, size: u32) -> (&mut Vec<f32>, &mut Vec<u8>) {
        self.start(len);
        if !matches!(self.payload, Payload::Quantized { .. }) {
            self.payload = Payload::Quantized { bits: width, bucket: size, scales: Vec::new(), codes: Vec::new() };
        }
        let Payload::Quantized { bits, bucket, scales, codes } = &mut self.payload else { unreachable!() };
        (*bits, *bucket) = (width, size);
        scales.clear();
        codes.clear();
        (scales, codes)
    }

    pub(crate) fn sign(&mut self, len: usize, size: u32) -> (&mut Vec<f32>, &mut Vec<u8>) {
        self.start(len);
        if !matches!(self.payload, Payload::Sign { .. }) {
            self.payload = Payload::Sign { bucket: size, scales: Vec::new(), signs: Vec::new() };
        }
        let Payload::Sign { bucket, scales, signs } = &mut self.payload else { unreachable!() };
        *bucket = size;
        scales.clear();
        signs.clear();
        (scales, signs)
    }
}
