//! Draws are determined by the seed, the rank and the step, independent of other threads' draws. Each test has a process of
//! its own, because a concurrent test would draw from the same generator.
#![cfg(feature = "train")]

use std::sync::Arc;

use briquette::core::comm::run_ranks;
use briquette::core::error::CommError;
use briquette::{DataParallel, DistributedConfig, Randomness};
use briquette_testkit::alone::passes_alone;
use burn::module::Module;
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig};
use burn::tensor::Tensor;
use burn::train::{InferenceStep, Learner, RegressionOutput, TrainOutput, TrainStep};

use super::data_parallel::common::{Batch, SEED, Shard, device, numbers, optimizer, world as world_of};

/// Initial weights, and the output of dropout in each of some steps, from `from` on.
fn drawn(world: usize, from: u64) -> Vec<(Vec<f32>, Vec<Vec<f32>>)> {
    let results = run_ranks(world_of(world), |comm| {
        let random = Randomness::new(7, comm.rank(), &device());
        let model = random.init(|| LinearConfig::new(5, 3).init(&device()));
        let dropout = DropoutConfig::new(0.5).init();
        let left = |step| {
            let kept = random.step(step, || dropout.forward(Tensor::<1>::ones([64], &device())));
            kept.into_data().try_into_vec().expect("numbers")
        };
        let weight = model.weight.val().into_data().try_into_vec().expect("numbers");
        Ok::<_, CommError>((weight, (from..8).map(left).collect()))
    });
    results.into_iter().map(Result::unwrap).collect()
}

#[test]
fn threads_that_draw_at_once_draw_the_same_every_time() {
    if passes_alone(&threads_that_draw_at_once_draw_the_same_every_time) {
        return;
    }
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

#[derive(Module, Debug)]
struct Noisy {
    layer: Linear,
    dropout: Dropout,
}

impl Noisy {
    fn forward(&self, batch: Batch) -> RegressionOutput {
        let output = self.layer.forward(self.dropout.forward(batch.x));
        let error = output.clone() - batch.y.clone();
        RegressionOutput::new((error.clone() * error).mean(), output, batch.y)
    }
}

impl TrainStep for Noisy {
    type Input = Batch;
    type Output = RegressionOutput;
    fn step(&self, batch: Batch) -> TrainOutput<RegressionOutput> {
        let item = self.forward(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl InferenceStep for Noisy {
    type Input = Batch;
    type Output = RegressionOutput;
    fn step(&self, batch: Batch) -> RegressionOutput {
        self.forward(batch)
    }
}

#[test]
fn dropout_is_the_same_when_a_run_is_repeated() {
    if passes_alone(&dropout_is_the_same_when_a_run_is_repeated) {
        return;
    }
    let run = |seed: u64| {
        let directory = tempfile::tempdir().unwrap();
        let models = run_ranks(world_of(3), |comm| {
            let shard = Shard::new(comm.rank(), 4);
            let strategy = DataParallel::new(comm, DistributedConfig::dense(), SEED, device()).with_randomness(seed);
            let training = strategy
                .training(directory.path(), Arc::new(shard.clone()), Arc::new(Shard { count: 1, ..shard }))
                .with_application_logger(None);
            let layer = LinearConfig::new(3, 1).with_bias(false).init(&device());
            let fill = |seed| burn::module::Param::from_tensor(numbers(seed, [3, 1], &device()));
            let model = Noisy { layer: Linear { weight: fill(1), ..layer }, dropout: DropoutConfig::new(0.5).init() };
            let done = strategy.launch(training, Learner::new(model, optimizer(), 0.1)).unwrap();
            let weight = done.map(|result| result.model.layer.weight.val().into_data().try_to_vec::<f32>().unwrap());
            Ok::<_, CommError>(weight)
        });
        models.into_iter().next().unwrap().unwrap().unwrap()
    };
    let once = run(1);
    assert_eq!(run(1), once);
    assert_ne!(run(2), once);
}
