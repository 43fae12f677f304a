//! Strategies with different replicas, or that act on parameters.

use std::collections::BTreeMap;

use briquette::core::comm::Session;
use briquette::core::config::{Config, StrategyConfig};
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;

use crate::common::*;

pub(crate) fn strategy(text: &str) -> Config {
    Config::dense().with_strategy(text.parse::<StrategyConfig>().expect("a strategy"))
}

/// The models of all ranks after some steps.
pub(crate) fn run(text: &str, inner: fn() -> ModuleOptimizer, world: usize, steps: u64) -> Vec<Mlp> {
    ranks(world, |comm: Session| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, strategy(text), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(model)
    })
}

#[test]
fn slow_momentum_makes_replicas_equal_at_the_end_of_a_period() {
    briquette::zoo::install();
    for base in ["", ",base=sgp"] {
        let text = format!("slowmo:period=3,beta=0.5{base}");
        for (steps, equal) in [(3, true), (4, false), (6, true)] {
            let models = run(&text, sgd, 3, steps);
            assert_eq!(bits(&models[0]) == bits(&models[1]), equal, "{text} after {steps} steps");
            assert_eq!(bits(&models[0]) == bits(&models[2]), equal, "{text} after {steps} steps");
        }
    }
}

#[test]
fn slow_momentum_of_nothing_is_local_sgd() {
    briquette::zoo::install();
    let slow = run("slowmo:period=3,beta=0,reset=false", sgd_with_momentum, 3, 7);
    let local = run("local-sgd:3", sgd_with_momentum, 3, 7);
    for (a, b) in slow.iter().zip(&local) {
        assert!(distance(a, b) < 1e-6);
    }
}

#[test]
fn what_is_evaluated_is_the_mean_of_the_replicas_whose_mean_gossip_conserves() {
    briquette::zoo::install();
    // Ranks send to different numbers of ranks: the unweighted mean of their parameters would differ.
    let text = "sgp:graph=0>1;0>2;1>0;2>0";
    let shown = ranks(3, |comm: Session| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, strategy(text), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..4 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let before = bits(&model);
        let shown = optim.evaluation_copy(&model)?;
        assert_eq!(before, bits(&model), "evaluating changes nothing");
        Ok((model, shown))
    });
    for (model, copy) in &shown {
        assert_eq!(bits(copy), bits(&shown[0].1));
        assert_ne!(bits(copy), bits(model));
    }
    let mean = |path: &str| -> f32 { shown.iter().map(|(model, _)| value(model, path)[0]).sum::<f32>() / 3.0 };
    let off = (value(&shown[0].1, "second.bias")[0] - mean("second.bias")).abs();
    assert!(off > 1e-7, "weights have a part in it: {off}");
}

#[test]
fn a_rank_that_cannot_go_on_stops_its_neighbours_at_once() {
    briquette::zoo::install();
    let results = outcomes(3, |comm: Session| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, strategy("sgp"), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..4 {
            let (x, y) = batch(&[(data(step, rank), 4)]);
            let scale = if (rank, step) == (1, 2) { f32::NAN } else { 1.0 };
            let loss = model.error(x, y).mul_scalar(scale);
            let gradients = grads(&model, &loss);
            model = optim.step(0.1, model, gradients)?;
        }
        Ok(())
    });
    let texts: Vec<String> =
        results.into_iter().map(|result| result.map_or_else(|e: Error| e.to_string(), |()| String::new())).collect();
    assert!(texts[1].contains("step 2: rank 1 has a non-finite value"), "{}", texts[1]);
    for text in [&texts[0], &texts[2]] {
        assert!(text.contains("rank 1 stopped the run"), "{text}");
    }
}

/// A parameter that has a gradient at every other step only: its mean arrives at the steps without one.
#[test]
fn a_step_late_a_mean_comes_where_its_slot_has_no_gradient() {
    briquette::zoo::install();
    let moved = ranks(2, |comm: Session| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, strategy("delayed"), 1);
        let mut model = optim.join(Mlp::new(5))?;
        let before = value(&model, "second.bias");
        for step in 0..6 {
            let mut gradients = GradientsParams::new();
            if step % 2 == 0 {
                let id = model.second.bias.as_ref().expect("it has one").id;
                gradients.register(id, Tensor::<1>::from_floats([1.0, 0.0, -1.0], &device().inner()));
            }
            model = optim.step(0.125, model, gradients)?;
        }
        let after = value(&model, "second.bias");
        Ok(before.iter().zip(after).map(|(before, after)| before - after).collect::<Vec<f32>>())
    });
    // Of steps 0, 2 and 4.
    for (moved, expected) in moved[0].iter().zip([0.375, 0.0, -0.375]) {
        assert!((moved - expected).abs() < 1e-6, "{moved} for {expected}");
    }
}

