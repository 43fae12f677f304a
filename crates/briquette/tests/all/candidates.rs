//! Choice of the checkpoint to resume from: by number, intact, and usable by every rank.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use briquette::core::comm::Session;
use briquette::core::config::Config;
use briquette::core::manifest::Manifest;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};

use crate::common::*;

/// Every tensor of a module as bits.
type Values = Vec<(String, Vec<u32>)>;

/// A world of two that saves after each of `steps` steps; every rank's values after each.
fn train_and_save(directory: &Path, steps: u64) -> Vec<Vec<Values>> {
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k());
        let mut model = optim.join(Net::new(5))?;
        let mut all = Vec::new();
        for step in 0..steps {
            (model, _) = train(&mut optim, model, step, rank)?;
            let notes = BTreeMap::from([("total".to_owned(), format!("{} bytes", 1000 + step))]);
            optim.save(&model, directory, &notes)?;
            all.push(bits(&model));
        }
        Ok(all)
    })
}

fn optimizer(comm: Session, config: Config) -> DistributedOptimizer {
    DistributedOptimizer::new(sgd_with_momentum(), comm, config, 1)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Changes a manifest, and writes it with the checksum of what it then says.
fn edit_manifest(checkpoint: &Path, edit: impl Fn(&mut Manifest)) {
    let path = checkpoint.join("manifest.json");
    let mut manifest = Manifest::parse(&fs::read(&path).unwrap()).unwrap();
    edit(&mut manifest);
    fs::write(path, manifest.to_text().unwrap()).unwrap();
}

/// Threat F5.
#[test]
fn only_step_and_digits_counts_and_nothing_else_is_ever_removed() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    train_and_save(at, 1);
    let others = ["step-best", "step-00000001-keep-me", "step-", "step-1", "step-+0000001", "steps", "best"];
    for name in others {
        copy(&at.join("step-00000001"), &at.join(name));
    }
    assert_eq!(Checkpoint::latest(at).unwrap().path(), at.join("step-00000001"));
    train_and_save(at, 5);
    let mut names: Vec<String> =
        fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let mut expected = [&others[..], &["step-00000004", "step-00000005"]].concat();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(Checkpoint::latest(at).unwrap().step(), 5);
    for name in others {
        assert!(at.join(name).join("manifest.json").is_file(), "{name}");
    }
    briquette_testkit::held!(
        "names that look like checkpoints",
        "all kinds",
        "neither read nor removed",
        only_step_and_digits_counts_and_nothing_else_is_ever_removed
    );
}

#[test]
fn checkpoints_are_ordered_by_number() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    train_and_save(at, 1);
    for step in [99_999_999_u64, 100_000_000] {
        let path = at.join(format!("step-{step}"));
        copy(&at.join("step-00000001"), &path);
        edit_manifest(&path, |manifest| manifest.step = step);
    }
    assert_eq!(Checkpoint::latest(at).unwrap().step(), 100_000_000);
    // A directory with another's name does not match its manifest.
    copy(&at.join("step-00000001"), &at.join("step-200000000"));
    assert_eq!(Checkpoint::latest(at).unwrap().step(), 100_000_000);
}

/// Threat F1.
#[test]
fn a_manifest_with_any_bit_flipped_is_as_it_was_or_gives_way_to_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    train_and_save(directory.path(), 2);
    let path = directory.path().join("step-00000002/manifest.json");
    let whole = fs::read(&path).unwrap();
    let mut gave_way = 0;
    for bit in 0..whole.len() * 8 {
        let mut damaged = whole.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, &damaged).unwrap();
        let found = Checkpoint::latest(directory.path()).unwrap_or_else(|error| panic!("bit {bit}: {error}"));
        let seen = (found.step(), found.world(), found.note("total"));
        match found.step() {
            1 => gave_way += 1,
            _ => assert_eq!(seen, (2, 2, Some("1001 bytes")), "bit {bit}: {}", String::from_utf8_lossy(&damaged)),
        }
    }
    // Only a space that becomes a tab or similar may stay undetected.
    assert!(gave_way * 10 > whole.len() * 8 * 9, "{gave_way} of {}", whole.len() * 8);
    fs::write(&path, &whole[..whole.len() - 3]).unwrap();
    assert_eq!(Checkpoint::latest(directory.path()).unwrap().step(), 1);
    briquette_testkit::held!(
        "a bit of `manifest.json` flipped",
        "every bit",
        "nothing changed, or the checkpoint before",
        a_manifest_with_any_bit_flipped_is_as_it_was_or_gives_way_to_the_one_before
    );
}

