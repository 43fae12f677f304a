//! Arithmetic of f64 in whole numbers, for devices that have no f64 (WGSL, Metal).
//!
//! Core sums in f64, in eight or sixteen lanes and a fixed order. These operations round as IEEE 754 does, to nearest, ties to even, so that the
//! same lanes have the same sums. Numbers are finite. None is denormal, because the terms are multiples of 2⁻²⁹⁸: products of two f32 values.
//!
//! A number that is not rounded yet has its highest bit at 62 of two words: ten more than f64 keeps. What leaves the lowest bit marks it.

use cubecl::prelude::*;

use crate::bits::{digits_of, exponent_of};
use crate::wide::Wide;

const SIGN: u32 = 0x8000_0000;

/// Bits of the f32 number with these magnitude bits.
#[cube]
pub(crate) fn widened(magnitude: u32) -> Wide {
    let fraction = digits_of(magnitude) & 0x007f_ffffu32;
    // 1023 − 127 − 64
    let exponent = exponent_of(magnitude) + 832u32;
    let high = (exponent << 20u32) | (fraction >> 3u32);
    Wide { high: select(magnitude == 0u32, 0u32, high), low: select(magnitude == 0u32, 0u32, fraction << 29u32) }
}

/// Bits of the square of the f32 number with these magnitude bits.
#[cube]
pub(crate) fn squared(magnitude: u32) -> Wide {
    let digits = digits_of(magnitude);
    // 47 or 48 digits, moved so that the highest is at 52.
    let (high, low) = (u32::mul_hi(digits, digits), digits * digits);
    let long = high >> 15u32;
    let places = 6u32 - long;
    let moved = (high << places) | (low >> (32u32 - places));
    // 2·(exponent − 64 − 127) + long + 1023
    let out = ((2u32 * exponent_of(magnitude) + long + 641u32) << 20u32) + (moved - 0x0010_0000u32);
    Wide { high: select(magnitude == 0u32, 0u32, out), low: select(magnitude == 0u32, 0u32, low << places) }
}

/// Rounds a number with its highest bit at 62; it is above 0.
#[cube]
fn rounded(exponent: u32, high: u32, low: u32) -> Wide {
    let rest = low & 0x3ffu32;
    let whole = (low >> 10u32) | (high << 22u32);
    let up = u32::cast_from(rest > 0x200u32) | (u32::cast_from(rest == 0x200u32) & (whole & 1u32));
    let out = whole + up;
    // The highest bit adds 1 to the exponent.
    Wide { high: ((exponent - 1u32) << 20u32) + (high >> 10u32) + u32::cast_from(out < whole), low: out }
}

/// Words of a number above 0 with its highest bit at 62.
#[cube]
fn aligned(a: &Wide) -> Wide {
    Wide { high: (((a.high & 0x000f_ffffu32) | 0x0010_0000u32) << 10u32) | (a.low >> 22u32), low: a.low << 10u32 }
}

/// Moves a number right; what leaves it marks the lowest bit.
#[cube]
fn moved_right(a: &Wide, places: u32) -> Wide {
    let by_word = places >= 32u32;
    let inside = places & 31u32;
    let low = select(by_word, a.high, a.low);
    let high = select(by_word, 0u32, a.high);
    let lost = select(by_word, a.low, 0u32) | (low & ((1u32 << inside) - 1u32));
    let moved = (low >> inside) | ((high << 1u32) << (31u32 - inside)) | u32::cast_from(lost != 0u32);
    let far = places >= 64u32;
    Wide { high: select(far, 0u32, high >> inside), low: select(far, 1u32, moved) }
}

/// Returns `a + b` for numbers of at least 0.
#[cube]
pub(crate) fn plus(a: &Wide, b: &Wide) -> Wide {
    let swap = b.high > a.high || (b.high == a.high && b.low > a.low);
    let large = Wide { high: select(swap, b.high, a.high), low: select(swap, b.low, a.low) };
    let small = Wide { high: select(swap, a.high, b.high), low: select(swap, a.low, b.low) };
    let exponent = large.high >> 20u32;
    let sum = aligned(&large).add(&moved_right(&aligned(&small), exponent - (small.high >> 20u32)));
    // One more bit where the sum carries.
    let carry = sum.high >> 31u32;
    let normal = moved_right(&sum, carry);
    let out = rounded(exponent + carry, normal.high, normal.low);
    let nothing = small.high == 0u32 && small.low == 0u32;
    Wide { high: select(nothing, large.high, out.high), low: select(nothing, large.low, out.low) }
}

