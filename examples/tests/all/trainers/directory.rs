//! A run's directory: its contents belong to one run, nothing is lost before it must be, and one process writes to it.

use std::fs;
use std::path::Path;

use briquette_examples::train::{Control, train};

use crate::common::{CIFAR, Ended, Fault, Runs, SMALL, Toy, quiet, settings};

/// Returns the flags of the small run with this many steps.
fn small(steps: u64) -> String {
    SMALL.replace("--steps 6", &format!("--steps {steps}"))
}

/// Returns the id of the run in a directory.
fn id(runs: &Runs, out: &str) -> String {
    runs.text(out, "config.toml").lines().find(|line| line.starts_with("run = ")).expect("a run has an id").to_owned()
}

#[test]
fn a_run_whose_evaluation_is_not_a_number_goes_on() {
    let runs = Runs::default();
    let run = |steps: u64, resume: bool| {
        let settings = settings(&runs.path("run"), &format!("ranks = 2\nbatch = 4\nepochs = 9\nsteps = {steps}"));
        train(&settings, &Toy::new(16, Some(Fault::Score)), &Control { resume, ..quiet() }).unwrap()
    };
    assert!(run(4, false).final_test_loss.is_nan());
    assert!(runs.text("run", "summary.json").contains("\"final_test_loss\": \"NaN\""));
    assert_eq!(run(8, true).steps, 8);
    assert_eq!((runs.metrics("run").len(), runs.checkpoints("run").last()), (8, Some(&8)));
}

#[test]
fn numbers_from_two_to_the_63_on_are_saved_and_compared() {
    let runs = Runs::default();
    let (large, largest) = (1_u64 << 63, u64::MAX);
    let flags =
        format!("--seed {largest} --eval-every {large} --checkpoint-every {largest} --epochs 9223372036854775808");
    runs.run(CIFAR, &format!("{} --out run {flags}", small(2))).succeeds();
    runs.run(CIFAR, "--resume run --seed 1 --plain").refused(&[&format!("--seed is {largest} there, 1 here")]);
    let flags = format!("--seed {largest} --eval-every {} --rebroadcast {large}", large + 1);
    runs.run(CIFAR, &format!("--resume run --steps 3 --plain {flags}")).succeeds();
    let config = runs.text("run", "config.toml");
    assert!(config.contains(&format!("seed = {largest}")) && config.contains("eval-every = 9223372036854775809"));
    runs.run(CIFAR, "--config run/config.toml --out again --plain").succeeds();
    assert_eq!(runs.text("again", "metrics.jsonl"), runs.text("run", "metrics.jsonl"));
}

