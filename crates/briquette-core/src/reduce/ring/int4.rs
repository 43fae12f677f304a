//! 4 bits a value: a scale per block of 256 values, and a share of it per group of 32.

use super::wire::SCALED;

/// Values that share a step.
const GROUP: usize = 32;
/// Steps on either side of 0.
const LEVELS: f32 = 7.0;
/// Steps of a group's share of its block's scale.
const SHARES: f32 = 255.0;
/// Bytes of a whole block.
const BLOCK_BYTES: usize = 4 + SCALED / GROUP + SCALED / 2;

/// Returns the size in bytes of this many values in one frame.
pub(super) fn bytes(values: usize) -> usize {
    let of = |values: usize| if values == 0 { 0 } else { 4 + values.div_ceil(GROUP) + values.div_ceil(2) };
    values / SCALED * BLOCK_BYTES + of(values % SCALED)
}

/// Returns the step of a group.
fn step(scale: f32, share: u8) -> f32 {
    f32::from(share) * (1.0 / (SHARES * LEVELS)) * scale
}

/// The largest magnitude of a block is its scale. A group's share is rounded up, so that no value is clipped. `noise` is added before rounding down.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn encode(values: &[f32], noise: &[f32], out: &mut [u8]) {
    for ((values, noise), out) in values.chunks(SCALED).zip(noise.chunks(SCALED)).zip(out.chunks_mut(BLOCK_BYTES)) {
        let largest = |values: &[f32]| {
            // Compared as bits: unlike with floats, NaN is then the largest.
            f32::from_bits(values.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7fff_ffff)))
        };
        let scale = largest(values);
        let (bytes, rest) = out.split_at_mut(4);
        bytes.copy_from_slice(&scale.to_le_bytes());
        let (shares, codes) = rest.split_at_mut(values.len().div_ceil(GROUP));
        let groups = values.chunks(GROUP).zip(noise.chunks(GROUP)).zip(codes.chunks_mut(GROUP / 2));
        for (share, ((values, noise), codes)) in shares.iter_mut().zip(groups) {
            *share = (largest(values) / scale * SHARES).ceil().min(SHARES) as u8;
            let per_step = 1.0 / step(scale, *share);
            // A group so small that the inverse of its step overflows is rounded to zeros.
            let per_step = if per_step.is_finite() { per_step } else { 0.0 };
            let mut steps = [0_u8; GROUP];
            for ((code, value), noise) in steps.iter_mut().zip(values).zip(noise) {
                let steps = (value * per_step + (noise - 0.5)).clamp(-LEVELS, LEVELS);
                // Adding 1.5·2²³ leaves the nearest integer in the lowest bits.
                *code = (steps + 12_582_912.0).to_bits() as u8 & 0xf;
            }
            for (code, [low, high]) in codes.iter_mut().zip(steps.as_chunks().0) {
                *code = low | high << 4;
            }
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
pub(super) fn decode(bytes: &[u8], out: &mut [f32]) {
    for (bytes, out) in bytes.chunks(BLOCK_BYTES).zip(out.chunks_mut(SCALED)) {
        let (scale, rest) = bytes.split_at(4);
        let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
        let (shares, codes) = rest.split_at(out.len().div_ceil(GROUP));
        for ((share, codes), out) in shares.iter().zip(codes.chunks(GROUP / 2)).zip(out.chunks_mut(GROUP)) {
            let step = step(scale, *share);
            for (code, out) in codes.iter().zip(out.chunks_mut(2)) {
                let steps = [(code << 4) as i8 >> 4, *code as i8 >> 4];
                out.iter_mut().zip(steps).for_each(|(value, steps)| *value = f32::from(steps) * step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    fn coded(values: &[f32], noise: &[f32]) -> (Vec<u8>, Vec<f32>) {
        let (mut frame, mut out) = (vec![0; bytes(values.len())], vec![0.0; values.len()]);
        encode(values, noise, &mut frame);
        decode(&frame, &mut out);
        (frame, out)
    }

    fn wave(len: usize) -> Vec<f32> {
        (0..len).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 50 % 9) as f32)).collect()
    }

    /// Group 0 has the largest value, 7: steps of 1. Group 1 has at most 1.4, a fifth: steps of 0.2.
    #[test]
    fn two_groups_by_hand() {
        let mut x = vec![0.0; 34];
        x[..4].copy_from_slice(&[7.0, -3.4, 0.4, -7.0]);
        x[32..].copy_from_slice(&[1.4, -0.6]);
        let (frame, out) = coded(&x, &[0.5; 34]);
        assert_eq!((frame.len(), bytes(1000)), (4 + 2 + 17, 3 * 140 + 4 + 8 + 116));
        assert_eq!([&frame[..6], &frame[6..8], &frame[22..]].concat(), [0, 0, 224, 64, 255, 51, 0xd7, 0x90, 0xd7]);
        let expected = [7.0, -3.0, 0.0, -7.0, 1.4, -0.6];
        let seen = out[..4].iter().chain(&out[32..]);
        assert!(seen.zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{out:?}");
    }

    #[test]
    fn the_error_is_at_most_half_a_step_of_the_group() {
        for len in [1, 2, 31, 33, 255, 256, 257, 1000] {
            let x = wave(len);
            let (_, out) = coded(&x, &vec![0.5; len]);
            for (block, out) in x.chunks(SCALED).zip(out.chunks(SCALED)) {
                let most = |x: &[f32]| x.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
                for (group, out) in block.chunks(GROUP).zip(out.chunks(GROUP)) {
                    let half = (most(group) + most(block) / SHARES) / LEVELS / 2.0;
                    assert!(group.iter().zip(out).all(|(a, b)| (a - b).abs() <= half * 1.001), "{len}");
                }
            }
        }
    }

    #[test]
    fn noise_has_no_mean_error() {
        let (x, draws) = (wave(96), 4000);
        let mut sums = vec![0.0; 96];
        for draw in 0..draws {
            let noise: Vec<f32> =
                (0..96).map(|i| (Key::new(3).step(draw).word(i) >> 40) as f32 / (1 << 24) as f32).collect();
            sums.iter_mut().zip(coded(&x, &noise).1).for_each(|(sum, v)| *sum += f64::from(v));
        }
        let largest = x.iter().fold(0.0_f32, |most, v| most.max(v.abs()));
        // Five standard deviations, of at most half a step each.
        let bound = 5.0 * f64::from(largest / LEVELS) / 2.0 / (draws as f64).sqrt();
        assert!(x.iter().zip(&sums).all(|(x, sum)| (sum / draws as f64 - f64::from(*x)).abs() < bound));
    }

    #[test]
    fn zeros_tiny_values_and_values_that_are_not_finite() {
        assert_eq!(coded(&[0.0; 40], &[0.5; 40]).1, [0.0; 40]);
        assert!(coded(&[1e-44, -1e-45], &[0.5; 2]).1.iter().all(|v| v.abs() < 1e-43));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(coded(&[1.0, bad, 2.0], &[0.5; 3]).1.iter().any(|v| !v.is_finite()), "{bad}");
        }
    }
}
