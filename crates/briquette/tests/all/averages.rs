//! Agreed averages equal the results of one process with all the samples.

use briquette::core::config::Config;
use briquette::core::sync::Plan;
use briquette::{DistributedOptimizer, Error, Synchronizer};
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsAccumulator, GradientsParams};
use burn::tensor::{DType, Tensor};

use crate::common::*;

const LR: f64 = 0.01;
const STEPS: u64 = 6;

/// Trains with Adam on `counts(step)[rank]` samples a rank, and in one process on all of them; returns the distance.
fn against_one_process(counts: fn(u64) -> [usize; 3]) -> f32 {
    let replicas = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
        let mut model = optim.join(Mlp::new(if rank == 0 { 5 } else { 77 }))?;
        for step in 0..STEPS {
            let samples = counts(step)[rank];
            let gradients = match samples {
                0 => GradientsParams::new(),
                _ => grads(&model, &model.loss(data(step, rank), samples)),
            };
            optim.record_samples(samples);
            model = optim.step(LR, model, gradients)?;
        }
        Ok(model)
    });
    let (mut model, mut optim) = (Mlp::new(5), adam());
    for step in 0..STEPS {
        let counts = counts(step);
        let (x, y) = batch(&[0, 1, 2].map(|rank| (data(step, rank), counts[rank])));
        let gradients = grads(&model, &model.error(x, y));
        model = optim.step(LR, model, gradients);
    }
    assert!(distance(&model, &Mlp::new(5)) > 0.02, "nothing was trained");
    replicas.iter().map(|replica| distance(replica, &model)).fold(0.0, f32::max)
}

#[test]
fn three_dense_ranks_equal_one_process_with_the_threefold_batch() {
    let off = against_one_process(|_| [4, 4, 4]);
    assert!(off <= 1e-5, "{off}");
}

#[test]
fn uneven_batches_weigh_by_their_samples_and_a_rank_without_any_still_steps() {
    let off = against_one_process(|step| match step % 3 {
        0 => [5, 2, 1],
        1 => [4, 0, 3],
        _ => [0, 0, 6],
    });
    assert!(off <= 1e-5, "{off}");
}

/// With an aggregator that is not a mean all ranks have equal weights: one that states a million samples gains nothing.
#[test]
fn samples_weigh_under_a_mean_only() {
    briquette::zoo::install();
    let trained = |aggregator: &str, samples: [usize; 3]| {
        let reducer = r#"{ "kind": "gather", "compressor": "dense" }"#;
        let config =
            config(&format!(r#"{{ "aggregator": "{aggregator}", "reducer": {reducer}, "feedback": "none" }}"#));
        ranks(3, move |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for step in 0..STEPS {
                let gradients = grads(&model, &model.loss(data(step, rank), 4));
                optim.record_samples(samples[rank]);
                model = optim.step(LR, model, gradients)?;
            }
            Ok(bits(&model))
        })
        .remove(0)
    };
    let (honest, liar) = ([4, 4, 4], [4, 1_000_000, 4]);
    for aggregator in ["trimmed-mean:1", "krum:0"] {
        assert!(trained(aggregator, honest) == trained(aggregator, liar), "{aggregator}");
    }
    assert!(trained("mean", honest) != trained("mean", liar));
    // Without trimming it is the mean, to rounding; the bits need not be equal.
    assert!(trained("trimmed-mean:0", honest) != trained("trimmed-mean:1", honest));
}

#[test]
fn two_accumulated_micro_batches_equal_one_batch_of_both_and_one_exchange() {
    let run = |accumulated: bool| {
        ranks(2, move |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, Config::dense(), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for step in 0..3 {
                let parts = [(data(step, rank), 4), (data(step, rank + 50), 4)];
                let gradients = if accumulated {
                    let mut sum = GradientsAccumulator::new();
                    for (data, samples) in parts {
                        let loss = model.loss(data, samples);
                        optim.record_loss(number(&loss));
                        optim.record_samples(samples);
                        // Burn's accumulator sums: halves make the sum a mean.
                        sum.accumulate(&model, grads(&model, &loss.mul_scalar(0.5)));
                    }
                    sum.grads()
                } else {
                    let (x, y) = batch(&parts);
                    let loss = model.error(x, y);
                    optim.record_loss(number(&loss));
                    optim.record_samples(8);
                    grads(&model, &loss)
                };
                model = optim.step(0.1, model, gradients)?;
            }
            let traffic = optim.synchronizer_mut().session().traffic();
            Ok((model, optim.report().clone(), traffic, optim.synchronizer().step()))
        })
    };
    for (apart, whole) in run(true).iter().zip(&run(false)) {
        let off = distance(&apart.0, &whole.0);
        assert!(off < 1e-6, "{off}");
        assert_eq!((apart.1.samples, whole.1.samples), (16, 16));
        let (a, b) = (apart.1.loss.unwrap(), whole.1.loss.unwrap());
        assert!((a - b).abs() < 1e-6, "{a} {b}");
        assert_eq!((apart.2, apart.3), (whole.2, 3), "one exchange a real step");
        assert!(apart.2.sent > 0);
    }
}

