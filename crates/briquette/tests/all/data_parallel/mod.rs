//! Burn's `SupervisedTraining` on several ranks.
#![cfg(feature = "train")]

pub(super) mod common;
mod elastic;
mod forward_state;
mod launched;
mod overlap;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use briquette::core::CompressionRatio;
use briquette::core::comm::run_ranks;
use briquette::core::config::Exchange;
use briquette::core::control::schedule::ScheduleConfig;
use briquette::core::error::CommError;
use briquette::{Checkpoint, DistributedConfig, DistributedOptimizer};
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::TensorReadError;
use burn::train::EarlyStoppingStrategy;
use burn::train::metric::store::{Aggregate, EventStoreClient, Split};
use burn::train::metric::{Metric, MetricMetadata, MetricName, SerializedEntry};

use common::*;

#[test]
fn ranks_end_with_the_same_bits_and_a_lower_loss() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 6), Shard::new(1, 6)];
    let outcomes = train(directory.path(), &DistributedConfig::dense(), &shards, |_, rank| Rank {
        training: rank.training.num_epochs(8),
        ..rank
    });
    assert_agree(&outcomes);
    let (before, after) = (loss_of(&Mlp::new(1, &device()).valid()), loss_of(&outcomes[0].model));
    assert!(after < 0.5 * before, "{before} to {after}");
}

#[test]
fn steps_are_those_of_the_distributed_optimizer() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 5), Shard::new(1, 5)];
    let ours = train(directory.path(), &top_k(), &shards, |_, rank| rank);
    assert_agree(&ours);
    let by_hand = run_ranks(world(2), |comm| {
        let shard = &shards[comm.rank()];
        let mut optim = DistributedOptimizer::new(optimizer(), comm, top_k(), SEED);
        let mut schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
        let mut model = optim.join(Mlp::new(1, &device())).unwrap();
        for _ in 0..2 {
            for index in 0..5 {
                let loss = model.forward(shard.batch(index)).loss;
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                let lr = schedule.step();
                model = optim.step(lr, model, grads).unwrap();
            }
        }
        // The final model is the same on every rank; the epoch before was evaluated on a copy.
        model = optim.synchronizer_mut().average_buffers(model).unwrap();
        Ok::<_, CommError>(bits(&model.valid()))
    });
    assert_eq!(bits(&ours[0].model), by_hand.into_iter().next().unwrap().unwrap());
}

/// Rank 1's optimizer imitates a device with other rounding.
#[test]
fn rebroadcast_parameters_are_what_the_learner_goes_on_with() {
    let otherwise = || SgdConfig::new().init();
    let shards = [Shard::new(0, 5), Shard { optimizer: otherwise, ..Shard::new(1, 5) }];
    let end = |steps: u64| {
        let directory = tempfile::tempdir().unwrap();
        let outcomes =
            train(directory.path(), &DistributedConfig::dense(), &shards, |_, Rank { training, strategy }| Rank {
                training,
                strategy: strategy.with_rebroadcast(steps),
            });
        assert!(outcomes.iter().all(|outcome| outcome.error.is_none()), "{:?}", outcomes[0].error);
        (bits(&outcomes[0].model), bits(&outcomes[1].model))
    };
    let (first, second) = end(0);
    assert_ne!(first, second, "these replicas drift");
    let (first, second) = end(5);
    assert_eq!(first, second, "ten steps end with a re-broadcast");
}

#[test]
fn ranks_weigh_by_their_samples() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard { rows: 9, ..Shard::new(0, 4) }, Shard { rows: 3, ..Shard::new(1, 4) }];
    let ours = train(directory.path(), &DistributedConfig::dense(), &shards, |_, Rank { training, strategy }| Rank {
        training: training.num_epochs(1),
        strategy: strategy.with_samples(|batch: &Batch| batch.x.dims()[0]),
    });
    assert_agree(&ours);
    // One process: both batches, each normalized separately, and the mean over twelve samples.
    let (mut model, mut optim) = (Mlp::new(1, &device()), optimizer());
    let mut schedule = ExponentialLrSchedulerConfig::new(0.05, 0.99).init().unwrap();
    for index in 0..4 {
        let mut sum = GradientsAccumulator::new();
        for shard in &shards {
            let loss = model.forward(shard.batch(index)).loss.mul_scalar(shard.rows as f64 / 12.0);
            sum.accumulate(&model, GradientsParams::from_grads(loss.backward(), &model));
        }
        model = optim.step(schedule.step(), model, sum.grads());
    }
    let off = parameters(&ours[0].model).iter().zip(parameters(&model)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off < 1e-6, "{off}");
}

