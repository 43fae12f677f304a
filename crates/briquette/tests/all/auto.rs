//! Feedback chosen for the wrapped optimizer, and its results.

use std::collections::BTreeMap;

use briquette::core::config::{Config, Exchange, Feedback};
use briquette::optim::{DelayedAdaGradConfig, OneBitAdamConfig};
use briquette::{DistributedOptimizer, Error, Synchronizer, WorldChange};
use burn::grad_clipping::GradientClipping;
use burn::module::ParamGroup;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{AdaGradConfig, AdamWConfig, ModuleOptimizer, RmsPropConfig, SgdConfig};

use crate::common::*;

fn momentum(momentum: f64, dampening: f64) -> SgdConfig {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_momentum(momentum).with_dampening(dampening)))
}

fn nesterov() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_dampening(0.0).with_nesterov(true))).init()
}

/// The biases of one layer in a parameter group with another momentum.
fn grouped(there: f64) -> ModuleOptimizer {
    let group = ParamGroup::from_predicate("second.bias");
    momentum(0.9, 0.0).init().with_group(group, momentum(there, 0.0).build(), None)
}

/// A configuration with the feedback left open.
fn open(reducer: &str) -> Config {
    let reducer = reducer.parse().expect("a reducer");
    Config::every_step(Exchange { reducer, feedback: Feedback::by_optimizer(), ..Exchange::default() })
}

fn decided(inner: ModuleOptimizer) -> String {
    let found = ranks(1, |comm| {
        let mut optim = DistributedOptimizer::auto(inner.clone(), comm, 1);
        let model = optim.join(Mlp::new(1))?;
        assert_eq!(bits(&model), bits(&Mlp::new(1)), "trying the optimizer leaves the model alone");
        assert!(optim.inner().to_record().is_empty(), "and the optimizer");
        Ok(optim.summary().feedback.expect("it was open"))
    });
    found[0].clone()
}

#[test]
fn sgd_with_momentum_gets_momentum_correction() {
    for (inner, found) in [
        (momentum(0.9, 0.0).init(), "0.9"),
        (momentum(0.5, 0.0).init(), "0.5"),
        (momentum(0.987, 0.0).init(), "0.987"),
        (momentum(0.9, 0.1).init(), "0.9"),
        (momentum(0.9, 0.0).with_weight_decay(Some(WeightDecayConfig::new(5e-4))).init(), "0.9"),
        (momentum(0.5, 0.3).with_weight_decay(Some(WeightDecayConfig::new(0.1))).init(), "0.5"),
        (grouped(0.9), "0.9"),
    ] {
        assert_eq!(decided(inner), format!("momentum correction (SGD, momentum {found})"));
    }
}

#[test]
fn any_other_optimizer_gets_error_feedback() {
    let clipped = |clipping| momentum(0.9, 0.0).init().with_grad_clipping(clipping);
    for (name, inner, why) in [
        ("SGD", sgd(), "SGD without momentum"),
        ("decaying SGD", SgdConfig::new().with_weight_decay(Some(WeightDecayConfig::new(1e-3))).init(), "SGD without"),
        ("momentum 0", momentum(0.0, 0.0).init(), "SGD without momentum"),
        ("Nesterov", nesterov(), "not SGD with heavy-ball momentum"),
        ("Adam", adam(), "not SGD"),
        ("AdamW", AdamWConfig::new().init(), "not SGD"),
        ("RMSProp", RmsPropConfig::new().init(), "not SGD"),
        ("AdaGrad", AdaGradConfig::new().init(), "not SGD"),
        ("clipped by value", clipped(GradientClipping::Value(1.0)), "not SGD"),
        ("clipped by norm", clipped(GradientClipping::Norm(100.0)), "not SGD"),
        ("groups that differ", grouped(0.8), "not SGD"),
        ("one group without momentum", grouped(0.0), "not SGD"),
    ] {
        let feedback = decided(inner);
        assert!(feedback.starts_with("error feedback (") && feedback.contains(why), "{name}: {feedback}");
    }
    let alone = ranks(1, |comm| {
        let mut sync = Synchronizer::new(comm, Config::auto(), 1);
        sync.join(Mlp::new(1))?;
        Ok(sync.summary().feedback)
    });
    assert_eq!(alone[0].as_deref(), Some("error feedback (the optimizer cannot be seen)"));
}

#[test]
fn an_optimizer_that_has_trained_is_known_as_well() {
    let mut used = sgd_with_momentum();
    let model = Mlp::new(3);
    let gradients = grads(&model, &model.loss(1, 4));
    let _ = used.step(0.1, model, gradients);
    let joined = ranks(1, |comm| {
        let mut optim = DistributedOptimizer::auto(used.clone(), comm, 1);
        optim.join(Mlp::new(1))?;
        Ok(optim.summary().feedback.expect("it was open"))
    });
    assert_eq!(joined[0], "momentum correction (SGD, momentum 0.9)");
}

