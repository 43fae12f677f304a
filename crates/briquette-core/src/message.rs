//! What a compressor makes of a vector: self-describing, so that decoding needs neither the compressor nor context.

use crate::error::WireError;

/// A compressed vector. Storage is reused: compressors write into the vectors an earlier message left.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Values of the vector this stands for.
    pub(crate) len: usize,
    pub(crate) payload: Payload,
}

/// The shapes that serve every compressor.
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
