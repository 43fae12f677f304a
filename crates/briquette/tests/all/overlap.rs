//! Exchanges during the backward pass have the same bits as exchanges after it.

use std::collections::BTreeMap;
use std::time::Duration;

use briquette::core::comm::run_ranks;
use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::sim::{Compute, Simulated};
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::prelude::*;
use burn::tensor::activation;

use crate::common::*;

/// Buckets of at least 64 values, the last of at least 8.
pub(crate) fn during(exchange: &str) -> Config {
    config(&format!(r#"{{"during_backward": true, "bucket_values": 64, {exchange}}}"#))
}

pub(crate) const EXCHANGES: [&str; 6] = [
    r#""reducer": "dense""#,
    r#""reducer": "gather:topk:4x", "feedback": "error""#,
    r#""reducer": "gather:topk:4x", "feedback": "inner-momentum:0.9""#,
    r#""reducer": "power-sgd:2", "feedback": "error""#,
    r#""reducer": "gather:topk:2x", "feedback": "error", "controller": "schedule:1x,to=8x,steps=4,stages=2""#,
    r#""reducer": "gather:topk:2x", "feedback": "error", "controller": "gravac:2x,max=8x,epsilon=0.4,window=2""#,
];

/// A step whose forward pass runs on the module itself, or on the tapped one.
pub(crate) fn step<M: Model>(
    optim: &mut DistributedOptimizer,
    model: M,
    (step, rank): (u64, usize),
    hidden: bool,
) -> Result<M, Error> {
    let samples = 4 + rank;
    optim.record_samples(samples);
    let forward = if hidden { optim.forward_model(&model)? } else { model.clone() };
    let loss = forward.loss(data(step, rank), samples);
    let gradients = grads(&model, &loss);
    optim.record_loss(number(&loss));
    optim.step(0.02, model, gradients)
}

fn run<M: Model>(config: &Config, make: fn() -> M, inner: fn() -> ModuleOptimizer, hidden: bool) -> Vec<Vec<String>> {
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, config.clone(), 1).with_local_weight_decay(0.01);
        let mut model = optim.join(make())?;
        let mut trace = Vec::new();
        for t in 0..5 {
            model = step(&mut optim, model, (t, rank), hidden)?;
            let report = optim.report();
            trace
                .push(format!("{:?} {:?} {} {:?}", report.loss, report.traffic, report.samples, report.exchange.ratio));
        }
        trace.push(format!("{:?}", bits(&model)));
        Ok(trace)
    })
}

#[test]
fn when_gradients_are_exchanged_changes_no_bit() {
    for exchange in EXCHANGES {
        let config = during(exchange);
        let (early, late) =
            [true, false].map(|hidden| run(&config, || Mlp::wide(5, 40), sgd_with_momentum, hidden)).into();
        assert_eq!(early[0].last(), early[1].last(), "{exchange}");
        for (early, late) in early.iter().zip(&late) {
            // The order of buckets is learned in the first step, and adds a broadcast to it.
            assert_eq!(early[1..], late[1..], "{exchange}");
        }
        let (early, late) = [true, false].map(|hidden| run(&config, || Net::new(5), sgd_with_momentum, hidden)).into();
        assert_eq!(early[0].last(), late[0].last(), "{exchange}");
    }
}

/// Frozen, shared and unused layers.
#[derive(Module, Debug)]
pub(crate) struct Odd {
    first: Linear,
    frozen: Linear,
    unused: Linear,
    shared: Linear,
    again: Linear,
}

impl Odd {
    pub(crate) fn new() -> Self {
        let layer = |inside, outside| LinearConfig::new(inside, outside).init(&device());
        let shared = layer(8, 8);
        let odd = Odd { first: layer(IN, 8), frozen: layer(8, 8), unused: layer(3, 3), again: shared.clone(), shared };
        let odd = seeded(odd, 7);
        Odd { frozen: odd.frozen.no_grad(), ..odd }
    }
}

impl Model for Odd {
    fn loss(&self, data: u64, samples: usize) -> Tensor<1> {
        let (x, _) = batch(&[(data, samples)]);
        let x = activation::tanh(self.frozen.forward(self.first.forward(x)));
        self.again.forward(activation::tanh(self.shared.forward(x))).square().mean()
    }
}

#[test]
fn frozen_shared_and_unused_layers_stay_what_they_are() {
    let config = during(EXCHANGES[0]);
    let (early, late) = [true, false].map(|hidden| run(&config, Odd::new, sgd_with_momentum, hidden)).into();
    assert_eq!(early[0].last(), late[0].last());
}

