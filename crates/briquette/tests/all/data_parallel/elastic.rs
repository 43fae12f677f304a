//! Elastic worlds in Burn's training loop: a rank vanishes at any call, and another one enters.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use briquette::core::Session;
use briquette::core::membership::{Policy, Regroup};
use briquette::data::{Shard as Place, ShardedDataLoaderBuilder};
use briquette::tcp::TcpBuilder;
use briquette::{DataParallel, DistributedConfig, Error};
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::Device;
use burn::train::metric::{LossMetric, NumericEntry};
use burn::train::{Learner, SupervisedTraining, TrainingStrategy};

use super::common::*;
use crate::elastic::members;

const SAMPLES: u64 = 24;
const BATCH: usize = 2;

/// Makes batches of numbered samples, and keeps their numbers.
#[derive(Clone, Default)]
struct Rows {
    seen: Arc<Mutex<Vec<u64>>>,
    /// Time that a batch takes.
    pause: Duration,
}

impl Batcher<u64, Batch> for Rows {
    fn batch(&self, items: Vec<u64>, device: &Device) -> Batch {
        thread::sleep(self.pause);
        self.seen.lock().unwrap().extend(&items);
        rows(&items, device)
    }
}

/// End of a rank.
#[derive(Debug, Clone, PartialEq)]
struct End {
    bits: Vec<u32>,
    error: Option<String>,
    /// The samples of its batches, in order.
    seen: Vec<u64>,
}

fn samples(count: u64) -> InMemDataset<u64> {
    InMemDataset::new((0..count).collect())
}

fn learner(seed: u64) -> Learner<Mlp> {
    let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
    Learner::new(Mlp::new(seed, &device()), optimizer(), schedule)
}

/// Trains one rank in a directory of its own, so that every rank has a result.
fn train_rank(directory: &Path, strategy: DataParallel<Mlp>, rows: Rows, (rank, epochs): (usize, usize)) -> End {
    let train = ShardedDataLoaderBuilder::new(rows.clone(), &strategy).batch_size(BATCH).shuffle(3);
    let valid = ShardedDataLoaderBuilder::new(Rows::default(), &strategy).batch_size(4);
    let directory = directory.join(format!("rank-{rank}"));
    let training =
        SupervisedTraining::new(directory, train.build(samples(SAMPLES)).unwrap(), valid.build(samples(8)).unwrap())
            .renderer(Box::new(Silent))
            .with_application_logger(None)
            .metrics((LossMetric::new(),))
            .num_epochs(epochs);
    let strategy = TrainingStrategy::Custom(Arc::new(strategy));
    // Every rank starts with its own weights; joining gives it rank 0's.
    let result = training.with_training_strategy(strategy).launch(learner(1 + rank as u64));
    let seen = rows.seen.lock().unwrap().clone();
    End { bits: bits(&result.model), error: result.error.map(|error| error.to_string()), seen }
}

