//! FIFOs, devices and directories in place of a run's files, and the messages of a resume about the record.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::common::{CIFAR, Runs, SMALL};

/// Entries that replace a file.
const KINDS: [&str; 4] = ["a FIFO", "a directory", "a link to a device", "a link to a FIFO"];

fn fifo(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn replace(path: &Path, kind: &str) {
    let _ = fs::remove_file(path);
    match kind {
        "a FIFO" => fifo(path),
        "a directory" => fs::create_dir_all(path.join("inside")).unwrap(),
        "a link to a device" => symlink("/dev/zero", path).unwrap(),
        _ => {
            fifo(&path.with_extension("fifo"));
            symlink(path.with_extension("fifo"), path).unwrap();
        }
    }
}

/// Copies the same run into a separate directory.
fn copy(base: &Runs) -> Runs {
    let runs = Runs::default();
    let copied = Command::new("cp").arg("-r").arg(base.path("run")).arg(runs.path("run")).status();
    assert!(copied.unwrap().success());
    runs
}

fn small(steps: u64) -> String {
    SMALL.replace("--steps 6", &format!("--steps {steps}"))
}

/// Threat F1.
#[test]
fn what_is_no_file_in_the_place_of_one_is_damage_and_a_resume_goes_back() {
    let (whole, base) = (Runs::default(), Runs::default());
    whole.run(CIFAR, &format!("{} --out run --checkpoint-every 2", small(5))).succeeds();
    base.run(CIFAR, &format!("{} --out run --checkpoint-every 2", small(4))).succeeds();
    let mut times = 0;
    for kind in KINDS {
        for name in ["manifest.json", "common-0.safetensors", "rank-0.safetensors", "rank-1.safetensors"] {
            let runs = copy(&base);
            replace(&runs.path("run/checkpoints/step-00000004").join(name), kind);
            let said = runs.run(CIFAR, "--resume run --steps 5 --plain").succeeds().stderr;
            let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(
                words.contains("not a regular file") && words.contains("going back to step 2"),
                "{kind}, {name}: {said}"
            );
            assert_eq!(whole.text("run", "metrics.jsonl"), runs.text("run", "metrics.jsonl"), "{kind}, {name}");
            times += 1;
        }
    }
    briquette_testkit::held!(
        "a FIFO, a directory, a link to a device or to a FIFO in the place of a checkpoint's file",
        times,
        "every rank went back to the checkpoint before, with a warning that names the kind; the same records",
        what_is_no_file_in_the_place_of_one_is_damage_and_a_resume_goes_back
    );
}

#[test]
fn what_is_no_file_in_the_place_of_the_record_or_the_lock_is_set_aside() {
    let (base, mut times) = (Runs::default(), 0);
    base.run(CIFAR, &format!("{} --out run", small(3))).succeeds();
    for kind in KINDS {
        for name in ["metrics.jsonl", "lock", "summary.json", "summary.partial", "metrics.partial"] {
            let runs = copy(&base);
            replace(&runs.path("run").join(name), kind);
            let ended = runs.run(CIFAR, "--resume run --steps 4 --plain");
            if kind == "a directory" && name == "summary.partial" {
                // Nothing is removed that may hold something.
                ended.says(&["summary.json"]);
                continue;
            }
            let said = ended.succeeds().stderr;
            let warned = said.split_whitespace().collect::<Vec<_>>().join(" ").contains("not a regular file");
            assert_eq!(warned, ["metrics.jsonl", "lock"].contains(&name), "{kind}, {name}: {said}");
            assert!(runs.path("run/metrics.jsonl").is_file() && runs.path("run/summary.json").is_file());
            assert_eq!(runs.metrics("run").last().unwrap().step, 3, "{kind}, {name}");
            times += 1;
        }
    }
    briquette_testkit::held!(
        "the same in the place of a run's record, summary or lock",
        times,
        "set aside or replaced, and the run went on",
        what_is_no_file_in_the_place_of_the_record_or_the_lock_is_set_aside
    );
}

/// A step that is saved again replaces an entry that is not a file.
#[test]
fn a_step_is_saved_in_the_place_of_what_is_no_file() {
    for kind in KINDS {
        let runs = Runs::default();
        runs.run(CIFAR, &format!("{} --out run --checkpoint-every 2", small(4))).succeeds();
        let at = runs.path("run/checkpoints/step-00000004");
        for name in ["manifest.json", "common-0.safetensors", "rank-0.safetensors"] {
            replace(&at.join(name), kind);
            if kind != "a directory" {
                replace(&at.join(format!(".partial-{name}")), kind);
            }
        }
        // It goes back to step 2, and saves step 4 again.
        runs.run(CIFAR, "--resume run --steps 4 --plain").succeeds();
        let said = runs.run(CIFAR, "--resume run --steps 5 --plain").succeeds().stderr;
        assert!(!said.contains("going back"), "{kind}: {said}");
    }
}

/// A server's run has a record of each pause, and no other.
#[test]
fn a_servers_run_is_resumed_without_a_warning_and_names_pauses_that_were_lost() {
    let runs = Runs::default();
    let flags = "--server async-sgd --checkpoint-every 2";
    runs.run(CIFAR, &format!("{} --ranks 3 --out run {flags}", SMALL.replace("--ranks 2 --steps 6", "--steps 6")))
        .succeeds();
    let said = runs.run(CIFAR, "--resume run --steps 8 --plain").succeeds().stderr;
    assert!(!said.contains("metrics.jsonl"), "{said}");
    let steps = |runs: &Runs| runs.metrics("run").iter().map(|record| record.step).collect::<Vec<_>>();
    assert_eq!(steps(&runs), [1, 3, 5, 7]);

    let path = runs.path("run/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen("\"step\":3", "\"step\":4", 1)).unwrap();
    let said = runs.run(CIFAR, "--resume run --steps 10 --plain").succeeds().stderr;
    assert!(said.contains("lines were dropped: 1 damaged; 1 of 4 pauses have no record any more"), "{said}");
    assert_eq!(steps(&runs), [1, 5, 7, 9]);
    let said = runs.run(CIFAR, "--resume run --steps 12 --plain").succeeds().stderr;
    assert!(said.contains("1 of 5 pauses"), "{said}");
    fs::remove_file(&path).unwrap();
    let said = runs.run(CIFAR, "--resume run --steps 14 --plain").succeeds().stderr;
    assert!(said.contains("metrics.jsonl was missing") && said.contains("6 of 6 pauses"), "{said}");
}
