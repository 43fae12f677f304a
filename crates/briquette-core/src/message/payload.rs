//! Message payloads of all compressors, and their storage.

use super::{Codes, HalfKind, MAX_LEN, Message, Q8_BLOCK, ValueKind};

/// A payload. Invariant: lengths agree with `Message::len`, indices ascend below it, and every decoded value is finite.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Payload {
    /// All values, exact.
    Dense(Vec<f32>),
    /// All values in 16 bits, two bytes; as binary16 times `2^e` for each block of 256, if any block is scaled.
    Half { kind: HalfKind, exponents: Vec<i8>, bits: Codes },
    /// Some values; the others are zero.
    Sparse { indices: Vec<u32>, values: Values },
    /// Sign-and-level codes of `grid.bits()` bits, bit-packed; one scale per bucket of `bucket` values.
    Quantized { grid: Grid, coding: Coding, bucket: u32, scales: Vec<f32>, codes: Vec<u8> },
    /// One bit per value, one magnitude per bucket of `bucket` values.
    Sign { bucket: u32, scales: Vec<f32>, signs: Vec<u8> },
    /// Codes of `bits` bits, bit-packed, and the value of each code per bucket of `bucket` values.
    Levels { bits: u8, bucket: u32, levels: Vec<f32>, codes: Vec<u8> },
    /// A power of two per value: the exponent field of an `f32`, and the signs bit-packed.
    Natural { exponents: Vec<u8>, signs: Vec<u8> },
    /// All values, exact, and their lossless code.
    Lossless { values: Vec<f32>, coded: Codes },
    /// 8 bits per value, between the smallest and the largest value of a block of `block` values.
    Affine { block: u32, ranges: Vec<[f32; 2]>, codes: Codes },
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
    /// The message of another compressor, in any shape but a sparse one.
    Coded(Box<Message>),
}

/// Levels of a quantizer, as shares of the bucket's scale. Level 0 is zero, the highest is the scale itself.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Grid {
    /// `ℓ/s`.
    Linear {
        /// Number of levels besides zero, `s`.
        levels: u8,
    },
    /// `b^(ℓ−s)`, and 0 at `ℓ = 0`.
    Exponential {
        /// Ratio of two neighboring levels, `b`.
        base: f32,
        /// Number of levels besides zero, `s`.
        levels: u8,
    },
    /// `f(ℓ)/f(s)`, with the numbers `f` of a small floating-point format: at level 0 zero, then subnormal and normal numbers, all finite.
    /// Codes have a fixed width.
    Float {
        /// Bits of the exponent `e`, at least 1.
        exponent: u8,
        /// Bits of the fraction `m`; at most 7 together with those of the exponent.
        fraction: u8,
    },
}

/// Encoding of a quantized message's codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Coding {
    /// Fixed-width codes.
    Fixed,
    /// Elias codes, of the nonzero codes or of all codes, whichever is shorter. No code is a negative zero.
    Elias,
}

impl Grid {
    /// Maximum number of levels besides zero: a code has at most 8 bits.
    pub const MAX_LEVELS: u8 = 127;
    /// Bases of exponential grids: a base of 1 would give no levels.
    pub const BASES: std::ops::RangeInclusive<f32> = 1.01..=65536.0;

    /// Returns the number of levels besides zero.
    pub fn levels(self) -> u8 {
        match self {
            Grid::Linear { levels } | Grid::Exponential { levels, .. } => levels,
            Grid::Float { exponent, fraction } => (1 << (exponent + fraction)) - 1,
        }
    }

    /// Returns the bits of a code: the sign in the highest bit, the level in the others.
    pub fn bits(self) -> u8 {
        1 + (8 - self.levels().leading_zeros() as u8)
    }

    /// Returns each level's share of the scale.
    pub fn shares(self) -> [f32; 128] {
        let mut shares = [0.0; 128];
        let levels = usize::from(self.levels());
        match self {
            Grid::Linear { .. } => (1..=levels).for_each(|l| shares[l] = l as f32 / levels as f32),
            Grid::Exponential { base, .. } => {
                // By repeated division in f64: unlike a power function, it gives the same bits on every machine.
                let mut share = 1.0_f64;
                for level in (1..=levels).rev() {
                    shares[level] = share as f32;
                    share /= f64::from(base);
                }
            }
            Grid::Float { fraction, .. } => {
                // In units in which subnormal numbers are even.
                let number = |level: usize| {
                    let (exponent, one) = (level >> fraction, 1 << fraction);
                    let significand = if exponent > 0 { one + level % one } else { 2 * level };
                    significand as f32 * power_of_two(exponent as i8)
                };
                (1..=levels).for_each(|level| shares[level] = number(level) / number(levels));
            }
        }
        shares
    }
}