/// With any optimizer a round is a step with a batch of all its gradients: momenta and step counters change once.
#[test]
fn an_optimizer_steps_once_in_a_round_of_minibatches() {
    briquette::zoo::install();
    for inner in [sgd, sgd_with_momentum, adam] {
        let rounds = run("minibatch:3", inner, 2, 9);
        let large = ranks(2, |comm: Session| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(inner(), comm, strategy("every-step"), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for round in 0..3 {
                let loss = |k: u64| model.loss(data(3 * round + k, rank), 4);
                let gradients = grads(&model, &((loss(0) + loss(1) + loss(2)) / 3.0));
                model = optim.step(0.02, model, gradients)?;
            }
            Ok(model)
        });
        assert!(distance(&rounds[0], &large[0]) < 1e-6, "{}", distance(&rounds[0], &large[0]));
        assert!(distance(&rounds[0], &Mlp::new(5)) > 1e-3, "it trains");
    }
}

/// The accelerated step is not the optimizer's, whose momenta would be ignored.
#[test]
fn accelerated_minibatches_are_for_plain_sgd() {
    briquette::zoo::install();
    let join = |inner: ModuleOptimizer| {
        let joined = outcomes(1, |comm: Session| {
            let config = strategy("minibatch:3,accelerate=true");
            DistributedOptimizer::new(inner.clone(), comm, config, 1).join(Mlp::new(1)).map(drop)
        });
        joined.into_iter().next().expect("one rank").map_err(|error| error.to_string())
    };
    assert_eq!(join(sgd()), Ok(()));
    for inner in [sgd_with_momentum(), adam()] {
        let error = join(inner).unwrap_err();
        assert!(error.contains("strategy minibatch:3,accelerate=true") && error.contains("use SGD without"), "{error}");
    }
}

/// At the first step no average has arrived yet: the second step is the optimizer's first.
#[test]
fn a_step_late_an_optimizer_does_not_see_a_gradient_of_zeros_first() {
    briquette::zoo::install();
    for inner in [sgd_with_momentum, adam] {
        let (late, first) = (run("delayed", inner, 2, 2), run("every-step", inner, 2, 1));
        assert!(distance(&late[0], &first[0]) < 1e-7, "{}", distance(&late[0], &first[0]));
    }
}

/// The evaluated model includes the progress of the last steps if the length of the run is known.
#[test]
fn a_run_of_known_length_ends_with_all_that_it_has_learned() {
    briquette::zoo::install();
    let evaluated = |text: &str, known: Option<u64>, other: u64| {
        ranks(2, |comm: Session| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, strategy(text), 1);
            if let Some(steps) = known {
                optim = optim.with_run_steps(steps);
            }
            let mut model = optim.join(Mlp::new(5))?;
            for step in [0, 1, 2, 3, other] {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            optim.evaluation_copy(&model)
        })
    };
    for text in ["easgd:4", "parle:4", "minibatch:4", "two-level:(easgd:4),group=1", "slowmo:4", "diloco:100"] {
        let [a, b] = [4, 9].map(|other| evaluated(text, Some(5), other));
        assert!(distance(&a[0], &b[0]) > 1e-6, "{text}");
        assert_eq!(bits(&a[0]), bits(&a[1]), "{text}");
    }
    let [a, b] = [4, 9].map(|other| evaluated("easgd:4", None, other));
    assert_eq!(bits(&a[0]), bits(&b[0]), "it is not where the length is unknown");
}

