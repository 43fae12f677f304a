//! Joining: rank 0's values by path, local ids, and a comparison of all settings first.

use std::collections::BTreeMap;
use std::time::Duration;

use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error, WorldChange};
use burn::grad_clipping::GradientClipping;
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdamConfig, AdamWConfig, ModuleOptimizer, SgdConfig};
use burn::tensor::Tensor;

use crate::common::*;

fn ids<M: Module>(module: &M) -> Vec<ParamId> {
    struct Ids(Vec<ParamId>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id);
        }
    }
    let mut walk = Ids(Vec::new());
    module.visit(&mut walk);
    walk.0
}

#[test]
fn rank_0s_weights_arrive_by_path_and_local_ids_stay() {
    let joined = ranks(3, |comm| {
        let rank = comm.rank() as u64;
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = Net::new(10 + rank);
        let before = ids(&model);
        let model = optim.join(model)?;
        assert_eq!(ids(&model), before);
        assert!(model.conv.weight.val().is_require_grad() && model.conv.weight.val().is_autodiff());
        let slots = optim.synchronizer().layout()?.slots().iter().map(|s| s.path().to_owned()).collect::<Vec<_>>();
        Ok((bits(&model), before, slots))
    });
    for (values, ids, slots) in &joined {
        assert_eq!(*values, bits(&Net::new(10)));
        assert_eq!(*slots, ["conv.weight", "conv.bias", "norm.gamma", "norm.beta", "top.weight", "top.bias"]);
        assert_eq!(joined.iter().filter(|(_, other, _)| other == ids).count(), 1, "every rank has ids of its own");
    }
}

#[test]
fn parameter_groups_made_by_ids_match_on_every_rank_after_join() {
    let replicas = ranks(2, |comm| {
        let rank = comm.rank();
        let model = Mlp::new(10 + rank as u64);
        let frozen = ParamGroup::ids_from_module(model.first.clone());
        let inner =
            AdamConfig::new().init().with_group(frozen, SgdConfig::new().build(), Some(GradientClipping::Value(0.0)));
        let mut optim = DistributedOptimizer::new(inner, comm, top_k(), 1);
        let mut model = optim.join(model)?;
        for step in 0..4 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        // Adam keeps two moments for each of the two other parameters.
        assert_eq!(optim.inner().to_record().len(), 4);
        Ok(model)
    });
    for replica in &replicas {
        assert_eq!(value(replica, "first.weight"), value(&Mlp::new(10), "first.weight"));
        assert_ne!(value(replica, "second.weight"), value(&Mlp::new(10), "second.weight"));
        assert_eq!(bits(replica), bits(&replicas[0]));
    }
}

/// Joins with rank 1 differing, and returns every rank's mismatch.
fn mismatches(world: usize, hidden: [usize; 2], config: [Config; 2], seed: [u64; 2]) -> Vec<(String, String)> {
    let results = outcomes(world, |comm| {
        let which = usize::from(comm.rank() == 1);
        let mut optim = DistributedOptimizer::new(sgd(), comm, config[which].clone(), seed[which]);
        optim.join(Mlp::wide(1, hidden[which]))
    });
    let told = |(rank, result): (usize, Result<Mlp, Error>)| match result.expect_err("they differ") {
        ref error @ Error::Mismatch { this, rank: other, ref field, .. } => {
            assert_eq!((this, other == 1), (rank, rank != 1));
            (field.clone(), error.to_string())
        }
        other => panic!("{other}"),
    };
    results.into_iter().enumerate().map(told).collect()
}

/// Threat R1.
#[test]
fn what_differs_between_ranks_is_named_with_both_values_on_every_rank() {
    let (same, hidden, seed) = ([top_k(), top_k()], [8, 8], [1, 1]);
    let cases = [
        ("seed", ["41", "42"], mismatches(3, hidden, same.clone(), [41, 42])),
        ("trainable tensor 0, the first that differs,", ["[6, 8]", "[6, 9]"], mismatches(3, [8, 9], same, seed)),
        ("configuration.feedback", ["error", "none"], mismatches(3, hidden, [top_k(), Config::dense()], seed)),
    ];
    for (expected, values, told) in cases {
        assert_eq!(told.len(), 3);
        for (field, text) in told {
            assert_eq!(field, expected);
            assert!(values.iter().all(|value| text.contains(value)) && text.contains(&field), "{text}");
        }
    }
}

