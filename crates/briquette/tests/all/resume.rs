//! k steps, save, load, k steps are 2k steps, bit for bit.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use briquette::core::comm::run_ranks;
use briquette::core::config::Config;
use briquette::sim::{Compute, Network, Simulated};
use briquette::{Checkpoint, DistributedOptimizer, Error, StepReport, WorldChange};
use burn::grad_clipping::GradientClipping;
use burn::module::ParamGroup;
use burn::optim::{ModuleOptimizer, SgdConfig};

use crate::common::*;

const HALF: u64 = 7;

type Inner = fn() -> ModuleOptimizer;
type Trace = (Vec<(String, Vec<u32>)>, Vec<StepReport>);

/// Trains from a seed, or from the checkpoint in `from`, up to `until`, saving at `HALF` into `to`.
fn run(
    (config, world): (&Config, usize),
    inner: Inner,
    from: Option<&Path>,
    to: Option<&Path>,
    until: u64,
) -> Vec<Trace> {
    let network: Network = "100mbit,1ms".parse().expect("a valid network");
    // Simulated seconds are the same in every run, so controllers that depend on the clock must repeat their decisions.
    let world = Simulated::world(world, network, Compute::Fixed(Duration::from_millis(5)));
    let ranks = run_ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, config.clone(), 3);
        // A resumed process starts from other weights, and its parameters have other ids.
        let mut model = optim.join(Net::new(if from.is_some() { 999 } else { 5 }))?;
        if let Some(directory) = from {
            model = optim.load(model, &Checkpoint::latest(directory)?, WorldChange::Refuse)?;
            assert_eq!(optim.synchronizer().step(), HALF);
        }
        let mut reports = Vec::new();
        for step in optim.synchronizer().step()..until {
            if let Some(directory) = to.filter(|_| step == HALF) {
                optim.save(&model, directory, &BTreeMap::new())?;
            }
            let report;
            (model, report) = train(&mut optim, model, step, rank)?;
            reports.push(report);
        }
        if until == HALF {
            optim.save(&model, to.expect("somewhere to save"), &BTreeMap::new())?;
        }
        Ok::<_, Error>((bits(&model), reports))
    });
    ranks.into_iter().map(|r| r.expect("no rank fails")).collect()
}

fn check(config: &Config, inner: Inner) {
    check_but((config, 2), inner, StepReport::clone);
}

/// Compares the reports, except for the fields that `seen` clears.
fn check_but(of: (&Config, usize), inner: Inner, seen: fn(&StepReport) -> StepReport) {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let whole = run(of, inner, None, Some(second.path()), 2 * HALF);
    run(of, inner, None, Some(first.path()), HALF);
    let resumed = run(of, inner, Some(first.path()), None, 2 * HALF);
    for (rank, ((whole, all), (resumed, reports))) in whole.iter().zip(&resumed).enumerate() {
        let [all, reports] = [&all[HALF as usize..], reports].map(|part| part.iter().map(seen).collect::<Vec<_>>());
        assert_eq!(all, reports, "{of:?}: reports of rank {rank}");
        assert!(whole == resumed, "{of:?}: parameters or buffers of rank {rank}");
    }
}

#[test]
fn dense_resumes_bit_exactly() {
    check(&Config::dense(), adam);
    check(&Config::dense(), sgd_with_momentum);
}

#[test]
fn top_k_with_error_feedback_resumes_bit_exactly() {
    check(&top_k(), adam);
    check(&top_k(), sgd_with_momentum);
}

#[test]
fn momentum_correction_resumes_bit_exactly() {
    check(&momentum_correction(), sgd);
}

