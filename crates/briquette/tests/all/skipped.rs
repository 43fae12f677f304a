//! A gradient that is not finite is refused on every rank, and leaves no trace.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::{DistributedOptimizer, Error};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use crate::common::*;

type Trace = Vec<(String, Vec<u32>)>;

/// Six good steps, with a bad batch on rank 1 before the third if requested. Saves at the end.
fn run(config: &Config, inner: fn() -> ModuleOptimizer, bad: Option<f32>, directory: &Path) -> Vec<Trace> {
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(inner(), comm, config.clone(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..6 {
            if let Some(bad) = bad.filter(|_| step == 2) {
                let loss = model.loss(data(77, rank), 9);
                let mut gradients = grads(&model, &loss);
                if rank == 1 {
                    let id = model.second.bias.as_ref().expect("it has one").id;
                    gradients.register(id, Tensor::<1>::from_floats([0.0, bad, 0.0], &device().inner()));
                }
                optim.record_loss(1e6);
                optim.record_samples(9);
                let before = bits(&model);
                let error = optim.try_step(0.02, model, gradients).expect_err("refused");
                assert!(
                    matches!(&error.source, Error::Sync(SyncError::NonFinite { step: 2, rank: 1, slot }) if slot == "second.bias"),
                    "{error}"
                );
                let text = error.to_string();
                assert!(text.contains("step 2") && text.contains("rank 1") && text.contains("`second.bias`"), "{text}");
                model = *error.model;
                assert_eq!((bits(&model), optim.synchronizer().step()), (before, 2));
            }
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        optim.save(&model, directory, &BTreeMap::new())?;
        let mut trace = bits(&model);
        trace.push((format!("{:?}", optim.report()), Vec::new()));
        Ok(trace)
    })
}

/// All saved state except the model's record, whose ids are random: residuals, velocities, the controller.
fn state(directory: &Path) -> Vec<BTreeMap<String, Vec<u8>>> {
    let rank = |rank| {
        let bytes = std::fs::read(directory.join(format!("step-00000006/rank-{rank}.safetensors"))).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().filter(|(name, _)| name.starts_with("state/"));
        tensors.map(|(name, view)| (name, view.data().to_vec())).collect()
    };
    (0..3).map(rank).collect()
}

/// Makes a rank's recorded values invalid, or returns an invalid learning rate.
type Spoil = fn(usize, &mut DistributedOptimizer) -> f64;

/// Six steps; before the third, one that `spoil` makes invalid, with every rank's errors.
fn senseless(spoil: Option<Spoil>) -> Vec<(Trace, Vec<String>)> {
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let (mut model, mut said) = (optim.join(Mlp::new(5))?, Vec::new());
        for step in 0..6 {
            if let Some(spoil) = spoil.filter(|_| step == 2) {
                let gradients = grads(&model, &model.loss(data(77, rank), 4));
                let (rate, before) = (spoil(rank, &mut optim), bits(&model));
                let error = optim.try_step(rate, model, gradients).expect_err("refused");
                said.push(error.to_string());
                model = *error.model;
                assert_eq!((bits(&model), optim.synchronizer().step()), (before, 2));
            }
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok((bits(&model), said))
    })
}

#[test]
fn a_rate_or_a_count_that_makes_no_sense_is_refused_on_every_rank_and_leaves_no_trace() {
    let good = senseless(None);
    let cases: [(Spoil, &str); 4] = [
        (|_, _| f64::INFINITY, "rank 0 steps with learning rate inf, which is not finite"),
        (|_, _| f64::NAN, "rank 0 steps with learning rate"),
        (|rank, _| if rank == 1 { f64::NAN } else { 0.02 }, "rank 1 steps with learning rate"),
        (
            |rank, optim| {
                optim.record_samples(if rank == 1 { usize::MAX } else { 4 });
                optim.record_samples(4);
                0.02
            },
            "rank 1 recorded 18446744073709551615 samples",
        ),
    ];
    for (spoil, words) in cases {
        for ((values, said), (expected, _)) in senseless(Some(spoil)).iter().zip(&good) {
            assert!(said[0].starts_with("step 2: ") && said[0].contains(words), "{said:?}");
            assert!(values == expected, "{words}: training goes on as if it had never been");
        }
    }
}

#[test]
fn a_senseless_rate_between_two_averages_stops_every_rank() {
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, config(r#"{"strategy": "local-sgd:3"}"#), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..6 {
            let gradients = grads(&model, &model.loss(data(step, rank), 4));
            model = optim.step(if (rank, step) == (1, 1) { f64::INFINITY } else { 0.02 }, model, gradients)?;
        }
        Ok(())
    });
    for (rank, result) in results.into_iter().enumerate() {
        let error = result.expect_err("rank 1 cannot step").to_string();
        assert!(error.contains("rank 1 steps with learning rate inf"), "rank {rank}: {error}");
    }
}

#[test]
fn training_goes_on_after_a_refused_batch_as_if_it_had_never_been() {
    let cases: [(Config, fn() -> ModuleOptimizer); 5] = [
        (Config::dense(), adam),
        (top_k(), adam),
        (momentum_correction(), sgd),
        (gravac(), sgd_with_momentum),
        (power_sgd(), adam),
    ];
    for (config, inner) in cases {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let good = run(&config, inner, None, directories[0].path());
        for bad in [f32::NAN, f32::INFINITY] {
            let skipped = run(&config, inner, Some(bad), directories[1].path());
            assert_eq!(good, skipped, "{config:?}");
            assert!(state(directories[0].path()) == state(directories[1].path()), "{config:?}");
        }
    }
}