#[test]
fn a_rank_with_another_local_weight_decay_is_told_so() {
    let results = outcomes(2, |comm| {
        let weight_decay = [1e-4, 5e-4][comm.rank()];
        let optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        optim.with_local_weight_decay(weight_decay).join(Mlp::new(1)).map(drop)
    });
    for result in results {
        let text = result.expect_err("they differ").to_string();
        assert!(["local weight decay", "0.0001", "0.0005"].iter().all(|part| text.contains(part)), "{text}");
    }
}

/// The errors of rank 1, which joins with the second of each pair, and of the others.
fn differing<'a>(
    optimizers: [fn() -> ModuleOptimizer; 2],
    settings: [&'a [(&'a str, &'a str)]; 2],
) -> Vec<Result<(), Error>> {
    outcomes(3, |comm| {
        let which = usize::from(comm.rank() == 1);
        let mut optim = DistributedOptimizer::new(optimizers[which](), comm, Config::dense(), 1);
        for (name, value) in settings[which] {
            optim = optim.with_run_setting(*name, *value);
        }
        optim.join(Net::new(1)).map(drop)
    })
}

fn momentum(momentum: f64) -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(momentum).with_dampening(0.0)))
}

/// The biases of one layer in a parameter group with another momentum.
fn grouped(momentum_there: f64) -> ModuleOptimizer {
    let group = ParamGroup::from_predicate("top.bias");
    momentum(0.9).init().with_group(group, momentum(momentum_there).build(), None)
}

/// Threat R1.
#[test]
fn ranks_whose_optimizers_differ_in_kind_or_in_any_setting_cannot_join() {
    let pairs: [[fn() -> ModuleOptimizer; 2]; 10] = [
        [sgd, adam],
        [sgd, sgd_with_momentum],
        [|| momentum(0.9).init(), || momentum(0.95).init()],
        [|| momentum(0.9).init(), || SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()],
        [adam, || AdamConfig::new().with_beta_2(0.99).init()],
        [adam, || AdamConfig::new().with_epsilon(1e-8).init()],
        [adam, || AdamWConfig::new().init()],
        [|| grouped(0.9), || grouped(0.8)],
        [
            || sgd().with_grad_clipping(GradientClipping::Norm(5.0)),
            || sgd().with_grad_clipping(GradientClipping::Norm(6.0)),
        ],
        [sgd, || sgd().with_grad_clipping(GradientClipping::Value(100.0))],
    ];
    for (index, optimizers) in pairs.into_iter().enumerate() {
        for result in differing(optimizers, [&[], &[]]) {
            let error = result.expect_err("they differ").to_string();
            assert!(error.contains("optimizer") && error.contains("rank 1"), "pair {index}: {error}");
        }
        for optimizer in optimizers {
            assert!(differing([optimizer; 2], [&[], &[]]).iter().all(Result::is_ok), "pair {index}");
        }
    }
    let [small, large]: [fn() -> ModuleOptimizer; 2] = [
        || SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-4))).init(),
        || SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1.2e-4))).init(),
    ];
    assert!(differing([small, large], [&[], &[]]).iter().all(Result::is_err), "a little more weight decay");
    // `group` selects by path: the difference is in one parameter, which is named.
    let error = differing([|| grouped(0.9), || grouped(0.8)], [&[], &[]]).remove(0).unwrap_err().to_string();
    assert!(error.contains("`top.bias`"), "{error}");
}

#[test]
fn an_optimizer_that_has_trained_joins_as_a_fresh_one_and_is_not_changed_by_it() {
    let (model, mut trained) = (Net::new(3), adam());
    let gradients = grads(&model, &model.loss(1, 4));
    let model = trained.step(0.1, model, gradients);
    let before = trained.to_record().len();
    ranks(1, |comm| {
        let mut optim = DistributedOptimizer::new(trained.clone(), comm, Config::dense(), 1);
        let values = bits(&model);
        let joined = optim.join(model.clone())?;
        assert_eq!((bits(&joined), optim.inner().to_record().len()), (values, before));
        Ok(())
    });
    let used = || {
        let (model, mut optim) = (Net::new(3), adam());
        let gradients = grads(&model, &model.loss(1, 4));
        let _ = optim.step(0.1, model, gradients);
        optim
    };
    assert!(differing([adam, used], [&[], &[]]).iter().all(Result::is_ok));
}

