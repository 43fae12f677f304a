//! Joining: rank 0's values by path, local ids, and everything compared first.

use std::time::Duration;

use briquette::core::Communicator;
use briquette::core::config::Config;
use briquette::{DistributedOptimizer, Error};
use burn::grad_clipping::GradientClipping;
use burn::module::{Module, ModuleVisitor, Param, ParamGroup, ParamId};
use burn::optim::{AdamConfig, SgdConfig};
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

/// Joins with rank 1 differing, and gives every rank's mismatch.
fn mismatches(world: usize, hidden: [usize; 2], config: [Config; 2], seed: [u64; 2]) -> Vec<(&'static str, String)> {
    let results = outcomes(world, |comm| {
        let which = usize::from(comm.rank() == 1);
        let mut optim = DistributedOptimizer::new(sgd(), comm, config[which].clone(), seed[which]);
        optim.join(Mlp::wide(1, hidden[which]))
    });
    let told = |(rank, result): (usize, Result<Mlp, Error>)| match result.expect_err("they differ") {
        error @ Error::Mismatch { this, rank: other, field, .. } => {
            assert_eq!((this, other == 1), (rank, rank != 1));
            (field, error.to_string())
        }
        other => panic!("{other}"),
    };
    results.into_iter().enumerate().map(told).collect()
}

#[test]
fn what_differs_between_ranks_is_named_with_both_values_on_every_rank() {
    let (same, hidden, seed) = ([top_k(), top_k()], [8, 8], [1, 1]);
    let cases = [
        ("seed", ["41", "42"], mismatches(3, hidden, same.clone(), [41, 42])),
        ("layout", ["83 values in 4 slots", "93 values in 4 slots"], mismatches(3, [8, 9], same, seed)),
        ("configuration", ["topk:10x", "\"kind\":\"dense\""], mismatches(3, hidden, [top_k(), Config::dense()], seed)),
    ];
    for (expected, values, told) in cases {
        assert_eq!(told.len(), 3);
        for (field, text) in told {
            assert_eq!(field, expected);
            assert!(values.iter().all(|value| text.contains(value)) && text.contains(field), "{text}");
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

#[test]
fn a_rank_whose_configuration_cannot_work_stops_the_others_while_they_join() {
    let impossible = config(r#"{"strategy": "periodic", "every": 0}"#);
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let config = if rank == 1 { impossible.clone() } else { Config::dense() };
        let mut optim = DistributedOptimizer::new(sgd(), comm, config, 1);
        let result = optim.join(Mlp::new(1)).map(drop);
        // It keeps its endpoint, so the others cannot learn from its leaving.
        std::thread::sleep(Duration::from_millis(if rank == 1 { 500 } else { 0 }));
        drop(optim);
        Ok(result.expect_err("it cannot work").to_string())
    });
    let told: Vec<_> = results.into_iter().map(Result::unwrap).collect();
    assert!(told[1].contains("steps between averages must be at least 1, got 0"), "{told:?}");
    assert!(told[0].contains("rank 1 stopped the run") && told[0].contains("at least 1, got 0"), "{told:?}");
}
