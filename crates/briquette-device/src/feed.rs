//! Vectors before and after an exchange: error feedback (core's `wrapper::error_feedback`), momentum correction
//! (`wrapper::momentum_correction`) and inner momentum (`wrapper::inner_momentum`), element by element. Products that are added are sealed.

use std::ops::Range;

use briquette_core::reduce::Velocity;
use cubecl::prelude::*;

use crate::bits::sealed;
use crate::run::{Run, Vector};

#[cube(launch)]
pub(crate) fn fill(out: &mut [u32], value: u32, start: usize, count: usize) {
    if ABSOLUTE_POS < count {
        out[start + ABSOLUTE_POS] = value;
    }
}

pub(crate) fn clear(run: &Run, out: &Vector) {
    clear_range(run, out, 0..out.len());
}

/// Sets a part of a vector to zeros.
///
/// # Panics
/// If the part is not inside the vector.
pub fn clear_range(run: &Run, out: &Vector, range: Range<usize>) {
    assert!(range.end <= out.len(), "a part lies in its vector");
    if !range.is_empty() {
        fill::launch(run.launch(), run.cubes_for(range.len()), run.dim(), out.arg(), 0, range.start, range.len());
    }
}

#[cube(launch)]
pub(crate) fn copied(x: &[u32], out: &mut [u32], from: usize, to: usize, count: usize) {
    if ABSOLUTE_POS < count {
        out[to + ABSOLUTE_POS] = x[from + ABSOLUTE_POS];
    }
}

pub(crate) fn copy(run: &Run, x: &Vector, range: Range<usize>) -> Vector {
    let out = run.empty(range.len());
    copy_to(run, x, range, &out, 0);
    out
}

/// Copies a part of a vector into another vector, from value `start` on.
///
/// # Panics
/// If either part is not inside its vector.
pub fn copy_to(run: &Run, x: &Vector, range: Range<usize>, out: &Vector, start: usize) {
    assert!(range.end <= x.len() && start + range.len() <= out.len(), "parts lie in their vectors");
    if !range.is_empty() {
        let (cubes, count) = (run.cubes_for(range.len()), range.len());
        copied::launch(run.launch(), cubes, run.dim(), x.arg(), out.arg(), range.start, start, count);
    }
}

#[cube(launch)]
pub(crate) fn add_residual(gradient: &[f32], residual: &[f32], fed: &mut [f32], start: usize, weight: f32, zero: u32) {
    let at = ABSOLUTE_POS;
    if at < gradient.len() {
        fed[start + at] = sealed(residual[start + at] * weight, zero) + gradient[at];
    }
}

/// Computes `fed = residual · weight + gradient` for one tensor, whose values start at `start` of the flat vectors: it gathers tensors into
/// a flat vector at the same time.
///
/// # Panics
/// If the tensor does not lie in both vectors.
pub fn feed(run: &Run, gradient: &Vector, residual: &Vector, weight: f32, fed: &Vector, start: usize) {
    assert!(start + gradient.len() <= fed.len().min(residual.len()), "a tensor lies in the flat vectors");
    if !gradient.is_empty() {
        let (cubes, dim) = (run.cubes_for(gradient.len()), run.dim());
        add_residual::launch(run.launch(), cubes, dim, gradient.arg(), residual.arg(), fed.arg(), start, weight, 0);
    }
}

#[cube(launch)]
pub(crate) fn scaled(x: &mut [f32], weight: f32) {
    if ABSOLUTE_POS < x.len() {
        x[ABSOLUTE_POS] *= weight;
    }
}

/// Computes `x = x · weight`: a sample weight, or a residual inside the learning rate.
pub fn scale(run: &Run, x: &Vector, weight: f32) {
    if !x.is_empty() {
        scaled::launch(run.launch(), run.cubes_for(x.len()), run.dim(), x.arg(), weight);
    }
}

#[cube(launch)]
pub(crate) fn accumulated(
    gradient: &[f32],
    velocity: &[f32],
    pending: &[f32],
    next_velocity: &mut [f32],
    next_pending: &mut [f32],
    start: usize,
    momentum: f32,
    scale: f32,
    zero: u32,
    #[comptime] nesterov: bool,
) {
    let at = ABSOLUTE_POS;
    if at < gradient.len() {
        let g = sealed(gradient[at] * scale, zero);
        let u = velocity[start + at];
        let v = pending[start + at];
        if comptime!(nesterov) {
            let next = sealed(momentum * sealed(u + g, zero), zero);
            next_velocity[start + at] = next;
            next_pending[start + at] = v + sealed(next + g, zero);
        } else {
            let next = sealed(sealed(momentum * u, zero) + g, zero);
            next_velocity[start + at] = next;
            next_pending[start + at] = v + next;
        }
    }
}

/// Computes core's `Velocity::accumulate`: the next velocity and the next pending velocity of one tensor, whose values start at `start` of the flat vectors. Each pair
/// of vectors is the current and the next one.
///
/// # Panics
/// If the tensor does not lie in all vectors.
pub fn accumulate(
    run: &Run,
    gradient: &Vector,
    settings: Velocity,
    [velocity, next_velocity]: [&Vector; 2],
    [pending, next_pending]: [&Vector; 2],
    start: usize,
) {
    let all = [velocity, next_velocity, pending, next_pending];
    assert!(all.iter().all(|flat| start + gradient.len() <= flat.len()), "a tensor lies in the flat vectors");
    if gradient.is_empty() {
        return;
    }
    let Velocity { momentum, nesterov, scale } = settings;
    accumulated::launch(
        run.launch(),
        run.cubes_for(gradient.len()),
        run.dim(),
        gradient.arg(),
        velocity.arg(),
        pending.arg(),
        next_velocity.arg(),
        next_pending.arg(),
        start,
        momentum,
        scale,
        0,
        nesterov,
    );
}

#[cube(launch)]
pub(crate) fn less_velocity(average: &mut [f32], before: &[f32], next: &mut [f32], momentum: f32, zero: u32) {
    let at = ABSOLUTE_POS;
    if at < average.len() {
        let agreed = average[at];
        next[at] = agreed;
        average[at] = agreed - sealed(momentum * before[at], zero);
    }
}

/// Keeps the average as the agreed velocity in `next`, and subtracts the decayed one before from it: inner momentum.
///
/// # Panics
/// If lengths differ.
pub fn take_momentum(run: &Run, average: &Vector, [before, next]: [&Vector; 2], momentum: f32) {
    assert!(average.len() == before.len() && average.len() == next.len(), "velocities are as long as the average");
    if !average.is_empty() {
        let (cubes, dim) = (run.cubes_for(average.len()), run.dim());
        less_velocity::launch(run.launch(), cubes, dim, average.arg(), before.arg(), next.arg(), momentum, 0);
    }
}
