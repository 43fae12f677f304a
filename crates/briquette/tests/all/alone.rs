//! Dense exchange in a world of one rank: equal to plain Burn.

use std::collections::BTreeMap;

use briquette::core::config::{Config, Feedback};
use briquette::core::control::cost_aware::CostAwareConfig;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use burn::optim::{GradientsParams, ModuleOptimizer};

use crate::common::*;

const LR: f64 = 0.02;

/// Some steps of plain Burn; at every third one the first layer has no gradient.
fn plain(mut inner: ModuleOptimizer, steps: u64) -> Vec<(String, Vec<u32>)> {
    let mut model = Mlp::new(5);
    for step in 0..steps {
        let gradients = some_grads(&model, step);
        model = inner.step(LR, model, gradients);
    }
    bits(&model)
}

fn some_grads(model: &Mlp, step: u64) -> GradientsParams {
    let mut gradients = grads(model, &model.loss(data(step, 0), 4));
    if step % 3 == 2 {
        gradients.remove::<2>(model.first.weight.id);
        gradients.remove::<1>(model.first.bias.as_ref().expect("a bias").id);
    }
    gradients
}

/// Configurations whose exchange is the identity in a world of one rank.
fn configs() -> [(&'static str, Config); 5] {
    [
        ("dense", Config::dense()),
        ("dense, error feedback", Config::dense().with_feedback(Feedback::error())),
        ("dense during the backward pass", Config::dense().during_backward()),
        ("auto", Config::auto()),
        ("cost-aware", Config::auto().with_controller(CostAwareConfig::default())),
    ]
}

#[test]
fn one_rank_trains_as_plain_burn_does_to_the_bit() {
    let optimizers = [("SGD", sgd as fn() -> ModuleOptimizer), ("momentum", sgd_with_momentum), ("Adam", adam)];
    for (name, inner) in optimizers {
        let expected = plain(inner(), 7);
        for (what, config) in configs() {
            let trained = ranks(1, |comm| {
                let mut optim = DistributedOptimizer::new(inner(), comm, config.clone(), 1);
                let mut model = optim.join(Mlp::new(5))?;
                for step in 0..7 {
                    let gradients = some_grads(&model, step);
                    model = optim.step(LR, model, gradients)?;
                    let report = optim.report();
                    assert_eq!(report.exchange.ratio.map(|ratio| ratio.get()), Some(1.0), "{what}");
                    assert_eq!((report.traffic.sent, report.ratio_changed), (0, false), "{what}");
                }
                Ok(bits(&model))
            });
            assert_eq!(trained[0], expected, "{name}: {what}");
        }
    }
}

#[test]
fn one_rank_refuses_a_gradient_that_is_not_finite_and_goes_on() {
    for (what, config) in configs() {
        let trained = ranks(1, |comm| {
            let mut optim = DistributedOptimizer::new(adam(), comm, config.clone(), 1);
            let model = optim.join(Mlp::new(5))?;
            let mut gradients = grads(&model, &model.loss(1, 4));
            let second = model.second.weight.id;
            let bad = gradients.remove::<2>(second).expect("a gradient").mul_scalar(f32::NAN);
            gradients.register(second, bad);
            let before = bits(&model);
            let refused = optim.try_step(LR, model, gradients).expect_err("not a number");
            let text = refused.to_string();
            assert!(text.contains("second.weight") && text.contains("rank 0"), "{what}: {text}");
            assert_eq!(bits(&*refused.model), before);
            let gradients = some_grads(&refused.model, 0);
            let model = optim.step(LR, *refused.model, gradients)?;
            Ok(bits(&model))
        });
        assert_eq!(trained[0], plain(adam(), 1), "{what}");
    }
}

#[test]
fn a_run_of_one_rank_goes_on_among_two() {
    for (what, config) in configs() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path();
        ranks(1, |comm| {
            let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
            let mut model = optim.join(Mlp::new(5))?;
            for step in 0..4 {
                (model, _) = train(&mut optim, model, step, 0)?;
            }
            optim.save(&model, path, &BTreeMap::new())
        });
        let trained = ranks(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, config.clone(), 1);
            let model = optim.join(Mlp::new(9))?;
            let mut model = optim.load(model, &Checkpoint::latest(path)?, WorldChange::SpreadResiduals)?;
            for step in 4..8 {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            Ok::<_, Error>(bits(&model))
        });
        assert_eq!(trained[0], trained[1], "{what}");
    }
}

#[test]
fn a_gradient_of_no_samples_weighs_nothing_alone_either() {
    let moved = ranks(1, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let model = optim.join(Mlp::new(5))?;
        let before = bits(&model);
        optim.record_samples(0);
        let gradients = some_grads(&model, 0);
        Ok(bits(&optim.step(LR, model, gradients)?) != before)
    });
    assert_eq!(moved, [false]);
}
