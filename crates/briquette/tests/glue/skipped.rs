//! A gradient that is not finite is refused everywhere, and leaves no trace.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::Communicator;
use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::{DistributedOptimizer, Error};
use burn::optim::ModuleOptimizer;
use burn::tensor::Tensor;

use crate::common::*;

type Trace = Vec<(String, Vec<u32>)>;

/// Six good steps, with a bad batch on rank 1 before the third where asked for. Saves at the end.
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
                let error = optim.step(0.02, model, gradients).expect_err("refused");
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

/// Everything that was saved beside the model's record, whose ids are random: residuals, velocities, the controller.
fn state(directory: &Path) -> Vec<BTreeMap<String, Vec<u8>>> {
    let rank = |rank| {
        let bytes = std::fs::read(directory.join(format!("step-00000006/rank-{rank}.safetensors"))).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.tensors().into_iter().filter(|(name, _)| name.starts_with("state/"));
        tensors.map(|(name, view)| (name, view.data().to_vec())).collect()
    };
    (0..3).map(rank).collect()
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