/// Resumes on two ranks, after `damage` changed rank 1's file of the newest checkpoint.
fn resume(
    directory: &Path,
    accept: impl Fn(usize, &Checkpoint) -> Result<u64, String> + Sync,
) -> Vec<Result<(u64, u64, Values), Error>> {
    outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k());
        let model = optim.join(Net::new(999))?;
        let (model, checkpoint, note) =
            optim.resume(model, directory, WorldChange::Refuse, |found| accept(rank, found))?;
        // A copy of step 1 may have the name of step 0.
        assert_eq!(optim.synchronizer().step(), checkpoint.step().max(1));
        Ok((checkpoint.step(), note, bits(&model)))
    })
}

#[test]
fn what_one_rank_cannot_use_gives_way_on_all_ranks_to_the_one_before() {
    let directory = tempfile::tempdir().unwrap();
    let expected = train_and_save(directory.path(), 2);
    let all = |step: usize, resumed: Vec<Result<(u64, u64, Values), Error>>| {
        for (rank, result) in resumed.into_iter().enumerate() {
            let (from, note, bits) = result.unwrap();
            assert_eq!((from, note), (step as u64, 7 * step as u64), "rank {rank}");
            assert!(bits == expected[rank][step - 1], "rank {rank}: not the values of step {step}");
        }
    };
    let seven = |_: usize, found: &Checkpoint| Ok(7 * found.step());
    all(2, resume(directory.path(), seven));
    // The training loop of one rank cannot read its notes.
    let cannot = |rank, found: &Checkpoint| match (rank, found.step()) {
        (1, 2) => Err("its totals are not a number".to_owned()),
        (_, step) => Ok(7 * step),
    };
    all(1, resume(directory.path(), cannot));
    // One rank's file is damaged, which only that rank reads.
    let file = directory.path().join("step-00000002/rank-1.safetensors");
    let whole = fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 4;
    fs::write(&file, &damaged).unwrap();
    all(1, resume(directory.path(), seven));
    // Damaged with a matching checksum: its contents do not load.
    let cut = &whole[..whole.len() - 8];
    fs::write(&file, cut).unwrap();
    edit_manifest(file.parent().unwrap(), |manifest| manifest.checksums[1] = crc32fast::hash(cut));
    all(1, resume(directory.path(), seven));
    // No checkpoint is left: every rank reports the problem of the oldest.
    fs::remove_file(directory.path().join("step-00000001/rank-0.safetensors")).unwrap();
    let errors: Vec<String> =
        resume(directory.path(), seven).into_iter().map(|r| r.expect_err("none is whole").to_string()).collect();
    assert!(errors[0].contains("rank-0.safetensors"), "{errors:?}");
    assert!(errors[1].contains("rank 0: ") && errors[1].contains("rank-0.safetensors"), "{errors:?}");
}

#[test]
fn a_checkpoint_of_another_run_ends_the_search_on_every_rank_and_nothing_has_changed() {
    let directory = tempfile::tempdir().unwrap();
    train_and_save(directory.path(), 2);
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, Config::dense());
        let model = optim.join(Net::new(9))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        let before = bits(&model);
        let error = optim
            .resume(model.clone(), directory.path(), WorldChange::Refuse, |_| Ok(()))
            .expect_err("another configuration");
        assert!(matches!(error, Error::OtherRun { .. }), "{error}");
        assert!(error.to_string().contains("another configuration"), "{error}");
        assert!(error.to_string().contains("step-00000002"), "the newest alone was tried: {error}");
        assert_eq!((bits(&model), optim.synchronizer().step()), (before, 1));
        train(&mut optim, model, 1, rank)
    });
    assert!(results.iter().all(Result::is_ok), "the world goes on");
}