/// Some steps. Before the third, one in which rank 1 has a NaN in a slot: in the last, which is exchanged first, or in the first.
fn with_a_bad_step(bad: Option<&'static str>, exchange: &str) -> Vec<Vec<(String, Vec<u32>)>> {
    let config = during(exchange);
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
        let mut model = optim.join(Mlp::wide(5, 40))?;
        for t in 0..5 {
            if let Some(bad) = bad.filter(|_| t == 2) {
                let forward = optim.forward_model(&model)?;
                let (x, y) = batch(&[(77, 4)]);
                let loss = forward.error(x, y);
                // Only one layer's gradient is invalid: its weight enters the loss a second time, multiplied by NaN.
                let weight =
                    if bad == "first.weight" { forward.first.weight.val() } else { forward.second.weight.val() };
                let spoilt = if rank == 1 { loss + weight.sum().mul_scalar(f32::NAN) } else { loss };
                let error = optim
                    .try_step(0.02, model, GradientsParams::from_grads(spoilt.backward(), &forward))
                    .expect_err("refused");
                let refused = matches!(&error.source, Error::Sync(SyncError::NonFinite { step: 2, rank: 1, slot }) if slot == bad);
                assert!(refused, "{error}");
                model = *error.model;
            }
            model = step(&mut optim, model, (t, rank), true)?;
        }
        Ok(bits(&model))
    })
}

#[test]
fn a_bad_gradient_in_the_first_or_the_last_bucket_leaves_no_trace() {
    for exchange in EXCHANGES {
        let good = with_a_bad_step(None, exchange);
        for bad in ["first.weight", "second.weight"] {
            assert_eq!(with_a_bad_step(Some(bad), exchange), good, "{exchange}, {bad}");
        }
    }
}

/// Burn keeps no tape for a second backward pass; its panic surfaces in the step.
#[test]
#[cfg(feature = "overlap-backward")]
fn a_forward_model_is_good_for_one_backward_pass() {
    let errors = outcomes(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1);
        let model = optim.join(Mlp::new(5))?;
        let forward = optim.forward_model(&model)?;
        drop(grads(&model, &forward.loss(1, 4)));
        let second = grads(&model, &forward.loss(2, 4));
        optim.step(0.02, model, second).map(drop)
    });
    let texts: Vec<String> = errors.into_iter().map(|error| error.expect_err("refused").to_string()).collect();
    assert!(texts.iter().any(|text| text.contains("panicked")), "{texts:?}");
}

/// Every rank restarts a step; then all continue.
#[test]
fn a_step_that_was_begun_and_left_leaves_no_trace() {
    let run = |leaves: bool| {
        ranks(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, during(EXCHANGES[1]), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for t in 0..5 {
                if leaves && t > 1 {
                    let forward = optim.forward_model(&model)?;
                    if t == 3 {
                        drop(grads(&model, &forward.loss(9, 4)));
                    }
                }
                model = step(&mut optim, model, (t, rank), true)?;
            }
            Ok(bits(&model))
        })
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_rank_without_data_takes_part() {
    let run = |hidden: bool| {
        ranks(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[1]), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for t in 0..4 {
                if rank == 2 && t > 1 {
                    optim.record_samples(0);
                    model = optim.step(0.02, model, GradientsParams::new())?;
                } else {
                    model = step(&mut optim, model, (t, rank), hidden)?;
                }
            }
            Ok(bits(&model))
        })
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn samples_that_are_recorded_too_late_are_named() {
    let errors = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1);
        let model = optim.join(Mlp::new(5))?;
        let forward = optim.forward_model(&model)?;
        let gradients = grads(&model, &forward.loss(1, 4));
        optim.record_samples(4 + rank);
        optim.step(0.02, model, gradients).map(drop)
    });
    for error in errors {
        let text = error.map_err(|error| error.to_string());
        assert!(
            !cfg!(feature = "overlap-backward")
                || text.as_ref().is_err_and(|text| text.contains("before `forward_model`")),
            "{text:?}"
        );
    }
}

