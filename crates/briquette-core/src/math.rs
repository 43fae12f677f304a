//! Sums in a fixed order: eight lanes, so that they vectorise, folded at the end, so that they replay.

const LANES: usize = 8;

fn lanes(x: &[f32], term: impl Fn(usize, f64) -> f64) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let whole = x.len() / LANES * LANES;
    for (c, chunk) in x[..whole].chunks_exact(LANES).enumerate() {
        for (lane, &v) in chunk.iter().enumerate() {
            sums[lane] += term(c * LANES + lane, f64::from(v));
        }
    }
    for (i, &v) in x[whole..].iter().enumerate() {
        sums[i] += term(whole + i, f64::from(v));
    }
    sums.iter().sum()
}

/// `‖x‖²` in f64.
pub(crate) fn norm2(x: &[f32]) -> f64 {
    lanes(x, |_, v| v * v)
}

/// `‖x‖₁` in f64.
pub(crate) fn norm1(x: &[f32]) -> f64 {
    lanes(x, |_, v| v.abs())
}

/// `‖x − y‖²` in f64.
pub(crate) fn distance2(x: &[f32], y: &[f32]) -> f64 {
    let y = &y[..x.len()];
    lanes(x, |i, v| {
        let d = v - f64::from(y[i]);
        d * d
    })
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