#[test]
fn a_search_that_finds_nothing_leaves_running_statistics_as_they_were() {
    let directory = tempfile::tempdir().unwrap();
    train_and_save(directory.path(), 1);
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, top_k());
        let model = optim.join(Net::new(9))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        let before = bits(&model);
        // Rank 0 has already loaded it when it receives rank 1's report.
        let accept = |_: &Checkpoint| if rank == 1 { Err("no".to_owned()) } else { Ok(()) };
        let shared = model.clone();
        let error = optim.resume(model, directory.path(), WorldChange::Refuse, accept).expect_err("rank 1 cannot");
        assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
        assert!(bits(&shared) == before, "rank {rank}");
        let nowhere = directory.path().join("nowhere");
        let error = optim.resume(shared, &nowhere, WorldChange::Refuse, |_| Ok(())).expect_err("none there");
        assert!(error.to_string().contains("no complete checkpoint"), "{error}");
        Ok(())
    });
}

#[test]
fn what_saves_left_that_were_killed_goes_with_the_next_and_what_is_in_use_stays() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    train_and_save(at, 2);
    let newest = at.join("step-00000002");
    for name in [
        ".partial-common-0.safetensors",
        ".partial-rank-0.safetensors",
        ".partial-rank-1.safetensors",
        ".partial-manifest.json",
    ] {
        fs::write(newest.join(name), "half").unwrap();
    }
    train_and_save(at, 2);
    let mut names: Vec<_> = fs::read_dir(&newest).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["common-0.safetensors", "manifest.json", "rank-0.safetensors", "rank-1.safetensors"]);
    // A save that was interrupted before it removed old checkpoints.
    let old = at.join("step-00000000");
    let third = || {
        copy(&at.join("step-00000001"), &old);
        edit_manifest(&old, |manifest| manifest.step = 0);
    };
    third();
    let from = |expected: u64| {
        for result in resume(at, |_, found| Ok(found.step())) {
            assert_eq!(result.unwrap().0, expected);
        }
    };
    from(2);
    assert!(!old.exists(), "it is one of three");
    third();
    for newer in ["step-00000001", "step-00000002"] {
        fs::write(at.join(newer).join("rank-1.safetensors"), "damaged").unwrap();
    }
    from(0);
    assert!(old.is_dir(), "it is all that is left");
}

#[test]
fn a_directory_that_cannot_be_listed_may_hold_checkpoints_and_is_never_taken_for_an_empty_one() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path().join("checkpoints");
    assert!(!Checkpoint::any(&at), "there is none");
    // Listing fails for every user.
    fs::write(&at, "no directory").unwrap();
    assert!(Checkpoint::any(&at));
    let error = Checkpoint::latest(&at).unwrap_err().to_string();
    assert!(error.contains("cannot be listed"), "{error}");
    let errors: Vec<String> = resume(&at, |_, found| Ok(found.step()))
        .into_iter()
        .map(|result| result.expect_err("nothing to go on from").to_string())
        .collect();
    assert!(errors[0].contains("cannot be listed"), "{errors:?}");
    assert!(errors[1].contains("no complete checkpoint"), "{errors:?}");
}

/// A step is saved again if a run resumes at the end of an epoch that was not evaluated: there may be no other checkpoint.
#[test]
fn a_step_that_is_saved_again_is_whole_at_every_moment() {
    let directory = tempfile::tempdir().unwrap();
    train_and_save(directory.path(), 1);
    let path = directory.path().join("step-00000001");
    let [file, partial] = ["rank-0.safetensors", ".partial-rank-0.safetensors"].map(|name| path.join(name));
    let latest = || Checkpoint::latest(directory.path()).unwrap().step();
    let whole = fs::read(&file).unwrap();
    // Interrupted before the manifest is replaced: the written file does not match it.
    fs::write(&partial, b"half").unwrap();
    assert_eq!((latest(), fs::read(&file).unwrap()), (1, whole.clone()));
    // Interrupted afterwards: the manifest matches the file with the temporary name.
    fs::write(&partial, &whole).unwrap();
    fs::write(&file, b"the one before").unwrap();
    assert_eq!(latest(), 1);
    train_and_save(directory.path(), 1);
    assert!(!partial.exists() && latest() == 1);
    // If the file cannot be written, the existing one still counts.
    fs::create_dir(&partial).unwrap();
    let failed = std::panic::catch_unwind(|| train_and_save(directory.path(), 1)).is_err();
    assert!(failed && latest() == 1, "failed: {failed}");
}
