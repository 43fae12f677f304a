//! Checks of compressors by themselves: edges, unbiased draws, and selections by magnitude.

use rand::Rng;

use crate::math::distance2;
use crate::seam::{Compressor, ErrorBound};
use crate::{CompressionRatio, Key, Message};

/// Returns `x` compressed and decoded.
pub fn decoded(compressor: &mut dyn Compressor, x: &[f32], key: Key) -> Vec<f32> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    compressor.compress_into(x, key, &mut message);
    message.decode_into(&mut out).unwrap();
    out
}

/// Checks ten thousand draws of `x`: their mean is `x`, and their mean squared error `variance`.
///
/// The tolerance per coordinate is 5.5 standard deviations, estimated from the draws, plus the weight of twenty of the largest errors: the
/// normal limit does not hold for coordinates that are rarely rounded the other way.
pub fn assert_unbiased(compressor: &mut dyn Compressor, x: &[f32], variance: f64) {
    const DRAWS: usize = 10_000;
    let (mut sum, mut squares, mut energy) = (vec![0.0_f64; x.len()], vec![0.0_f64; x.len()], 0.0);
    let mut furthest = 0.0_f64;
    for step in 0..DRAWS {
        let out = decoded(compressor, x, Key::new(77).step(step as u64));
        energy += distance2(x, &out) / DRAWS as f64;
        for (i, (v, x)) in out.iter().zip(x).enumerate() {
            let error = f64::from(*v) - f64::from(*x);
            sum[i] += error;
            squares[i] += error * error;
            furthest = furthest.max(error.abs());
        }
    }
    assert!((energy - variance).abs() <= 0.05 * variance + 1e-12, "mean squared error {energy}, exactly {variance}");
    for (i, x) in x.iter().enumerate() {
        let (bias, deviation) = (sum[i] / DRAWS as f64, (squares[i] / DRAWS as f64).sqrt());
        let bound = 5.5 * deviation / (DRAWS as f64).sqrt() + 20.0 * furthest / DRAWS as f64;
        let rounding = 1e-6 * f64::from(x.abs());
        assert!(bias.abs() <= bound + rounding, "value {i} = {x}: bias {bias}, bound {bound}");
    }
}

/// Returns the mean and its standard deviation.
pub fn mean_and_deviation(samples: &[f64]) -> (f64, f64) {
    let n = samples.len() as f64;
    let mean = samples.iter().sum::<f64>() / n;
    let variance = samples.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / (n - 1.0);
    (mean, (variance / n).sqrt())
}

/// Returns inputs that break careless code.
pub fn edges() -> Vec<Vec<f32>> {
    let denormals = (1..60).map(|i| f32::from_bits(i) * if i % 2 == 0 { -1.0 } else { 1.0 }).collect();
    vec![
        vec![],
        vec![0.0],
        vec![0.0; 9],
        vec![-0.0; 9],
        vec![3.5],
        vec![2.0; 90],
        vec![0.7; 1100],
        vec![-0.7; 33],
        vec![1e-45, -1e-45, 3e-40],
        denormals,
        vec![f32::MAX; 600],
        vec![-f32::MAX; 40],
        vec![f32::MAX, -f32::MAX, f32::MAX, 1.0, -0.0, 1e-45],
        (0..1030).map(|i| if i == 600 { -3.7e-5 } else { 0.0 }).collect(),
    ]
}

/// Checks that finite input gives finite output, and that the wire form decodes to the message.
pub fn assert_edges(compressor: &mut dyn Compressor) {
    for x in edges() {
        let out = decoded(compressor, &x, Key::new(5));
        assert!(out.iter().all(|v| v.is_finite()), "{x:?}: {out:?}");
        let (mut message, mut again, mut bytes) = (Message::default(), Message::default(), Vec::new());
        compressor.compress_into(&x, Key::new(5), &mut message);
        message.encode_into(&mut bytes);
        assert_eq!(bytes.len(), message.encoded_len());
        again.decode_from(&bytes).unwrap();
        assert_eq!(message, again);
    }
}

/// Compresses with a sparsifier, and checks that kept values are bit-exact; returns the kept indices.
pub fn kept(mut compressor: impl Compressor, x: &[f32], key: Key) -> Vec<u32> {
    let mut message = Message::default();
    compressor.compress_into(x, key, &mut message);
    let mut decoded = vec![f32::NAN; x.len()];
    message.decode_into(&mut decoded).unwrap();
    let indices = message.sparse_indices().unwrap().to_vec();
    for (i, (&d, &x)) in decoded.iter().zip(x).enumerate() {
        assert_eq!(d, if indices.contains(&(i as u32)) { x } else { 0.0 });
    }
    indices
}

/// Checks a compressor that keeps the largest values against a sort, and the count against the declared error bound.
pub fn keeps_the_largest_as_declared(compressor: impl Compressor, x: &[f32]) {
    let ErrorBound::Contractive { delta } = compressor.error_bound(x) else { panic!("not contractive") };
    let indices = kept(compressor, x, Key::new(0));
    let nonzero = x.iter().filter(|v| **v != 0.0).count();
    assert_eq!(indices.len(), ((delta * x.len() as f64).round() as usize).min(nonzero));
    let mut order: Vec<u32> = (0..x.len() as u32).collect();
    order.sort_by(|&a, &b| x[b as usize].abs().total_cmp(&x[a as usize].abs()).then(a.cmp(&b)));
    order.truncate(indices.len());
    order.sort_unstable();
    assert_eq!(indices, order);
}

/// Checks that multi-level compression equals direct compression: refining a coarser message gives the message of the vector.
pub fn refining_equals_starting_over(mut compressor: impl Compressor, x: &[f32], ratios: [f64; 2]) {
    let (mut coarse, mut refined, mut direct) = (Message::default(), Message::default(), Message::default());
    let (key, ratios) = (Key::new(5), ratios.map(|ratio| CompressionRatio::new(ratio).unwrap()));
    compressor.knob().unwrap().tune(ratios[0]);
    compressor.compress_into(x, key, &mut coarse);
    compressor.knob().unwrap().tune(ratios[1]);
    compressor.refine_into(x, &coarse, key, &mut refined);
    compressor.compress_into(x, key, &mut direct);
    assert_eq!(refined, direct, "{ratios:?}");
}

/// Returns noise of one of the distributions that thresholds are fitted to: `gauss`, `laplace` or `heavy`.
pub fn noise(name: &str, len: usize, seed: u64) -> Vec<f32> {
    let mut rng = Key::new(seed).purpose(name).block(0);
    let mut uniform = || 1.0 - rng.random::<f64>();
    let mut draw = || {
        let sign = if uniform() < 0.5 { -1.0 } else { 1.0 };
        let u = uniform();
        sign * match name {
            "gauss" => (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos(),
            "laplace" => -u.ln(),
            // Pareto with exponent 1.2: no variance.
            "heavy" => u.powf(-1.0 / 1.2) - 1.0,
            _ => unreachable!("{name} is no distribution"),
        } as f32
    };
    (0..len).map(|_| draw()).collect()
}