#[test]
fn loaders_of_different_lengths_end_together() {
    for config in [DistributedConfig::dense(), top_k(), local_sgd()] {
        for counts in [[5, 2], [0, 3], [4, 4], [0, 0]] {
            for accumulation in [None, Some(2)] {
                let directory = tempfile::tempdir().unwrap();
                let shards = [Shard::new(0, counts[0]), Shard::new(1, counts[1])];
                let outcomes = train(directory.path(), &config, &shards, |_, rank| Rank {
                    training: match accumulation {
                        Some(batches) => rank.training.grads_accumulation(batches),
                        None => rank.training,
                    },
                    strategy: rank.strategy.with_samples(|batch: &Batch| batch.x.dims()[0]),
                });
                assert_agree(&outcomes);
            }
        }
    }
}

/// The learner's optimizer has momentum. Averaged at every step, it is that of averaged gradients.
#[test]
fn a_learners_momenta_are_averaged_or_begin_anew() {
    let run = |strategy: &str| {
        let directory = tempfile::tempdir().unwrap();
        let config = DistributedConfig { strategy: strategy.parse().unwrap(), ..DistributedConfig::dense() };
        let outcomes = train(directory.path(), &config, &[Shard::new(0, 4), Shard::new(1, 4)], |_, rank| rank);
        assert_agree(&outcomes);
        parameters(&outcomes[0].model)
    };
    let off = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let minibatch = run("every-step");
    let averaged = off(&run("local-sgd:1,momenta=average"), &minibatch);
    let anew = off(&run("local-sgd:1,momenta=reset"), &minibatch);
    assert!(averaged < 1e-5 && anew > 1e-3, "averaged: off by {averaged}; begun anew: by {anew}");
}

#[test]
fn an_interrupt_on_one_rank_stops_all() {
    for config in [DistributedConfig::dense(), local_sgd()] {
        let directory = tempfile::tempdir().unwrap();
        let shards = [Shard::new(0, 3), Shard::new(1, 3)];
        let outcomes = train(directory.path(), &config, &shards, |rank, Rank { training, strategy }| {
            let training = training.num_epochs(100_000);
            let interrupter = training.interrupter();
            let batches = AtomicUsize::new(0);
            let strategy = strategy.with_samples(move |_| {
                if rank == 1 && batches.fetch_add(1, Ordering::Relaxed) == 4 {
                    interrupter.stop(Some("enough"));
                }
                1
            });
            Rank { training, strategy }
        });
        let said: Vec<_> = outcomes.iter().map(|o| (o.error.as_deref(), o.interrupted.as_deref())).collect();
        assert_eq!(said, [(None, Some("rank 1 stopped the run")), (None, Some("enough"))]);
    }
}

/// Stops after two epochs, and reads metrics from Burn's store.
#[derive(Clone, Default)]
struct Look {
    seen: Arc<Mutex<Vec<Option<f64>>>>,
}

impl EarlyStoppingStrategy for Look {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let names = ["Compression Ratio", "Gain", "Wire Ratio", "Bytes Sent", "Bytes Received", "Loss"];
        *self.seen.lock().unwrap() =
            names.map(|name| store.find_metric(name, epoch, Aggregate::Mean, &Split::Train)).to_vec();
        epoch == 2
    }
}

