//! The iterate average of an optimizer: its contents, and its place in checkpoints.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use briquette::core::comm::Session;
use briquette::core::config::Config;
use briquette::optim::IterateAverageConfig;
use briquette::{DistributedOptimizer, Error, WorldChange};
use burn::module::Module;

use crate::common::*;

/// Values by path.
type Values = Vec<(String, Vec<f32>)>;

/// The first step does not count.
fn optimizer(comm: Session, config: Config) -> DistributedOptimizer {
    let average = IterateAverageConfig::new().with_from(1);
    DistributedOptimizer::new(sgd_with_momentum(), comm, config, 1).with_iterate_average(&average)
}

/// Every value of the averaged model.
fn mean<M: Module>(optim: &DistributedOptimizer, model: &M) -> Values {
    values(&optim.iterate_average().unwrap().evaluation_model(model).unwrap())
}

/// Two ranks take `steps` steps, and save after each; their means after each step from the second on.
fn run(directory: &Path, steps: u64, background: bool) -> Vec<Vec<Values>> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k()).with_background_saving(background);
        let mut model = optim.join(Mlp::new(5))?;
        let (mut iterates, mut means) = (Vec::new(), Vec::new());
        for step in 0..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
            optim.save(&model, directory, &BTreeMap::new())?;
            if step == 0 {
                assert!(optim.iterate_average().unwrap().evaluation_model(&model).is_none());
                continue;
            }
            iterates.push(values(&model));
            means.push(mean(&optim, &model));
        }
        optim.finish_saving()?;
        for (i, (path, mean)) in means.last().unwrap().iter().enumerate() {
            for (j, mean) in mean.iter().enumerate() {
                let twin =
                    iterates.iter().map(|iterate| f64::from(iterate[i].1[j])).sum::<f64>() / iterates.len() as f64;
                assert!((f64::from(*mean) - twin).abs() < 1e-6, "{path}, value {j}: {mean}, expected {twin}");
            }
        }
        Ok(means)
    })
}

/// Resumes from the newest checkpoint and trains to `steps` steps. Returns the step at which it resumed, and the mean at the end.
fn go_on(directory: &Path, steps: u64) -> Vec<(u64, Values)> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k());
        let model = optim.join(Mlp::new(999))?;
        let (mut model, found, ()) = optim.resume(model, directory, WorldChange::Refuse, |_| Ok(()))?;
        for step in found.step()..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok((found.step(), mean(&optim, &model)))
    })
}

#[test]
fn it_is_the_mean_of_the_parameters_and_resumes_to_the_bit_from_whichever_checkpoint() {
    for background in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let whole = run(directory.path(), 5, background);
        assert!(whole[0] == whole[1], "the same on every rank");
        let ended = |from: u64| {
            for (rank, (began, mean)) in go_on(directory.path(), 5).into_iter().enumerate() {
                assert!(began == from && mean == whole[rank][3], "from {began}, rank {rank}");
            }
        };
        ended(5);
        // The newest is damaged: the one before has its own mean.
        let file = directory.path().join("step-00000005/common-0.safetensors");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.windows(15).any(|name| name == b"iterate-average"), "what all ranks have alike is there");
        fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
        ended(4);
    }
}

#[test]
fn a_write_that_fails_leaves_the_checkpoint_before_with_its_mean() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    run(at, 3, false);
    let whole = go_on(at, 5);
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k()).with_background_saving(true);
        let model = optim.join(Mlp::new(999))?;
        let (mut model, ..) = optim.resume(model, at, WorldChange::Refuse, |_| Ok(()))?;
        if rank == 1 {
            fs::create_dir_all(at.join("step-00000004/.partial-rank-1.safetensors/in-the-way")).unwrap();
        }
        optim.synchronizer_mut().session().barrier()?;
        (model, _) = train(&mut optim, model, 3, rank)?;
        optim.save(&model, at, &BTreeMap::new())?;
        assert!(optim.finish_saving().is_err());
        Ok(())
    });
    fs::remove_dir_all(at.join("step-00000004")).unwrap();
    assert!(whole[0].0 == 3 && go_on(at, 5) == whole);
}

#[test]
fn joining_again_begins_the_mean_anew_and_goes_on_counting() {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k());
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..3 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let mut model = optim.join(model)?;
        assert_eq!(optim.iterate_average().unwrap().taken(), 0);
        (model, _) = train(&mut optim, model, 3, rank)?;
        assert!(mean(&optim, &model) == values(&model), "of the step after, which was not waited for");
        Ok(())
    });
}

#[test]
fn what_leaves_replicas_apart_is_refused_and_so_is_a_run_without_a_mean() {
    briquette::zoo::install();
    let refused = |config: Config| {
        let errors = ranks(2, |comm| {
            let mut optim = optimizer(comm, config.clone());
            optim.join(Mlp::new(5)).expect_err("replicas differ");
            let error = optim.join(Mlp::new(5)).expect_err("they still do");
            assert!(matches!(error, Error::Config(_)), "{error}");
            Ok(error.to_string())
        });
        assert!(errors[0].contains("an iterate average") && errors[0].contains("every-step"), "{}", errors[0]);
    };
    let mut config = Config::dense();
    config.strategy = "local-sgd:2".parse().unwrap();
    refused(config);
    let mut config = Config::dense();
    config.exchange.reducer = "mcm:qsgd:4,per_rank=true".parse().unwrap();
    let plain = burn::optim::SgdConfig::new().init();
    let errors = ranks(2, |comm| {
        let optim = DistributedOptimizer::new(plain.clone(), comm, config.clone(), 1);
        let error = optim.with_iterate_average(&IterateAverageConfig::new()).join(Mlp::new(5)).expect_err("differ");
        Ok(error.to_string())
    });
    assert!(errors[1].contains("sends all ranks the same average"), "{}", errors[1]);

    let directory = tempfile::tempdir().unwrap();
    run(directory.path(), 2, false);
    ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(5))?;
        let found = optim.resume(model, directory.path(), WorldChange::Refuse, |_| Ok(()));
        let error = found.map(drop).expect_err("it has a mean").to_string();
        assert!(error.contains("iterate average"), "{error}");
        Ok(())
    });
}
