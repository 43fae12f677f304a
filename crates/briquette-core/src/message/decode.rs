//! Decoding of codes into values. Every kernel takes a [`Put`], which writes or adds each value. Both operations
//! therefore use the same loops, and addition needs no temporary vector. `Put` is a trait because closures are not
//! inlined into functions compiled for wider vectors. It is passed by value because data behind a reference is reloaded
//! for each value.

use super::payload::for_buckets;
use super::{BLOCK, Grid, HalfKind, Message, Payload};
use crate::binary16;
use crate::bits::unpack;
use crate::parallel::{self, Part, SEGMENT};

impl Message {
    /// Calls `each` with the start and the values of each block, until all of `from .. to` are decoded. Not for sparse
    /// messages.
    pub(super) fn for_each_block(&self, from: usize, to: usize, mut each: impl FnMut(usize, &[f32])) {
        let mut scratch = [0.0; BLOCK];
        for start in (from..to).step_by(BLOCK) {
            let scratch = &mut scratch[..BLOCK.min(to - start)];
            self.put(start, scratch, Write);
            each(start, scratch);
        }
    }

    /// Computes `out += weight · decoded[start .. start + out.len()]`. Not for sparse messages.
    pub(super) fn add_dense(&self, start: usize, weight: f32, out: &mut [f32]) {
        parallel::for_each(out.len(), Part(out, SEGMENT), |number, out| {
            self.put(start + number * SEGMENT, out.0, Add(weight));
        });
    }

    /// Passes every value from `start` on to `put`, with its element of `out`.
    fn put<P: Put>(&self, start: usize, out: &mut [f32], put: P) {
        let range = start..start + out.len();
        match &self.payload {
            Payload::Dense(values) | Payload::Lossless { values, .. } => numbers(&values[range], out, put, Itself),
            Payload::Half { kind: HalfKind::F16, exponents, bits } if exponents.is_empty() => {
                numbers(&bits.as_chunks().0[range], out, put, Binary16);
            }
            Payload::Half { kind: HalfKind::F16, exponents, bits } => {
                let bits = &bits.as_chunks().0[range];
                for_buckets(binary16::SCALED as u32, start, out.len(), |b, range| {
                    let scaled = Scaled(binary16::power(exponents[b].into()));
                    numbers(&bits[range.clone()], &mut out[range], put, scaled);
                });
            }
            Payload::Half { kind: HalfKind::Bf16, bits, .. } => numbers(&bits.as_chunks().0[range], out, put, Upper),
            Payload::Quantized { grid, bucket, scales, codes, .. } => {
                let (bits, levels) = (grid.bits(), grid.levels());
                let (codes, table) = ((&codes[..], bits), (*bucket, &scales[..]));
                match grid {
                    Grid::Linear { .. } => {
                        let share = Quotient::by(f32::from(levels));
                        packed(codes, table, start, (out, put, Signed { bits, share }));
                    }
                    Grid::Exponential { base: 2.0, .. } => {
                        packed(codes, table, start, (out, put, Signed { bits, share: Power { levels } }));
                    }
                    Grid::Exponential { .. } | Grid::Float { .. } => {
                        packed(codes, table, start, (out, put, Signed { bits, share: grid.shares() }));
                    }
                }
            }
            Payload::Sign { bucket, scales, signs } => packed((signs, 1), (*bucket, scales), start, (out, put, Sign)),
            Payload::Levels { bits, bucket, levels, codes } => {
                let (codes, bucket, out) = ((&codes[..], *bits), *bucket, (out, put, Chosen));
                match bits {
                    1 => packed(codes, (bucket, levels.as_chunks::<2>().0), start, out),
                    2 => packed(codes, (bucket, levels.as_chunks::<4>().0), start, out),
                    3 => packed(codes, (bucket, levels.as_chunks::<8>().0), start, out),
                    _ => packed(codes, (bucket, levels.as_chunks::<16>().0), start, out),
                }
            }
            Payload::Natural { exponents, signs } => natural(&exponents[range], (signs, start), out, put),
            Payload::Affine { block, ranges, codes } => {
                packed((codes, 8), (*block, ranges), start, (out, put, Affine));
            }
            Payload::Sparse { .. } => unreachable!("sparse messages are never decoded by block"),
        }
    }
}

/// Operation on a decoded value: write or add.
trait Put: Copy + Sync {
    fn put(&self, out: &mut f32, value: f32);
}

#[derive(Clone, Copy)]
struct Write;

impl Put for Write {
    #[inline(always)]
    fn put(&self, out: &mut f32, value: f32) {
        *out = value;
    }
}

/// Adds the value times a weight.
#[derive(Clone, Copy)]
struct Add(f32);

impl Put for Add {
    #[inline(always)]
    fn put(&self, out: &mut f32, value: f32) {
        *out += self.0 * value;
    }
}

/// Decoder of a code, given its bucket's entry in a table.
trait Value<T, C>: Copy {
    fn value(&self, entry: T, code: C) -> f32;
}

macro_rules! values {
    ($($(#[$doc:meta])* $name:ident: $entry:pat_param in $entry_type:ty, $code:ident in $code_type:ty => $value:expr;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl Value<$entry_type, $code_type> for $name {
            #[inline(always)]
            fn value(&self, $entry: $entry_type, $code: $code_type) -> f32 {
                $value
            }
        }
    )+};
}

