//! Checkpoint files written in a background thread during training.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use briquette::core::comm::Session;
use briquette::core::config::Config;
use briquette::{Checkpoint, DistributedOptimizer, WorldChange};

use crate::common::*;

fn optimizer(comm: Session, background: bool) -> DistributedOptimizer {
    DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1).with_background_saving(background)
}

fn newest(directory: &Path) -> Option<u64> {
    Checkpoint::latest(directory).ok().map(|found| found.step())
}

#[test]
fn a_checkpoint_written_in_the_background_is_complete_at_the_next_save_and_holds_what_was_saved() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let run = |background: bool| {
        let directory = directories[usize::from(background)].path();
        ranks(2, |comm| {
            let rank = comm.rank();
            let mut optim = optimizer(comm, background);
            let mut model = optim.join(Net::new(5))?;
            let mut seen = Vec::new();
            for step in 0..4 {
                (model, _) = train(&mut optim, model, step, rank)?;
                optim.save(&model, directory, &BTreeMap::new())?;
                optim.synchronizer_mut().session().barrier()?;
                seen.push(newest(directory));
                assert_eq!(optim.save_report().step, step + u64::from(!background));
            }
            optim.finish_saving()?;
            optim.finish_saving()?;
            seen.push(newest(directory));
            let report = optim.save_report();
            assert!(report.bytes > 0 && report.serialize_seconds > 0.0 && report.sync_seconds > 0.0, "{report:?}");
            Ok((bits(&model), seen))
        })
    };
    let (at_once, beside) = (run(false), run(true));
    for (rank, (at_once, beside)) in at_once.iter().zip(&beside).enumerate() {
        assert!(at_once.0 == beside.0, "rank {rank}");
        assert_eq!(at_once.1, [Some(1), Some(2), Some(3), Some(4), Some(4)]);
        assert_eq!(beside.1, [None, Some(1), Some(2), Some(3), Some(4)]);
    }
    // It contains the step at which it was saved, independent of later steps.
    fs::remove_dir_all(directories[1].path().join("step-00000004")).unwrap();
    let went_on = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, true);
        let model = optim.join(Net::new(999))?;
        let (model, found, ()) = optim.resume(model, directories[1].path(), WorldChange::Refuse, |_| Ok(()))?;
        assert_eq!(found.step(), 3);
        Ok(bits(&train(&mut optim, model, 3, rank)?.0))
    });
    assert!(went_on.iter().zip(&at_once).all(|(resumed, (whole, _))| resumed == whole));
}

#[test]
fn a_write_that_fails_in_the_background_is_an_error_of_the_next_save_on_every_rank_and_training_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, true);
        let model = optim.join(Mlp::new(5))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, at, &BTreeMap::new())?;
        optim.finish_saving()?;
        let (model, _) = train(&mut optim, model, 1, rank)?;
        if rank == 1 {
            fs::create_dir_all(at.join("step-00000002/.partial-rank-1.safetensors/in-the-way")).unwrap();
        }
        optim.synchronizer_mut().session().barrier()?;
        optim.save(&model, at, &BTreeMap::new())?;
        let (model, _) = train(&mut optim, model, 2, rank)?;
        let error = optim.save(&model, at, &BTreeMap::new()).expect_err("step 2 was not written").to_string();
        assert!(error.contains("step-00000002") && error.contains("the checkpoint before is untouched"), "{error}");
        assert_eq!(newest(at), Some(1));
        // Reported once: the next save is of the current step.
        optim.save(&model, at, &BTreeMap::new())?;
        optim.finish_saving()?;
        assert_eq!(newest(at), Some(3));
        Ok(())
    });
}

#[test]
fn what_is_not_finished_is_not_complete_and_leaves_no_half_of_a_file() {
    let directory = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let mut optim = optimizer(comm, true);
        let model = optim.join(Mlp::wide(5, 4000))?;
        optim.save(&model, directory.path(), &BTreeMap::new())
    });
    let step = directory.path().join("step-00000000");
    let mut names: Vec<_> = fs::read_dir(step).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected = [".partial-common-0.safetensors", ".partial-rank-0.safetensors", ".partial-rank-1.safetensors"];
    assert_eq!(names, expected, "whole files, no manifest");
    assert_eq!(newest(directory.path()), None);
}

#[test]
fn ranks_that_would_save_in_different_ways_cannot_join() {
    let results = outcomes(2, |comm| {
        let background = comm.rank() == 1;
        DistributedOptimizer::new(sgd(), comm, Config::dense(), 1)
            .with_background_saving(background)
            .join(Mlp::new(1))
            .map(drop)
    });
    let text = results.into_iter().next().unwrap().expect_err("they differ").to_string();
    assert!(text.contains("its saving is in the background, rank 0's is at once"), "{text}");
}