#[test]
fn settings_of_the_training_loop_are_compared_and_named() {
    let (ours, theirs) = ([("--lr", "0.1"), ("data", "a")], [("--lr", "0.1"), ("data", "b")]);
    for (rank, result) in differing([sgd, sgd], [&ours, &theirs]).into_iter().enumerate() {
        let error = result.expect_err("they differ").to_string();
        let expected = match rank {
            1 => "rank 0 cannot join: its data is a, rank 1's is b".to_owned(),
            rank => format!("rank 1 cannot join: its data is b, rank {rank}'s is a"),
        };
        assert_eq!(error, expected);
    }
    let error = differing([sgd, sgd], [&ours, &ours[..1]]).remove(0).unwrap_err().to_string();
    assert!(error.contains("its data is absent, rank 0's is a"), "{error}");
}

#[test]
fn a_checkpoint_is_refused_where_optimizer_or_settings_differ_and_world_settings_may() {
    let directory = tempfile::tempdir().unwrap();
    let go = |inner: fn() -> ModuleOptimizer, [data, steps]: [&str; 2], resume: bool| {
        let run = |comm| {
            let mut optim = DistributedOptimizer::new(inner(), comm, Config::dense(), 1)
                .with_run_setting("data", data)
                .with_world_setting("steps", steps);
            let mut model = optim.join(Net::new(1))?;
            match resume {
                true => model = optim.resume(model, directory.path(), WorldChange::Refuse, |_| Ok(()))?.0,
                false => (model, _) = train(&mut optim, model, 0, 0)?,
            }
            if !resume {
                optim.save(&model, directory.path(), &BTreeMap::new())?;
            }
            Ok(())
        };
        outcomes(1, run).remove(0).map_err(|error| (matches!(error, Error::OtherRun { .. }), error.to_string()))
    };
    go(|| momentum(0.9).init(), ["a", "5"], false).unwrap();
    go(|| momentum(0.9).init(), ["a", "9"], true).unwrap();
    let (typed, said) = go(|| momentum(0.9).init(), ["b", "5"], true).unwrap_err();
    assert!(typed && said.contains("saved by another data: a there, b here"), "{said}");
    for inner in [(|| momentum(0.8).init()) as fn() -> ModuleOptimizer, adam] {
        let (typed, said) = go(inner, ["a", "5"], true).unwrap_err();
        assert!(typed && said.contains("saved by another optimizer"), "{said}");
    }
}

#[test]
fn threads_of_a_rank_are_its_own() {
    let threads = |threads: usize| {
        config(&format!(
            r#"{{"strategy": "every-step", "feedback": "error", "reducer": {{"kind": "gather", "compressor": "topk:4x"}}, "threads": {threads}}}"#
        ))
    };
    let joined = outcomes(2, |comm| {
        let threads = threads(1 + comm.rank());
        DistributedOptimizer::new(sgd(), comm, threads, 1).join(Mlp::new(1)).map(drop)
    });
    for result in joined {
        // Without the feature they are unavailable.
        let error = result.err().map(|error| error.to_string());
        assert!(error.as_ref().is_none_or(|error| error.contains("rayon")), "{error:?}");
    }
}

#[test]
fn a_rank_whose_configuration_cannot_work_stops_the_others_while_they_join() {
    let impossible = Config::local_sgd(0);
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let config = if rank == 1 { impossible.clone() } else { Config::dense() };
        let mut optim = DistributedOptimizer::new(sgd(), comm, config, 1);
        let result = optim.join(Mlp::new(1)).map(drop);
        // It keeps its endpoint, so the others cannot detect its departure.
        std::thread::sleep(Duration::from_millis(if rank == 1 { 500 } else { 0 }));
        drop(optim);
        Ok(result.expect_err("it cannot work").to_string())
    });
    let told: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(told[1].contains("steps between averages must be at least 1, got 0"), "{told:?}");
    assert!(told[0].contains("rank 1 stopped the run") && told[0].contains("at least 1, got 0"), "{told:?}");
}
