//! Decoding of messages: `out += weight · value`, `x −= value`, or masked momentum, for every kind of message. The bits are those
//! of core's `Message::add_to` and of the residual that error feedback keeps.

use cubecl::prelude::*;

use crate::bits::{magnitude, positive_zero, sealed};

/// Adds a value times a weight.
pub(crate) const ADD: u32 = 0;
/// Subtracts a value: what remains of the vector that was encoded.
pub(crate) const SUBTRACT: u32 = 1;
/// Writes 0 where the value exceeds the element times the weight: masked momentum.
pub(crate) const MASK: u32 = 2;

/// Applies a decoded value to an element.
#[cube]
fn put(element: f32, value: f32, weight: f32, zero: u32, #[comptime] op: u32) -> f32 {
    if comptime!(op == ADD) {
        element + sealed(weight * value, zero)
    } else if comptime!(op == SUBTRACT) {
        // A decoded vector has no negative zeros.
        element - positive_zero(value)
    } else {
        select(magnitude(value) <= magnitude(sealed(weight * element, zero)), element, 0.0f32)
    }
}

#[cube(launch)]
pub(crate) fn dense(
    values: &[f32],
    out: &mut [f32],
    start: usize,
    count: usize,
    weight: f32,
    zero: u32,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        out[start + at] = put(out[start + at], values[at], weight, zero, op);
    }
}

/// The indices of a message are all different, so no addition is atomic. `cut` has their number in its last word.
#[cube(launch)]
pub(crate) fn sparse(
    indices: &[u32],
    values: &[f32],
    cut: &[u32],
    out: &mut [f32],
    start: usize,
    weight: f32,
    zero: u32,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < indices.len() && at < cut[4] as usize {
        let place = start + indices[at] as usize;
        out[place] = put(out[place], values[at], weight, zero, op);
    }
}

/// Sixteen bits: the upper half of a number, or binary16 times the power of two of its block.
#[cube(launch)]
pub(crate) fn half(
    codes: &[u32],
    scales: &[u32],
    out: &mut [f32],
    start: usize,
    count: usize,
    weight: f32,
    zero: u32,
    #[comptime] brain: bool,
    #[comptime] scaled: bool,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let code = (codes[at / 2] >> (16 * (at % 2) as u32)) & 0xffffu32;
        let mut value = f32::reinterpret(code << 16u32);
        if comptime!(!brain) {
            let size = code & 0x7fffu32;
            let normal = (size << 13u32) + comptime!(112u32 << 23);
            let small = u32::reinterpret(f32::cast_from(size) * comptime!(1.0f32 / 16_777_216.0f32));
            value = f32::reinterpret(select(size < 0x400u32, small, normal) | ((code & 0x8000u32) << 16u32));
            if comptime!(scaled) {
                let power = f32::reinterpret((scales[at / 256] + 127u32) << 23u32);
                value = sealed(value * power, zero);
            }
        }
        out[start + at] = put(out[start + at], value, weight, zero, op);
    }
}

/// A sign and a level; `shares` has each level's share of the scale.
#[cube(launch)]
pub(crate) fn levels(
    codes: &[u32],
    scales: &[f32],
    shares: &[f32],
    out: &mut [f32],
    start: usize,
    count: usize,
    bucket: usize,
    weight: f32,
    zero: u32,
    #[comptime] bits: usize,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        // 32 codes fill `bits` words.
        let bit = at % 32 * bits;
        let word = at / 32 * bits + bit / 32;
        let shift = (bit % 32) as u32;
        let mut code = codes[word] >> shift;
        if shift as usize + bits > 32 {
            code |= codes[word + 1] << (32u32 - shift);
        }
        let level = code & comptime!((1u32 << (bits - 1)) - 1);
        let sign = (code >> comptime!(bits as u32 - 1)) & 1u32;
        let share = f32::reinterpret(u32::reinterpret(shares[level as usize]) | (sign << 31u32));
        let value = sealed(share * scales[at / bucket], zero);
        out[start + at] = put(out[start + at], value, weight, zero, op);
    }
}

/// One of two values of its bucket, by a bit.
#[cube(launch)]
pub(crate) fn either(
    bits: &[u32],
    ends: &[f32],
    out: &mut [f32],
    start: usize,
    count: usize,
    bucket: usize,
    weight: f32,
    zero: u32,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let bit = (bits[at / 32] >> ((at % 32) as u32)) & 1u32;
        let value = ends[2 * (at / bucket) + bit as usize];
        out[start + at] = put(out[start + at], value, weight, zero, op);
    }
}

/// A power of two: four exponents a word, and a sign bit.
#[cube(launch)]
pub(crate) fn powers(
    exponents: &[u32],
    signs: &[u32],
    out: &mut [f32],
    start: usize,
    count: usize,
    weight: f32,
    zero: u32,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let exponent = (exponents[at / 4] >> (8 * (at % 4) as u32)) & 0xffu32;
        let sign = (signs[at / 32] >> ((at % 32) as u32)) & 1u32;
        let value = f32::reinterpret((exponent << 23u32) | (sign << 31u32));
        out[start + at] = put(out[start + at], value, weight, zero, op);
    }
}

/// 1/255 in two parts, of which the first is so short that its product is exact: core's correctly rounded quotient.
const UPPER: f32 = f32::from_bits(((1.0_f64 / 255.0) as f32).to_bits() & !0xff);
const LOWER: f32 = (1.0_f64 / 255.0 - UPPER as f64) as f32;

/// A value between the ends of its block, within them.
#[cube(launch)]
pub(crate) fn affine(
    codes: &[u32],
    ranges: &[f32],
    out: &mut [f32],
    start: usize,
    count: usize,
    block: usize,
    weight: f32,
    zero: u32,
    #[comptime] op: u32,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let code = (codes[at / 4] >> (8 * (at % 4) as u32)) & 0xffu32;
        let low = ranges[2 * (at / block)];
        let high = ranges[2 * (at / block) + 1];
        let level = f32::cast_from(code);
        let share = sealed(sealed(level * comptime!(UPPER), zero) + sealed(level * comptime!(LOWER), zero), zero);
        let part = sealed(low * sealed(1.0f32 - share, zero), zero);
        let value = sealed(part + sealed(high * share, zero), zero);
        let raised = select(value < low, low, value);
        let value = select(raised > high, high, raised);
        out[start + at] = put(out[start + at], value, weight, zero, op);
    }
}
