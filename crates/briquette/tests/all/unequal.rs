//! Detects replicas that must be equal and are not: at join, at the steps that compare them, and when they are saved.

use std::collections::BTreeMap;

use briquette::core::config::Config;
use briquette::core::error::SyncError;
use briquette::{Checkpoint, DistributedOptimizer, Error, REPLICA_CHECK_STEPS, ServerTraining};
use burn::optim::ModuleOptimizer;

use crate::common::*;
use crate::overlap::during;

/// An optimizer that has taken three steps, and the model it took them with.
fn trained() -> (Mlp, ModuleOptimizer) {
    let (mut model, mut optim) = (Mlp::new(7), adam());
    for step in 0..3 {
        let gradients = grads(&model, &model.loss(data(step, 5), 4));
        model = optim.step(0.05, model, gradients);
    }
    (model, optim)
}

#[test]
fn the_optimizers_state_of_rank_0_is_every_ranks_whoever_came_with_one() {
    let (model, state) = trained();
    let run = |has_state: [bool; 3], config: &Config| {
        ranks(3, |comm| {
            let rank = comm.rank();
            let inner = if has_state[rank] { state.clone() } else { adam() };
            // The ids of a state are those of the model that it was made with.
            let own = if has_state[rank] { model.clone() } else { Mlp::new(rank as u64) };
            let mut optim = DistributedOptimizer::new(inner, comm, config.clone(), 1);
            let mut model = optim.join(if rank == 0 { model.clone() } else { own })?;
            for step in 0..4 {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            Ok(bits(&model))
        })
    };
    for config in [Config::dense(), Config::auto(), top_k()] {
        let (all, none) = (run([true; 3], &config), run([false; 3], &config));
        assert!(all[0] != none[0], "the state makes a difference");
        assert!(all.iter().all(|bits| *bits == all[0]));
        assert!(run([true, false, false], &config).iter().all(|bits| *bits == all[0]), "{config:?}: rank 0 alone");
        assert!(run([false, true, true], &config).iter().all(|bits| *bits == none[0]), "{config:?}: rank 0 has none");
    }
}

/// `first.weight` with one value changed.
fn touched(mut model: Mlp) -> Mlp {
    let weight = model.first.weight;
    model.first.weight = weight.map(|w| (w.inner() + 1e-3).autodiff().require_grad());
    model
}

fn assert_named(error: &Error, step: u64, slot: &str, rank: usize, others: &[usize]) {
    let Error::Sync(SyncError::Replicas { step: at, slot: Some(named), rank: most, others: found }) = error else {
        panic!("{error}")
    };
    assert_eq!((*at, named.as_str(), *most, found.as_slice()), (step, slot, rank, others), "{error}");
}

#[test]
fn a_parameter_that_one_rank_changes_is_an_error_on_every_rank_that_names_it() {
    for config in [Config::dense(), Config::auto(), top_k(), during(r#""reducer": "dense""#)] {
        ranks(3, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1).with_replica_check(4);
            let mut model = optim.join(Mlp::new(5))?;
            for step in 0..7 {
                if step == 5 && rank == 2 {
                    model = touched(model);
                }
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            // Not detected before the step that compares.
            (model, _) = train(&mut optim, model, 7, rank)?;
            let before = bits(&model);
            let gradients = grads(&model, &model.loss(data(8, rank), 4));
            let error = optim.try_step(0.02, model, gradients).expect_err("they differ");
            assert_named(&error.source, 8, "first.weight", 0, &[2]);
            model = *error.model;
            assert_eq!(bits(&model), before);
            // The same session continues from rank 0's model.
            model = optim.join(model)?;
            for step in 8..13 {
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            Ok(bits(&model))
        });
    }
}

#[test]
fn replicas_are_compared_by_default_and_send_no_byte_more() {
    let steps = REPLICA_CHECK_STEPS;
    let run = |every: Option<u64>, touch: bool| {
        outcomes(2, |comm| {
            let rank = comm.rank();
            let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
            if let Some(every) = every {
                optim = optim.with_replica_check(every);
            }
            let mut model = optim.join(Mlp::new(5))?;
            let joined = optim.synchronizer_mut().session().traffic();
            for step in 0..=steps {
                if touch && step == 3 && rank == 1 {
                    model = touched(model);
                }
                (model, _) = train(&mut optim, model, step, rank)?;
            }
            let traffic = optim.synchronizer_mut().session().traffic() - joined;
            Ok((bits(&model), traffic.sent))
        })
    };
    let good: Vec<_> = [None, Some(1), Some(0)].map(|every| run(every, false)).into_iter().collect();
    let good: Vec<_> = good.into_iter().flatten().map(|outcome| outcome.unwrap()).collect();
    assert!(good.iter().all(|run| *run == good[0]), "comparing changes neither bits nor bytes");
    for outcome in run(None, true) {
        assert_named(&outcome.unwrap_err(), steps, "first.weight", 0, &[1]);
    }
    assert!(run(Some(0), true).iter().all(Result::is_ok), "0 is for never");
    // Between two averages of Local SGD they may differ.
    for outcome in outcomes(2, |comm| {
        let rank = comm.rank();
        let local_sgd = config(r#"{"strategy": "local-sgd:4"}"#);
        let mut optim = DistributedOptimizer::new(adam(), comm, local_sgd, 1).with_replica_check(1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..10 {
            model = if rank == 1 && step == 5 { touched(model) } else { model };
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        let directory = tempfile::tempdir().unwrap();
        optim.save(&model, directory.path(), &BTreeMap::new())
    }) {
        outcome.unwrap();
    }
}

/// Three steps, in which `change` may modify rank 1's model or optimizer; then a save. Returns the error, and whether a file was
/// written.
fn saved(change: impl Fn(&mut DistributedOptimizer, Mlp) -> Mlp + Sync) -> Vec<(Option<Error>, bool)> {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, Config::dense(), 1);
        let mut model = optim.join(Mlp::new(rank as u64))?;
        for step in 0..3 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        if rank == 1 {
            model = change(&mut optim, model);
        }
        let error = optim.save(&model, directory, &BTreeMap::new()).err();
        // No file was written, and the session is still usable.
        optim.synchronizer_mut().session().barrier()?;
        Ok((error, Checkpoint::any(directory)))
    })
}

#[test]
fn a_save_of_unequal_replicas_is_refused_and_names_the_tensor() {
    for (error, is_there) in saved(|_, model| touched(model)) {
        assert_named(&error.expect("they differ"), 3, "first.weight", 0, &[1]);
        assert!(!is_there);
    }
    for (error, is_there) in saved(|optim, model| {
        // One more step of the optimizer alone: its state differs, the model does not.
        let gradients = grads(&model, &model.loss(1, 4));
        drop(optim.inner_mut().step(0.0, model.clone(), gradients));
        model
    }) {
        let error = error.expect("they differ");
        let Error::Sync(SyncError::Replicas { slot: Some(slot), others, .. }) = &error else { panic!("{error}") };
        assert!(slot.contains("(optimizer state") && others == &[1], "{error}");
        assert!(
            ["first.weight", "first.bias", "second.weight", "second.bias"].iter().any(|path| slot.starts_with(path)),
            "{slot}"
        );
        assert!(!is_there);
    }
    // One rank has no state at all.
    for (error, is_there) in saved(|optim, model| {
        *optim.inner_mut() = adam();
        model
    }) {
        let error = error.expect("they differ").to_string();
        assert!(error.contains("(optimizer state") && !is_there, "{error}");
    }
    for (error, is_there) in saved(|_, model| model) {
        assert!(error.is_none(), "{error:?}");
        assert!(is_there);
    }
}

/// The server steps for its workers, whose optimizers stay unchanged.
#[test]
fn a_server_whose_optimizer_came_with_state_is_saved() {
    let (trained, state) = trained();
    ranks(3, |comm| {
        let rank = comm.rank();
        let mut server = ServerTraining::new("async-sgd".parse().unwrap()).with_batches(3);
        let mut optim = DistributedOptimizer::new(state.clone(), comm, server.strategy(), 1);
        let mut model = optim.join(trained.clone())?;
        let batch = |model: &Mlp, batch| (model.loss(data(batch, rank), 4), 4);
        model = server.train(&mut optim, model, 6, |_| 0.02, batch)?;
        let directory = tempfile::tempdir().unwrap();
        optim.save(&model, directory.path(), &BTreeMap::new())
    });
}
