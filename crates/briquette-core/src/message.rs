//! Compressed messages: self-describing, so that decoding needs neither the compressor nor context.
//!
//! A [`Message`] holds exactly the content of its wire form (`docs/wire.md`), with the same bit-packing. A rank's own
//! message and its encoded, sent and decoded copy are therefore equal, and so is everything computed from them.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, top_k::TopK};
//! let mut message = Message::default();
//! TopK::fraction(0.5)?.compress_into(&[3.0, -4.0, 1.0, 0.0], Key::new(0), &mut message);
//! let mut sum = [1.0; 4];
//! message.add_to(0.5, &mut sum)?;
//! assert_eq!(sum, [2.5, -1.0, 1.0, 1.0]);
//! assert_eq!(message.kept_energy(&[3.0, -4.0, 1.0, 0.0]), 25.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod codes;
mod decode;
mod payload;
mod subtract_sent;
mod write;

pub(crate) use codes::{Codes, HEADER, PREFIX};
pub use payload::{Coding, Grid};
pub(crate) use payload::{Payload, Values, bucket_count, for_buckets, power_of_two};

use half::f16;

use crate::error::WireError;
use crate::math::{all_finite, distance2, norm2};

/// Number of values decoded at a time, into a buffer on the stack.
pub const BLOCK: usize = 1024;
/// Number of kept values that share a range in the [`ValueKind::Q8`] form.
pub(crate) const Q8_BLOCK: usize = 256;
/// The longest vector that a message can represent; split longer ones into buckets.
pub(crate) const MAX_LEN: usize = u32::MAX as usize;

/// A 16-bit number format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum HalfKind {
    /// IEEE binary16: 11 significant bits, 6e-8 to 65504.
    F16,
    /// bfloat16: 8 significant bits, the range of `f32`.
    Bf16,
}

/// Encoding of the values of a sparse message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
/// [`decode_from`](Message::decode_from) overwrite the vectors of an earlier message of the same shape.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Length of the vector that this message represents.
    pub(crate) len: usize,
    pub(crate) payload: Payload,
}

impl Default for Message {
    /// Returns the message of the empty vector, dense.
    fn default() -> Self {
        Message { len: 0, payload: Payload::Dense(Vec::new()) }
    }
}

impl Message {
    /// Returns the length of the vector that this message represents.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether this message represents the empty vector.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of coordinates carried: all, or those that a sparsifier kept.
    pub fn kept(&self) -> usize {
        match &self.payload {
            Payload::Sparse { indices, .. } => indices.len(),
            _ => self.len,
        }
    }

    /// Returns the kept coordinates and their values, of a sparse message with f32 values.
    pub fn sparse_f32(&self) -> Option<(&[u32], &[f32])> {
        match &self.payload {
            Payload::Sparse { indices, values: Values::F32(values) } => Some((indices, values)),
            _ => None,
        }
    }

    /// Makes this a sparse message of a vector of `len` values, and returns its coordinates and values to fill: as many of one as of
    /// the other, coordinates in ascending order.
    pub fn start_sparse_f32(&mut self, len: usize) -> (&mut Vec<u32>, &mut Vec<f32>) {
        match self.sparse(len, ValueKind::F32) {
            (indices, Values::F32(values)) => (indices, values),
            _ => unreachable!("asked for f32 values"),
        }
    }

    /// Returns the kept coordinates of a sparse message, in ascending order; `None` for the other shapes.
    pub fn sparse_indices(&self) -> Option<&[u32]> {
        match &self.payload {
            Payload::Sparse { indices, .. } => Some(indices),
            _ => None,
        }
    }

    /// Computes `out += weight · decoded`.
    ///
    /// # Errors
    /// [`WireError::Length`] if `out` has another length; `out` is then unchanged.
    pub fn add_to(&self, weight: f32, out: &mut [f32]) -> Result<(), WireError> {
        if out.len() != self.len {
            return Err(WireError::Length { expected: out.len(), got: self.len });
        }
        self.add_range(0, weight, out)
    }

