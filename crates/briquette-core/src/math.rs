//! Reproducible vectorized sums. Each segment is summed in eight lanes, and the segments in a tree that depends on the
//! length alone. The result does not depend on the number of threads.

mod low_rank;
mod products;
mod velocity;

pub use low_rank::{LowRankPlan, Matrix};
pub use velocity::{Mask, Velocity, subtract_velocity};

use crate::parallel::{self, Part, SEGMENT};

/// Contribution sent for a slot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct SentStatistics {
    /// `‖x‖² − ‖x − sent‖²`.
    pub energy: f64,
    /// Number of values sent as something other than 0.
    pub values: usize,
}

const LANES: usize = 8;
/// Exponent bits: all set in NaN and infinities, and in no other number.
const EXPONENT: u32 = 0x7f80_0000;

#[inline(always)]
fn lanes(x: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &v) in sums.iter_mut().zip(chunk) {
            *sum += term(f64::from(v));
        }
    }
    for (sum, &v) in sums.iter_mut().zip(rest) {
        *sum += term(f64::from(v));
    }
    sums.iter().sum()
}

/// Returns `‖x‖²` of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn squares(x: &[f32]) -> f64 {
    lanes(x, |v| v * v)
}

/// Returns `‖x‖₁` of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn magnitudes(x: &[f32]) -> f64 {
    lanes(x, f64::abs)
}

/// Returns the sum of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn plain(x: &[f32]) -> f64 {
    lanes(x, |v| v)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn distances(x: &[f32], y: &[f32]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (x, rest_x) = x.as_chunks::<LANES>();
    let (y, rest_y) = y.as_chunks::<LANES>();
    let mut add = |sum: usize, a: f32, b: f32| {
        let d = f64::from(a) - f64::from(b);
        sums[sum] += d * d;
    };
    for (x, y) in x.iter().zip(y) {
        (0..LANES).for_each(|i| add(i, x[i], y[i]));
    }
    (0..rest_x.len()).for_each(|i| add(i, rest_x[i], rest_y[i]));
    sums.iter().sum()
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn highest(x: &[f32]) -> u32 {
    x.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff))
}

/// Returns `‖x‖²` in f64.
pub fn norm2(x: &[f32]) -> f64 {
    parallel::sum(x, squares)
}

/// Returns `‖x‖₁` in f64.
pub fn norm1(x: &[f32]) -> f64 {
    parallel::sum(x, magnitudes)
}

/// Returns the sum in f64.
pub fn total(x: &[f32]) -> f64 {
    parallel::sum(x, plain)
}

/// Returns the largest magnitude; 0 for the empty vector. It compares integers, which have the same order and
/// vectorize.
pub fn largest(x: &[f32]) -> f32 {
    let segments = x.len().div_ceil(SEGMENT);
    let bits = parallel::fold(0..segments, Part(x, SEGMENT), &|_, x| highest(x.0), &u32::max);
    f32::from_bits(bits.unwrap_or(0))
}

