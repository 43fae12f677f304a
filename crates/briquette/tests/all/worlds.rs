//! Resuming in a world of another size.

use std::collections::BTreeMap;
use std::path::Path;

use briquette::core::config::{Config, Exchange, Feedback};
use briquette::core::reduce::power_sgd::PowerSgdConfig;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use safetensors::SafeTensors;

use crate::common::*;

/// Trains a world for three steps and saves.
fn train_and_save(world: usize, config: &Config, directory: &Path) {
    ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..3 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        optim.save(&model, directory, &BTreeMap::new())
    });
}

/// Loads into another world, saves at once, and continues training.
fn load_and_save(world: usize, config: &Config, from: &Path, to: &Path, change: WorldChange) {
    let replicas = ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
        let model = optim.join(Mlp::new(999))?;
        let mut model = optim.load(model, &Checkpoint::latest(from)?, change)?;
        optim.save(&model, to, &BTreeMap::new())?;
        for step in 3..6 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(bits(&model))
    });
    assert!(replicas.iter().all(|replica| *replica == replicas[0]));
}

/// The saved vector of this name, for every rank.
fn saved(directory: &Path, name: &str) -> Vec<Vec<f32>> {
    let checkpoint = Checkpoint::latest(directory).unwrap();
    let file = |rank| std::fs::read(checkpoint.path().join(format!("rank-{rank}.safetensors"))).unwrap();
    let vector = |rank| {
        let bytes = file(rank);
        let view = SafeTensors::deserialize(&bytes).unwrap();
        let data = view.tensor(&format!("state/strategy/reducer/{name}")).unwrap().data().to_vec();
        data.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    };
    (0..checkpoint.world()).map(vector).collect()
}

fn mean(vectors: &[Vec<f32>]) -> Vec<f32> {
    let at = |i: usize| vectors.iter().map(|v| f64::from(v[i])).sum::<f64>() / vectors.len() as f64;
    (0..vectors[0].len()).map(|i| at(i) as f32).collect()
}

#[test]
fn another_world_is_refused_unless_asked_for_and_both_sizes_are_named() {
    let directory = tempfile::tempdir().unwrap();
    train_and_save(2, &top_k(), directory.path());
    let refused = outcomes(3, |comm| {
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(1))?;
        optim.load(model, &Checkpoint::latest(directory.path())?, WorldChange::default())
    });
    for result in refused {
        let error = result.expect_err("another world").to_string();
        assert!(error.contains("saved by 2 ranks, this world has 3"), "{error}");
        assert!(error.contains("DropResiduals") && error.contains("SpreadResiduals"), "{error}");
    }
}

#[test]
fn spread_residuals_keep_their_mean_over_ranks_in_larger_and_smaller_worlds() {
    for (config, names) in [(top_k(), &["residual"][..]), (momentum_correction(), &["residual", "velocity"])] {
        for (before, after) in [(2, 3), (3, 2)] {
            let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            train_and_save(before, &config, from.path());
            load_and_save(after, &config, from.path(), to.path(), WorldChange::SpreadResiduals);
            for name in names {
                let (old, new) = (saved(from.path(), name), saved(to.path(), name));
                assert_eq!((old.len(), new.len()), (before, after));
                assert!(old[0] != old[1] && mean(&old).iter().any(|v| *v != 0.0), "{name}: nothing to spread");
                for rank in new {
                    assert_eq!(rank, mean(&old), "{name}");
                }
            }
        }
    }
}

#[test]
fn what_is_dropped_starts_as_in_a_new_run() {
    for (config, names) in [
        (top_k(), &["residual"][..]),
        (momentum_correction(), &["residual", "velocity"]),
        (ef21(), &["memory", "mean_memory"]),
    ] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train_and_save(2, &config, from.path());
        load_and_save(3, &config, from.path(), to.path(), WorldChange::DropResiduals);
        for name in names {
            assert!(saved(from.path(), name).iter().flatten().any(|v| *v != 0.0), "{name}: nothing to drop");
            assert_eq!(saved(to.path(), name), vec![Vec::<f32>::new(); 3], "{name}");
        }
    }
}

#[test]
fn the_mean_of_memories_that_are_spread_is_the_mean_memory() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train_and_save(3, &ef21(), from.path());
    load_and_save(2, &ef21(), from.path(), to.path(), WorldChange::SpreadResiduals);
    let kept = saved(from.path(), "mean_memory").remove(0);
    assert_eq!(saved(to.path(), "mean_memory"), vec![kept.clone(); 2]);
    for (memory, mean) in mean(&saved(to.path(), "memory")).iter().zip(kept) {
        assert!((memory - mean).abs() <= 1e-6 * mean.abs().max(1e-3), "{memory} of {mean}");
    }
}

#[test]
fn what_is_the_same_on_every_rank_is_kept_in_any_world() {
    // PowerSGD's warm start, in buckets.
    let exchange = Exchange {
        reducer: PowerSgdConfig { rank: 1 }.into(),
        feedback: Feedback::error(),
        bucket_values: Some(40),
        ..Exchange::default()
    };
    let config = Config::every_step(exchange);
    for change in [WorldChange::DropResiduals, WorldChange::SpreadResiduals] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train_and_save(2, &config, from.path());
        load_and_save(3, &config, from.path(), to.path(), change);
        let old = saved(from.path(), "inner/bucket-0/q");
        assert!(old[0] == old[1] && old[0].iter().any(|v| *v != 0.0));
        assert_eq!(saved(to.path(), "inner/bucket-0/q"), vec![old[0].clone(); 3]);
    }
}