#[test]
fn the_two_phase_form_equals_step() {
    let whole = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, top_k(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..5 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(bits(&model))
    });
    let phases = ranks(2, |comm| {
        let rank = comm.rank();
        let (mut sync, mut optim) = (Synchronizer::new(comm, top_k(), 1), adam());
        let mut model = sync.join(Mlp::new(5))?;
        for step in 0..5 {
            assert_eq!((sync.step(), sync.plan()?), (step, Plan::GRADIENTS));
            let loss = model.loss(data(step, rank), 4);
            let averaged = sync.sync_gradients(&model, grads(&model, &loss))?;
            model = optim.step(0.02, model, averaged);
            model = sync.sync_parameters(model).map_err(|(_, error)| error)?;
        }
        Ok(bits(&model))
    });
    assert_eq!(whole, phases);
}

/// Two heads of which a rank may use one, both or none.
#[derive(Module, Debug)]
struct Heads {
    left: Linear,
    right: Linear,
    unused: Linear,
}

impl Heads {
    fn new() -> Self {
        let head = || LinearConfig::new(IN, OUT).with_bias(false).init(&device());
        seeded(Heads { left: head(), right: head(), unused: head() }, 3)
    }
}

#[test]
fn a_gradient_missing_on_one_rank_counts_as_zero_and_one_missing_on_all_stays_absent() {
    let replicas = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
        let model = optim.join(Heads::new())?;
        let (x, _) = batch(&[(9, 4)]);
        let mut loss = model.left.forward(x.clone()).sum();
        if rank == 1 {
            loss = loss + model.right.forward(x.clone()).sum();
        }
        let mut averaged = optim.sync_gradients(&model, grads(&model, &loss))?;
        let get = |id, g: &mut GradientsParams| g.remove::<2>(id).map(|t| t.into_data().try_into_vec::<f32>().unwrap());
        let left = get(model.left.weight.id, &mut averaged).expect("both ranks have it");
        let right = get(model.right.weight.id, &mut averaged).expect("one rank has it");
        assert!(get(model.unused.weight.id, &mut averaged).is_none(), "nobody has it");
        // d(sum)/dw[i][j] = Σ x[·][i] on both heads: the one that only rank 1 uses gets half.
        let off = left.iter().zip(&right).map(|(l, r)| (l / 2.0 - r).abs()).fold(0.0, f32::max);
        assert!(off < 1e-6 && left[0].abs() > 0.01, "{off} {left:?}");

        let (model, gradients) = {
            let loss = model.left.forward(x).sum();
            let gradients = grads(&model, &loss);
            (model, gradients)
        };
        let before = bits(&model);
        let model = optim.synchronizer_mut().sync_parameters(model).map_err(|(_, error)| error)?;
        let model = optim.step(0.1, model, gradients)?;
        let after = bits(&model);
        assert_ne!(before[0], after[0], "the left head has learned");
        assert_eq!(before[1..], after[1..]);
        // Two moments for the one parameter with a gradient, none for the others.
        assert_eq!(optim.inner().to_record().len(), 2);
        Ok(after)
    });
    assert_eq!(replicas[0], replicas[1]);
}