/// The models of two ranks after each of `steps` steps.
fn paths(config: &Config, inner: &ModuleOptimizer, steps: u64) -> Vec<Vec<Mlp>> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner.clone(), comm, config.clone(), 3);
        let mut model = optim.join(Mlp::new(5))?;
        let mut path = Vec::new();
        for step in 0..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
            path.push(model.clone());
        }
        Ok(path)
    })
}

fn furthest(a: &[Vec<Mlp>], b: &[Vec<Mlp>]) -> f32 {
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| distance(a, b)).fold(0.0, f32::max)
}

#[test]
fn dense_under_what_suits_the_optimizer_is_dense_with_the_optimizer() {
    let decay = Some(WeightDecayConfig::new(5e-4));
    for inner in [momentum(0.9, 0.0).init(), momentum(0.9, 0.1).with_weight_decay(decay).init(), adam()] {
        let (ours, plain) = (paths(&open("dense"), &inner, 50), paths(&Config::dense(), &inner, 50));
        assert!(furthest(&ours, &plain) < 1e-5, "{}", furthest(&ours, &plain));
        assert!(distance(&ours[0][49], &ours[0][0]) > 0.01, "it trains");
    }
}

#[test]
fn momentum_that_stays_in_the_optimizer_is_momentum_correction_around_one_without() {
    let explicit = config(
        r#"{"strategy": "every-step", "feedback": "momentum:0.9,masking=waited", "reducer": "gather:topk:8x:q8"}"#,
    );
    let reducer = "gather:topk:8x:q8";
    let (ours, theirs) = (paths(&open(reducer), &sgd_with_momentum(), 20), paths(&explicit, &sgd(), 20));
    assert!(furthest(&ours, &theirs) < 1e-4, "{}", furthest(&ours, &theirs));
    let error =
        Config { exchange: Exchange { feedback: Feedback::error(), ..open(reducer).exchange }, ..open(reducer) };
    let error = paths(&error, &sgd_with_momentum(), 20);
    assert!(furthest(&ours, &error) > 1e-3, "error feedback is another run: {}", furthest(&ours, &error));
    assert_eq!(bits(&ours[0][19]), bits(&ours[1][19]));
}

#[test]
fn what_was_decided_is_compared_between_ranks_and_with_checkpoints() {
    let results = outcomes(2, |comm| {
        let inner = if comm.rank() == 0 { sgd_with_momentum() } else { adam() };
        DistributedOptimizer::auto(inner, comm, 1).join(Mlp::new(1)).map(drop)
    });
    for result in results {
        let text = result.expect_err("they differ").to_string();
        assert!(["configuration.feedback", "inner-momentum:0.9", "error"].iter().all(|w| text.contains(w)), "{text}");
    }
    let directory = tempfile::tempdir().unwrap();
    let go = |inner: ModuleOptimizer, resume: bool| {
        let run = |comm| {
            let mut optim = DistributedOptimizer::new(inner.clone(), comm, open("gather:topk:4x"), 1);
            let mut model = optim.join(Net::new(1))?;
            if resume {
                optim.resume(model, directory.path(), WorldChange::Refuse, |_| Ok(()))?;
                return Ok(());
            }
            (model, _) = train(&mut optim, model, 0, 0)?;
            optim.save(&model, directory.path(), &BTreeMap::new())
        };
        outcomes(1, run).remove(0)
    };
    go(sgd_with_momentum(), false).unwrap();
    go(sgd_with_momentum(), true).unwrap();
    let error = go(momentum(0.8, 0.0).init(), true).unwrap_err();
    assert!(matches!(error, Error::OtherRun { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("inner-momentum:0.9 there, inner-momentum:0.8 here"), "{text}");
}

#[test]
fn where_parameters_are_exchanged_what_is_left_open_is_error_feedback() {
    briquette::zoo::install();
    let slow_mo = config(r#"{"strategy": "slowmo", "feedback": "by-optimizer", "reducer": "gather:topk:4x"}"#);
    let found = ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, slow_mo.clone(), 1);
        optim.join(Mlp::new(1))?;
        Ok(optim.summary().feedback)
    });
    assert_eq!(found[0].as_deref(), Some("error feedback (strategy slowmo)"));
}

/// The logged decision is the applied one: the settings that ranks compare contain it.
#[test]
fn a_step_late_the_optimizer_still_steps_with_averages() {
    let delayed = config(r#"{"strategy": "delayed", "feedback": "by-optimizer", "reducer": "gather:topk:4x"}"#);
    let found = ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, delayed.clone(), 1);
        optim.join(Mlp::new(1))?;
        Ok((optim.summary().feedback, format!("{:?}", optim.synchronizer())))
    });
    assert_eq!(found[0].0.as_deref(), Some("momentum correction (SGD, momentum 0.9)"));
    assert!(found[0].1.contains("inner-momentum:0.9"), "{}", found[0].1);
}

