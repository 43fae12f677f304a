//! Importance sampling of coordinates by their smoothness.

use rand::Rng;

use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::{CompressionRatio, Key, Message};

/// Sends coordinate `j` with probability `pⱼ = Lⱼ/(Lⱼ + ρ)`, as `xⱼ/pⱼ`. Among all samplings of `Σ pⱼ` values on average, this one has the
/// smallest maximum of `Lⱼ(1/pⱼ − 1)`.
#[derive(Debug)]
pub(super) struct Importance {
    ratio: CompressionRatio,
    /// Probability by coordinate.
    chances: Vec<f64>,
}

impl Importance {
    pub(super) fn new(ratio: CompressionRatio) -> Self {
        Importance { ratio, chances: Vec::new() }
    }

    /// Computes the probabilities from the weights `√L` of the vectors to compress.
    pub(super) fn find_chances(&mut self, weights: &[f32]) {
        self.chances = chances(weights, weights.len() as f64 / self.ratio.get());
    }
}

impl Compressor for Importance {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let mut random = key.purpose("importance").block(0);
        let most = f64::from(f32::MAX);
        let drawn = (0..)
            .zip(x.iter().zip(&self.chances))
            .filter(|(_, (_, chance))| random.random::<f64>() < **chance)
            .map(|(index, (x, chance))| (index, (f64::from(*x) / chance).clamp(-most, most) as f32));
        out.write_sparse(x.len(), drawn).expect("ascending indices of finite values");
    }

    fn error_bound(&self, _: &[f32]) -> ErrorBound {
        ErrorBound::Unbiased { omega: worst(&self.chances) }
    }

    fn nominal(&self) -> CompressionRatio {
        self.ratio
    }
}

/// Returns `w²/(w² + ρ)`, with `ρ` such that `count` coordinates are drawn on average.
fn chances(weights: &[f32], count: f64) -> Vec<f64> {
    let energy: Vec<f64> = weights.iter().map(|w| f64::from(*w).powi(2)).collect();
    let of = |rho: f64| energy.iter().map(move |l| l / (l + rho));
    let (mut low, mut high) = (0.0, energy.iter().sum::<f64>() / count.max(1e-9));
    for _ in 0..200 {
        let rho = 0.5 * (low + high);
        if of(rho).sum::<f64>() > count { low = rho } else { high = rho }
    }
    of(high).collect()
}

/// Returns the largest `1/p − 1`: the variance of the sample in units of the vector's energy.
pub(super) fn omega(weights: &[f32], ratio: CompressionRatio) -> f64 {
    worst(&chances(weights, weights.len() as f64 / ratio.get()))
}

fn worst(chances: &[f64]) -> f64 {
    chances.iter().map(|chance| 1.0 / chance - 1.0).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_by_hand_and_in_sum() {
        // L = (9, 1): with ρ = 3 the probabilities are 3/4 and 1/4.
        let found = chances(&[3.0, 1.0], 1.0);
        assert!((found[0] - 0.75).abs() < 1e-9 && (found[1] - 0.25).abs() < 1e-9, "{found:?}");
        let weights: Vec<f32> = (0..100).map(|i| 1.0 + i as f32).collect();
        let found = chances(&weights, 10.0);
        assert!((found.iter().sum::<f64>() - 10.0).abs() < 1e-6);
        assert!(found.windows(2).all(|pair| pair[0] < pair[1] && pair[1] < 1.0));
        let all_alike = omega(&[2.0; 50], CompressionRatio::constant(5.0));
        assert!((all_alike - 4.0).abs() < 1e-9, "that of random-k, {all_alike}");
    }

    #[test]
    fn samples_are_unbiased() {
        let (x, weights) = ([1.0, -2.0, 3.0, 0.5], [4.0, 1.0, 2.0, 0.5]);
        let mut importance = Importance::new(CompressionRatio::constant(2.0));
        importance.find_chances(&weights);
        let (mut message, mut out) = (Message::default(), [0.0; 4]);
        let mut sums = [0.0_f64; 4];
        let draws = 20_000;
        for step in 0..draws {
            importance.compress_into(&x, Key::new(3).step(step), &mut message);
            message.decode_into(&mut out).unwrap();
            sums.iter_mut().zip(out).for_each(|(sum, out)| *sum += f64::from(out));
        }
        for (i, sum) in sums.into_iter().enumerate() {
            let (mean, chance) = (sum / draws as f64, importance.chances[i]);
            let deviation = f64::from(x[i]).abs() * ((1.0 / chance - 1.0) / draws as f64).sqrt();
            assert!((mean - f64::from(x[i])).abs() < 5.0 * deviation, "value {i}: {mean}");
        }
    }
}