impl Values {
    pub(crate) fn empty(kind: ValueKind) -> Values {
        match kind {
            ValueKind::F32 => Values::F32(Vec::new()),
            ValueKind::F16 => Values::F16 { exponent: 0, bits: Vec::new() },
            ValueKind::Q8 => Values::Q8 { ranges: Vec::new(), codes: Vec::new() },
        }
    }

    /// Returns the kind of the values; `None` for the message of another compressor.
    pub(crate) fn kind(&self) -> Option<ValueKind> {
        match self {
            Values::F32(_) => Some(ValueKind::F32),
            Values::F16 { .. } => Some(ValueKind::F16),
            Values::Q8 { .. } => Some(ValueKind::Q8),
            Values::Coded(_) => None,
        }
    }

    /// Calls `each` with the positions `from .. to` among the kept values and the values there.
    pub(super) fn for_each(&self, from: usize, to: usize, mut each: impl FnMut(usize, f32)) {
        match self {
            Values::F32(values) => (from..to).zip(&values[from..to]).for_each(|(j, &v)| each(j, v)),
            Values::F16 { exponent, bits } => {
                let unit = power_of_two(*exponent);
                (from..to).zip(&bits[from..to]).for_each(|(j, &b)| each(j, half::f16::from_bits(b).to_f32() * unit));
            }
            Values::Q8 { ranges, codes } => {
                (from..to).zip(&codes[from..to]).for_each(|(j, &code)| each(j, q8_value(ranges[j / Q8_BLOCK], code)));
            }
            Values::Coded(message) => message.for_each_block(from, to, |start, values| {
                (start..).zip(values).for_each(|(j, &v)| each(j, v));
            }),
        }
    }
}

/// Returns `2^exponent`, for exponents of at least −126.
pub(crate) fn power_of_two(exponent: i8) -> f32 {
    f32::from_bits(((i32::from(exponent) + 127) as u32) << 23)
}

/// Returns the value of a [`ValueKind::Q8`] code. It never exceeds `high`, so it stays finite.
fn q8_value([low, high]: [f32; 2], code: u8) -> f32 {
    let magnitude = (low + f32::from(code & 0x7f) / 127.0 * (high - low)).min(high);
    f32::from_bits(magnitude.to_bits() | (u32::from(code >> 7) << 31))
}

/// Returns the number of buckets of a vector of `len` values.
pub(crate) fn bucket_count(len: usize, bucket: u32) -> usize {
    len.div_ceil(bucket as usize)
}

/// Splits `start .. start + len` at bucket boundaries: calls `each` with the bucket and the range relative to `start`.
#[inline(always)]
pub(crate) fn for_buckets(bucket: u32, start: usize, len: usize, mut each: impl FnMut(usize, std::ops::Range<usize>)) {
    // One division for all: it takes as long as thirty values.
    let bucket = bucket as usize;
    let (mut b, mut at) = (start / bucket, 0);
    let mut stop = bucket - start % bucket;
    while at < len {
        let end = stop.min(len);
        each(b, at..end);
        (b, at, stop) = (b + 1, end, end.saturating_add(bucket));
    }
}

/// A vector of an earlier message, to be overwritten.
pub(crate) struct Storage<'a, T>(&'a mut Vec<T>);

impl<'a, T: Copy + Default> Storage<'a, T> {
    /// Returns the vector without elements.
    pub(crate) fn empty(self) -> &'a mut Vec<T> {
        self.0.clear();
        self.0
    }

    /// Returns `len` elements that must all be written: they may hold the values of an earlier message. Filling them
    /// first would cost as much time as a quantizer.
    pub(crate) fn sized(self, len: usize) -> &'a mut [T] {
        self.0.resize(len, T::default());
        self.0
    }
}

/// Returns the vectors of the shape `$pattern` as storage: those of the earlier message if it had this shape, else
/// those of `$fresh`. `$set` writes the shape's other fields.
macro_rules! storage {
    ($message:expr, $len:expr, $pattern:pat, $fresh:expr, $set:stmt, $($vector:ident),+) => {{
        $message.start($len);
        #[allow(unused_variables, clippy::match_like_matches_macro)]
        let same = match &$message.payload { $pattern => true, _ => false };
        if !same {
            $message.payload = $fresh;
        }
        #[allow(unused_variables)]
        let $pattern = &mut $message.payload else { unreachable!("just made so") };
        $set
        ($(Storage($vector)),+)
    }};
}

/// Storage of each shape.
impl Message {
    /// Sets the length of the vector.
    ///
    /// # Panics
    /// If `len` is 2³² or more: an index and the wire form have 32 bits.
    fn start(&mut self, len: usize) {
        assert!(len <= MAX_LEN, "a message holds fewer than 2^32 values, got {len}: exchange in buckets");
        self.len = len;
    }