/// Runs `rank` on each member of a world, in a thread of its own.
fn on_threads<E: Send, T: Send>(world: Vec<E>, rank: impl Fn(usize, E) -> T + Sync) -> Vec<T> {
    let rank = &rank;
    thread::scope(|threads| {
        let running: Vec<_> = (0..).zip(world).map(|(at, member)| threads.spawn(move || rank(at, member))).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

fn strategy(session: Session, config: DistributedConfig) -> DataParallel<Mlp> {
    DataParallel::new(session, config, SEED, device())
}

fn train_elastic(directory: &Path, victim: Option<(usize, u64)>) -> Vec<End> {
    on_threads(members(3, 1, victim), |rank, (session, member)| {
        let strategy = strategy(session, top_k()).with_membership(member);
        train_rank(directory, strategy, Rows::default(), (rank, 2))
    })
}

/// The samples of a rank in an epoch, counted from 0.
fn dealt(rank: usize, world: usize, epoch: u64) -> Vec<u64> {
    let rows = Rows::default();
    let loader = ShardedDataLoaderBuilder::new(rows.clone(), Place { rank, world }).batch_size(BATCH).shuffle(3);
    let loader = loader.start_at(epoch, 0).build(samples(SAMPLES)).unwrap();
    assert!(loader.iter().all(|batch| batch.is_ok()));
    std::mem::take(&mut *rows.seen.lock().unwrap())
}

#[test]
fn without_a_loss_it_trains_to_the_bits_of_a_fixed_world() {
    let directory = tempfile::tempdir().unwrap();
    let fixed = on_threads(world(3), |rank, session| {
        train_rank(&directory.path().join("fixed"), strategy(session, top_k()), Rows::default(), (rank, 2))
    });
    assert!(fixed.iter().all(|end| end.error.is_none() && end.bits == fixed[0].bits), "{fixed:?}");
    for (rank, end) in fixed.iter().enumerate() {
        assert_eq!(end.seen, [dealt(rank, 3, 0), dealt(rank, 3, 1)].concat());
    }
    assert_eq!(train_elastic(&directory.path().join("elastic"), None), fixed);
}

/// Rank 0 or the last one, at every call of its transport. Survivors have the same model, and divide the second epoch among themselves, or
/// none of them does.
#[test]
fn a_rank_that_vanishes_at_any_call_leaves_survivors_that_complete_all_epochs() {
    let directory = tempfile::tempdir().unwrap();
    let (mut lost, mut divided_again, mut while_joining) = (0, 0, 0);
    for victim in [0, 2] {
        for call in 0.. {
            let ends = train_elastic(&directory.path().join(format!("{victim}-{call}")), Some((victim, call)));
            if ends[victim].error.is_none() {
                break;
            }
            let survivors: Vec<&End> = (0..3).filter(|rank| *rank != victim).map(|rank| &ends[rank]).collect();
            let what = format!("rank {victim} vanishes at call {call}");
            // An elastic world begins with its first step. A survivor that has come so far ends because the other one has not.
            if survivors.iter().any(|end| end.error.is_some() && end.seen.is_empty()) {
                while_joining += 1;
                continue;
            }
            lost += 1;
            let errors: Vec<_> = survivors.iter().filter_map(|end| end.error.clone()).collect();
            assert!(errors.is_empty(), "{what}: {errors:#?}");
            assert_eq!(survivors[0].bits, survivors[1].bits, "{what}");
            let ends_with = |world: usize, ranks: [usize; 2]| {
                let mut pairs = survivors.iter().zip(ranks);
                pairs.all(|(end, rank)| end.seen.ends_with(&dealt(rank, world, 1)))
            };
            let of_two = ends_with(2, [0, 1]);
            divided_again += usize::from(of_two);
            assert!(of_two || ends_with(3, if victim == 0 { [1, 2] } else { [0, 1] }), "{what}");
            // It had taken three batches of four, so that no rank had completed the first epoch.
            assert!(of_two || ends[victim].seen.len() > 3 * BATCH, "{what}");
        }
    }
    assert!(lost > 60 && divided_again > 20 && while_joining < 60, "{lost} {divided_again} {while_joining}");
}

/// The values in a metric's file, with the count of each; the last one is that of the epoch.
fn logged(directory: &Path, split: &str, epoch: usize) -> Vec<f64> {
    let path = directory.join(split).join(format!("epoch-{epoch}/Loss.log"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (read, spoiled): (Vec<_>, Vec<_>) = text.lines().map(NumericEntry::deserialize).partition(Result::is_ok);
    // The logger of a lost rank 0, a thread here, may still write at a place of its own while its successor does.
    assert!(spoiled.len() <= 1, "{text:?}");
    read.into_iter().flatten().map(|entry| entry.current()).collect()
}

/// Trains by `launch`, in which outputs exist once in a world. Returns whether each rank has the result, or its error.
fn launch(
    directory: &Path,
    world: Vec<(Session, impl Regroup + 'static)>,
    (epochs, pause): (usize, Duration),
) -> Vec<Result<Option<Vec<u32>>, Error>> {
    on_threads(world, |rank, (session, member)| {
        let strategy = strategy(session, top_k()).with_membership(member);
        let train = ShardedDataLoaderBuilder::new(Rows { pause, ..Rows::default() }, &strategy).batch_size(BATCH);
        let valid = ShardedDataLoaderBuilder::new(Rows::default(), &strategy).batch_size(4);
        let training = strategy
            .training(directory, train.build(samples(SAMPLES)).unwrap(), valid.build(samples(8)).unwrap())
            .with_application_logger(None)
            .metrics((LossMetric::new(),))
            .with_default_checkpointers()
            .num_epochs(epochs);
        let result = strategy.launch(training, learner(1 + rank as u64));
        result.map(|done| done.map(|result| bits(&result.model)))
    })
}

#[test]
fn the_next_rank_0_takes_over_metrics_checkpoints_and_the_result() {
    let mut lost = 0;
    // From the first step to the end. Both survivors have joined when rank 0 has their batch counts, which end before this call.
    for call in (29..).step_by(9) {
        let directory = tempfile::tempdir().unwrap();
        let ends = launch(directory.path(), members(3, 1, Some((0, call))), (3, Duration::ZERO));
        if ends[0].is_ok() {
            break;
        }
        lost += 1;
        let what = format!("rank 0 vanishes at call {call}: {ends:?}");
        assert!(ends[1].as_ref().is_ok_and(Option::is_some), "{what}");
        assert!(ends[2].as_ref().is_ok_and(Option::is_none), "{what}");
        let last = logged(directory.path(), "valid", 3);
        assert!(last.last().is_some_and(|loss| loss.is_finite()), "{what}");
        for kept in ["checkpoint/model-3.bpk", "ranks/epoch-00000003/manifest.json"] {
            assert!(directory.path().join(kept).exists(), "no {kept}: {what}");
        }
    }
    assert!(lost > 5, "{lost}");
}

/// Two processes over TCP (threads here), and a third that enters their run.
#[test]
fn a_new_rank_enters_the_run_in_the_middle_of_an_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (master, seeds, policy) = (free(), [free(), free()], Policy { fewest: 1, patience: 20.0 });
    let epochs = 40;
    let ends = on_threads(vec![0, 1, 2], |_, rank| {
        let builder = TcpBuilder::new(usize::min(rank, 1), 2, &master).world_name("learning").members(seeds.clone());
        let builder = builder.deadline(Duration::from_secs(20)).join_deadline(Duration::from_secs(10));
        let entered = if rank == 2 { builder.join_running(policy) } else { builder.join_elastic(policy) };
        let (session, member) = entered.unwrap_or_else(|error| panic!("rank {rank}: {error}"));
        let strategy = strategy(session, top_k()).with_membership(member);
        let rows = Rows { pause: Duration::from_millis(3), ..Rows::default() };
        train_rank(directory.path(), strategy, rows, (rank, epochs))
    });
    assert!(ends.iter().all(|end| end.error.is_none() && end.bits == ends[0].bits), "{ends:?}");
    // Whole epochs, each divided among three.
    let last = epochs as u64 - 1;
    for (rank, end) in ends.iter().enumerate() {
        assert!(end.seen.ends_with(&dealt(rank, 3, last)), "rank {rank}");
    }
    assert!(ends[2].seen.len() < ends[1].seen.len() && ends[2].seen.len().is_multiple_of(SAMPLES as usize / 3));
}

#[test]
fn averages_of_parameters_are_refused() {
    for config in [local_sgd(), DistributedConfig::local_sgd(1)] {
        let ended = on_threads(members(2, 1, None), |rank, (session, member)| {
            let directory = tempfile::tempdir().unwrap();
            let strategy = strategy(session, config.clone()).with_membership(member);
            train_rank(directory.path(), strategy, Rows::default(), (rank, 1)).error.expect("it is refused")
        });
        let said = "an elastic world does not go with an average of parameters in Burn's training loop";
        assert!(ended.iter().all(|error| error.contains(said)), "{ended:?}");
    }
}

/// Rank 0's model after two epochs of which it trains the first `together` steps with another rank, and the others alone, by Burn's parts.
fn alone_from(together: usize) -> Vec<f32> {
    let (mut model, mut optimizer) = (Mlp::new(1, &device()), optimizer());
    let mut schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
    let mut step = 0;
    for epoch in 0..2 {
        // The samples of an epoch are divided when it begins.
        let world = if step < together { 2 } else { 1 };
        let shares = [0, 1].map(|rank| if rank < world { dealt(rank, world, epoch) } else { Vec::new() });
        for at in 0..shares[0].len() / BATCH {
            let ranks = if step < together { 2 } else { 1 };
            let mut sum = GradientsAccumulator::new();
            for (rank, share) in shares[..ranks].iter().enumerate() {
                // Another rank's running statistics are its own.
                let own = if rank == 0 { model.clone() } else { apart(&model) };
                let batch = rows(&share[at * BATCH..(at + 1) * BATCH], &device());
                let loss = own.forward(batch).loss / ranks as f32;
                sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &own));
            }
            model = optimizer.step(schedule.step(), model, sum.grads());
            step += 1;
        }
    }
    // Running statistics are complete after a forward pass without training.
    drop(model.valid().forward(rows(&[0], &Device::flex())));
    all_values(&model)
}

/// A loss at any call is one of thirteen histories: each gradient is applied once, with the running statistics of its forward pass.
#[test]
fn a_survivor_trains_as_burn_does_on_the_samples_of_its_steps() {
    let directory = tempfile::tempdir().unwrap();
    let histories: Vec<Vec<f32>> = (0..=12).map(alone_from).collect();
    for (kind, config) in [DistributedConfig::dense(), DistributedConfig::dense().during_backward()].iter().enumerate()
    {
        let (mut found, mut lost) = (BTreeSet::new(), 0);
        for call in 0.. {
            let directory = directory.path().join(format!("{kind}-{call}"));
            let ends = on_threads(members(2, 1, Some((1, call))), |rank, (session, member)| {
                let strategy = strategy(session, config.clone()).with_membership(member);
                train_rank(&directory, strategy, Rows::default(), (rank, 2))
            });
            if ends[1].error.is_none() {
                break;
            }
            if ends[0].error.is_some() {
                assert!(ends[0].seen.is_empty(), "{:?}", ends[0].error);
                continue;
            }
            lost += 1;
            let values: Vec<f32> = ends[0].bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            let off = |history: &Vec<f32>| history.iter().zip(&values).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            let off: Vec<f32> = histories.iter().map(off).collect();
            let history = off.iter().position(|off| *off < 1e-5);
            // The last average may have the running statistics of both.
            assert!(history.is_some() || found.len() > 10, "rank 1 vanishes at call {call}: differences {off:?}");
            found.extend(history);
        }
        assert!(lost > 40 && found.len() > 10, "{lost} {found:?}");
    }
}
