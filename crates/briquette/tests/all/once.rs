//! Replicated state is in a checkpoint once, in each directory that ranks share.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use briquette::core::comm::Session;
use briquette::core::config::Config;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
use safetensors::SafeTensors;

use crate::common::*;

fn optimizer(comm: Session, config: &Config) -> DistributedOptimizer {
    DistributedOptimizer::new(adam(), comm, config.clone(), 1)
}

type Bits = Vec<(String, Vec<u32>)>;

/// Steps from `from` (a checkpoint, unless it is 0) to `to`, and a save; `place` is each rank's directory.
fn run(
    world: usize,
    config: &Config,
    place: impl Fn(usize) -> std::path::PathBuf + Sync,
    (from, to): (u64, u64),
) -> Vec<Bits> {
    ranks(world, |comm| {
        let (rank, directory) = (comm.rank(), place(comm.rank()));
        let mut optim = optimizer(comm, config);
        let mut model = optim.join(Net::new(5))?;
        if from > 0 {
            (model, _, ()) = optim.resume(model, &directory, WorldChange::Refuse, |_| Ok(()))?;
        }
        for step in from..to {
            (model, _) = train(&mut optim, model, step, rank)?;
        }
        optim.save(&model, &directory, &BTreeMap::new())?;
        Ok(bits(&model))
    })
}

/// Names and sizes of the files of a step.
fn files(directory: &Path, step: u64) -> Vec<(String, u64)> {
    let entries = fs::read_dir(directory.join(format!("step-{step:08}"))).unwrap().map(Result::unwrap);
    let mut all: Vec<_> =
        entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())).collect();
    all.sort();
    all
}

fn names(directory: &Path, step: u64) -> Vec<String> {
    files(directory, step).into_iter().map(|(name, _)| name).collect()
}

/// The parts in a file.
fn parts(file: &Path) -> Vec<String> {
    let bytes = fs::read(file).unwrap();
    let names = SafeTensors::deserialize(&bytes).unwrap().names().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let mut parts: Vec<_> = names.into_iter().filter(|name| !name.starts_with("state/")).collect();
    parts.sort();
    parts
}

#[test]
fn a_directory_of_all_ranks_has_the_model_and_the_optimizer_once() {
    let directory = tempfile::tempdir().unwrap();
    // The token of a rank that was killed while it looked for the others, and a file of the user.
    fs::write(directory.path().join(".here-00000000000000ff-3"), []).unwrap();
    fs::write(directory.path().join(".here-is-my-note"), []).unwrap();
    run(4, &Config::dense(), |_| directory.path().to_owned(), (0, 2));
    let found = files(directory.path(), 2);
    let size = |name: &str| found.iter().find(|(found, _)| found.starts_with(name)).unwrap().1;
    let ranks: Vec<_> = (0..4).map(|rank| size(&format!("rank-{rank}"))).collect();
    println!("common {} bytes, each rank's {ranks:?}", size("common-0"));
    assert_eq!(found.len(), 6, "{found:?}");
    let step = directory.path().join("step-00000002");
    assert_eq!(parts(&step.join("common-0.safetensors")), ["model", "optimizer"]);
    // Running statistics are rank-local.
    assert_eq!(parts(&step.join("rank-3.safetensors")), ["buffers"]);
    let left = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut left: Vec<_> = left.collect();
    left.sort();
    assert_eq!(left, [".here-is-my-note", "step-00000002"]);
}

#[test]
fn machines_with_a_directory_each_have_it_once_each_and_go_on_with_the_same_bits() {
    for config in [Config::dense(), top_k()] {
        let (one, two) = (tempfile::tempdir().unwrap(), [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()]);
        let machine = |rank: usize| two[rank / 2].path().to_owned();
        let whole = run(4, &config, |_| one.path().to_owned(), (0, 5));
        run(4, &config, machine, (0, 3));
        let both = [[0, 1], [2, 3]].map(|[a, b]| {
            [
                format!("common-{a}.safetensors"),
                "manifest.json".into(),
                format!("rank-{a}.safetensors"),
                format!("rank-{b}.safetensors"),
            ]
        });
        assert_eq!([0, 1].map(|at| names(two[at].path(), 3)), both);
        assert!(run(4, &config, machine, (3, 5)) == whole, "{config:?}");
        run(4, &config, machine, (5, 6));
        for directory in &two {
            let steps = [3, 5, 6].map(|step| directory.path().join(format!("step-{step:08}")).exists());
            assert_eq!(steps, [false, true, true], "each machine keeps two checkpoints");
        }
        // Machines may be renamed: all files in one place can be read as well.
        for name in [&both[1][0], &both[1][2], &both[1][3]] {
            let [from, to] = [1, 0].map(|at| two[at].path().join("step-00000006").join(name));
            fs::copy(from, to).unwrap();
        }
        run(4, &config, |_| two[0].path().to_owned(), (6, 7));
        assert_eq!(names(two[0].path(), 7)[0], "common-0.safetensors");
    }
}

