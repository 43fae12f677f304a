//! Memory use of long runs: every driver holds the same number of bytes after 2 200 steps as after 200.
//!
//! Own binary, with one test, because the counter counts every thread of the process. It counts bytes that are allocated and not freed,
//! instead of the memory that the system gives the process: this shows a leak at once, and does not depend on the allocator.
//!
//! The counting allocator needs `unsafe`, as `GlobalAlloc` is an unsafe trait. It forwards to the system's.
#![allow(unsafe_code)]

#[path = "../all/common.rs"]
#[allow(dead_code)]
mod common;
#[path = "../all/data_parallel/common.rs"]
#[allow(dead_code)]
mod learner;
#[path = "../all/seeded.rs"]
mod seeded;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use briquette::core::Session;
use briquette::core::comm::run_ranks;
use briquette::core::config::{Config, ServerConfig};
use briquette::{DataParallel, DistributedConfig, DistributedOptimizer, Error, ServerTraining};
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::optim::GradientsParams;
use burn::tensor::Device;
use burn::train::{Learner, SupervisedTraining, TrainingStrategy};

use common::{Mlp, Model, config, data, grads, ranks, sgd, sgd_with_momentum, top_k, train};

struct Counting;

static HELD: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call goes to the system's allocator with unchanged arguments; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Layout) -> *mut u8 {
        HELD.fetch_add(block.size() as i64, Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract.
        unsafe { System.alloc(block) }
    }
    unsafe fn dealloc(&self, at: *mut u8, block: Layout) {
        HELD.fetch_sub(block.size() as i64, Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The step after which held bytes are compared.
const WARM: u64 = 200;
const END: u64 = 2200;
/// Allowance for a frame in transit, and for lists that have grown: 20 bytes a step. One gradient of the model is 4 400 bytes.
const MOST: i64 = 20 * (END - WARM) as i64;
const HIDDEN: usize = 110;

/// Bytes that were held at [`WARM`] and [`END`].
#[derive(Debug, Default)]
struct Watch(Mutex<Vec<i64>>);

impl Watch {
    /// Measures at a step, while the other ranks wait.
    fn step(&self, step: u64, comm: &mut Session) -> Result<(), Error> {
        if [WARM, END].contains(&step) {
            comm.barrier()?;
            if comm.rank() == 0 {
                self.note();
            }
            comm.barrier()?;
        }
        Ok(())
    }

    fn note(&self) {
        self.0.lock().unwrap().push(HELD.load(Relaxed));
    }

    fn check(self, driver: &str) {
        let held = self.0.into_inner().unwrap();
        let [warm, end] = held[..] else { panic!("{driver}: {held:?}") };
        println!("{driver}: {warm} bytes at step {WARM}, {:+} at step {END}", end - warm);
        assert!(end - warm <= MOST, "{driver}: {warm} bytes at step {WARM}, {end} at step {END}");
    }
}

/// A custom loop, with a checkpoint every 500 steps.
fn custom_loop(driver: &str, config: &Config, during_backward: bool) {
    let (watch, directory) = (Watch::default(), tempfile::tempdir().unwrap());
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
        let mut model = optim.join(Mlp::wide(5, HIDDEN))?;
        for step in 0..=END {
            watch.step(step, optim.synchronizer_mut().session())?;
            if during_backward {
                let forward = optim.forward_model(&model)?;
                let gradients = grads(&model, &forward.loss(data(step, rank), 4));
                model = optim.step(0.02, model, gradients)?;
            } else {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            if step % 500 == 100 {
                optim.save(&model, directory.path(), &BTreeMap::new())?;
            }
        }
        Ok(())
    });
    watch.check(driver);
}

/// Two workers and their server, with a pause and a checkpoint every 100 updates.
fn server(policy: &str) {
    let (watch, directory) = (Watch::default(), tempfile::tempdir().unwrap());
    ranks(3, |comm| {
        let mut server = ServerTraining::new(policy.parse().unwrap()).with_batches(3);
        let mut optim = DistributedOptimizer::new(sgd(), comm, server.strategy(), 1);
        let mut model = optim.join(Mlp::wide(5, HIDDEN))?;
        let rank = optim.rank();
        for pause in 1..=END / 100 {
            let batch = |model: &Mlp, batch| (model.loss(data(batch, rank), 4), 4);
            model = server.train(&mut optim, model, 100 * pause, |_| 0.002, batch)?;
            optim.save(&model, directory.path(), &BTreeMap::new())?;
            watch.step(100 * pause, optim.synchronizer_mut().session())?;
        }
        Ok(())
    });
    watch.check(policy);
}

/// Ranks without data: none runs a backward pass, in which Burn would remove parameters that no longer exist.
fn idle() {
    let watch = Watch::default();
    ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::local_sgd(1), 1);
        let mut model = optim.join(Mlp::wide(5, HIDDEN))?;
        for step in 0..=END {
            watch.step(step, optim.synchronizer_mut().session())?;
            optim.record_samples(0);
            model = optim.step(0.02, model, GradientsParams::new())?;
        }
        Ok(())
    });
    watch.check("ranks without data");
}

