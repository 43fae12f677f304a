//! Arithmetic of momentum: accumulation of a velocity before an exchange, and its subtraction from the average.

use super::all_finite;
use crate::parallel::{self, Part, SEGMENT};

/// Settings of a velocity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Velocity {
    /// The velocity's decay.
    pub momentum: f32,
    /// Enables Nesterov's form.
    pub nesterov: bool,
    /// Factor of the gradient, from clipping.
    pub scale: f32,
}

impl Velocity {
    /// Computes the next velocity `u` and the next pending velocity `v`. Returns `‖v‖²` and `‖u‖²` of the next ones. A sum is finite if all
    /// values of its vector are.
    pub fn accumulate(self, gradient: &[f32], now: [&[f32]; 2], next: [&mut [f32]; 2]) -> [f64; 2] {
        let segments = gradient.len().div_ceil(SEGMENT);
        let ([u, v], [next_u, next_v]) = (now.map(|now| Part(now, SEGMENT)), next.map(|next| Part(next, SEGMENT)));
        type Now<'a> = (Part<&'a [f32]>, (Part<&'a [f32]>, Part<&'a [f32]>));
        type Next<'a> = (Part<&'a mut [f32]>, Part<&'a mut [f32]>);
        let each = |_, ((g, (u, v)), (next_u, next_v)): (Now<'_>, Next<'_>)| {
            accumulate_segment(self, g.0, [u.0, v.0], next_u.0, next_v.0)
        };
        let work = ((Part(gradient, SEGMENT), (u, v)), (next_u, next_v));
        parallel::fold(0..segments, work, &each, &|a, b| [a[0] + b[0], a[1] + b[1]]).unwrap_or_default()
    }
}

/// Rule of momentum factor masking: which velocities are set to 0 after a part of the vector was sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mask {
    /// A velocity is set to 0 if the sent value exceeds this many times the velocity.
    pub above: f32,
}

impl Mask {
    /// Masks where a value other than 0 was sent.
    pub const SENT: Mask = Mask { above: 0.0 };
    /// Masks where the sent value exceeds its velocity by a quarter: then a part of it had waited.
    pub const WAITED: Mask = Mask { above: 1.25 };

    /// Returns the velocity after `sent` was sent.
    #[inline]
    #[must_use]
    pub fn apply(self, velocity: f32, sent: f32) -> f32 {
        // Compared as bits, so that a device has the same result for any value.
        let magnitude = |value: f32| value.to_bits() & (u32::MAX >> 1);
        if magnitude(sent) <= magnitude(self.above * velocity) { velocity } else { 0.0 }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn accumulate_segment(
    settings: Velocity,
    gradient: &[f32],
    [u, v]: [&[f32]; 2],
    next_u: &mut [f32],
    next_v: &mut [f32],
) -> [f64; 2] {
    let Velocity { momentum: m, nesterov, scale } = settings;
    for (((&g, (&u, &v)), next_u), next_v) in gradient.iter().zip(u.iter().zip(v)).zip(&mut *next_u).zip(&mut *next_v) {
        let g = g * scale;
        if nesterov {
            *next_u = m * (u + g);
            *next_v = v + (*next_u + g);
        } else {
            *next_u = m * u + g;
            *next_v = v + *next_u;
        }
    }
    [super::squares(next_v), super::squares(next_u)]
}

/// Writes the average to `next` as the agreed velocity, and subtracts the decayed velocity `before` from the average. Returns whether all of the
/// average is finite.
pub fn subtract_velocity(average: &mut [f32], before: &[f32], next: &mut [f32], momentum: f32) -> bool {
    let work = ((Part(&mut *average, SEGMENT), Part(next, SEGMENT)), Part(before, SEGMENT));
    type Both<'a> = (Part<&'a mut [f32]>, Part<&'a mut [f32]>);
    let each = |_, ((average, next), before): (Both<'_>, Part<&[f32]>)| {
        for ((average, next), before) in average.0.iter_mut().zip(next.0).zip(before.0) {
            *next = *average;
            *average -= momentum * before;
        }
        all_finite(average.0)
    };
    parallel::fold(0..before.len().div_ceil(SEGMENT), work, &each, &|a, b| a & b).unwrap_or(true)
}