#[test]
fn metrics_reach_burn_and_rank_0_stops_all_early() {
    let directory = tempfile::tempdir().unwrap();
    let look = Look::default();
    let shards = [Shard::new(0, 3), Shard::new(1, 3)];
    let ratio = CompressionRatio::new(5.0).unwrap();
    let controller = ScheduleConfig::constant(ratio).into();
    let config = DistributedConfig::every_step(Exchange { controller, ..top_k().exchange });
    let outcomes = train(directory.path(), &config, &shards, |rank, Rank { training, strategy }| {
        let metrics = strategy.metrics();
        let mut training = training
            .num_epochs(100_000)
            .metric_train_numeric(metrics.ratio())
            .metric_train_numeric(metrics.gain())
            .metric_train_numeric(metrics.wire_ratio())
            .metric_train_numeric(metrics.sent())
            .metric_train_numeric(metrics.received());
        if rank == 0 {
            training = training.early_stopping(look.clone());
        }
        Rank { training, strategy }
    });
    assert_agree(&outcomes);
    let seen: Vec<f64> = look.seen.lock().unwrap().iter().map(|v| v.unwrap()).collect();
    let [ratio, gain, wire, sent, received, loss] = seen[..] else { panic!("{seen:?}") };
    assert_eq!(ratio, 5.0);
    assert!(gain > 0.2 && gain <= 1.0, "{gain}");
    // The model has 43 values: a dense ring would send 172 bytes, the header alone takes 106.
    assert!(sent > 82.0 && sent < 400.0 && received > 82.0, "{sent} {received}");
    assert!((wire - 172.0 / sent).abs() < 1e-9, "{wire} {sent}");
    assert!(loss.is_finite());
}

#[test]
fn a_resumed_run_goes_on_with_the_same_bits() {
    let shards = [Shard::new(0, 5), Shard::new(1, 4)];
    let run = |directory: &Path, epochs: usize, from: Option<usize>| {
        let outcomes = train(directory, &top_k(), &shards, |rank, Rank { training, strategy }| {
            let mut training = training.num_epochs(epochs);
            if rank == 0 {
                training = training.with_default_checkpointers();
            }
            if let Some(epoch) = from {
                training = training.checkpoint(epoch);
            }
            Rank { training, strategy: strategy.with_checkpoints(directory.join("ranks")) }
        });
        assert_agree(&outcomes);
        bits(&outcomes[0].model)
    };
    let (straight, broken) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = run(straight.path(), 5, None);
    let half = run(broken.path(), 3, None);
    assert_ne!(half, expected);
    assert_eq!(run(broken.path(), 5, Some(3)), expected);
    // An unreadable epoch is skipped for the one before.
    let damaged = tempfile::tempdir().unwrap();
    run(damaged.path(), 3, None);
    let file = damaged.path().join("ranks/epoch-00000003/rank-1.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    assert_eq!(run(damaged.path(), 5, Some(3)), expected);
    // The model alone.
    let saved = |epoch: &str| Checkpoint::at(&straight.path().join("ranks").join(epoch));
    let loaded = saved("epoch-00000005").unwrap().load_model(Mlp::new(77, &device())).unwrap();
    assert_eq!(common::bits(&loaded), expected);
    let refused = saved("rank-0").unwrap_err().to_string();
    assert!(refused.contains("its name is none of a checkpoint's"), "{refused}");
    // Ours and Burn's are of the same epochs.
    let epochs = |directory: &Path, start: &str, end: &str| {
        let names = std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let number = |name: String| name.strip_prefix(start)?.strip_suffix(end)?.parse::<usize>().ok();
        let mut epochs: Vec<usize> = names.filter_map(number).collect();
        epochs.sort_unstable();
        epochs
    };
    let burns = epochs(&straight.path().join("rank-0/checkpoint"), "model-", ".bpk");
    assert_eq!(epochs(&straight.path().join("ranks"), "epoch-", ""), burns);
    assert!(burns.ends_with(&[4, 5]), "{burns:?}");
}

#[test]
fn resuming_without_every_ranks_state_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let shards = [Shard::new(0, 2), Shard::new(1, 2)];
    let outcomes = train(directory.path(), &top_k(), &shards, |_, Rank { training, strategy }| Rank {
        training: training.checkpoint(1),
        strategy,
    });
    assert!(outcomes[0].error.as_ref().unwrap().contains("with_checkpoints"), "{:?}", outcomes[0].error);
    let outcomes = train(directory.path(), &top_k(), &shards, |rank, Rank { training, strategy }| Rank {
        training: training.num_epochs(2 + rank),
        strategy,
    });
    assert!(outcomes[1].error.as_ref().unwrap().contains("number of epochs is 2"), "{:?}", outcomes[1].error);
}

