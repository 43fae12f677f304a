//! Loaders of one rank's share, and ranks that run out of data first.

use std::sync::Arc;

use briquette::data::{Shard, ShardedDataLoader, ShardedDataLoaderBuilder, Turn, check_steps, next_batch};
use briquette::{DistributedConfig, DistributedOptimizer};
use burn::data::dataloader::DataLoader;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::optim::GradientsParams;
use burn::tensor::Device;

use crate::common::*;

struct AsTheyAre;

impl Batcher<usize, Vec<usize>> for AsTheyAre {
    fn batch(&self, items: Vec<usize>, _: &Device) -> Vec<usize> {
        items
    }
}

type Loader = Arc<ShardedDataLoader<usize, Vec<usize>>>;

fn builder(rank: usize, world: usize, batch: usize) -> ShardedDataLoaderBuilder<usize, Vec<usize>> {
    ShardedDataLoaderBuilder::new(AsTheyAre, Shard { rank, world }).batch_size(batch)
}

fn numbers(samples: usize) -> InMemDataset<usize> {
    InMemDataset::new((0..samples).collect())
}

fn epoch(loader: &dyn DataLoader<Vec<usize>>) -> Vec<Vec<usize>> {
    loader.iter().map(Result::unwrap).collect()
}

#[test]
fn every_sample_is_seen_once_and_a_step_is_that_of_one_process() {
    for (samples, world, batch) in [(24, 3, 4), (25, 3, 4), (26, 3, 4), (7, 2, 100), (3, 3, 1), (100, 1, 7)] {
        let ranks: Vec<Loader> =
            (0..world).map(|rank| builder(rank, world, batch).shuffle(3).build(numbers(samples)).unwrap()).collect();
        let one = builder(0, 1, world * batch).shuffle(3).build(numbers(samples)).unwrap();
        for number in 0..3 {
            let shares: Vec<_> = ranks.iter().map(|loader| epoch(&**loader)).collect();
            let counted: Vec<usize> = ranks.iter().map(|loader| loader.num_items()).collect();
            assert_eq!(counted, shares.iter().map(|share| share.concat().len()).collect::<Vec<_>>());
            let steps = epoch(&*one);
            assert!(ranks.iter().all(|loader| loader.steps() == steps.len()), "{samples} {world} {batch}");
            for (step, whole) in steps.iter().enumerate() {
                let parts: Vec<usize> =
                    shares.iter().flat_map(|share| share.get(step).cloned().unwrap_or_default()).collect();
                assert_eq!(&parts, whole, "epoch {number}, step {step}");
            }
            let mut all = steps.concat();
            all.sort_unstable();
            assert_eq!(all, (0..samples).collect::<Vec<_>>());
        }
    }
}

#[test]
fn epochs_differ_by_themselves_and_a_run_goes_on_in_the_middle_of_one() {
    let whole = builder(1, 2, 5).shuffle(3).build(numbers(43)).unwrap();
    let epochs: Vec<_> = (0..3).map(|_| epoch(&*whole)).collect();
    assert_ne!(epochs[0], epochs[1]);
    let resumed = builder(1, 2, 5).shuffle(3).start_at(1, 3).build(numbers(43)).unwrap();
    assert_eq!(epoch(&*resumed), epochs[1][3..]);
    assert_eq!((epoch(&*resumed), resumed.epoch()), (epochs[2].clone(), 3));
    let ordered = builder(0, 2, 2).build(numbers(9)).unwrap();
    assert_eq!(epoch(&*ordered), [vec![0, 1], vec![4, 5], vec![8]]);
    let even = builder(0, 2, 2).drop_last().build(numbers(9)).unwrap();
    assert_eq!((epoch(&*even), even.steps(), even.num_items()), (vec![vec![0, 1], vec![4, 5]], 2, 4));
    // No full step in an epoch: 3 ranks of 4.
    let none = |samples| builder(0, 3, 4).drop_last().build(numbers(samples)).map(|loader| loader.steps());
    let refused = none(11).unwrap_err().to_string();
    assert!(
        refused.contains("drop_last does not go with 11 samples: it leaves no step, because 3 ranks take"),
        "{refused}"
    );
    assert_eq!(none(12).unwrap(), 1);
    // Loaders that Burn derives from it: for another device, for a slice of the data.
    let moved = whole.to_device(&Device::flex());
    assert_eq!(moved.num_items(), whole.num_items());
    let sliced = builder(0, 2, 2).build(numbers(20)).unwrap().slice(10, 14);
    assert_eq!(epoch(&*sliced), [[10, 11]]);
}

#[test]
fn impossible_shares_are_refused() {
    let error = |rank, world, batch, samples| {
        builder(rank, world, batch).build(numbers(samples)).map(drop).unwrap_err().to_string()
    };
    assert!(error(2, 2, 1, 9).contains("rank 2"));
    assert!(error(0, 3, 1, 2).contains("a world of 3 ranks does not go with 2 samples"));
    assert!(error(0, 1, 0, 2).contains("batch of a rank must be at least 1"));
}

/// Training of `world` ranks on 26 samples, the last step with two of them.
fn trained(world: usize, batch: usize) -> Vec<f32> {
    let weights = ranks(world, |comm| {
        let loader = builder(comm.rank(), world, batch).shuffle(5).build(numbers(26)).unwrap();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, DistributedConfig::dense(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for _ in 0..2 {
            let mut batches = loader.iter();
            while let Some(turn) = next_batch(&mut optim, &mut batches)? {
                let gradients = match turn {
                    Turn::Batch(batch) => {
                        let batch = batch.expect("in memory");
                        optim.record_samples(batch.len());
                        let samples: Vec<_> = batch.iter().map(|sample| (*sample as u64, 1)).collect();
                        let (x, y) = crate::common::batch(&samples);
                        grads(&model, &model.error(x, y))
                    }
                    Turn::Idle => {
                        optim.record_samples(0);
                        GradientsParams::new()
                    }
                };
                model = optim.step(0.05, model, gradients)?;
            }
        }
        assert_eq!(optim.synchronizer().step(), 2 * loader.steps() as u64);
        Ok(["first.weight", "first.bias", "second.weight", "second.bias"].map(|path| value(&model, path)).concat())
    });
    assert!(weights.iter().all(|other| *other == weights[0]));
    weights.into_iter().next().unwrap()
}

#[test]
fn ranks_that_run_out_step_along_and_all_is_as_in_one_process() {
    let one = trained(1, 12);
    for (world, batch) in [(2, 6), (3, 4), (4, 3)] {
        let distance = trained(world, batch).iter().zip(&one).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(distance < 1e-5, "{world} ranks: {distance}");
    }
}

#[test]
fn other_numbers_of_steps_are_said_before_training() {
    let results = outcomes(3, |mut comm| {
        let steps = 7 - comm.rank() / 2;
        check_steps(&mut comm, 4)?;
        check_steps(&mut comm, steps)
    });
    let texts: Vec<String> = results.into_iter().map(|result| result.unwrap_err().to_string()).collect();
    let advice = "number of steps (give every rank as many, or call `data::next_batch` before each)";
    assert_eq!(texts[0], format!("rank 2 cannot join: its {advice} is 6, rank 0's is 7"));
    assert_eq!(texts[2], format!("rank 0 cannot join: its {advice} is 7, rank 2's is 6"));
}