/// Batches that record the held bytes.
struct Watched {
    shard: learner::Shard,
    watch: Arc<Watch>,
}

struct Batches<'a>(&'a Watched, usize);

impl Iterator for Batches<'_> {
    type Item = Result<learner::Batch, DatasetError>;
    fn next(&mut self) -> Option<Self::Item> {
        let Batches(Watched { shard, watch }, index) = self;
        if shard.rank == 0 && [WARM, END].contains(&(*index as u64)) {
            watch.note();
        }
        *index += 1;
        (*index <= shard.count).then(|| Ok(shard.batch(*index)))
    }
}

impl DataLoaderIterator<learner::Batch> for Batches<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.1, self.0.shard.count, None)
    }
}

impl DataLoader<learner::Batch> for Watched {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<learner::Batch> + 'a> {
        Box::new(Batches(self, 0))
    }
    fn num_items(&self) -> usize {
        self.shard.count
    }
    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<learner::Batch>> {
        Arc::new(Watched {
            shard: learner::Shard { device: device.clone(), ..self.shard.clone() },
            watch: Arc::clone(&self.watch),
        })
    }
    fn slice(&self, _start: usize, _end: usize) -> Arc<dyn DataLoader<learner::Batch>> {
        unreachable!("nobody splits a shard")
    }
}

/// Burn's own loop.
fn data_parallel(config: &DistributedConfig) {
    let (watch, directory) = (Arc::new(Watch::default()), tempfile::tempdir().unwrap());
    let results = run_ranks(learner::world(2), |comm| {
        let rank = comm.rank();
        let shard = learner::Shard::new(rank, END as usize + 10);
        let loader = Arc::new(Watched { shard, watch: Arc::clone(&watch) });
        let valid = Arc::new(learner::Shard::new(50 + rank, 2));
        let training = SupervisedTraining::new(directory.path().join(format!("rank-{rank}")), loader, valid)
            .renderer(Box::new(learner::Silent))
            .with_application_logger(None)
            .num_epochs(1);
        let strategy = DataParallel::new(comm, config.clone(), learner::SEED, learner::device());
        let schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        let learner = Learner::new(learner::Mlp::new(1, &learner::device()), learner::optimizer(), schedule);
        let result = training.with_training_strategy(TrainingStrategy::Custom(Arc::new(strategy))).launch(learner);
        Ok::<_, briquette::core::error::CommError>(result.error.map(|error| error.to_string()))
    });
    results.into_iter().for_each(|error| assert_eq!(error.unwrap(), None));
    Arc::into_inner(watch).expect("all loaders are gone").check("data_parallel");
}

#[test]
fn every_driver_holds_after_2200_steps_what_it_held_after_200() {
    briquette::zoo::install();
    custom_loop("blocking", &top_k(), false);
    let hidden = r#"{"during_backward": true, "bucket_values": 64, "reducer": "gather:topk:4x", "feedback": "error"}"#;
    custom_loop("during the backward pass", &config(hidden), true);
    for strategy in ["delayed", "cocod:4", "overlap-local-sgd:4", "sgp:exponential,staleness=2", "local-sgd:5"] {
        custom_loop(strategy, &config(&format!(r#"{{"strategy": "{strategy}"}}"#)), false);
    }
    idle();
    let policies = [
        "async-sgd",
        "backup:1,spare=1",
        "picky:0.5",
        "async-local-sgd:3",
        "decoupled-diloco:3",
        "async-lsgd:2",
        "qsvrg:4",
        "synthesis:4,delay=2",
    ];
    for (syntax, _) in ServerConfig::help() {
        let name = syntax.split([':', ' ', '[']).next().expect("a name");
        assert!(policies.iter().any(|policy| policy.split(':').next() == Some(name)), "no case of {name}");
    }
    policies.into_iter().for_each(server);
    data_parallel(&learner::top_k());
}
