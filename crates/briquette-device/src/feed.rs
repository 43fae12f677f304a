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
pub(crate) fn add_residual(values: &mut [f32], residual: &[f32], start: usize, count: usize, weight: f32, zero: u32) {
    if ABSOLUTE_POS < count {
        let at = start + ABSOLUTE_POS;
        values[at] += sealed(residual[at] * weight, zero);
    }
}

/// Computes `values = residual · weight + values` in a range.
///
/// # Panics
/// If the range is not inside both vectors.
pub fn feed(run: &Run, values: &Vector, residual: &Vector, weight: f32, range: Range<usize>) {
    assert!(range.end <= values.len().min(residual.len()), "a range lies in the vectors");
    if !range.is_empty() {
        let (cubes, start, count) = (run.cubes_for(range.len()), range.start, range.len());
        add_residual::launch(run.launch(), cubes, run.dim(), values.arg(), residual.arg(), start, count, weight, 0);
    }
}

#[cube(launch)]
pub(crate) fn scaled(x: &mut [f32], start: usize, count: usize, weight: f32) {
    if ABSOLUTE_POS < count {
        x[start + ABSOLUTE_POS] *= weight;
    }
}

/// Computes `x = x · weight`: a sample weight, or a residual inside the learning rate.
pub fn scale(run: &Run, x: &Vector, weight: f32) {
    scale_range(run, x, weight, 0..x.len());
}

/// As [`scale`], for a range.
///
/// # Panics
/// If the range is not inside the vector.
pub fn scale_range(run: &Run, x: &Vector, weight: f32, range: Range<usize>) {
    assert!(range.end <= x.len(), "a range lies in its vector");
    if !range.is_empty() {
        let (cubes, start, count) = (run.cubes_for(range.len()), range.start, range.len());
        scaled::launch(run.launch(), cubes, run.dim(), x.arg(), start, count, weight);
    }
}

#[cube(launch)]
pub(crate) fn accumulated(
    values: &mut [f32],
    velocity: &[f32],
    pending: &[f32],
    next_velocity: &mut [f32],
    start: usize,
    count: usize,
    momentum: f32,
    scale: f32,
    zero: u32,
    #[comptime] nesterov: bool,
) {
    if ABSOLUTE_POS < count {
        let at = start + ABSOLUTE_POS;
        let g = sealed(values[at] * scale, zero);
        let u = velocity[at];
        let v = pending[at];
        if comptime!(nesterov) {
            let next = sealed(momentum * sealed(u + g, zero), zero);
            next_velocity[at] = next;
            values[at] = v + sealed(next + g, zero);
        } else {
            let next = sealed(sealed(momentum * u, zero) + g, zero);
            next_velocity[at] = next;
            values[at] = v + next;
        }
    }
}

/// Computes core's `Velocity::accumulate` in a range: replaces a gradient by the next pending velocity, and writes the next velocity.
///
/// # Panics
/// If the range is not inside all vectors.
pub fn accumulate(
    run: &Run,
    values: &Vector,
    settings: Velocity,
    [velocity, next_velocity]: [&Vector; 2],
    pending: &Vector,
    range: Range<usize>,
) {
    let all = [values, velocity, next_velocity, pending];
    assert!(all.iter().all(|flat| range.end <= flat.len()), "a range lies in the vectors");
    if range.is_empty() {
        return;
    }
    let Velocity { momentum, nesterov, scale } = settings;
    accumulated::launch(
        run.launch(),
        run.cubes_for(range.len()),
        run.dim(),
        values.arg(),
        velocity.arg(),
        pending.arg(),
        next_velocity.arg(),
        range.start,
        range.len(),
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
