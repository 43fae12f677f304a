//! Wire formats of partial sums: 16 bits a value, or 8 or 4 bits with scales per block. The frames of `lossless` are made in `exact.rs`.

use super::int4;
use crate::binary16::{self, power, scale_of};
use crate::{Key, lossless};

/// Values encoded at a time, sized for the first-level cache; a whole number of blocks.
pub(super) const BLOCK: usize = 1024;

/// Values that share a scale.
pub(super) const SCALED: usize = binary16::SCALED;

/// A number format of the [`Ring`](super::Ring)'s frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Wire {
    /// bfloat16: 8 significant bits, the range of `f32`.
    #[default]
    Bf16,
    /// IEEE binary16: 11 significant bits. Blocks of 256 values whose largest magnitude is not within 7.6e-6 and 65504 are scaled by a
    /// power of two.
    F16,
    /// 255 evenly spaced numbers between plus and minus the largest magnitude of a block of 256 values; that magnitude is exact.
    Int8,
    /// 15 evenly spaced numbers between plus and minus the largest magnitude of a group of 32 values, which is rounded up to one of 255 shares of that
    /// of a block of 256: 4.4 bits.
    Int4,
    /// The values themselves, in the lossless code of `docs/wire.md`, kind 17.
    Lossless,
}

impl Wire {
    /// Returns the size in bytes of this many values in one frame, without scaled blocks in 16-bit formats; of `lossless` the largest size.
    ///
    /// ```
    /// use briquette_core::reduce::ring::Wire;
    /// let bytes = [Wire::Bf16, Wire::F16, Wire::Int8, Wire::Int4].map(|wire| wire.bytes(1000));
    /// assert_eq!(bytes, [2000, 2000, 1000 + 4 * 4, 500 + 32 + 4 * 4]);
    /// ```
    pub fn bytes(self, values: usize) -> usize {
        match self {
            Wire::Bf16 | Wire::F16 => 2 * values,
            Wire::Int8 => values + 4 * values.div_ceil(SCALED),
            Wire::Int4 => int4::bytes(values),
            Wire::Lossless => lossless::most_bytes(values),
        }
    }

    /// Returns the size in bytes including the scales of 16-bit formats.
    pub(super) fn scaled_bytes(self, values: usize) -> usize {
        self.bytes(values) + if self == Wire::F16 { values.div_ceil(SCALED) } else { 0 }
    }

    /// Returns whether a frame of this many bytes may hold this many values.
    pub(super) fn fits(self, values: usize, bytes: usize) -> bool {
        [self.bytes(values), self.scaled_bytes(values)].contains(&bytes)
    }

    /// Returns whether these values, at most 256, need a scale, which frames do not have otherwise.
    pub(super) fn needs_scale(self, values: &[f32]) -> bool {
        self == Wire::F16 && scale_of(values) != 0
    }

