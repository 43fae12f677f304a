//! Honest and Byzantine contributions for tests.

use rand_distr::{Distribution, StandardNormal};

use briquette_core::aggregate::Aggregator;
use briquette_core::compress::{Compressor, dense::Dense};
use briquette_core::{Key, Message};

/// Returns each vector as `parts` uncompressed messages.
pub(super) fn messages(vectors: &[Vec<f32>], parts: usize) -> Vec<Vec<Message>> {
    let message = |x: &[f32]| {
        let mut message = Message::default();
        Dense.compress_into(x, Key::new(0), &mut message);
        message
    };
    vectors.iter().map(|x| x.chunks(x.len().div_ceil(parts)).map(message).collect()).collect()
}

/// Returns the weight of each rank.
pub(super) fn rated(aggregator: &mut dyn Aggregator, vectors: &[Vec<f32>], parts: usize) -> Vec<f32> {
    let messages = messages(vectors, parts);
    let mut weights = vec![9.0];
    aggregator.rate(&messages.iter().map(Vec::as_slice).collect::<Vec<_>>(), &mut weights).unwrap();
    weights
}

/// Returns the combined vector.
pub(super) fn combined(aggregator: &mut dyn Aggregator, vectors: &[Vec<f32>]) -> Vec<f32> {
    let weights = if aggregator.rates() { rated(aggregator, vectors, 1) } else { Vec::new() };
    let (messages, mut out) = (messages(vectors, 1), vec![5.0; vectors[0].len()]);
    aggregator.combine(&weights, &messages.iter().map(|parts| &parts[0]).collect::<Vec<_>>(), &mut out).unwrap();
    out
}

/// Returns contributions near a common vector, of which the first `byzantine` are replaced by `attack` of it, and that vector.
pub(super) fn near(ranks: usize, byzantine: usize, attack: impl Fn(f32) -> f32) -> (Vec<Vec<f32>>, Vec<f32>) {
    let mut rng = Key::new(4).block(0);
    let truth: Vec<f32> = (0..3000).map(|_| StandardNormal.sample(&mut rng)).collect();
    let near =
        |rng: &mut _| truth.iter().map(|t| t + 0.1 * Distribution::<f32>::sample(&StandardNormal, rng)).collect();
    let mut vectors: Vec<Vec<f32>> = (0..ranks).map(|_| near(&mut rng)).collect();
    vectors[..byzantine].iter_mut().for_each(|x| *x = truth.iter().map(|t| attack(*t)).collect());
    (vectors, truth)
}
