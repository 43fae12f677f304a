//! `training` and `launch`: outputs that exist once in a world.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use briquette::core::comm::run_ranks;
use briquette::core::error::CommError;
use briquette::{DataParallel, was_stopped};
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::train::checkpoint::MetricCheckpointingStrategy;
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::metric::{LossMetric, NumericEntry};
use burn::train::{EarlyStoppingStrategy, Learner, SupervisedTraining};

use super::common::*;

type Training = SupervisedTraining<Mlp>;

/// Trains one rank for each shard, and validates on the number of batches in `valid`. Returns the result of each rank's `launch`:
/// the model's bits, or its error.
fn launch(
    directory: &Path,
    shards: &[Shard],
    valid: &[usize],
    edit: impl Fn(usize, Training) -> Training + Sync,
) -> Vec<Result<Option<Vec<u32>>, briquette::Error>> {
    let results = run_ranks(world(shards.len()), |comm| {
        let rank = comm.rank();
        let strategy = DataParallel::new(comm, top_k(), SEED, device());
        let valid = Shard { trouble: shards[rank].valid_trouble, ..Shard::new(50 + rank, valid[rank]) };
        let training = strategy
            .training(directory, Arc::new(shards[rank].clone()), Arc::new(valid))
            .with_application_logger(None)
            .metrics((LossMetric::new(),))
            .num_epochs(2)
            .summary();
        let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        let learner = Learner::new(Mlp::new(1 + rank as u64, &device()), optimizer(), schedule);
        let result = strategy.launch(edit(rank, training), learner);
        Ok::<_, CommError>(result.map(|done| done.map(|result| bits(&result.model))))
    });
    results.into_iter().map(Result::unwrap).collect()
}

/// The values in a metric's file, with the count of each; the last one is that of the epoch.
fn logged(directory: &Path, split: &str, epoch: usize) -> Vec<f64> {
    let path = directory.join(split).join(format!("epoch-{epoch}/Loss.log"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| NumericEntry::deserialize(line).unwrap().current()).collect()
}

/// Every file under a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect();
    all.sort();
    all
}

/// The values that early stopping receives.
#[derive(Clone, Default)]
struct Listen(Arc<Mutex<Vec<f64>>>);

impl EarlyStoppingStrategy for Listen {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let value = store.find_metric("Loss", epoch, Aggregate::Mean, &Split::Valid);
        self.0.lock().unwrap().push(value.unwrap());
        false
    }
}

#[test]
fn metrics_are_of_the_world_and_results_of_rank_0() {
    let alone = |rank: usize, batches: usize| {
        // Rank 0 of a world of two sees the same batches as both; its metrics are then its own and the other's.
        let directory = tempfile::tempdir().unwrap();
        let shards = [Shard::new(0, 4), Shard::new(1, 3)];
        let results = run_ranks(world(2), |comm| {
            let me = comm.rank();
            let strategy = DataParallel::new(comm, top_k(), SEED, device());
            let training = SupervisedTraining::new(
                directory.path().join(me.to_string()),
                Arc::new(shards[me].clone()),
                Arc::new(Shard::new(50 + me, if me == rank { batches } else { 1 })),
            );
            let training = training.renderer(Box::new(Silent)).with_application_logger(None).num_epochs(2);
            let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
            let learner = Learner::new(Mlp::new(1, &device()), optimizer(), schedule);
            let strategy = burn::train::TrainingStrategy::Custom(Arc::new(strategy));
            training.metrics((LossMetric::new(),)).with_training_strategy(strategy).launch(learner);
            Ok::<_, CommError>(())
        });
        assert!(results.iter().all(Result::is_ok));
        *logged(&directory.path().join(rank.to_string()), "valid", 2).last().unwrap()
    };
    let (three, one) = (alone(0, 3), alone(1, 1));

    let directory = tempfile::tempdir().unwrap();
    let listen = Listen::default();
    let shards = [Shard::new(0, 4), Shard::new(1, 3)];
    let done = launch(directory.path(), &shards, &[3, 1], |rank, training| match rank {
        0 => training.early_stopping(listen.clone()),
        _ => training,
    });
    assert!(matches!(done[..], [Ok(Some(_)), Ok(None)]), "{done:?}");
    let mean = (3.0 * three + one) / 4.0;
    let told = listen.0.lock().unwrap()[1];
    assert!((told - mean).abs() < 1e-12, "early stopping: {told}; {three} and {one}, weighted {mean}");
    assert_eq!(logged(directory.path(), "valid", 2).len(), 4, "three batches of rank 0, and the world's");
    assert_eq!(*logged(directory.path(), "valid", 2).last().unwrap(), told);
    assert_eq!(logged(directory.path(), "train", 1).len(), 5);
    // Loss of two epochs and two splits: rank 1 writes nothing.
    assert_eq!(files(directory.path()).len(), 4, "{:?}", files(directory.path()));
}