    /// Computes `out += weight · decoded[start .. start + out.len()]`, with the same bits as
    /// [`add_to`](Message::add_to) there.
    ///
    /// # Errors
    /// [`WireError::Length`] if the range ends beyond the vector; `out` is then unchanged.
    pub fn add_range(&self, start: usize, weight: f32, out: &mut [f32]) -> Result<(), WireError> {
        let end = start.saturating_add(out.len());
        if end > self.len {
            return Err(WireError::Length { expected: end, got: self.len });
        }
        match &self.payload {
            Payload::Sparse { indices, values } => {
                let place = |position: usize| indices.partition_point(|&i| (i as usize) < position);
                let (from, to) = (place(start), place(end));
                values.for_each(from, to, |j, v| out[indices[j] as usize - start] += weight * v);
            }
            _ => self.add_dense(start, weight, out),
        }
        Ok(())
    }

    /// Returns a bound on the magnitudes of all values, from the scales, exponents or codes of a quantized message, or the kept values of a sparse one.
    /// Returns `None` for messages of all values in f32.
    pub fn largest(&self) -> Option<f32> {
        let largest = |values: &[f32]| values.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
        match &self.payload {
            Payload::Sparse { values, .. } => match values {
                Values::F32(values) => Some(largest(values)),
                Values::F16 { exponent, .. } => Some(f16::MAX.to_f32() * power_of_two(*exponent)),
                Values::Q8 { ranges, .. } => Some(largest(ranges.as_flattened())),
                Values::Coded(message) => message.largest(),
            },
            Payload::Half { kind: HalfKind::F16, exponents, .. } => {
                Some(f16::MAX.to_f32() * power_of_two(exponents.iter().copied().max().unwrap_or(0)))
            }
            Payload::Quantized { scales, .. } | Payload::Sign { scales, .. } => Some(largest(scales)),
            Payload::Levels { levels, .. } => Some(largest(levels)),
            Payload::Affine { ranges, .. } => Some(largest(ranges.as_flattened())),
            // The upper half of an f32, without its sign.
            Payload::Half { kind: HalfKind::Bf16, bits, .. } => {
                let magnitude = |code: &[u8; 2]| u16::from_le_bytes(*code) & 0x7fff;
                let largest = bits.as_chunks().0.iter().map(magnitude).max().unwrap_or(0);
                Some(f32::from_bits(u32::from(largest) << 16))
            }
            Payload::Natural { exponents, .. } => {
                let largest = exponents.iter().copied().max().unwrap_or(0);
                Some(f32::from_bits(u32::from(largest) << 23))
            }
            Payload::Dense(_) | Payload::Lossless { .. } => None,
        }
    }

    /// Returns whether every value is finite.
    pub fn is_finite(&self) -> bool {
        let mut block = [0.0; BLOCK];
        (0..self.len).step_by(BLOCK).all(|start| {
            let values = &mut block[..BLOCK.min(self.len - start)];
            values.fill(0.0);
            self.add_range(start, 1.0, values).is_ok() && all_finite(values)
        })
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

    /// Returns `‖x − decoded‖²`, summed in a fixed order.
    ///
    /// # Panics
    /// If the length of `x` differs from that of the compressed vector.
    pub fn error_energy(&self, x: &[f32]) -> f64 {
        assert_eq!(x.len(), self.len, "a message is compared with the vector it was made of");
        match &self.payload {
            Payload::Dense(values) | Payload::Lossless { values, .. } => distance2(x, values),
            // Rounding may leave a tiny negative number if all values are kept.
            Payload::Sparse { .. } => (norm2(x) - self.kept_energy(x)).max(0.0),
            _ => {
                let mut energy = 0.0;
                self.for_each_block(0, x.len(), |at, values| energy += distance2(&x[at..][..values.len()], values));
                energy
            }
        }
    }

    /// Returns `‖x‖² − ‖x − decoded‖²`. For a sparse message, it is computed from the kept coordinates alone. Divided
    /// by `‖x‖²` it is the gain.
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
}
