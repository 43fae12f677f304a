//! From codes back to values, a block at a time.

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::payload::for_buckets;
use super::{BLOCK, Grid, HalfKind, Message, Payload};
use crate::bits::unpack;

impl Message {
    /// Calls `each` with the start of a block and its values, until all of `from .. to` are decoded. Not for sparse
    /// messages.
    pub(super) fn for_each_block(&self, from: usize, to: usize, mut each: impl FnMut(usize, &[f32])) {
        let mut scratch = [0.0; BLOCK];
        for start in (from..to).step_by(BLOCK) {
            let scratch = &mut scratch[..BLOCK.min(to - start)];
            self.decode_block(start, scratch);
            each(start, scratch);
        }
    }

    /// Decodes `start .. start + out.len()` (at most [`BLOCK`] values) of a shape that keeps every coordinate.
    fn decode_block(&self, start: usize, out: &mut [f32]) {
        let range = start..start + out.len();
        match &self.payload {
            Payload::Dense(values) => out.copy_from_slice(&values[range]),
            Payload::Half { kind: HalfKind::F16, bits } => {
                bits[range].reinterpret_cast::<half::f16>().convert_to_f32_slice(out);
            }
            Payload::Half { kind: HalfKind::Bf16, bits } => {
                bits[range].reinterpret_cast::<half::bf16>().convert_to_f32_slice(out);
            }
            Payload::Quantized { grid, bucket, scales, codes, .. } => {
                quantized(*grid, codes, start, out);
                scale(*bucket, scales, start, out);
            }
            Payload::Sign { bucket, scales, signs } => {
                each_bit(signs, start, out, |negative| f32::from_bits(1.0_f32.to_bits() | (negative << 31)));
                scale(*bucket, scales, start, out);
            }
            Payload::TwoLevel { bucket, levels, bits } => {
                each_bit(bits, start, out, f32::from_bits);
                for_buckets(*bucket, start, out.len(), |b, range| {
                    let [zero, one] = levels[b];
                    out[range].iter_mut().for_each(|v| *v = if v.to_bits() == 0 { zero } else { one });
                });
            }
            Payload::Natural { exponents, signs } => {
                each_bit(signs, start, out, |negative| f32::from_bits(negative << 31));
                for (out, &exponent) in out.iter_mut().zip(&exponents[range]) {
                    *out = f32::from_bits(out.to_bits() | (u32::from(exponent) << 23));
                }
            }
            Payload::Affine { block, ranges, codes } => for_buckets(*block, start, out.len(), |b, range| {
                let [low, high] = ranges[b];
                for (out, &code) in out[range.clone()].iter_mut().zip(&codes[start..][range]) {
                    *out = affine_value(low, high, code);
                }
            }),
            Payload::Sparse { .. } => unreachable!("sparse messages are never decoded by block"),
        }
    }
}

/// What an 8-bit code between `low` and `high` stands for. A weighted mean, so that no range overflows and both ends are
/// exact; never beyond them, since next to the largest number rounding alone would be infinite.
fn affine_value(low: f32, high: f32, code: u8) -> f32 {
    let share = f32::from(code) / 255.0;
    (low * (1.0 - share) + high * share).clamp(low, high)
}

fn scale(bucket: u32, scales: &[f32], start: usize, out: &mut [f32]) {
    for_buckets(bucket, start, out.len(), |b, range| out[range].iter_mut().for_each(|v| *v *= scales[b]));
}

/// Signed shares of the scale.
fn quantized(grid: Grid, codes: &[u8], start: usize, out: &mut [f32]) {
    let mut block = [0; BLOCK];
    let (block, bits) = (&mut block[..out.len()], grid.bits());
    unpack(codes, bits, start, block);
    let level = |code: u8| code & ((1 << (bits - 1)) - 1);
    let signed = |share: f32, code: u8| f32::from_bits(share.to_bits() | (u32::from(code >> (bits - 1)) << 31));
    match grid {
        Grid::Linear { levels } => {
            let levels = f32::from(levels);
            let value = |&code: &u8| signed(f32::from(level(code)) / levels, code);
            out.iter_mut().zip(&*block).for_each(|(out, code)| *out = value(code));
        }
        Grid::Exponential { .. } => {
            let shares = grid.shares();
            let value = |&code: &u8| signed(shares[usize::from(level(code))], code);
            out.iter_mut().zip(&*block).for_each(|(out, code)| *out = value(code));
        }
    }
}

/// `value` of each bit.
fn each_bit(bits: &[u8], start: usize, out: &mut [f32], value: impl Fn(u32) -> f32) {
    let mut block = [0; BLOCK];
    let block = &mut block[..out.len()];
    unpack(bits, 1, start, block);
    out.iter_mut().zip(&*block).for_each(|(out, &bit)| *out = value(u32::from(bit)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_codes_stay_between_the_ends_of_their_block() {
        let top = f32::MAX;
        for [low, high] in [[top, top], [-top, -top], [-top, top], [0.999_999 * top, top], [0.0, 1e-45], [1.0, 1.0]] {
            for code in 0..=255 {
                let value = affine_value(low, high, code);
                assert!((low..=high).contains(&value), "{low:e}, {high:e}, {code}: {value:e}");
            }
        }
    }
}