/// Trains four ranks for three steps and others for six more. Returns of each of these its model after loading and at the end, and that of a new
/// run from the loaded model.
fn resume_with(world: usize, text: &str, change: WorldChange) -> Vec<[Mlp; 3]> {
    let config = config(text);
    let from = tempfile::tempdir().unwrap();
    train_and_save(4, &config, from.path());
    let resumed = ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
        let model = optim.join(Mlp::new(999))?;
        let first = optim.load(model, &Checkpoint::latest(from.path())?, change)?;
        let mut model = first.clone();
        for step in 3..9 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok((first, model))
    });
    let new = ranks(world, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, config.clone(), 1);
        let mut model = optim.join(resumed[rank].0.clone())?;
        for step in 3..9 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        Ok(model)
    });
    resumed.into_iter().zip(new).map(|((first, last), new)| [first, last, new]).collect()
}

/// The mean over machines, and at every later step the result of a new run that starts from it.
#[test]
fn two_levels_go_on_from_the_mean_with_other_machines() {
    for text in [
        r#"{"strategy": "two-level:(slowmo:3),group=2"}"#,
        r#"{"strategy": "two-level:(local-sgd:3),group=2", "reducer": "gather:topk:4x", "feedback": "error"}"#,
    ] {
        for world in [2, 6] {
            for [_, resumed, new] in resume_with(world, text, WorldChange::SpreadResiduals) {
                assert_eq!(bits(&resumed), bits(&new), "{text}, {world}");
            }
        }
    }
}

/// Under NoLoCo, the result of a new run that starts from the mean: two ranks are always a pair. Eager DiLoCo keeps its momentum.
#[test]
fn no_loco_and_eager_diloco_resume_with_another_number_of_ranks() {
    for change in [WorldChange::SpreadResiduals, WorldChange::DropResiduals] {
        for (text, world) in [("no-loco:3", 2), ("no-loco:3", 5), ("eager-diloco:2", 2), ("eager-diloco:2", 5)] {
            for [first, resumed, new] in resume_with(world, &format!(r#"{{"strategy": "{text}"}}"#), change) {
                let (off, moved) = (distance(&resumed, &new), distance(&first, &new));
                assert!(off < 2.0 * moved, "{text}, {world}: {off} of {moved}");
                assert!(off == 0.0 || (text, world) != ("no-loco:3", 2), "{text}, {world}: {off}");
            }
        }
    }
}

/// Returns whether a rank's file contains the values of the last exchange that the next step's header repeats.
fn has_last_exchange(directory: &Path) -> bool {
    let checkpoint = Checkpoint::latest(directory).unwrap();
    let bytes = std::fs::read(checkpoint.path().join("rank-1.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names = ["one:agreed_step/samples", "previous/seconds", "previous/measured", "one:previous/sent"];
    let found = names.map(|name| file.tensor(&format!("state/{name}")).is_ok());
    assert!(found == [found[0]; 4], "{found:?} of {names:?}");
    found[0]
}

#[test]
fn the_last_exchange_of_a_world_of_another_size_is_forgotten() {
    for (world, is_kept) in [(2, true), (3, false)] {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        train_and_save(2, &gravac(), from.path());
        assert!(has_last_exchange(from.path()), "seconds, bytes, and what the controller needed measured");
        load_and_save(world, &gravac(), from.path(), to.path(), WorldChange::SpreadResiduals);
        assert_eq!(has_last_exchange(to.path()), is_kept, "2 ranks, then {world}");
    }
}

#[test]
fn the_choice_for_another_world_changes_nothing_in_the_same_one() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train_and_save(2, &top_k(), from.path());
    load_and_save(2, &top_k(), from.path(), to.path(), WorldChange::DropResiduals);
    assert_eq!(saved(from.path(), "residual"), saved(to.path(), "residual"));
}

#[test]
fn only_the_two_newest_checkpoints_are_kept_and_notes_come_back() {
    let directory = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, Config::dense(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..4 {
            (model, _) = train(&mut optim, model, step, rank)?;
            let notes = BTreeMap::from([("epoch".to_owned(), step.to_string())]);
            optim.save(&model, directory.path(), &notes)?;
        }
        Ok::<_, Error>(())
    });
    let mut names: Vec<String> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["step-00000003", "step-00000004"]);
    let latest = Checkpoint::latest(directory.path()).unwrap();
    assert_eq!((latest.step(), latest.world(), latest.note("epoch")), (4, 2, Some("3")));
}

#[test]
fn a_model_is_read_without_a_session_and_keeps_its_parameter_ids() {
    let directory = tempfile::tempdir().unwrap();
    let trained = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd(), comm, top_k(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..3 {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        optim.save(&model, directory.path(), &BTreeMap::new())?;
        Ok(bits(&model))
    });
    let fresh = Mlp::new(999);
    let id = fresh.first.weight.id;
    let checkpoint = Checkpoint::latest(directory.path()).unwrap();
    let loaded = checkpoint.load_model(fresh).unwrap();
    assert_eq!((bits(&loaded), loaded.first.weight.id), (trained[0].clone(), id));
    let other = checkpoint.load_model(Mlp::wide(1, 77)).expect_err("another shape").to_string();
    assert!(other.contains("step-00000003"), "{other}");
}