    /// Returns the name of the number format of sums, for reports.
    pub(super) fn carrier(self) -> &'static str {
        match self {
            Wire::Bf16 => "bf16 ring",
            Wire::F16 => "f16 ring",
            Wire::Int8 => "int8 ring",
            Wire::Int4 => "int4 ring",
            Wire::Lossless => "lossless ring",
        }
    }

    pub(super) fn bits(self) -> u8 {
        match self {
            Wire::Bf16 | Wire::F16 => 16,
            Wire::Int8 => 8,
            Wire::Int4 => 4,
            Wire::Lossless => 32,
        }
    }

    /// Returns whether values that are decoded and encoded again, to nearest, give the same bytes.
    pub(super) fn is_stable(self) -> bool {
        self != Wire::Int4
    }

    /// Encodes up to [`BLOCK`] values into as many [`bytes`](Self::bytes), or [with scales](Self::scaled_bytes). The formats of 8 and 4 bits round
    /// stochastically if `random` gives a key and the index of the first value.
    pub(super) fn encode(self, values: &[f32], random: Option<(Key, usize)>, bytes: &mut [u8]) {
        match self {
            Wire::Bf16 => to_bf16(values, bytes.as_chunks_mut().0),
            Wire::F16 if bytes.len() == self.bytes(values.len()) => {
                to_f16(values, (1.0, binary16::INFINITY), bytes.as_chunks_mut().0)
            }
            Wire::F16 => {
                for (values, bytes) in values.chunks(SCALED).zip(bytes.chunks_mut(1 + 2 * SCALED)) {
                    let (exponent, codes) = (scale_of(values), bytes.split_first_mut());
                    if let Some((first, codes)) = codes {
                        *first = exponent as u8;
                        // All values of a scaled block are finite, and stay so.
                        let most = if exponent == 0 { binary16::INFINITY } else { binary16::LARGEST };
                        to_f16(values, (power(-i32::from(exponent)), most), codes.as_chunks_mut().0);
                    }
                }
            }
            Wire::Int8 | Wire::Int4 => {
                let mut noise = [HALF; BLOCK];
                let noise = &mut noise[..values.len()];
                if let Some((key, place)) = random {
                    draw(key, place, noise);
                }
                if self == Wire::Int8 { to_int8(values, noise, bytes) } else { int4::encode(values, noise, bytes) }
            }
            Wire::Lossless => unreachable!("its frames have no fixed size"),
        }
    }

    /// Decodes the values of a frame.
    pub(super) fn decode(self, frame: &[u8], out: &mut [f32]) {
        match self {
            Wire::Bf16 => from_bf16(frame.as_chunks().0, out),
            Wire::F16 if frame.len() == self.bytes(out.len()) => from_f16(frame.as_chunks().0, 1.0, out),
            Wire::F16 => {
                for (bytes, out) in frame.chunks(1 + 2 * SCALED).zip(out.chunks_mut(SCALED)) {
                    if let Some((exponent, codes)) = bytes.split_first() {
                        // The byte may hold any value from the network; only exponents in this range are powers of two.
                        let [least, most] = [binary16::EXPONENTS.start(), binary16::EXPONENTS.end()];
                        let exponent = (*exponent as i8).clamp(*least, *most);
                        from_f16(codes.as_chunks().0, power(exponent.into()), out);
                    }
                }
            }
            Wire::Int8 => from_int8(frame, out),
            Wire::Int4 => int4::decode(frame, out),
            Wire::Lossless => unreachable!("its frames have no fixed size"),
        }
    }
}

/// Rounds to nearest, ties to even: adds half of the last place, less a little where the last place is even. Values beyond the largest
/// number become infinity; NaN stays NaN.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_bf16(values: &[f32], out: &mut [[u8; 2]]) {
    for (bytes, value) in out.iter_mut().zip(values) {
        let magnitude = (value.to_bits() & 0x7fff_ffff).min(0x7fc0_0000);
        let rounded = (magnitude + 0x7fff + (magnitude >> 16 & 1)) >> 16;
        *bytes = ((rounded | (value.to_bits() >> 31) << 15) as u16).to_le_bytes();
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn from_bf16(bytes: &[[u8; 2]], out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes) {
        *value = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
    }
}