/// The exchange at the run's last step is not lost if the run was resumed before it.
#[test]
fn a_resumed_run_of_known_length_ends_as_one_without_a_break() {
    briquette::zoo::install();
    for text in ["easgd:4", "parle:4", "minibatch:4", "two-level:(easgd:4),group=1"] {
        let directory = tempfile::tempdir().unwrap();
        let run = |resumed: bool| {
            ranks(2, |comm: Session| {
                let rank = comm.rank();
                let mut optim = DistributedOptimizer::new(sgd(), comm, strategy(text), 1).with_run_steps(6);
                let mut model = optim.join(Mlp::new(5))?;
                if resumed {
                    model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
                }
                for step in optim.synchronizer().step()..6 {
                    if step == 5 && !resumed {
                        optim.save(&model, directory.path(), &BTreeMap::new())?;
                    }
                    (model, _) = train(&mut optim, model, step, rank)?;
                }
                Ok(bits(&optim.evaluation_copy(&model)?))
            })
        };
        assert!(run(false) == run(true), "{text}");
    }
}

#[test]
fn what_is_open_follows_from_the_number_of_steps_and_ranks_compare_both() {
    briquette::zoo::install();
    let settings = |steps: Option<u64>| {
        ranks(1, |comm: Session| {
            let mut optim = DistributedOptimizer::new(sgd(), comm, strategy("diloco"), 1);
            if let Some(steps) = steps {
                optim = optim.with_run_steps(steps);
            }
            optim.join(Mlp::new(1))?;
            Ok(format!("{:?}", optim.synchronizer()))
        })
    };
    for (steps, period) in [(None, "diloco:100"), (Some(158), "diloco:7"), (Some(3000), "diloco:100")] {
        assert!(settings(steps)[0].contains(&format!("{period}\\\"")), "{}", settings(steps)[0]);
    }
    let differ = outcomes(2, |comm: Session| {
        let steps = 1000 + comm.rank() as u64;
        DistributedOptimizer::new(sgd(), comm, strategy("easgd:3"), 1).with_run_steps(steps).join(Mlp::new(1)).map(drop)
    });
    let error = differ[0].as_ref().unwrap_err().to_string();
    assert!(["steps of the run", "1000", "1001"].iter().all(|word| error.contains(word)), "{error}");
}

/// A layer that has a gradient only at the first step of a round still counts when the round ends.
#[test]
fn what_a_round_gathered_counts_where_its_last_step_has_no_gradient() {
    briquette::zoo::install();
    let models = ranks(2, |comm: Session| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, strategy("minibatch:2"), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..2 {
            let loss = if step == 0 { model.second.weight.val().sum() } else { model.first.weight.val().sum() };
            let gradients = grads(&model, &loss);
            model = optim.step(0.1, model, gradients)?;
        }
        Ok(model)
    });
    for path in ["first.weight", "second.weight"] {
        let moved = value(&Mlp::new(5), path)[0] - value(&models[0], path)[0];
        assert!((moved - 0.05).abs() < 1e-6, "{path}: half of a gradient of 1 at rate 0.1, not {moved}");
    }
}

/// Ranks of a machine have different data and equal parameters; machines differ until the period ends.
#[test]
fn two_levels_keep_the_ranks_of_a_machine_equal() {
    briquette::zoo::install();
    for (steps, equal) in [(2, false), (3, true), (5, false)] {
        let models = run("two-level:(local-sgd:3),group=2", sgd_with_momentum, 4, steps);
        assert_eq!(bits(&models[0]), bits(&models[1]), "after {steps} steps");
        assert_eq!(bits(&models[2]), bits(&models[3]), "after {steps} steps");
        assert_eq!(bits(&models[0]) == bits(&models[2]), equal, "after {steps} steps");
    }
}

/// A rank that has run out of data takes its machine's step, and the model to evaluate is the mean over machines.
#[test]
fn two_levels_without_data_on_a_rank_step_with_the_others_gradients() {
    briquette::zoo::install();
    let shown = ranks(4, |comm: Session| {
        let rank = comm.rank();
        let mut optim =
            DistributedOptimizer::new(sgd_with_momentum(), comm, strategy("two-level:(local-sgd:9),group=2"), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..4 {
            if rank == 1 {
                optim.record_samples(0);
                model = optim.step(0.02, model, GradientsParams::new())?;
            } else {
                optim.record_samples(4);
                (model, _) = train(&mut optim, model, step, rank)?;
            }
        }
        Ok((bits(&model), bits(&optim.evaluation_copy(&model)?)))
    });
    assert_eq!(shown[0].0, shown[1].0);
    assert_ne!(shown[0].0, shown[2].0);
    assert!(shown.iter().all(|(_, all)| *all == shown[0].1));
}
