//! Runs that cannot be resumed as requested.

use std::fs;

use briquette_examples::train::{Control, train};

use crate::common::{CIFAR, Runs, SMALL, Toy, quiet, settings};

#[test]
fn resuming_what_is_not_a_run_says_what_is_missing() {
    let runs = Runs::default();
    runs.run(CIFAR, "--resume nowhere").refused(&["--resume nowhere", "no config.toml", "--out directory of a run"]);
    assert!(!runs.path("nowhere").exists());
    fs::create_dir(runs.path("young")).unwrap();
    let young = "dataset = \"generated\"\nmodel = \"resnet8\"\ntrain-limit = 8\ntest-limit = 8\nranks = 1\n";
    fs::write(runs.path("young/config.toml"), young).unwrap();
    runs.run(CIFAR, "--resume young --plain").refused(&[
        "--resume young",
        "no complete checkpoint",
        "without --resume",
    ]);
    assert_eq!(runs.contents("young").len(), 1);
    // Ended before it began: nothing to continue, and nothing in the way.
    fs::create_dir(runs.path("unborn")).unwrap();
    fs::write(runs.path("unborn/metrics.jsonl"), "").unwrap();
    let said = runs.run(CIFAR, "--resume unborn").refused(&["no run has begun in it", "--out unborn"]).stderr;
    assert_eq!(said.lines().count(), 1, "{said}");
    runs.cifar("unborn", "").succeeds();
    runs.run(CIFAR, "--resume young --out other").refused(&["--resume DIR takes everything from DIR", "--out"]);
}

#[test]
fn resuming_with_other_settings_names_each_and_leaves_the_run_whole() {
    let runs = Runs::default();
    let small = SMALL.replace("--steps 6", "--steps 2");
    runs.run(CIFAR, &format!("{small} --out run --compressor topk:0.1")).succeeds();
    let before = runs.contents("run");
    for (flags, words) in [
        ("--ranks 3", vec!["--ranks is 2 there, 3 here"]),
        ("--model resnet20", vec!["--model is \"resnet8\" there, \"resnet20\" here"]),
        (
            "--compressor topk:0.2 --batch 8",
            vec!["--batch is 4 there, 8 here", "--reducer is \"gather:topk:10x\" there"],
        ),
        ("--local-steps 3", vec!["--strategy is \"every-step\" there, \"local-sgd:3\" here"]),
        ("--set feedback=none", vec!["--feedback is \"by-optimizer\" there, \"none\" here"]),
    ] {
        let words = [words, vec!["--resume run", "A run goes on as it began", "--epochs, --steps"]].concat();
        runs.run(CIFAR, &format!("--resume run --steps 4 --plain {flags}")).refused(&words);
        assert_eq!(runs.contents("run"), before, "{flags}");
    }

    // A config.toml that was edited does not deceive the checkpoint.
    let config = runs.text("run", "config.toml");
    for (from, to, words) in [
        ("ranks = 2", "ranks = 3", ["saved by 2 ranks, this world has 3", "resume with 2"]),
        ("model = \"resnet8\"", "model = \"resnet20\"", ["saved by another --model", "resnet8 there, resnet20 here"]),
        (
            "reducer = \"gather:topk:10x\"",
            "reducer = \"gather:topk:5x\"",
            ["saved by another configuration.reducer", "gather:topk:10x there, gather:topk:5x here"],
        ),
        ("seed = 1", "seed = 2", ["saved by another --seed", "1 there, 2 here"]),
    ] {
        let edited = config.replace(from, to);
        assert_ne!(edited, config, "{from}");
        fs::write(runs.path("run/config.toml"), &edited).unwrap();
        let before = runs.contents("run");
        runs.run(CIFAR, "--resume run --steps 4 --plain").refused(&words);
        assert_eq!(runs.contents("run"), before, "{to}");
    }
    fs::write(runs.path("run/config.toml"), &config).unwrap();

    // A damaged checkpoint is found by its checksum.
    let file = runs.path("run/checkpoints/step-00000002/rank-1.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let before = runs.contents("run");
    let ended = runs.run(CIFAR, "--resume run --steps 4 --plain");
    // Not a refusal: another read may give what was written.
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    ended.says(&["step-00000002", "damaged", "checksum"]);
    assert_eq!(runs.contents("run"), before);
}

#[test]
fn a_run_is_not_resumed_with_other_learning_rates() {
    let runs = Runs::default();
    let go = |schedule: &str, length: &str, points: usize, resume: bool| {
        let toml = format!("ranks = 2\nbatch = 4\nreducer = \"dense\"\nschedule = \"{schedule}\"\n{length}");
        let control = Control { resume, ..quiet() };
        let result = train(&settings(&runs.path(schedule), &toml), &Toy::new(points, None), &control);
        result.map(|summary| summary.steps).map_err(|error| format!("{error:#}"))
    };
    for schedule in ["one-cycle", "cosine"] {
        assert_eq!(go(schedule, "steps = 4", 96, false), Ok(4));
        assert_eq!(go(schedule, "steps = 4\nepochs = 7", 96, true), Ok(4), "epochs that change no learning rate");
        let error = go(schedule, "steps = 6", 96, true).unwrap_err();
        for word in [schedule, "4 steps there, 6 here", "--schedule constant"] {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
    }
    assert_eq!(go("constant", "steps = 4", 96, false), Ok(4));
    assert_eq!(go("constant", "steps = 6", 96, true), Ok(6));
}