/// Values beyond the largest number, and NaN, become `most`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_f16(values: &[f32], (per_unit, most): (f32, u32), out: &mut [[u8; 2]]) {
    for (bytes, value) in out.iter_mut().zip(values) {
        *bytes = binary16::from_f32(*value * per_unit, most);
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn from_f16(bytes: &[[u8; 2]], unit: f32, out: &mut [f32]) {
    for (value, bytes) in out.iter_mut().zip(bytes) {
        *value = binary16::to_f32(*bytes) * unit;
    }
}

/// Offset added to a number of steps before rounding down, instead of a random draw: rounds to nearest.
const HALF: f32 = 0.5;

/// Fills `noise` with uniform draws from the centers of 65 536 parts of a step. In an exchange, only one rank draws for each index.
fn draw(key: Key, place: usize, noise: &mut [f32]) {
    let mut bits = [0_u16; BLOCK];
    let bits = &mut bits[..noise.len()];
    key.lanes(place).halves(bits);
    noise.iter_mut().zip(bits).for_each(|(noise, bits)| *noise = (f32::from(*bits) + 0.5) / 65_536.0);
}

/// A block's scale is its largest magnitude, compared as bits: unlike with floats, NaN is then the largest.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn to_int8(values: &[f32], noise: &[f32], out: &mut [u8]) {
    for ((values, noise), out) in values.chunks(SCALED).zip(noise.chunks(SCALED)).zip(out.chunks_mut(4 + SCALED)) {
        let largest = f32::from_bits(values.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff)));
        let per_step = LEVELS / largest;
        // A block so small that the inverse of its step overflows is rounded to zeros.
        let (scale, per_step) = if per_step == f32::INFINITY { (0.0, 0.0) } else { (largest, per_step) };
        let (bytes, codes) = out.split_at_mut(4);
        bytes.copy_from_slice(&scale.to_le_bytes());
        for ((code, value), noise) in codes.iter_mut().zip(values).zip(noise) {
            // Between −127.5 and 128: less a half, adding 1.5·2²³ leaves the nearest integer in the lowest bits.
            let steps = (value * per_step + (noise - HALF)).clamp(-LEVELS, LEVELS);
            *code = (steps + 12_582_912.0).to_bits() as u8;
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn from_int8(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(4 + SCALED).zip(out.chunks_mut(SCALED)) {
        let (scale, codes) = bytes.split_at(4);
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        for (value, code) in out.iter_mut().zip(codes) {
            *value = f32::from(*code as i8) * (1.0 / LEVELS) * scale;
        }
    }
}

/// Steps on either side of 0.
const LEVELS: f32 = 127.0;

// Ensures that the largest magnitude of a block is exact, and that none is larger.
const _: () = assert!(LEVELS * (1.0 / LEVELS) == 1.0);

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(wire: Wire, values: &[f32], random: Option<(Key, usize)>) -> (Vec<u8>, Vec<f32>) {
        let scaled = values.chunks(SCALED).any(|values| wire.needs_scale(values));
        let size = if scaled { wire.scaled_bytes(values.len()) } else { wire.bytes(values.len()) };
        let (mut bytes, mut out) = (vec![0; size], vec![0.0; values.len()]);
        wire.encode(values, random, &mut bytes);
        wire.decode(&bytes, &mut out);
        (bytes, out)
    }

    #[test]
    fn values_by_hand() {
        // 1 + 2⁻⁸ lies halfway between 1 and 1 + 2⁻⁷: ties to even. bfloat16 has 7 bits after the point.
        let x = [1.0 + 2_f32.powi(-8), 1.0 + 3.0 * 2_f32.powi(-8), -2.0, f32::MAX];
        assert_eq!(coded(Wire::Bf16, &x, None).1, [1.0, 1.0 + 2_f32.powi(-6), -2.0, f32::INFINITY]);
        // 65520 rounds to 2¹⁶: in units of 4 it is in range.
        assert_eq!(coded(Wire::F16, &[65_519.0, -1.0], None).1, [65_504.0, -1.0]);
        assert_eq!(coded(Wire::F16, &[3.0, -65_520.0], None).1, [3.0, -65_536.0]);
        let (bytes, out) = coded(Wire::F16, &[1e-8, -2e-8, 0.0], None);
        assert_eq!((bytes.len(), bytes[0] as i8), (1 + 6, -40)); // 2e-8 = 1.34 · 2⁻²⁶
        assert!(
            out.iter().zip([1e-8, -2e-8, 0.0]).all(|(a, b): (&f32, f32)| (a - b).abs() <= b.abs() / 2048.0),
            "{out:?}"
        );
        // The largest is 254: steps of 2. 3/2 and 5/2 tie to 2, −1/2 to 0, and −130/2 is −65 steps.
        let (bytes, out) = coded(Wire::Int8, &[3.0, 5.0, -1.0, -130.0, 254.0], None);
        assert_eq!(bytes, [&254_f32.to_le_bytes()[..], &[2, 2, 0, -65_i8 as u8, 127]].concat());
        let near = |a: f32, b: f32| (a - b).abs() < 1e-4;
        assert!(out.iter().zip([4.0, 4.0, 0.0, -130.0, 254.0]).all(|(a, b)| near(*a, b)), "{out:?}");
    }

    /// Returns vectors with the bits of every magnitude, duplicates, blocks that are too small, and NaN.
    fn vectors() -> Vec<Vec<f32>> {
        let all: Vec<f32> = (0..70_001_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9))).collect();
        let finite = |limit: f32| all.iter().copied().filter(|v| v.abs() < limit).take(1024).collect::<Vec<f32>>();
        let mut vectors: Vec<_> = [f32::MAX, 1.0, 1e-30, 1e-36, 1e-37, 1e-40].map(finite).into();
        vectors.push((0..1000).map(|i| (i as f32 * 0.37).sin() * 3e-3).collect());
        vectors.push(vec![f32::MAX, -f32::MAX, 1.0]);
        vectors
    }

    #[test]
    fn what_is_decoded_encodes_to_the_same_bytes() {
        for wire in [Wire::Bf16, Wire::F16, Wire::Int8] {
            for random in [None, Some((Key::new(1), 3))] {
                for x in vectors() {
                    let (bytes, out) = coded(wire, &x, random);
                    assert_eq!(coded(wire, &out, None).0, bytes, "{wire:?}, {random:?}, {:?}", &x[..3]);
                }
            }
        }
    }

    #[test]
    fn sixteen_bits_are_those_of_the_scalar_conversions() {
        for x in vectors() {
            let twin: Vec<u8> = x.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
            assert_eq!(coded(Wire::Bf16, &x, None).0, twin);
            let twin: Vec<u8> = x.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
            if !x.chunks(SCALED).any(|x| Wire::F16.needs_scale(x)) {
                assert_eq!(coded(Wire::F16, &x, None).0, twin);
            }
        }
    }

    #[test]
    fn eight_bits_err_by_half_a_step_and_at_random_by_less_than_a_step() {
        for x in vectors() {
            for random in [None, Some((Key::new(1), 3))] {
                let (_, out) = coded(Wire::Int8, &x, random);
                for (x, out) in x.chunks(SCALED).zip(out.chunks(SCALED)) {
                    let largest = x.iter().fold(0.0_f32, |m, v| m.max(v.abs()));
                    let parts = if random.is_some() { 127.0 } else { 254.0 };
                    let bound = (f64::from(largest) / parts * 1.001).max(3.8e-37);
                    assert!(x.iter().zip(out).all(|(a, b)| (f64::from(*a) - f64::from(*b)).abs() <= bound));
                    assert!(out.iter().all(|v| v.abs() <= largest));
                }
            }
        }
    }

    #[test]
    fn a_value_that_is_no_number_makes_its_block_none_whatever_the_format() {
        for wire in [Wire::Bf16, Wire::F16, Wire::Int8] {
            for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::from_bits(0x7fff_ffff)] {
                let (bytes, out) = coded(wire, &[1.0, bad, 2.0], None);
                assert!(!out[1].is_finite(), "{wire:?} {bad}: {out:?}");
                assert!(wire == Wire::Int8 || coded(wire, &out, None).0 == bytes);
            }
        }
    }

    #[test]
    fn rounding_at_random_has_no_mean_error() {
        let x: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin()).collect();
        let (draws, mut sums) = (4000, vec![0.0; 300]);
        for draw in 0..draws {
            let (_, out) = coded(Wire::Int8, &x, Some((Key::new(7).step(draw), 0)));
            sums.iter_mut().zip(out).for_each(|(sum, v)| *sum += f64::from(v));
        }
        // A step is 1/127: its draws deviate by at most half of it. The bound is five standard deviations of the mean.
        let bound = 5.0 * 0.5 / 127.0 / (draws as f64).sqrt();
        let off = x.iter().zip(&sums).map(|(x, sum)| (sum / draws as f64 - f64::from(*x)).abs()).fold(0.0, f64::max);
        assert!(off < bound, "{off} {bound}");
        // With rounding to nearest, some values are off by more.
        let (_, out) = coded(Wire::Int8, &x, None);
        assert!(x.iter().zip(out).any(|(x, v)| f64::from((x - v).abs()) > bound));
    }
}