/// Returns `a − b` for `a ≥ b ≥ 0`.
#[cube]
fn minus(a: &Wide, b: &Wide) -> Wide {
    let exponent = a.high >> 20u32;
    let large = aligned(a);
    let small = moved_right(&aligned(b), exponent - (b.high >> 20u32));
    let low = large.low - small.low;
    let high = large.high - small.high - u32::cast_from(large.low < small.low);
    let by_word = high == 0u32;
    let top = select(by_word, low, high);
    // The highest bit goes to 62, one below the top.
    let zeros = u32::leading_zeros(top | 1u32) + select(by_word, 32u32, 0u32);
    let places = zeros - 1u32;
    let by = places & 31u32;
    let turned = places >= 32u32;
    let first = select(turned, low, high);
    let second = select(turned, 0u32, low);
    let normal_high = (first << by) | ((second >> 1u32) >> (31u32 - by));
    // The difference is exact if it moves by more than one place, and the lowest bit is then 0.
    let out = rounded(exponent - places, normal_high, second << by);
    let nothing = b.high == 0u32 && b.low == 0u32;
    let zero = high == 0u32 && low == 0u32;
    let out_high = select(zero, 0u32, out.high);
    let out_low = select(zero, 0u32, out.low);
    Wide { high: select(nothing, a.high, out_high), low: select(nothing, a.low, out_low) }
}

/// Returns `a + b` for numbers with a sign.
#[cube]
pub(crate) fn signed_plus(a: &Wide, b: &Wide) -> Wide {
    let (sign_a, sign_b) = (a.high & comptime!(SIGN), b.high & comptime!(SIGN));
    let (size_a, size_b) = (a.high ^ sign_a, b.high ^ sign_b);
    let swap = size_b > size_a || (size_b == size_a && b.low > a.low);
    let large = Wide { high: select(swap, size_b, size_a), low: select(swap, b.low, a.low) };
    let small = Wide { high: select(swap, size_a, size_b), low: select(swap, a.low, b.low) };
    let sum = plus(&large, &small);
    let difference = minus(&large, &small);
    let same_sign = sign_a == sign_b;
    let high = select(same_sign, sum.high, difference.high);
    let low = select(same_sign, sum.low, difference.low);
    let nothing = high == 0u32 && low == 0u32;
    Wide { high: select(nothing, 0u32, high | select(swap, sign_b, sign_a)), low }
}

/// Returns `sent · (2x − sent)`, each operation rounded: the energy that sending `sent` in place of `x` removes from `x`.
#[cube]
pub(crate) fn removed(x: f32, sent: f32) -> Wide {
    let (bits_x, bits_sent) = (u32::reinterpret(x), u32::reinterpret(sent));
    let whole = widened(bits_x & 0x7fff_ffffu32);
    let single = bits_x << 1u32 == 0u32;
    let double =
        Wide { high: select(single, 0u32, whole.high + 0x0010_0000u32) | (bits_x & comptime!(SIGN)), low: whole.low };
    let part = widened(bits_sent & 0x7fff_ffffu32);
    let less = Wide { high: part.high | ((bits_sent ^ comptime!(SIGN)) & comptime!(SIGN)), low: part.low };
    let ratio = signed_plus(&double, &less);
    product(&ratio, bits_sent)
}

/// Returns the product of a number and an f32 number, which is given by its bits.
#[cube]
fn product(a: &Wide, bits: u32) -> Wide {
    let magnitude = bits & 0x7fff_ffffu32;
    let digits = digits_of(magnitude);
    let top = (a.high & 0x000f_ffffu32) | 0x0010_0000u32;
    // 76 or 77 bits in three words.
    let lower = a.low * digits;
    let carried = u32::mul_hi(a.low, digits);
    let middle = carried + top * digits;
    let upper = u32::mul_hi(top, digits) + u32::cast_from(middle < carried);
    // The highest bit is at 11 or 12 of the upper word, and goes to 62 of two words.
    let long = upper >> 12u32;
    let places = 13u32 + long;
    let lost = lower & ((1u32 << places) - 1u32);
    let low = (lower >> places) | (middle << (32u32 - places)) | u32::cast_from(lost != 0u32);
    let high = (middle >> places) | (upper << (32u32 - places));
    // exponent of a, and exponent of f32 − 64 − 127
    let exponent = ((a.high & 0x7fff_ffffu32) >> 20u32) + exponent_of(magnitude) + long - 191u32;
    let out = rounded(exponent, high, low);
    let nothing = magnitude == 0u32 || ((a.high & 0x7fff_ffffu32) == 0u32 && a.low == 0u32);
    let sign = (a.high ^ bits) & comptime!(SIGN);
    Wide { high: select(nothing, 0u32, out.high | sign), low: select(nothing, 0u32, out.low) }
}