#[test]
fn a_summary_counts_what_steps_sent() {
    let summaries = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, open("gather:topk:8x"), 3);
        let mut model = optim.join(Mlp::wide(5, 400))?;
        let (mut sent, mut dense) = (0, 0);
        for step in 0..4 {
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            (sent, dense) = (sent + report.traffic.sent, dense + report.dense_traffic.sent);
        }
        let summary = optim.summary();
        assert_eq!((summary.steps, summary.bytes_sent, summary.bytes_dense), (4, sent, dense));
        assert_eq!(summary.sent_as, [("8x".to_owned(), 4)]);
        Ok(summary.to_string())
    });
    let text = &summaries[0];
    assert!(text.starts_with("gather:topk:8x: 8x 100 % of 4 steps; ") && text.contains("fewer bytes"), "{text}");
    assert!(text.ends_with("the session has no clock; momentum correction (SGD, momentum 0.9)"), "{text}");
}

#[test]
fn a_momentum_that_the_optimizer_does_not_have_is_refused() {
    briquette::zoo::install();
    let named = |strategy: &str| {
        config(&format!(
            r#"{{"strategy": "{strategy}", "feedback": "inner-momentum:0.9", "reducer": "gather:topk:4x"}}"#
        ))
    };
    let join = |config: Config, inner: ModuleOptimizer| {
        let run = |comm| DistributedOptimizer::new(inner.clone(), comm, config.clone(), 1).join(Mlp::new(1)).map(drop);
        outcomes(1, run).remove(0).map_err(|error| error.to_string())
    };
    assert_eq!(join(named("every-step"), sgd_with_momentum()), Ok(()));
    for (inner, got) in [
        (adam(), "an optimizer with momentum that is not SGD with heavy-ball momentum"),
        (sgd(), "SGD without momentum"),
        (momentum(0.8, 0.0).init(), "SGD, momentum 0.8"),
        (nesterov(), "not SGD with heavy-ball"),
    ] {
        let error = join(named("every-step"), inner).unwrap_err();
        assert!(error.contains("inner-momentum:0.9") && error.contains(got), "{error}");
        assert!(error.contains("by-optimizer"), "{error}");
    }
    let error = join(named("slowmo"), sgd_with_momentum()).unwrap_err();
    assert!(error.contains("exchanges parameters"), "{error}");
    for (reducer, feedback) in [
        ("gather:topk:4x", "momentum:0.9"),
        ("two-way:plain-sign,down=plain-sign", "rank-momentum:0.9"),
        ("mcm:qsgd:8", "none"),
        ("smooth:qsgd:8", "none"),
        ("byzantine:(smooth:qsgd:8)", "none"),
        ("hierarchical:(smooth:qsgd:8),group=1", "none"),
        ("multi-step:2,inner=(smooth:qsgd:8)", "none"),
    ] {
        let named =
            || config(&format!(r#"{{"strategy": "every-step", "feedback": "{feedback}", "reducer": "{reducer}"}}"#));
        assert_eq!(join(named(), sgd()), Ok(()), "{reducer}, {feedback}");
        let error = join(named(), sgd_with_momentum()).unwrap_err();
        let what = if feedback == "none" { reducer.split(':').next().unwrap() } else { feedback };
        assert!(error.contains(what) && error.contains("SGD, momentum 0.9"), "{error}");
        for inner in [adam(), nesterov(), OneBitAdamConfig::new(5).init()] {
            let error = join(named(), inner).unwrap_err();
            assert!(error.contains(what) && error.contains("an optimizer with momentum"), "{error}");
        }
        // Gradients alone affect these optimizers, but not by the learning rate alone.
        let clipped = sgd().with_grad_clipping(GradientClipping::Value(1.0));
        for inner in [clipped, AdaGradConfig::new().init(), DelayedAdaGradConfig::new().init()] {
            let joined = join(named(), inner);
            match feedback {
                "none" => assert!(joined.unwrap_err().contains("learning rate times the average"), "{reducer}"),
                _ => assert_eq!(joined, Ok(()), "{reducer}, {feedback}"),
            }
        }
    }
    let one_bit =
        || config(r#"{"strategy": "every-step", "feedback": "one-bit-adam:5", "reducer": "two-way:sign,down=sign"}"#);
    assert_eq!(join(one_bit(), OneBitAdamConfig::new(5).init()), Ok(()));
    for inner in [sgd(), sgd_with_momentum(), adam(), DelayedAdaGradConfig::new().init()] {
        let error = join(one_bit(), inner).unwrap_err();
        assert!(error.contains("one-bit-adam:5") && error.contains("OneBitAdam"), "{error}");
    }
}