#[test]
fn optimizers_that_step_alone_are_each_ranks_own() {
    let directory = tempfile::tempdir().unwrap();
    let local = config(r#"{"strategy": "local-sgd:4"}"#);
    let whole = run(2, &local, |_| directory.path().to_owned(), (0, 6));
    let step = directory.path().join("step-00000006");
    assert_eq!(parts(&step.join("common-0.safetensors")), ["model"], "its parameters are means");
    assert_eq!(parts(&step.join("rank-1.safetensors")), ["buffers", "optimizer", "parameters"]);
    let broken = tempfile::tempdir().unwrap();
    run(2, &local, |_| broken.path().to_owned(), (0, 3));
    assert!(run(2, &local, |_| broken.path().to_owned(), (3, 6)) == whole);
}

#[test]
fn what_is_common_and_damaged_gives_way_to_the_checkpoint_before() {
    let directory = tempfile::tempdir().unwrap();
    run(2, &top_k(), |_| directory.path().to_owned(), (0, 1));
    let whole = run(2, &top_k(), |_| directory.path().to_owned(), (1, 3));
    let path = directory.path().join("step-00000003/common-0.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&path, bytes).unwrap();
    let resumed = |from| run(2, &top_k(), |_| directory.path().to_owned(), (from, 3));
    assert!(resumed(1) == whole, "from step 1");
    // If no other is intact, it is named.
    fs::remove_dir_all(directory.path().join("step-00000001")).unwrap();
    fs::remove_file(&path).unwrap();
    let results = outcomes(2, |comm| {
        let mut optim = optimizer(comm, &top_k());
        let model = optim.join(Net::new(5))?;
        optim.resume(model, directory.path(), WorldChange::Refuse, |_| Ok(())).map(drop)
    });
    for error in results.into_iter().map(Result::unwrap_err) {
        assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
        assert!(error.to_string().contains("common-0.safetensors"), "{error}");
    }
}

#[test]
fn where_one_rank_cannot_write_none_has_saved_and_the_next_save_may() {
    let directory = tempfile::tempdir().unwrap();
    let (file, good) = (directory.path().join("file"), directory.path().join("good"));
    fs::write(&file, []).unwrap();
    let results = outcomes(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, &top_k());
        let model = optim.join(Net::new(5))?;
        let place = if rank == 1 { &file } else { &good };
        let problem = optim.save(&model, place, &BTreeMap::new()).unwrap_err().to_string();
        let (model, _) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, &good, &BTreeMap::new())?;
        Ok(problem)
    });
    let [first, second] = [0, 1].map(|rank| results[rank].as_ref().unwrap());
    assert!(first.ends_with("rank 1 cannot write here; the checkpoint before is untouched"), "{first}");
    assert!(second.contains("file"), "{second}");
    // Whatever was invisible at the first save: there is one leader, and nothing of the failed save is left.
    let step = ["common-0.safetensors", "manifest.json", "rank-0.safetensors", "rank-1.safetensors"];
    assert_eq!(names(&good, 1), step);
    assert_eq!(fs::read_dir(&good).unwrap().count(), 1);
}

/// A loop may put rank-local values in the notes, and save to another directory on one rank alone.
#[test]
fn notes_are_rank_0s_in_every_directory_and_one_rank_alone_may_change_its_own() {
    let two = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let other = tempfile::tempdir().unwrap();
    let notes = |rank: usize| BTreeMap::from([("host".to_owned(), format!("machine {rank}"))]);
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, &top_k());
        let model = optim.join(Net::new(5))?;
        optim.save(&model, two[rank].path(), &notes(rank))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        // Rank 1 has another disk now.
        let place = if rank == 1 { other.path() } else { two[0].path() };
        optim.save(&model, place, &notes(rank))
    });
    let found = ranks(2, |comm| {
        let place = if comm.rank() == 1 { other.path() } else { two[0].path() };
        let mut optim = optimizer(comm, &top_k());
        let model = optim.join(Net::new(5))?;
        let read = |checkpoint: &Checkpoint| Ok(checkpoint.note("host").unwrap_or_default().to_owned());
        let (_, checkpoint, host) = optim.resume(model, place, WorldChange::Refuse, read)?;
        Ok((checkpoint.step(), host))
    });
    assert_eq!(found, [(1, "machine 0".to_owned()), (1, "machine 0".to_owned())]);
}

#[test]
fn ranks_that_part_and_meet_again_have_a_manifest_and_the_model_once_in_each_directory() {
    let two = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, &top_k());
        let mut model = optim.join(Net::new(5))?;
        for (step, place) in [0, rank, 0].into_iter().enumerate() {
            optim.save(&model, two[place].path(), &BTreeMap::new())?;
            (model, _) = train(&mut optim, model, step as u64, rank)?;
        }
        Ok(())
    });
    for (rank, directory) in two.iter().enumerate() {
        let own = [format!("common-{rank}.safetensors"), "manifest.json".into(), format!("rank-{rank}.safetensors")];
        assert_eq!(names(directory.path(), 1), own);
    }
    let shared = ["common-0.safetensors", "manifest.json", "rank-0.safetensors", "rank-1.safetensors"];
    assert_eq!(names(two[0].path(), 2), shared);
}

#[test]
fn directories_with_different_saves_of_a_step_do_not_mix() {
    let two = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let machine = |rank: usize| two[rank].path().to_owned();
    run(2, &top_k(), machine, (0, 1));
    run(2, &top_k(), machine, (1, 2));
    // Machine 1 lost its last save, and has a step 2 of another run with the same seed.
    let other = tempfile::tempdir().unwrap();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = optimizer(comm, &top_k());
        let mut model = optim.join(Net::new(5))?;
        for step in 0..2 {
            (model, _) = train(&mut optim, model, step + 7, rank)?;
        }
        optim.save(&model, &other.path().join(rank.to_string()), &BTreeMap::new())
    });
    let [step, lost] = [other.path().join("1/step-00000002"), two[1].path().join("step-00000002")];
    fs::remove_dir_all(&lost).unwrap();
    fs::rename(step, &lost).unwrap();
    let found = ranks(2, |comm| {
        let directory = machine(comm.rank());
        let mut optim = optimizer(comm, &top_k());
        let model = optim.join(Net::new(5))?;
        Ok(optim.resume(model, &directory, WorldChange::Refuse, |_| Ok(()))?.1.step())
    });
    assert_eq!(found, [1, 1]);
}
