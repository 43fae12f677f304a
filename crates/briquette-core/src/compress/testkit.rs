//! Helpers for tests of compressors.

use super::Compressor;
use crate::math::distance2;
use crate::{Key, Message};

/// Returns `x` compressed and decoded.
pub(super) fn decoded(compressor: &mut dyn Compressor, x: &[f32], key: Key) -> Vec<f32> {
    let (mut message, mut out) = (Message::default(), vec![0.0; x.len()]);
    compressor.compress_into(x, key, &mut message);
    message.decode_into(&mut out).unwrap();
    out
}

/// Checks ten thousand draws of `x`: their mean is `x`, and their mean squared error `variance`.
///
/// The tolerance per coordinate is 5.5 standard deviations, estimated from the draws, plus the weight of twenty of the largest errors: the
/// normal limit does not hold for coordinates that are rarely rounded the other way.
pub(super) fn assert_unbiased(compressor: &mut dyn Compressor, x: &[f32], variance: f64) {
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

/// Returns inputs that break careless code.
pub(super) fn edges() -> Vec<Vec<f32>> {
    vec![
        vec![],
        vec![0.0],
        vec![-0.0; 9],
        vec![3.5],
        vec![0.7; 1100],
        vec![-0.7; 33],
        vec![1e-45, -1e-45, 3e-40],
        vec![f32::MAX; 600],
        vec![f32::MAX, -f32::MAX, 1e-45, 0.0],
        (0..1030).map(|i| if i == 600 { -3.7e-5 } else { 0.0 }).collect(),
    ]
}

/// Checks that finite input gives finite output, and that the wire form decodes to the message.
pub(super) fn assert_edges(compressor: &mut dyn Compressor) {
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
