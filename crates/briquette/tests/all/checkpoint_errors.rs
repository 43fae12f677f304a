//! Unusable checkpoints report the reason, and a failed save leaves the previous checkpoint intact.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use briquette::core::comm::{Local, Session};
use briquette::core::config::Config;
use briquette::{Checkpoint, DistributedOptimizer, Error, WorldChange};
#[cfg(target_os = "linux")]
use briquette_testkit::alone::name_of;

use crate::common::*;

fn alone() -> Session {
    Local::world(1).remove(0)
}

fn optimizer(config: Config, seed: u64) -> DistributedOptimizer {
    DistributedOptimizer::new(sgd_with_momentum(), alone(), config, seed)
}

/// A run of one rank that has saved after one step.
fn save_one(directory: &Path) -> Result<(), Error> {
    let mut optim = optimizer(top_k(), 1);
    let model = optim.join(Mlp::new(5))?;
    let (model, _) = train(&mut optim, model, 0, 0)?;
    optim.save(&model, directory, &BTreeMap::new())?;
    Ok(())
}

fn load(model: Mlp, config: Config, seed: u64, directory: &Path) -> Result<Mlp, Error> {
    let mut optim = optimizer(config, seed);
    let model = optim.join(model)?;
    optim.load(model, &Checkpoint::latest(directory)?, WorldChange::Refuse)
}

fn rank_file(directory: &Path, rank: usize) -> PathBuf {
    Checkpoint::latest(directory).unwrap().path().join(format!("rank-{rank}.safetensors"))
}

fn says(result: Result<Mlp, Error>, words: &[&str]) {
    let error = result.expect_err("it cannot be used").to_string();
    for word in words {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

#[test]
fn a_checkpoint_of_another_model_configuration_or_seed_says_what_differs() {
    let directory = tempfile::tempdir().unwrap();
    save_one(directory.path()).unwrap();
    let at = directory.path();
    assert!(load(Mlp::new(9), top_k(), 1, at).is_ok());
    // 6·8 + 8 + 8·3 + 3 values, and with 9 hidden ones 6·9 + 9 + 9·3 + 3.
    says(load(Mlp::wide(5, 9), top_k(), 1, at), &["another model", "83 values in 4 slots", "93 values in 4 slots"]);
    says(load(Mlp::new(5), Config::dense(), 1, at), &["another configuration.feedback", "error there, none here"]);
    says(load(Mlp::new(5), top_k(), 7, at), &["another seed", "1 there, 7 here"]);
}

#[test]
fn a_damaged_or_absent_file_and_a_missing_manifest_are_errors_that_name_the_place() {
    let directory = tempfile::tempdir().unwrap();
    save_one(directory.path()).unwrap();
    let file = rank_file(directory.path(), 0);
    let whole = fs::read(&file).unwrap();
    for at in [0, 8, whole.len() / 2, whole.len() - 1] {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        fs::write(&file, damaged).unwrap();
        says(load(Mlp::new(5), top_k(), 1, directory.path()), &["damaged", "checkpoint "]);
    }
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    says(load(Mlp::new(5), top_k(), 1, directory.path()), &["damaged"]);
    fs::remove_file(&file).unwrap();
    says(load(Mlp::new(5), top_k(), 1, directory.path()), &["rank-0.safetensors"]);
    fs::write(&file, &whole).unwrap();
    assert!(load(Mlp::new(5), top_k(), 1, directory.path()).is_ok());

    let manifest = file.with_file_name("manifest.json");
    fs::write(&manifest, "{").unwrap();
    says(load(Mlp::new(5), top_k(), 1, directory.path()), &["manifest.json"]);
    fs::remove_file(&manifest).unwrap();
    says(load(Mlp::new(5), top_k(), 1, directory.path()), &["no complete checkpoint", "manifest.json"]);
    says(load(Mlp::new(5), top_k(), 1, &directory.path().join("nowhere")), &["no complete checkpoint", "nowhere"]);
}

#[test]
fn loading_before_join_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    save_one(directory.path()).unwrap();
    let checkpoint = Checkpoint::latest(directory.path()).unwrap();
    let error = optimizer(top_k(), 1).load(Mlp::new(5), &checkpoint, WorldChange::Refuse).expect_err("not joined");
    assert!(matches!(error, Error::NotJoined { .. }), "{error}");
}

/// Saves at step 1, makes a second save fail on some ranks through `spoil`, and continues training after `mend`.
fn failed_save(directory: &Path, spoil: fn(&Path, usize), mend: fn(&Path)) {
    let errors = ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let mut model = optim.join(Mlp::new(5))?;
        (model, _) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, directory, &BTreeMap::new())?;
        (model, _) = train(&mut optim, model, 1, rank)?;
        optim.synchronizer_mut().session().barrier()?;
        spoil(directory, rank);
        optim.synchronizer_mut().session().barrier()?;
        let before = bits(&model);
        let error = optim.save(&model, directory, &BTreeMap::new()).expect_err("it cannot be written");
        let said = error.to_string();
        assert_eq!(bits(&model), before, "the model comes back");
        optim.synchronizer_mut().session().barrier()?;
        if rank == 0 {
            mend(directory);
        }
        optim.synchronizer_mut().session().barrier()?;
        (model, _) = train(&mut optim, model, 2, rank)?;
        optim.save(&model, &directory.join("later"), &BTreeMap::new())?;
        Ok(said)
    });
    for error in errors {
        assert!(error.contains("the checkpoint before is untouched"), "{error}");
    }
    let checkpoint = Checkpoint::latest(directory).unwrap();
    assert_eq!(checkpoint.step(), 1);
    ranks(2, |comm| {
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(9))?;
        optim.load(model, &checkpoint, WorldChange::Refuse)
    });
}