#[test]
fn a_parameter_without_a_gradient_on_any_rank_does_not_move_whatever_the_compressor_makes_of_zeros() {
    for compressor in ["sign", "plain-sign", "one-bit", "qsgd:4", "terngrad"] {
        let config = config(&format!(
            r#"{{"feedback": "none", "reducer": {{"kind": "gather", "compressor": "{compressor}"}}}}"#
        ));
        let replicas = ranks(2, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
            let mut model = optim.join(Heads::new())?;
            let before = bits(&model);
            for _ in 0..3 {
                let (x, _) = batch(&[(9, 4)]);
                let loss = model.left.forward(x).sum();
                let gradients = grads(&model, &loss);
                model = optim.step(0.1, model, gradients)?;
            }
            let after = bits(&model);
            assert_ne!(before[0], after[0], "{compressor}: the left head has learned");
            assert_eq!(before[1..], after[1..], "{compressor}");
            Ok(after)
        });
        assert_eq!(replicas[0], replicas[1]);
    }
}

/// A layer in 16 bits between two in 32.
#[derive(Module, Debug)]
struct Mixed {
    single: Linear,
    half: Param<Tensor<2>>,
}

#[test]
fn parameters_of_16_bits_average_beside_those_of_32_and_keep_their_type() {
    for dtype in [DType::F16, DType::BF16] {
        let seen = ranks(2, |comm| {
            let rank = comm.rank();
            let single = LinearConfig::new(IN, 2).with_bias(false).init(&device());
            let half = Tensor::<2>::ones([2, 2], &device()).mul_scalar(rank as f32 + 1.0).cast(dtype).detach();
            let model = Mixed { single: seeded(single, rank as u64), half: Param::from_tensor(half.require_grad()) };
            let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
            let model = optim.join(model)?;
            assert_eq!(value(&model, "half"), [1.0; 4], "rank 0's value");
            // d/d half = rank + 1, d/d single = 2·(rank + 1), each in its own type.
            let scale = rank as f32 + 1.0;
            let mut loss = model.single.weight.val().sum().mul_scalar(2.0 * scale);
            loss = loss + model.half.val().sum().mul_scalar(scale).cast(DType::F32);
            let gradients = grads(&model, &loss);
            assert_eq!(gradients.get::<2>(model.half.id).map(|g| g.dtype()), Some(dtype));
            let before = value(&model, "single.weight");
            let model = optim.step(0.5, model, gradients)?;
            assert_eq!((model.half.val().dtype(), model.single.weight.val().dtype()), (dtype, DType::F32));
            assert!(model.half.val().is_require_grad());
            // Means 1.5 and 3, times a learning rate of 0.5.
            assert_eq!(value(&model, "half"), [0.25; 4]);
            let moved = before.iter().zip(value(&model, "single.weight")).map(|(a, b)| a - b);
            assert!(moved.clone().all(|m| (m - 1.5).abs() < 1e-6), "{:?}", moved.collect::<Vec<_>>());
            Ok(bits(&model))
        });
        assert_eq!(seen[0], seen[1]);
    }
}

#[test]
fn a_step_before_join_is_an_error_that_hands_the_model_back() {
    ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = Mlp::new(1);
        let before = bits(&model);
        let gradients = grads(&model, &model.loss(1, 2));
        let error = optim.try_step(0.1, model, gradients).expect_err("not joined");
        assert!(matches!(error.source, Error::NotJoined { .. }), "{error}");
        assert!(error.to_string().contains("join(model)"), "{error}");
        assert_eq!(bits(&*error.model), before);
        Ok(())
    });
}

/// A trimmed mean gives ranks the same weight, so unequal batches would change its result.
#[test]
fn shares_by_speed_are_refused_with_an_aggregator_that_does_not_weigh() {
    let of = |aggregator: &str| {
        let reducer = r#"{ "kind": "gather", "compressor": "dense" }"#;
        config(&format!(r#"{{ "aggregator": "{aggregator}", "reducer": {reducer}, "feedback": "none" }}"#))
    };
    for (config, is_refused) in [(of("trimmed-mean:1"), true), (of("mean"), false)] {
        let joined = outcomes(3, |comm| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1).with_balance(4);
            optim.join(Mlp::new(1)).map(|_| optim.shares().map(<[usize]>::to_vec))
        });
        for outcome in joined {
            match outcome {
                Ok(shares) => assert!(!is_refused && shares == Some(vec![4; 3])),
                Err(error) => {
                    assert!(is_refused && error.to_string().contains("an aggregator other than the mean"), "{error}")
                }
            }
        }
    }
}