values! {
    Itself: () in (), v in f32 => v;
    /// IEEE binary16.
    Binary16: () in (), bytes in [u8; 2] => binary16::to_f32(bytes);
    /// The upper half of an f32's bits (bfloat16).
    Upper: () in (), bits in [u8; 2] => f32::from_bits(u32::from(u16::from_le_bytes(bits)) << 16);
    /// A scale times 1 or −1.
    Sign: scale in f32, bit in u8 => f32::from_bits(scale.to_bits() | u32::from(bit) << 31);
    /// A value between two ends. A weighted mean, so that no range overflows and both ends are exact. It never exceeds
    /// the ends, because rounding next to the largest number would give infinity.
    Affine: [low, high] in [f32; 2], code in u8 => {
        let share = Quotient::by(255.0).share(code);
        let value = low * (1.0 - share) + high * share;
        let value = if value < low { low } else { value };
        if value > high { high } else { value }
    };
}

/// Binary16 times a power of two.
#[derive(Clone, Copy)]
struct Scaled(f32);

impl Value<(), [u8; 2]> for Scaled {
    #[inline(always)]
    fn value(&self, (): (), bytes: [u8; 2]) -> f32 {
        binary16::to_f32(bytes) * self.0
    }
}

/// A sign and a level; `share` computes the level's share of the scale.
#[derive(Clone, Copy)]
struct Signed<S> {
    bits: u8,
    share: S,
}

trait Share: Copy {
    fn share(&self, level: u8) -> f32;
}

impl<S: Share> Value<f32, u8> for Signed<S> {
    #[inline(always)]
    fn value(&self, scale: f32, code: u8) -> f32 {
        let share = self.share.share(code & ((1 << (self.bits - 1)) - 1));
        f32::from_bits(share.to_bits() | u32::from(code >> (self.bits - 1)) << 31) * scale
    }
}

/// Shares of any grid, from a table.
impl Share for [f32; 128] {
    #[inline(always)]
    fn share(&self, level: u8) -> f32 {
        self[usize::from(level)]
    }
}

/// Shares of a power-of-two grid: `2^(level − levels)`, a float with fraction bits 0, and 0 for level 0.
#[derive(Clone, Copy)]
struct Power {
    levels: u8,
}

impl Share for Power {
    #[inline(always)]
    fn share(&self, level: u8) -> f32 {
        let exponent = u32::from(level) + 127 - u32::from(self.levels);
        f32::from_bits(if level == 0 { 0 } else { exponent << 23 })
    }
}

/// Quotient of two integers of at most eight bits, correctly rounded, without a division. The reciprocal has two parts;
/// the first is short enough that its product is exact.
///
/// Both products and their sum err by less than 2⁻⁴⁰ of the quotient before the last rounding. No such quotient is that
/// close to the midpoint of two numbers, because it is a multiple of 1/255. The tests try all quotients.
#[derive(Clone, Copy)]
struct Quotient {
    upper: f32,
    lower: f32,
}

impl Quotient {
    #[inline(always)]
    fn by(divisor: f32) -> Quotient {
        let reciprocal = 1.0 / f64::from(divisor);
        // 16 of the 24 bits of a significand.
        let upper = f32::from_bits((reciprocal as f32).to_bits() & !0xff);
        Quotient { upper, lower: (reciprocal - f64::from(upper)) as f32 }
    }
}

/// Shares of a linear grid.
impl Share for Quotient {
    #[inline(always)]
    fn share(&self, level: u8) -> f32 {
        let level = f32::from(level);
        level * self.upper + level * self.lower
    }
}

/// One of the values of a bucket.
#[derive(Clone, Copy)]
struct Chosen;

impl<const N: usize> Value<[f32; N], u8> for Chosen {
    #[inline(always)]
    fn value(&self, levels: [f32; N], code: u8) -> f32 {
        levels[usize::from(code) % N]
    }
}

/// Decodes packed codes: applies `value` to each code and its bucket's entry in `table`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn packed<T: Copy, P: Put, V: Value<T, u8>>(
    (bytes, bits): (&[u8], u8),
    (bucket, table): (u32, &[T]),
    start: usize,
    (out, put, value): (&mut [f32], P, V),
) {
    let mut codes = [0; BLOCK];
    for (i, out) in out.chunks_mut(BLOCK).enumerate() {
        let (start, codes) = (start + i * BLOCK, &mut codes[..out.len()]);
        unpack(bytes, bits, start, codes);
        for_buckets(bucket, start, out.len(), |b, range| {
            let entry = table[b];
            for (out, code) in out[range.clone()].iter_mut().zip(&codes[range]) {
                put.put(out, value.value(entry, *code));
            }
        });
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn numbers<T: Copy, P: Put, V: Value<(), T>>(bits: &[T], out: &mut [f32], put: P, value: V) {
    for (out, bits) in out.iter_mut().zip(bits) {
        put.put(out, value.value((), *bits));
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn natural<P: Put>(exponents: &[u8], (signs, start): (&[u8], usize), out: &mut [f32], put: P) {
    let mut negative = [0; BLOCK];
    for (i, (exponents, out)) in exponents.chunks(BLOCK).zip(out.chunks_mut(BLOCK)).enumerate() {
        let negative = &mut negative[..out.len()];
        unpack(signs, 1, start + i * BLOCK, negative);
        for ((out, exponent), negative) in out.iter_mut().zip(exponents).zip(negative) {
            put.put(out, f32::from_bits(u32::from(*negative) << 31 | u32::from(*exponent) << 23));
        }
    }
}

#[cfg(test)]
mod tests;