#[test]
fn a_rank_that_cannot_write_its_file_fails_the_save_on_every_rank_and_training_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    // A directory in the place of rank 1's file.
    let spoil = |directory: &Path, rank: usize| {
        if rank == 1 {
            fs::create_dir_all(directory.join("step-00000002/.partial-rank-1.safetensors/in-the-way")).unwrap();
        }
    };
    failed_save(directory.path(), spoil, |_| {});
}

#[test]
fn a_manifest_that_cannot_be_written_fails_the_save_on_every_rank_and_training_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let spoil = |directory: &Path, rank: usize| {
        if rank == 0 {
            fs::create_dir_all(directory.join("step-00000002/.partial-manifest.json/in-the-way")).unwrap();
        }
    };
    failed_save(directory.path(), spoil, |_| {});
}

#[test]
fn a_step_that_cannot_be_saved_again_stays_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    ranks(2, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(sgd_with_momentum(), comm, top_k(), 1);
        let model = optim.join(Mlp::new(5))?;
        let (model, _) = train(&mut optim, model, 0, rank)?;
        optim.save(&model, at, &BTreeMap::new())?;
        // Again at the same step, but rank 1 cannot write its file.
        if rank == 1 {
            fs::create_dir_all(at.join("step-00000001/.partial-rank-1.safetensors/in-the-way")).unwrap();
        }
        optim.synchronizer_mut().session().barrier()?;
        let error = optim.save(&model, at, &BTreeMap::new()).expect_err("it cannot be written");
        assert!(error.to_string().contains("step-00000001"), "{error}");
        Ok(())
    });
    assert_eq!(Checkpoint::latest(at).unwrap().step(), 1);
}

/// A small separate file system, unmounted at the end.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with the reason printed, if this process may not mount.
    fn mount() -> Option<SmallDisk> {
        let directory = tempfile::tempdir().unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"]).arg(directory.path()).output();
        match mount {
            Ok(output) if output.status.success() => Some(SmallDisk(directory)),
            Ok(output) => {
                println!("skipped: cannot mount a tmpfs: {}", String::from_utf8_lossy(&output.stderr).trim());
                None
            }
            Err(error) => {
                println!("skipped: no `mount` here: {error}");
                None
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_fails_the_save_and_leaves_the_checkpoint_before_whole() {
    let Some(disk) = SmallDisk::mount() else { return };
    let spoil = |directory: &Path, rank: usize| {
        if rank == 0 {
            // Fills the remaining space, to the last page.
            let _ = fs::write(directory.join("filler"), vec![7; 1 << 20]);
        }
    };
    failed_save(disk.0.path(), spoil, |directory| fs::remove_file(directory.join("filler")).unwrap());
}

/// The directory to which the traced copy of the next test saves.
const TRACED: &str = "BRIQUETTE_TEST_SAVES_IN";

/// The test runs itself again, under `strace`, and reads the trace.
#[cfg(target_os = "linux")]
#[test]
fn every_new_name_is_followed_by_a_sync_of_the_directory_it_is_in() {
    if let Ok(directory) = std::env::var(TRACED) {
        return save_one(Path::new(&directory)).unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    let (run, trace) = (directory.path().join("new/checkpoints"), directory.path().join("trace"));
    let name = name_of(&every_new_name_is_followed_by_a_sync_of_the_directory_it_is_in);
    let traced = Command::new("strace")
        .args(["-f", "-y", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(TRACED, &run)
        .output();
    match traced {
        Ok(output) if output.status.success() => {}
        Ok(output) => return println!("skipped: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return println!("skipped: no strace here: {error}"),
    }
    let trace = fs::read_to_string(trace).unwrap();
    let at = directory.path().to_str().unwrap();
    let calls: Vec<&str> = trace.lines().filter(|line| line.contains(at) && line.trim_end().ends_with("= 0")).collect();
    let mut new = Vec::new();
    for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.contains("rename") || call.contains("mkdir"))
    {
        let path = Path::new(call.rsplit('"').nth(1).expect("a path in quotation marks"));
        let above = format!("<{}>", path.parent().unwrap().display());
        let synced = calls[index..].iter().any(|later| later.contains("sync(") && later.contains(&above));
        assert!(synced, "{}: its directory is not synced\n{trace}", path.display());
        new.push(path.strip_prefix(directory.path()).unwrap().to_owned());
        if call.contains("rename") {
            let old = call.split('"').nth(1).unwrap();
            let before = calls[..index].iter().any(|call| call.contains("sync(") && call.contains(&format!("<{old}>")));
            assert!(before, "{old}: renamed before it was synced\n{trace}");
        }
    }
    let step = Path::new("new/checkpoints/step-00000001");
    let expected = [
        Path::new("new"),
        Path::new("new/checkpoints"),
        step,
        &step.join("manifest.json"),
        &step.join("rank-0.safetensors"),
    ];
    assert_eq!(new, expected);
}