/// Four slots arrive evenly over the last two thirds of a step's 50 ms, the second layer's first: a third of the exchange is
/// overlapped.
#[test]
#[cfg(feature = "overlap-backward")]
fn what_is_exchanged_before_the_backward_pass_ends_costs_no_time() {
    let run = |hidden: bool| {
        let world = Simulated::world(3, "2mbit".parse().unwrap(), Compute::Fixed(Duration::from_millis(50)));
        let found = run_ranks(world, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[0]), 1);
            let mut model = optim.join(Mlp::wide(5, 200))?;
            optim.synchronizer_mut().set_clock(0.0);
            for t in 0..4 {
                model = step(&mut optim, model, (t, rank), hidden)?;
            }
            Ok::<_, Error>((optim.report().clock / 4.0, optim.report().overlapped_seconds(), bits(&model)))
        });
        found.into_iter().next().expect("three ranks").unwrap()
    };
    let ((early, hidden, ours), (late, nothing, theirs)) = (run(true), run(false));
    assert_eq!(ours, theirs);
    assert!(nothing < 1e-9, "{nothing} s hidden without a forward model");
    assert!(
        hidden > 0.005 && (early + hidden - late).abs() < 0.005,
        "{early} s a step, {hidden} of them hidden, {late} without"
    );
}

/// Two parallel layers, read in one order or the other.
#[derive(Module, Debug)]
struct Beside {
    left: Linear,
    right: Linear,
}

impl Beside {
    fn loss(&self, left_first: bool, data: u64) -> Tensor<1> {
        let (x, _) = batch(&[(data, 4)]);
        let out = |layer: &Linear| activation::tanh(layer.forward(x.clone())).square().mean();
        if left_first {
            let left = out(&self.left);
            left + out(&self.right)
        } else {
            let right = out(&self.right);
            out(&self.left) + right
        }
    }
}

/// Rank 0's order of arrival in its first step decides the order of buckets; gradients in another order are waited for.
#[test]
fn the_order_of_arrival_may_change_between_steps_and_ranks() {
    for exchange in EXCHANGES {
        let run = |hidden: bool| {
            ranks(3, |comm| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, during(exchange), 1);
                let layer = || LinearConfig::new(IN, 24).init(&device());
                let mut model = optim.join(seeded(Beside { left: layer(), right: layer() }, 3))?;
                let (mut orders, first) = (Vec::new(), |t: u64| !(t + rank as u64).is_multiple_of(3));
                for t in 0..6 {
                    let forward = if hidden { optim.forward_model(&model)? } else { model.clone() };
                    let gradients = grads(&model, &forward.loss(first(t), data(t, rank)));
                    drop(forward);
                    model = optim.step(0.1, model, gradients)?;
                    orders.push(optim.report().arrivals.first().map(|arrival| arrival.slot / 2));
                }
                Ok((bits(&model), orders))
            })
        };
        let (early, late) = (run(true), run(false));
        assert_eq!(early[0].0, early[2].0, "{exchange}");
        assert_eq!(early[0].0, late[0].0, "{exchange}");
        if cfg!(feature = "overlap-backward") {
            // The layer that is read last arrives first: another one on rank 0 and rank 1 at step 0, and on rank 0 at steps 0 and
            // 1.
            assert_ne!(early[0].1[0], early[1].1[0], "{exchange}");
            assert_ne!(early[0].1[0], early[0].1[1], "{exchange}");
        }
    }
}

/// Its gradients have arrived, and some of its buckets are in transit.
#[test]
#[cfg(feature = "overlap-backward")]
fn a_rank_that_ends_after_its_backward_pass_stops_the_others_by_name() {
    for panics in [false, true] {
        let found = outcomes(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, during(EXCHANGES[1]), 1);
            let mut model = optim.join(Mlp::wide(5, 40))?;
            for t in 0..4 {
                if rank == 1 && t == 2 {
                    let forward = optim.forward_model(&model)?;
                    drop(grads(&model, &forward.loss(data(t, rank), 4)));
                    assert!(!panics, "its power fails");
                    return Ok(bits(&model));
                }
                model = step(&mut optim, model, (t, rank), true)?;
            }
            Ok(bits(&model))
        });
        for rank in [0, 2] {
            let error = found[rank].as_ref().expect_err("rank 1 is gone").to_string();
            assert!(error.contains("rank 1"), "{error}");
        }
    }
}

#[test]
fn loading_gives_up_what_was_begun() {
    let directory = tempfile::tempdir().unwrap();
    let found = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, during(EXCHANGES[1]), 1);
        let mut model = optim.join(Mlp::new(5))?;
        let mut ends = Vec::new();
        for part in 0..2 {
            for t in 2 * u64::from(part > 0)..4 {
                model = step(&mut optim, model, (t, rank), true)?;
                if part == 0 && t == 1 {
                    optim.save(&model, directory.path(), &BTreeMap::new())?;
                }
            }
            ends.push(bits(&model));
            if part == 0 {
                let forward = optim.forward_model(&model)?;
                drop(grads(&model, &forward.loss(9, 4)));
                model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
            }
        }
        Ok(ends)
    });
    assert_eq!(found[0][0], found[0][1]);
    assert_eq!(found[0], found[1]);
}
