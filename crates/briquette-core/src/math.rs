//! Sums in a fixed order: eight lanes a segment, so that they vectorise, folded in a tree that the length alone shapes,
//! so that they replay, on however many threads.

use crate::parallel::{self, Part, SEGMENT};

const LANES: usize = 8;

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

/// `‖x‖²` of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn squares(x: &[f32]) -> f64 {
    lanes(x, |v| v * v)
}

/// `‖x‖₁` of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn magnitudes(x: &[f32]) -> f64 {
    lanes(x, f64::abs)
}

/// The sum of one segment.
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

/// `‖x‖²` in f64.
pub(crate) fn norm2(x: &[f32]) -> f64 {
    parallel::sum(x, squares)
}

/// `‖x‖₁` in f64.
pub(crate) fn norm1(x: &[f32]) -> f64 {
    parallel::sum(x, magnitudes)
}

/// The sum in f64.
pub(crate) fn total(x: &[f32]) -> f64 {
    parallel::sum(x, plain)
}

/// The largest magnitude; 0 for the empty vector. As integers, which order alike and vectorise.
pub(crate) fn largest(x: &[f32]) -> f32 {
    let segments = x.len().div_ceil(SEGMENT);
    let bits = parallel::fold(0..segments, Part(x, SEGMENT), &|_, x| highest(x.0), &u32::max);
    f32::from_bits(bits.unwrap_or(0))
}

/// `‖x − y‖²` in f64.
pub(crate) fn distance2(x: &[f32], y: &[f32]) -> f64 {
    let work = (Part(x, SEGMENT), Part(&y[..x.len()], SEGMENT));
    let segments = x.len().div_ceil(SEGMENT);
    parallel::fold(0..segments, work, &|_, (x, y)| distances(x.0, y.0), &|a, b| a + b).unwrap_or(0.0)
}

/// Whether no value is NaN or infinite. Without a branch or an early end, so that it runs at the speed of memory.
pub(crate) fn all_finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    x.iter().fold(0, |bad, v| bad | u32::from(v.to_bits() & EXPONENT == EXPONENT)) == 0
}

/// The mean and the standard deviation of that mean, for tests of random draws.
#[cfg(test)]
pub(crate) fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_equal_the_plain_ones() {
        for n in [0, 1, 7, 8, 9, 100] {
            let x: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            let y: Vec<f32> = (0..n).map(|i| (i * i) as f32).collect();
            // Integers: both sums are exact, whatever the order.
            let plain: f64 = x.iter().map(|v| f64::from(v * v)).sum();
            assert_eq!(norm2(&x), plain);
            assert_eq!(norm1(&x), x.iter().map(|v| f64::from(v.abs())).sum::<f64>());
            let plain: f64 = x.iter().zip(&y).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            assert_eq!(distance2(&x, &y), plain);
        }
    }
}
