//! Arithmetic that kernels share: bits of floats, sealed products, rounding and division by whole numbers.

use cubecl::prelude::*;

/// Bits of `|v|`, which order like magnitudes.
#[cube]
pub(crate) fn magnitude(v: f32) -> u32 {
    u32::reinterpret(v) & 0x7fff_ffffu32
}

/// Returns `v`; no compiler joins the operation that made it with the one that uses it. `zero` is 0, which only the caller knows. It is added,
/// because two exclusive-ors would cancel.
#[cube]
pub(crate) fn sealed(v: f32, zero: u32) -> f32 {
    f32::reinterpret(u32::reinterpret(v) + zero)
}

/// Returns `v`, or 0 for −0.
#[cube]
pub(crate) fn positive_zero(v: f32) -> f32 {
    let bits = u32::reinterpret(v);
    f32::reinterpret(select(bits == 0x8000_0000u32, 0u32, bits))
}

/// Unsigned integer that orders as the number does; −0 is below 0.
#[cube]
pub(crate) fn ordered(v: f32) -> u32 {
    let bits = u32::reinterpret(v);
    select(bits >> 31u32 == 1u32, !bits, bits ^ 0x8000_0000u32)
}

/// Inverse of [`ordered`].
#[cube]
pub(crate) fn unordered(order: u32) -> f32 {
    f32::reinterpret(select(order >> 31u32 == 1u32, order ^ 0x8000_0000u32, !order))
}

/// Significand of the number with these magnitude bits, shifted so that its highest bit is 2²³; 0 for 0. With [`exponent_of`] the same bits,
/// the number is `digits · 2^(exponent − 64 − 150)`.
#[cube]
pub(crate) fn digits_of(magnitude: u32) -> u32 {
    let fraction = magnitude & 0x007f_ffffu32;
    let denormal = magnitude < 0x0080_0000u32;
    let up = select(denormal && fraction != 0u32, u32::leading_zeros(fraction) - 8u32, 0u32);
    select(denormal, fraction << up, fraction | 0x0080_0000u32)
}

/// Exponent that belongs to [`digits_of`], offset by 64 so that denormal numbers have one above 0.
#[cube]
pub(crate) fn exponent_of(magnitude: u32) -> u32 {
    let fraction = magnitude & 0x007f_ffffu32;
    let denormal = magnitude < 0x0080_0000u32;
    let up = select(denormal && fraction != 0u32, u32::leading_zeros(fraction) - 8u32, 0u32);
    select(denormal, 65u32 - up, (magnitude >> 23u32) + 64u32)
}

/// Drops the lowest `places` (1 to 31) bits of a number below 2³¹, rounded to nearest, ties to even.
#[cube]
pub(crate) fn rounded_right(digits: u32, places: u32) -> u32 {
    let whole = digits >> places;
    let rest = digits & ((1u32 << places) - 1u32);
    let half = 1u32 << (places - 1u32);
    let up = u32::cast_from(rest > half) | (u32::cast_from(rest == half) & (whole & 1u32));
    whole + up
}

/// Returns `v · 2^shift` rounded to the nearest integer, ties to even, by the bits alone. `v` is at least 0, the result at most 2³¹.
#[cube]
pub(crate) fn round_bits(v: f32, shift: u32) -> u32 {
    let bits = u32::reinterpret(v);
    let digits = (bits & 0x007f_ffffu32) | 0x0080_0000u32;
    // v · 2^shift = digits · 2^(exponent + shift − 150)
    let up = ((bits >> 23u32) & 0xffu32) + shift;
    let mut out = 0u32;
    if up >= 150u32 {
        out = digits << (up - 150u32);
    } else {
        let down = 150u32 - up;
        if down <= 24u32 {
            out = rounded_right(digits, down);
        }
    }
    out
}

/// Magnitude bits of `v · 2⁶⁴`, exactly; `v`, given by its magnitude bits, is below 2⁶³.
#[cube]
fn lifted(magnitude: u32) -> u32 {
    let exponent = exponent_of(magnitude);
    let digits = digits_of(magnitude);
    select(magnitude == 0u32, 0u32, (exponent << 23u32) + (digits - 0x0080_0000u32))
}

/// Returns `a / b`, correctly rounded, for magnitude bits `a < b`; quotients below 2⁻¹⁰⁰ need not be. `trusted` uses the device's division.
#[cube]
pub(crate) fn share_of(a: u32, b: u32, #[comptime] trusted: bool) -> f32 {
    if comptime!(trusted) {
        f32::reinterpret(a) / f32::reinterpret(b)
    } else {
        // A device that flushes denormal numbers sees none.
        let small = b < comptime!(64u32 << 23);
        divided(select(small, lifted(a), a), select(small, lifted(b), b))
    }
}

/// Returns `a / b`, correctly rounded, for magnitude bits of normal numbers with a normal quotient: the device's quotient, corrected in
/// whole numbers. A numerator of 0 or far below `b` gives the device's quotient.
#[cube]
pub(crate) fn divided(bits_a: u32, bits_b: u32) -> f32 {
    let rough = f32::reinterpret(bits_a) / f32::reinterpret(bits_b);
    let exp_a = bits_a >> 23u32;
    let exp_b = bits_b >> 23u32;
    let digits_a = (bits_a & 0x007f_ffffu32) | 0x0080_0000u32;
    let digits_b = (bits_b & 0x007f_ffffu32) | 0x0080_0000u32;
    // q = digits_a · 2^places / digits_b has 24 digits, and the quotient is q · 2^(exp_a − exp_b − places).
    let places = select(digits_a >= digits_b, 23u32, 24u32);
    let exponent = exp_a + 150u32 - exp_b - places;
    let bits_q = u32::reinterpret(rough);
    let exp_q = (bits_q >> 23u32) & 0xffu32;
    let digits_q = (bits_q & 0x007f_ffffu32) | 0x0080_0000u32;
    let doubled = select(exp_q > exponent, digits_q << 1u32, digits_q);
    let mut q = select(exp_q < exponent, digits_q >> 1u32, doubled);
    // The remainder is small, so its lower 32 bits are all of it.
    let mut rest = (digits_a << places) - q * digits_b;
    #[unroll]
    for _ in 0..4u32 {
        let below = rest >> 31u32 == 1u32;
        rest = select(below, rest + digits_b, rest);
        q = select(below, q - 1u32, q);
    }
    #[unroll]
    for _ in 0..4u32 {
        let above = rest >> 31u32 == 0u32 && rest >= digits_b;
        rest = select(above, rest - digits_b, rest);
        q = select(above, q + 1u32, q);
    }
    // No quotient of two such numbers lies in the middle between two others.
    let nearest = q + u32::cast_from(rest * 2u32 > digits_b);
    // Added, not combined by or: `nearest` may be 2²⁴.
    let quotient = f32::reinterpret((exponent << 23u32) + (nearest - 0x0080_0000u32));
    select(exp_a == 0u32 || exp_a + 100u32 < exp_b, rough, quotient)
}
