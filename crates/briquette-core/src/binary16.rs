//! IEEE binary16 conversion in integer arithmetic and one addition, so that loops over it vectorize on any machine.
//! Also the power-of-two scales of blocks outside its range.

/// Number of values that share a scale.
pub(crate) const SCALED: usize = 256;
/// Exponents of scales: `2^e` is a normal `f32`, and its product with the largest 16-bit number is finite.
pub(crate) const EXPONENTS: std::ops::RangeInclusive<i8> = -126..=112;
/// Exponents of a block's largest magnitude for which its values are sent unscaled: from 2⁻¹⁷, where the largest value
/// has no larger error than in bfloat16, to 65504.
const AS_IT_IS: std::ops::RangeInclusive<i32> = -17..=15;
/// Exponent to which the largest magnitude of any other block is scaled.
const TARGET: i32 = 14;

/// The largest finite number, 65504.
pub(crate) const LARGEST: u32 = 0x7bff;
/// Infinity.
pub(crate) const INFINITY: u32 = 0x7c00;

/// Converts to nearest, ties to even. Values larger than `most` and NaN become `most`.
#[inline(always)]
pub(crate) fn from_f32(value: f32, most: u32) -> [u8; 2] {
    let magnitude = value.to_bits() & 0x7fff_ffff;
    // The exponent's bias is 15, not 127. Half of the last place is added, slightly less if the last place is even.
    let normal = (magnitude + 0xfff + (magnitude >> 13 & 1)).wrapping_sub(112 << 23) >> 13;
    // Next to ½, the last place is 2⁻²⁴, as for 16-bit numbers below 2⁻¹⁴.
    let small = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5_f32.to_bits());
    let rounded = if magnitude < 113 << 23 { small } else { normal };
    ((rounded.min(most) | (value.to_bits() >> 16 & 0x8000)) as u16).to_le_bytes()
}

/// Returns the exponent `e` of the scale `2^e` of these values, 0 if they are sent unscaled. It depends on the largest
/// magnitude rounded to 16 bits, so decoded values have the scale with which they were encoded.
#[inline(always)]
pub(crate) fn scale_of(values: &[f32]) -> i8 {
    let largest = values.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff));
    // To 11 significant bits, if it is normal.
    let rounded = (largest + 0xfff + (largest >> 13 & 1)) >> 13 << 13;
    let exponent = (rounded >> 23) as i32 - 127;
    let is_number = largest < 0x7f80_0000;
    if largest == 0 || !is_number || AS_IT_IS.contains(&exponent) {
        return 0;
    }
    (exponent - TARGET).clamp(i32::from(*EXPONENTS.start()), i32::from(*EXPONENTS.end())) as i8
}

/// Returns `2^e`, for the [exponents](EXPONENTS) and their negatives.
#[inline(always)]
pub(crate) fn power(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// Converts exactly; infinity and NaN are preserved.
#[inline(always)]
pub(crate) fn to_f32(bytes: [u8; 2]) -> f32 {
    let bits = u32::from(u16::from_le_bytes(bytes));
    let magnitude = bits & 0x7fff;
    let normal = (magnitude << 13) + (112 << 23);
    let small = (magnitude as f32 * (1.0 / 16_777_216.0)).to_bits();
    let large = (magnitude << 13) | 0x7f80_0000;
    let value = if magnitude < 0x400 { small } else { normal };
    let value = if magnitude < INFINITY { value } else { large };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn all_numbers_of_16_bits_are_those_of_another_library() {
        for bits in 0..=u16::MAX {
            let (ours, theirs) = (to_f32(bits.to_le_bytes()), f16::from_bits(bits));
            assert_eq!(ours.is_finite(), theirs.is_finite());
            if theirs.is_finite() {
                assert_eq!(ours.to_bits(), theirs.to_f32().to_bits(), "{bits:#x}");
                assert_eq!(from_f32(ours, INFINITY), bits.to_le_bytes());
            }
        }
    }

    #[test]
    fn scales_by_hand() {
        // From 2⁻¹⁷ to 65504 nothing changes; 65520 rounds to 65536 = 2¹⁶, which 2² brings to 2¹⁴.
        for (largest, exponent) in [
            (0.0, 0),
            (1.0, 0),
            (65_519.9, 0),
            (65_520.0, 2),
            (2_f32.powi(-17), 0),
            (2_f32.powi(-17).next_down(), 0), // It rounds to 2⁻¹⁷.
            (7.6e-6, -32),
            (1e-8, -41), // 1.34 · 2⁻²⁷
            (f32::MAX, 112),
            (1e-45, -126),
            (f32::INFINITY, 0),
            (f32::NAN, 0),
        ] {
            assert_eq!(scale_of(&[0.0, -largest, largest / 2.0]), exponent, "{largest:e}");
        }
        assert_eq!((power(-126), power(0), power(127)), (f32::MIN_POSITIVE, 1.0, 2_f32.powi(127)));
    }

    #[test]
    fn scaled_values_of_any_magnitude_keep_eleven_bits_and_their_scale() {
        for i in 0..100_001_u32 {
            let value = f32::from_bits(i.wrapping_mul(0x9e37_79b9) & 0x7fff_ffff);
            if !value.is_finite() || value >= 65_504.0 * power(112) {
                continue;
            }
            let exponent = scale_of(&[value]);
            let unit = power(exponent.into());
            let decoded = to_f32(from_f32(value * power(-i32::from(exponent)), INFINITY)) * unit;
            let error = f64::from((decoded - value).abs()) / f64::from(value.max(f32::MIN_POSITIVE));
            let bound = if exponent == 0 && value < 2_f32.powi(-14) { 2_f64.powi(-8) } else { 2_f64.powi(-11) };
            assert!(error <= bound, "{value:e}: {decoded:e}");
            assert_eq!(scale_of(&[decoded]), exponent, "{value:e}");
        }
    }

    #[test]
    fn numbers_of_32_bits_round_as_those_of_another_library() {
        // A sample of all magnitudes, and the neighbors of every midpoint between two numbers.
        let some = (0..200_001_u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        let middles = (0..0x7bff_u16).flat_map(|bits| {
            let [a, b] = [bits, bits + 1].map(|bits| f16::from_bits(bits).to_f32());
            let middle = (a + b) / 2.0;
            [middle.next_down(), middle, middle.next_up()]
        });
        let edges = [65_519.9, 65_520.0, 1e-45, f32::MAX, f32::INFINITY, 0.0, -0.0, -1e-45];
        for value in some.chain(middles).chain(edges).filter(|v| !v.is_nan()) {
            let theirs = f16::from_f32(value);
            assert_eq!(from_f32(value, INFINITY), theirs.to_le_bytes(), "{value:e}");
            let clamped = f16::from_f32(value.clamp(-65_504.0, 65_504.0));
            assert_eq!(from_f32(value, LARGEST), clamped.to_le_bytes(), "{value:e}");
        }
        assert_eq!(from_f32(f32::NAN, INFINITY)[1] & 0x7c, 0x7c);
    }
}