#[test]
fn a_run_is_replaced_only_when_nothing_stands_in_the_way_of_the_new_one() {
    let runs = Runs::default();
    runs.cifar("run", "").succeeds();
    let before = runs.contents("run");
    for (flags, word) in [
        (SMALL.replace("--dataset generated", "--dataset cifar10 --data nowhere"), "nowhere"),
        (
            format!("{SMALL} --train-limit 1").replacen("--train-limit 64", "", 1),
            "a world of 2 ranks does not go with 1 samples",
        ),
        // Found when the model is there.
        (format!("{SMALL} --rules conv9.*=dense"), "conv9"),
        (format!("{SMALL} --record-gradient 1000"), "--record-gradient 1000"),
    ] {
        runs.run(CIFAR, &format!("{flags} --out run --overwrite")).refused(&[word]);
        assert_eq!(runs.contents("run"), before, "{flags}");
    }
    let earlier = id(&runs, "run");
    runs.run(CIFAR, &format!("{} --out run --overwrite", small(2))).succeeds();
    assert_ne!(id(&runs, "run"), earlier);
    assert_eq!((runs.metrics("run").len(), runs.checkpoints("run"), runs.summary("run").steps), (2, vec![2], 2));
    let entries =
        fs::read_dir(runs.path("run")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut entries: Vec<String> = entries.collect();
    entries.sort();
    assert_eq!(
        entries,
        ["checkpoints", "config.toml", "evaluations.json", "lock", "metrics.jsonl", "summary.json"],
        "nothing is left over"
    );
}

/// Threat L3.
#[cfg(unix)]
#[test]
fn a_second_process_in_a_directory_is_refused_and_a_killed_one_leaves_no_lock() {
    let runs = Runs::default();
    let flags = SMALL.replace("--steps 6", "--epochs 500 --checkpoint-every 2");
    let mut first = runs.start(CIFAR, &format!("{flags} --out run"));
    first.wait_until(|| !runs.checkpoints("run").is_empty());
    let process = format!("process {}", first.id());
    for flags in
        ["--resume run --plain".to_owned(), format!("{SMALL} --out run"), format!("{SMALL} --out run --overwrite")]
    {
        runs.run(CIFAR, &flags).refused(&["--out run: in use", &process, "choose another --out"]);
    }
    let steps = *runs.checkpoints("run").last().unwrap();
    first.wait_until(|| *runs.checkpoints("run").last().unwrap() > steps);
    first.signal("KILL");
    first.end();
    assert!(!runs.text("run", "lock").is_empty(), "it could not tidy up");
    let steps = *runs.checkpoints("run").last().unwrap() + 1;
    runs.run(CIFAR, &format!("--resume run --steps {steps} --plain")).succeeds();
    assert_eq!(runs.text("run", "lock"), "");
    briquette_testkit::held!(
        "a second process in a run's directory",
        1,
        "refused, with the name of the first",
        a_second_process_in_a_directory_is_refused_and_a_killed_one_leaves_no_lock
    );
}

#[test]
fn damaged_and_missing_records_are_named_and_the_others_kept() {
    let runs = Runs::default();
    runs.run(CIFAR, &format!("{} --out run", small(6))).succeeds();
    let path = runs.path("run/metrics.jsonl");
    let whole = fs::read(&path).unwrap();
    let begin: usize = whole.split_inclusive(|byte| *byte == b'\n').take(2).map(<[u8]>::len).sum();
    let mut damaged = whole.clone();
    // A digit of a number becomes another one.
    let digit = (begin..).find(|i| whole[*i] == b'0' || whole[*i] == b'1').unwrap();
    damaged[digit] ^= 1;
    fs::write(&path, damaged).unwrap();
    let said = runs.run(CIFAR, "--resume run --steps 7 --plain").succeeds().stderr;
    assert!(said.contains("metrics.jsonl") && said.contains("1 of 6 steps have no record any more: 2"), "{said}");
    let steps = |runs: &Runs| runs.metrics("run").iter().map(|record| record.step).collect::<Vec<_>>();
    assert_eq!(steps(&runs), [0, 1, 3, 4, 5, 6]);

    fs::remove_file(&path).unwrap();
    let said = runs.run(CIFAR, "--resume run --steps 8 --plain").succeeds().stderr;
    assert!(said.contains("metrics.jsonl was missing") && said.contains("7 of 7 steps"), "{said}");
    assert_eq!(steps(&runs), [7]);
}

/// Threat L3.
#[test]
fn a_checkpoint_of_another_run_is_passed_over() {
    let runs = Runs::default();
    runs.run(CIFAR, &format!("{} --out run", small(2))).succeeds();
    runs.run(CIFAR, &format!("{} --out other", small(4))).succeeds();
    copy(&runs.path("other/checkpoints/step-00000004"), &runs.path("run/checkpoints/step-00000004"));
    let said = runs.run(CIFAR, "--resume run --steps 3 --plain").succeeds().stderr;
    for word in ["step-00000004", "another run", "going back to step 2"] {
        assert!(said.contains(word), "no `{word}` in {said}");
    }
    assert_eq!(runs.metrics("run").len(), 3);
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// Runs under `briquette launch`, whose rank 0 is killed before it inspects anything, and is then restarted.
#[cfg(unix)]
mod launched {
    use super::*;
    use crate::common::launcher;
    use crate::trainers::processes::processes;

    fn launch(runs: &Runs, flags: &str) -> Ended {
        let script = "[ $RANK = 0 ] && [ $BRIQUETTE_RESTART = 0 ] && kill -9 $$\nexec \"$@\"";
        fs::write(runs.path("killed-at-first"), script).unwrap();
        let launch = format!("launch --ranks 2 --restart 1 --grace 1s -- sh killed-at-first {CIFAR} {flags} --out run");
        runs.run(&launcher(), &launch)
    }

    #[test]
    fn a_restart_replaces_an_earlier_run_as_the_first_start_would_have() {
        let runs = Runs::default();
        runs.run(CIFAR, &format!("{} --out run", processes(2, 4))).succeeds();
        let earlier = id(&runs, "run");
        let ended = launch(&runs, &format!("{} --seed 2 --overwrite", processes(2, 2)));
        assert_eq!(ended.succeeds().stderr.matches("restarting (").count(), 1);
        assert_ne!(id(&runs, "run"), earlier);
        assert_eq!((runs.summary("run").steps, runs.metrics("run").len(), runs.checkpoints("run")), (2, 2, vec![2]));
        runs.run(CIFAR, &format!("{} --seed 2 --out alone", processes(2, 2))).succeeds();
        assert_eq!(runs.text("run", "metrics.jsonl"), runs.text("alone", "metrics.jsonl"), "not the earlier run's");
    }

    #[test]
    fn a_launch_that_cannot_begin_leaves_the_earlier_run_whole() {
        let launcher = launcher();
        let runs = Runs::default();
        runs.run(CIFAR, &format!("{} --out run", processes(2, 2))).succeeds();
        let before = runs.contents("run");
        for (flags, word) in [
            (processes(2, 2).replace("--dataset generated", "--dataset cifar10 --data nowhere"), "nowhere"),
            (format!("{} --rules conv9.*=dense", processes(2, 2)), "conv9"),
        ] {
            let launch = format!("launch --ranks 2 --grace 1s -- {CIFAR} {flags} --out run --overwrite");
            let ended = runs.run(&launcher, &launch);
            assert_ne!(ended.code, Some(0));
            assert!(ended.stderr.contains(word), "{}", ended.stderr);
            assert_eq!(runs.contents("run"), before, "{flags}");
        }
    }

    /// Threat L3.
    #[test]
    fn a_restart_leaves_another_run_alone_as_the_first_start_would_have() {
        let runs = Runs::default();
        runs.run(CIFAR, &format!("{} --out run", processes(2, 4))).succeeds();
        let before = runs.contents("run");
        let ended = launch(&runs, &processes(2, 6));
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        assert!(ended.stderr.contains("there is a run already"), "{}", ended.stderr);
        assert_eq!(runs.contents("run"), before);
    }
}