#[test]
fn a_rank_without_anything_to_validate_is_no_part_of_the_mean() {
    let directory = tempfile::tempdir().unwrap();
    let listen = Listen::default();
    let shards = [Shard::new(0, 2), Shard::new(1, 2)];
    let done = launch(directory.path(), &shards, &[2, 0], |rank, training| match rank {
        0 => training.early_stopping(listen.clone()),
        _ => training,
    });
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let batches = logged(directory.path(), "valid", 1);
    assert_eq!(listen.0.lock().unwrap()[0], (batches[0] + batches[1]) / 2.0);
}

#[test]
fn a_run_that_was_launched_goes_on_with_the_same_bits() {
    let shards = [Shard::new(0, 5), Shard::new(1, 4)];
    let run = |directory: &Path, epochs: usize, from: Option<usize>| {
        let mut done = launch(directory, &shards, &[2, 2], |_, training| {
            let training = training.num_epochs(epochs).with_default_checkpointers();
            match from {
                Some(epoch) => training.checkpoint(epoch),
                None => training,
            }
        });
        done.remove(0).unwrap().unwrap()
    };
    let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(straight.path(), 4, None);
    assert_ne!(run(broken.path(), 2, None), expected);
    assert_eq!(run(broken.path(), 4, Some(2)), expected);
    let names = files(&broken.path().join("ranks/epoch-00000004"));
    let names: Vec<_> = names.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["common-0.safetensors", "manifest.json", "rank-0.safetensors", "rank-1.safetensors"]);
    let burns = files(&broken.path().join("checkpoint"));
    assert!(burns.len().is_multiple_of(3) && burns.iter().all(|path| path.extension().unwrap() == "bpk"), "{burns:?}");
}

#[test]
fn the_best_epoch_is_the_worlds() {
    // Rank 1's loss moves the mean: for rank 0 alone another epoch would be the best.
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 2), Shard::new(1, 2)];
    let best = MetricCheckpointingStrategy::new(&LossMetric::new(), Aggregate::Mean, Direction::Lowest, Split::Valid);
    let best = Mutex::new(Some(best));
    let done = launch(directory.path(), &shards, &[1, 5], |rank, training| {
        let training = training.num_epochs(5).with_default_checkpointers();
        match rank {
            0 => training.with_checkpointing_strategy(best.lock().unwrap().take().unwrap()),
            _ => training,
        }
    });
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    let last = |epoch| *logged(directory.path(), "valid", epoch).last().unwrap();
    let lowest = (1..=5).min_by(|a, b| last(*a).total_cmp(&last(*b))).unwrap();
    let kept = files(&directory.path().join("checkpoint"));
    assert!(kept.iter().any(|path| path.ends_with(format!("model-{lowest}.bpk"))), "{lowest}: {kept:?}");
}

#[test]
fn what_stops_one_rank_is_every_ranks_error() {
    let directory = tempfile::tempdir().unwrap();
    let trouble = Some(Trouble::Fails(1));
    let shards = [Shard::new(0, 3), Shard { valid_trouble: trouble, ..Shard::new(1, 3) }];
    let done = launch(directory.path(), &shards, &[3, 3], |_, training| training);
    let [Err(other), Err(own)] = &done[..] else { panic!("{done:?}") };
    assert!(own.to_string().starts_with("rank 1: ") && own.to_string().contains("the disk is on fire"), "{own}");
    assert!(other.to_string().contains("rank 1"), "{other}");
    assert!(was_stopped(other) && !was_stopped(own));
    assert_eq!(format!("{own:?}").lines().next(), Some(own.to_string().as_str()));
}
