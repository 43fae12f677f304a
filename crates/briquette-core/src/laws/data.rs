//! Layouts, gradients and learning rates with which the laws are tested.

use rand::Rng;
use rand_distr::{Distribution, StandardNormal};

use crate::{Key, Layout};

/// Matrices, vectors and a scalar; 131 values.
pub fn short() -> Layout {
    Layout::new([
        ("conv.weight", vec![6, 3, 3, 1]),
        ("conv.bias", vec![17]),
        ("fc.weight", vec![8, 7]),
        ("scale", vec![4]),
    ])
}

/// 6 017 values. All-reduces use the ring, keys have a second block, and an eighth of the values has three ranges of 8 bits.
/// One slot alone also exceeds each of these limits.
pub fn long() -> Layout {
    Layout::new([
        ("conv.weight", vec![8, 5, 3, 3]),
        ("conv.bias", vec![1100]),
        ("fc.weight", vec![65, 70]),
        ("scale", vec![7]),
    ])
}

/// 40 007 values, 35 000 of them in one slot: selections by magnitude begin with a sample.
pub fn sampled() -> Layout {
    Layout::new([
        ("conv.weight", vec![20, 20, 3, 3]),
        ("conv.bias", vec![1400]),
        ("fc.weight", vec![250, 140]),
        ("scale", vec![7]),
    ])
}

/// Returns learning rates that change, and divide without rounding.
pub fn learning_rate(step: u64) -> f64 {
    [0.5, 0.125, 0.25, 1.0][step as usize % 4]
}

/// Returns this rank's gradient of a step, with zeros: in turn heavy-tailed, normal, and flat, so that a sparsifier keeps
/// nearly all of it, about half, and almost nothing.
pub fn gradient(layout: &Layout, rank: usize, step: u64) -> Vec<f32> {
    let mut rng = Key::new(77).step(step).rank(rank).block(0);
    let mut value = || -> f32 {
        let x: f32 = StandardNormal.sample(&mut rng);
        match (rng.random::<f32>() < 0.1, step % 3) {
            (true, _) => 0.0,
            (false, 0) => x * x * x,
            (false, 1) => x,
            (false, _) => x.signum() * (1.0 + 0.1 * rng.random::<f32>()),
        }
    };
    (0..layout.len()).map(|_| value()).collect()
}

/// Vectors that are difficult for compressors.
pub fn vectors() -> Vec<(&'static str, Vec<f32>)> {
    let mut hot = vec![0.0; 100];
    hot[37] = -3.0;
    let mut outlier = gradient(&short(), 0, 0);
    outlier[5] = 1e6;
    vec![
        ("gradient", gradient(&short(), 0, 3)),
        ("normal", gradient(&short(), 0, 1)),
        ("flat", gradient(&short(), 0, 2)),
        ("all equal", vec![0.7; 100]),
        ("zeros", vec![0.0; 64]),
        ("one-hot", hot),
        ("outlier", outlier),
        ("one value", vec![-2.5]),
        ("long", gradient(&long(), 0, 0)),
    ]
}
