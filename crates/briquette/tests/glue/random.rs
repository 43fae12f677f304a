//! Draws that follow from the seed, the rank and the step, whatever other threads draw meanwhile.

use briquette::Randomness;
use burn::nn::DropoutConfig;
use burn::tensor::Tensor;

use crate::common::*;

/// First weights, and what dropout leaves in each of some steps, from `from` on.
fn drawn(world: usize, from: u64) -> Vec<(Vec<f32>, Vec<Vec<f32>>)> {
    ranks(world, |comm| {
        let random = Randomness::new(7, comm.rank(), &device());
        let model = random.init(|| burn::nn::LinearConfig::new(5, 3).init(&device()));
        let dropout = DropoutConfig::new(0.5).init();
        let left = |step| {
            let kept = random.step(step, || dropout.forward(Tensor::<1>::ones([64], &device())));
            kept.into_data().try_into_vec().expect("numbers")
        };
        Ok((value(&model, "weight"), (from..8).map(left).collect()))
    })
}

#[test]
fn threads_that_draw_at_once_draw_the_same_every_time() {
    let first = drawn(4, 0);
    assert!(first == drawn(4, 0));
    for (rank, (weights, steps)) in first.iter().enumerate() {
        assert_eq!(*weights, first[0].0, "weights are equal on all ranks");
        assert!(steps.iter().all(|step| step.contains(&0.0) && step.contains(&2.0)), "{steps:?}");
        assert!(steps.windows(2).all(|pair| pair[0] != pair[1]), "steps differ");
        assert!((0..rank).all(|other| first[other].1 != *steps), "ranks differ");
    }
    let resumed = drawn(4, 5);
    assert!(first.iter().zip(&resumed).all(|(whole, rest)| whole.1[5..] == rest.1), "and go on as they were");
}