/// Returns `‖x − y‖²` in f64.
pub fn distance2(x: &[f32], y: &[f32]) -> f64 {
    let work = (Part(x, SEGMENT), Part(&y[..x.len()], SEGMENT));
    let segments = x.len().div_ceil(SEGMENT);
    parallel::fold(0..segments, work, &|_, (x, y)| distances(x.0, y.0), &|a, b| a + b).unwrap_or(0.0)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn add_scaled_segment(x: &[f32], weight: f32, y: &[f32], out: &mut [f32]) -> [f64; 2] {
    let (mut sums, mut added) = ([0.0_f64; LANES], [0.0_f64; LANES]);
    let ((x, rest_x), (y, rest_y)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    let (out, rest_out) = out.as_chunks_mut::<LANES>();
    let mut add = |lane: usize, x: f32, y: f32, out: &mut f32| {
        *out = x * weight + y;
        sums[lane] += f64::from(*out) * f64::from(*out);
        added[lane] += f64::from(y) * f64::from(y);
    };
    for ((x, y), out) in x.iter().zip(y).zip(out) {
        (0..LANES).for_each(|i| add(i, x[i], y[i], &mut out[i]));
    }
    (0..rest_x.len()).for_each(|i| add(i, rest_x[i], rest_y[i], &mut rest_out[i]));
    [sums.iter().sum(), added.iter().sum()]
}

/// Computes `out = weight·x + y`, and returns `‖out‖²` and `‖y‖²`. A sum is finite if all values of its vector are,
/// because no sum of squares of f32 values overflows f64.
pub fn add_scaled(x: &[f32], weight: f32, y: &[f32], out: &mut [f32]) -> [f64; 2] {
    let segments = out.len().div_ceil(SEGMENT);
    let work = ((Part(x, SEGMENT), Part(y, SEGMENT)), Part(out, SEGMENT));
    type Pair<'a> = (Part<&'a [f32]>, Part<&'a [f32]>);
    let each = |_, ((x, y), out): (Pair<'_>, Part<&mut [f32]>)| add_scaled_segment(x.0, weight, y.0, out.0);
    parallel::fold(0..segments, work, &each, &|a, b| [a[0] + b[0], a[1] + b[1]]).unwrap_or_default()
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn keep_unsent_segment(fed: &mut [f32], sent: &[f32], rate: f32) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let ((fed, rest_fed), (sent, rest_sent)) = (fed.as_chunks_mut::<LANES>(), sent.as_chunks::<LANES>());
    let mut keep = |lane: usize, fed: &mut f32, sent: f32| {
        *fed = (*fed - sent) * rate;
        sums[lane] += f64::from(*fed) * f64::from(*fed);
    };
    for (fed, sent) in fed.iter_mut().zip(sent) {
        (0..LANES).for_each(|i| keep(i, &mut fed[i], sent[i]));
    }
    (0..rest_fed.len()).for_each(|i| keep(i, &mut rest_fed[i], rest_sent[i]));
    sums.iter().sum()
}

/// Computes `fed = (fed − sent)·rate`, and returns its `‖fed‖²`: finite if all values are.
pub fn keep_unsent(fed: &mut [f32], sent: &[f32], rate: f32) -> f64 {
    let (segments, work) = (fed.len().div_ceil(SEGMENT), (Part(fed, SEGMENT), Part(sent, SEGMENT)));
    let each = |_, (fed, sent): (Part<&mut [f32]>, Part<&[f32]>)| keep_unsent_segment(fed.0, sent.0, rate);
    parallel::fold(0..segments, work, &each, &|a, b| a + b).unwrap_or(0.0)
}

/// Copies `out = x`, and returns `‖x‖²`. The second read of a segment hits the cache.
pub fn copy_and_norm2(x: &[f32], out: &mut [f32]) -> f64 {
    let work = (Part(x, SEGMENT), Part(out, SEGMENT));
    let each = |_, (x, out): (Part<&[f32]>, Part<&mut [f32]>)| {
        out.0.copy_from_slice(x.0);
        squares(x.0)
    };
    parallel::fold(0..x.len().div_ceil(SEGMENT), work, &each, &|a, b| a + b).unwrap_or(0.0)
}

/// Computes `x ← weight·x`, and returns whether all of it is finite. The check of a segment hits the cache.
pub fn scale(x: &mut [f32], weight: f32) -> bool {
    let (segments, work) = (x.len().div_ceil(SEGMENT), Part(x, SEGMENT));
    let each = |_, x: Part<&mut [f32]>| {
        x.0.iter_mut().for_each(|v| *v *= weight);
        all_finite(x.0)
    };
    parallel::fold(0..segments, work, &each, &|a, b| a & b).unwrap_or(true)
}

/// Copies `out = x`, and returns whether all of it is finite.
pub fn copy_finite(x: &[f32], out: &mut [f32]) -> bool {
    let work = (Part(x, SEGMENT), Part(out, SEGMENT));
    let each = |_, (x, out): (Part<&[f32]>, Part<&mut [f32]>)| {
        out.0.copy_from_slice(x.0);
        all_finite(out.0)
    };
    parallel::fold(0..x.len().div_ceil(SEGMENT), work, &each, &|a, b| a & b).unwrap_or(true)
}

/// Computes `x ← x − sent`, adds the sent energy and count to `kept`, and returns whether the remainder is finite. For
/// blocks in the first-level cache: two loops, each of which vectorizes.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub fn subtract_sent(x: &mut [f32], sent: &[f32], kept: &mut SentStatistics) -> bool {
    let mut energies = [0.0_f64; LANES];
    let ((chunks, rest), (chunks_sent, rest_sent)) = (x.as_chunks::<LANES>(), sent.as_chunks::<LANES>());
    // x² − (x − c)² = c·(2x − c)
    let mut add = |lane: usize, x: f32, sent: f32| {
        let (x, sent) = (f64::from(x), f64::from(sent));
        energies[lane] += sent * (2.0 * x - sent);
    };
    for (x, sent) in chunks.iter().zip(chunks_sent) {
        (0..LANES).for_each(|i| add(i, x[i], sent[i]));
    }
    (0..rest.len()).for_each(|i| add(i, rest[i], rest_sent[i]));
    kept.energy += energies.iter().sum::<f64>();
    let (mut count, mut bad) = (0_u32, 0_u32);
    for (x, sent) in x.iter_mut().zip(sent) {
        // A decoded vector has no negative zeros.
        *x -= sent + 0.0;
        count += u32::from(*sent != 0.0);
        bad |= u32::from(x.to_bits() & EXPONENT == EXPONENT);
    }
    kept.values += count as usize;
    bad == 0
}

/// Returns `‖x‖²`, `‖x − sent‖²` and the number of nonzero values of `sent`, in one pass over both.
pub fn compare(x: &[f32], sent: &[f32]) -> (f64, f64, usize) {
    let work = (Part(x, SEGMENT), Part(&sent[..x.len()], SEGMENT));
    let each = |_, (x, sent): (Part<&[f32]>, Part<&[f32]>)| {
        let count = sent.0.iter().map(|v| u32::from(*v != 0.0)).sum::<u32>();
        (squares(x.0), distances(x.0, sent.0), count as usize)
    };
    let join = |a: (f64, f64, usize), b: (f64, f64, usize)| (a.0 + b.0, a.1 + b.1, a.2 + b.2);
    parallel::fold(0..x.len().div_ceil(SEGMENT), work, &each, &join).unwrap_or_default()
}

/// Returns whether no value is NaN or infinite. Without branches or early exit, it runs at memory bandwidth.
pub fn all_finite(x: &[f32]) -> bool {
    x.iter().fold(0, |bad, v| bad | u32::from(v.to_bits() & EXPONENT == EXPONENT)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_the_plain_ones() {
        for n in [0, 1, 7, 8, 9, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            let y: Vec<f32> = (0..n).map(|i| (i * i) as f32).collect();
            // Integers: both sums are exact in any order.
            let plain: f64 = x.iter().map(|v| f64::from(v * v)).sum();
            assert_eq!(norm2(&x), plain);
            assert_eq!(norm1(&x), x.iter().map(|v| f64::from(v.abs())).sum::<f64>());
            let plain: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert_eq!(distance2(&x, &y), plain);
        }
    }
}