#[test]
fn what_suits_the_optimizer_resumes_bit_exactly() {
    let open = config(r#"{"feedback": "by-optimizer", "reducer": "gather:topk:8x:q8"}"#);
    for config in [open, Config::auto()] {
        check(&config, sgd_with_momentum);
        check(&config, adam);
    }
}

#[test]
fn gravac_resumes_bit_exactly() {
    check(&gravac(), sgd_with_momentum);
    check(&gravac(), adam);
}

#[test]
fn power_sgd_resumes_bit_exactly() {
    check(&power_sgd(), adam);
}

#[test]
fn every_strategy_resumes_bit_exactly_between_two_averages() {
    briquette::zoo::install();
    let texts = [
        "local-sgd:3",
        "local-sgd:3,momenta=average",
        "slowmo:3",
        "bmuf:3",
        "diloco:3",
        "streaming-diloco:4,fragments=2,overlap=1",
        "easgd:3",
        "lsgd:4,local=2",
        "sgp",
        "sgp:exponential,staleness=2",
        "slowmo:3,base=sgp,average=false",
        "overlap-local-sgd:3",
        "cocod:3",
        "minibatch:3",
        "parle:3",
        "two-level:(slowmo:3)",
        "two-level:(sgp),group=1",
        "delayed",
    ];
    for text in texts {
        check_but((&config(&format!(r#"{{"strategy": "{text}"}}"#)), 2), sgd_with_momentum, losses);
    }
    check(&config(r#"{"strategy": "local-sgd:3,momenta=average"}"#), adam);
    check_but((&config(r#"{"strategy": "minibatch:3,accelerate=true"}"#), 2), sgd, losses);
    check_but((&config(r#"{"strategy": "minibatch:3"}"#), 2), adam, losses);
}

/// A pending exchange is sent again: its bytes and seconds count when it is.
fn losses(report: &StepReport) -> StepReport {
    let StepReport { step, loss, samples, clock, .. } = *report;
    StepReport { step, loss, samples, clock, ..StepReport::default() }
}

#[test]
fn two_machines_of_two_ranks_resume_bit_exactly() {
    briquette::zoo::install();
    let top_k = r#""reducer": "gather:topk:4x", "feedback": "error""#;
    for (text, exchange) in [
        ("slowmo:3", ""),
        ("easgd:3", ""),
        ("lsgd:4,local=2", ""),
        ("streaming-diloco:4,fragments=2", ""),
        ("local-sgd:3", top_k),
    ] {
        let comma = if exchange.is_empty() { "" } else { ", " };
        let text = format!(r#"{{"strategy": "two-level:({text}),group=2"{comma}{exchange}}}"#);
        check_but((&config(&text), 4), sgd_with_momentum, losses);
    }
}

/// Adam, and a parameter group by ids whose gradients are clipped to zero.
fn frozen_first(model: &Mlp) -> ModuleOptimizer {
    let group = ParamGroup::ids_from_module(model.first.clone());
    adam().with_group(group, SgdConfig::new().build(), Some(GradientClipping::Value(0.0)))
}

#[test]
fn a_parameter_group_made_by_ids_still_matches_after_resuming_in_a_new_process() {
    let directory = tempfile::tempdir().unwrap();
    let half = |resumed: bool| {
        ranks(2, |comm| {
            let rank = comm.rank();
            let model = Mlp::new(if resumed { 999 } else { 5 });
            let mut optim = DistributedOptimizer::new(frozen_first(&model), comm, top_k(), 1);
            let mut model = optim.join(model)?;
            if resumed {
                model = optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::Refuse)?;
            }
            let start = optim.synchronizer().step();
            for step in start..start + 4 {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            if !resumed {
                optim.save(&model, directory.path(), &BTreeMap::new())?;
                for step in 4..8 {
                    (model, _) = train(&mut optim, model, step, rank)?;
                }
            }
            Ok(model)
        })
    };
    let (whole, resumed) = (half(false), half(true));
    for (whole, resumed) in whole.iter().zip(&resumed) {
        assert_eq!(value(whole, "first.weight"), value(&Mlp::new(5), "first.weight"), "frozen");
        assert_ne!(value(whole, "second.weight"), value(&Mlp::new(5), "second.weight"), "trained");
        assert_eq!(bits(whole), bits(resumed));
    }
}