#[test]
fn a_failure_on_one_rank_is_an_error_on_all_that_names_it() {
    let directory = tempfile::tempdir().unwrap();
    let mut shards = [Shard::new(0, 4), Shard::new(1, 4)];
    shards[1].trouble = Some(Trouble::Fails(2));
    let errors: Vec<String> =
        train(directory.path(), &top_k(), &shards, |_, r| r).into_iter().map(|o| o.error.unwrap()).collect();
    assert!(errors[0].contains("rank 1 stopped the run") && errors[0].contains("on fire"), "{}", errors[0]);
    assert!(errors[1].contains("on fire"), "{}", errors[1]);
    shards[1].trouble = Some(Trouble::NotFinite(1));
    for outcome in train(directory.path(), &top_k(), &shards, |_, r| r) {
        let error = outcome.error.unwrap();
        assert!(error.contains("step 1") && error.contains("rank 1") && error.contains("first.weight"), "{error}");
    }
}

#[test]
fn a_validation_loader_that_fails_on_one_rank_is_an_error_on_all() {
    let directory = tempfile::tempdir().unwrap();
    let mut shards = [Shard::new(0, 4), Shard::new(1, 4)];
    shards[1].valid_trouble = Some(Trouble::Fails(1));
    let outcomes = train(directory.path(), &top_k(), &shards, |_, r| r);
    let errors: Vec<String> = outcomes.into_iter().map(|o| o.error.expect("an error, not a stop")).collect();
    assert!(errors[0].contains("rank 1 stopped the run") && errors[0].contains("on fire"), "{}", errors[0]);
    assert!(errors[1].contains("on fire"), "{}", errors[1]);
}

/// A metric that cannot read its third value.
#[derive(Clone, Default)]
struct Broken {
    updates: usize,
}

impl Metric for Broken {
    type Input = ();
    fn name(&self) -> MetricName {
        Arc::new("Broken".to_owned())
    }
    fn update(&mut self, _: &(), _: &MetricMetadata) -> Result<SerializedEntry, TensorReadError> {
        self.updates += 1;
        if self.updates == 3 {
            return Err(TensorReadError::InvalidShape { expected: 1, actual: 0 });
        }
        Ok(SerializedEntry::not_available(None))
    }
    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::not_available(None))
    }
    fn clear(&mut self) {}
}

#[test]
fn a_metric_that_fails_on_one_rank_is_an_error_on_all() {
    for config in [top_k(), local_sgd()] {
        let directory = tempfile::tempdir().unwrap();
        let shards = [Shard::new(0, 8), Shard::new(1, 8)];
        let outcomes = train(directory.path(), &config, &shards, |rank, Rank { training, strategy }| Rank {
            training: if rank == 1 { training.metric_train(Broken::default()) } else { training },
            strategy,
        });
        let errors: Vec<String> = outcomes.into_iter().map(|o| o.error.expect("an error, not a stop")).collect();
        assert!(errors[0].contains("rank 1 stopped the run"), "{}", errors[0]);
        assert!(errors[1].contains("Broken"), "{}", errors[1]);
    }
}

/// The optimizer passed to the strategy decides the feedback; without one it is error feedback.
#[test]
fn the_optimizer_that_is_shown_decides_the_feedback_and_is_compared() {
    let shards = [Shard::new(0, 5), Shard::new(1, 5)];
    let run = |feedback: &str, shown: [Option<ModuleOptimizer>; 2]| {
        let directory = tempfile::tempdir().unwrap();
        let exchange = Exchange {
            reducer: "gather:topk:5x".parse().unwrap(),
            feedback: feedback.parse().unwrap(),
            ..Exchange::default()
        };
        let config = DistributedConfig::every_step(exchange);
        train(directory.path(), &config, &shards, |rank, Rank { training, strategy }| {
            let strategy = match &shown[rank] {
                Some(optimizer) => strategy.with_optimizer(optimizer),
                None => strategy,
            };
            Rank { training, strategy }
        })
    };
    let outcome = |feedback: &str, shown: Option<ModuleOptimizer>| {
        let outcomes = run(feedback, [shown.clone(), shown]);
        assert_agree(&outcomes);
        bits(&outcomes[0].model)
    };
    let (corrected, fed) = (outcome("inner-momentum:0.5", None), outcome("error", None));
    assert_ne!(corrected, fed);
    assert_eq!(outcome("by-optimizer", Some(optimizer())), corrected);
    assert_eq!(outcome("by-optimizer", None), fed);
    for outcome in run("error", [Some(optimizer()), Some(SgdConfig::new().init())]) {
        let error = outcome.error.expect("they differ");
        assert!(error.contains("its optimizer"), "{error}");
    }
}