    pub(crate) fn dense(&mut self, len: usize) -> Storage<'_, f32> {
        storage!(self, len, Payload::Dense(values), Payload::Dense(Vec::new()), (), values)
    }

    /// Returns the values and their code.
    pub(crate) fn lossless(&mut self, len: usize) -> (Storage<'_, f32>, &mut Codes) {
        self.start(len);
        if !matches!(self.payload, Payload::Lossless { .. }) {
            self.payload = Payload::Lossless { values: Vec::new(), coded: Codes::default() };
        }
        let Payload::Lossless { values, coded } = &mut self.payload else { unreachable!("just made so") };
        (Storage(values), coded)
    }

    /// Returns the exponents, emptied, and the codes.
    pub(crate) fn half(&mut self, len: usize, want: HalfKind) -> (&mut Vec<i8>, &mut Codes) {
        self.start(len);
        if !matches!(self.payload, Payload::Half { .. }) {
            self.payload = Payload::Half { kind: want, exponents: Vec::new(), bits: Codes::default() };
        }
        let Payload::Half { kind, exponents, bits } = &mut self.payload else { unreachable!("just made so") };
        *kind = want;
        exponents.clear();
        (exponents, bits)
    }

    pub(crate) fn sparse(&mut self, len: usize, kind: ValueKind) -> (&mut Vec<u32>, &mut Values) {
        self.start(len);
        if !matches!(&self.payload, Payload::Sparse { values, .. } if values.kind() == Some(kind)) {
            self.payload = Payload::Sparse { indices: Vec::new(), values: Values::empty(kind) };
        }
        let Payload::Sparse { indices, values } = &mut self.payload else { unreachable!("just made so") };
        indices.clear();
        match values {
            Values::F32(values) => values.clear(),
            Values::F16 { bits, .. } => bits.clear(),
            Values::Q8 { ranges, codes } => {
                ranges.clear();
                codes.clear();
            }
            Values::Coded(_) => unreachable!("no kind asks for it"),
        }
        (indices, values)
    }

    /// Returns the indices of a sparse message, and the message for its values, which another compressor writes.
    pub(crate) fn coded(&mut self, len: usize) -> (&mut Vec<u32>, &mut Message) {
        self.start(len);
        if !matches!(&self.payload, Payload::Sparse { values: Values::Coded(_), .. }) {
            self.payload = Payload::Sparse { indices: Vec::new(), values: Values::Coded(Box::default()) };
        }
        let Payload::Sparse { indices, values: Values::Coded(message) } = &mut self.payload else {
            unreachable!("just made so")
        };
        indices.clear();
        (indices, message)
    }

    pub(crate) fn quantized(
        &mut self,
        len: usize,
        (on, with): (Grid, Coding),
        size: u32,
    ) -> (Storage<'_, f32>, Storage<'_, u8>) {
        let fresh = Payload::Quantized { grid: on, coding: with, bucket: size, scales: Vec::new(), codes: Vec::new() };
        let set = (on, with, size);
        storage!(
            self,
            len,
            Payload::Quantized { grid, coding, bucket, scales, codes },
            fresh,
            (*grid, *coding, *bucket) = set,
            scales,
            codes
        )
    }

    pub(crate) fn sign(&mut self, len: usize, size: u32) -> (Storage<'_, f32>, Storage<'_, u8>) {
        let fresh = Payload::Sign { bucket: size, scales: Vec::new(), signs: Vec::new() };
        storage!(self, len, Payload::Sign { bucket, scales, signs }, fresh, *bucket = size, scales, signs)
    }

    pub(crate) fn levels(&mut self, len: usize, width: u8, size: u32) -> (Storage<'_, f32>, Storage<'_, u8>) {
        let fresh = Payload::Levels { bits: width, bucket: size, levels: Vec::new(), codes: Vec::new() };
        let set = (width, size);
        storage!(
            self,
            len,
            Payload::Levels { bits, bucket, levels, codes },
            fresh,
            (*bits, *bucket) = set,
            levels,
            codes
        )
    }

    pub(crate) fn natural(&mut self, len: usize) -> (Storage<'_, u8>, Storage<'_, u8>) {
        let fresh = Payload::Natural { exponents: Vec::new(), signs: Vec::new() };
        storage!(self, len, Payload::Natural { exponents, signs }, fresh, (), exponents, signs)
    }

    pub(crate) fn affine(&mut self, len: usize, size: u32) -> (Storage<'_, [f32; 2]>, &mut Codes) {
        self.start(len);
        if !matches!(self.payload, Payload::Affine { .. }) {
            self.payload = Payload::Affine { block: size, ranges: Vec::new(), codes: Codes::default() };
        }
        let Payload::Affine { block, ranges, codes } = &mut self.payload else { unreachable!("just made so") };
        *block = size;
        (Storage(ranges), codes)
    }
}
