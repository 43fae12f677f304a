//! Trainers as programs and as a library: the files of a run, and reproducibility; `resume` has interruptions,
//! `processes` worlds over TCP. One program, because each links all of Burn.

mod backends;
mod balance;
mod chosen;
mod directory;
mod elastic;
mod endpoint;
mod frames;
mod killed;
mod output;
mod processes;
mod resume;
mod settings;
mod special_files;
mod telemetry;

use std::collections::BTreeSet;
use std::fs;

use crate::common::{AG_NEWS, CIFAR, Runs, SMALL, Toy, quiet, settings};
use briquette_examples::record::{SecondsAre, Summary};
use briquette_examples::train::train;
use serde_json::Value;

/// Momentum correction under GraVAC with checks every other step.
const GRAVAC: &str = "--momentum-correction on --controller gravac:window=2,epsilon=0.3,min=4x,max=20x";

fn keys(text: &str) -> BTreeSet<String> {
    let value: Value = serde_json::from_str(text).unwrap();
    value.as_object().unwrap().keys().cloned().collect()
}

fn names(text: &str) -> BTreeSet<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// An epoch of a server's run has as many updates as its workers have batches: 8 batches of 4 for each of two workers.
#[test]
fn a_servers_run_is_evaluated_at_the_end_of_each_epoch() {
    let runs = Runs::default();
    let flags = SMALL.replace("--ranks 2", "--ranks 3").replace("--steps 6", "--epochs 2");
    let said = runs.run(CIFAR, &format!("{flags} --server async-sgd --out run")).succeeds().stdout;
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("epoch ")).collect();
    let starts = ["epoch   1  step     16  ", "epoch   2  step     32  "];
    assert!(lines.len() == 2 && lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{said}");
}

#[test]
fn a_run_writes_settings_a_record_a_step_a_summary_and_a_checkpoint() {
    let runs = Runs::default();
    runs.cifar("run", "--compressor topk:0.05").succeeds();

    let summary = names(
        "final_test_accuracy best_test_accuracy final_test_loss steps bytes_sent bytes_received bytes_dense \
         wall_seconds simulated_seconds compute_seconds compress_seconds exchange_seconds seconds_are interrupted git_revision \
         version burn_version",
    );
    assert_eq!(keys(&runs.text("run", "summary.json")), summary);
    let step = names(
        "step epoch loss lr ratio wire_ratio gain bytes_sent bytes_received compute_seconds compress_seconds \
         exchange_seconds read_seconds write_seconds encode_seconds decode_seconds wait_seconds overlapped_seconds relative_error delay residual_norm \
         seconds_are simulated_seconds crc32",
    );
    let metrics = runs.text("run", "metrics.jsonl");
    for (number, line) in metrics.lines().enumerate() {
        let mut found = keys(line);
        assert_eq!(found.remove("slots"), number == 0, "gain and bytes of every slot, every so many steps");
        assert_eq!(found, step);
    }

    let records = runs.metrics("run");
    assert_eq!(records.iter().map(|r| r.step).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
    assert!(records.iter().all(|r| r.loss.is_some_and(f64::is_finite) && r.gain.is_some_and(|g| g > 0.0 && g < 1.0)));
    assert!(records.iter().all(|r| r.ratio == Some(20.0) && r.wire_ratio > 5.0 && r.epoch == 0 && r.lr == 0.2));
    let slots = &records[0].slots;
    assert!(slots.iter().any(|s| s.path.contains("weight") && s.gain > 0.0 && s.bytes > 0));
    assert!(slots.iter().map(|s| s.bytes).sum::<u64>() <= records[0].bytes_sent);

    let summary: Summary = serde_json::from_str(&runs.text("run", "summary.json")).unwrap();
    assert!((0.0..=1.0).contains(&summary.final_test_accuracy) && summary.final_test_loss.is_finite());
    assert!(summary.best_test_accuracy >= summary.final_test_accuracy && !summary.interrupted);
    assert_eq!((summary.steps, runs.checkpoints("run")), (6, vec![6]));
    // Of two ranks, the other one sent what rank 0 received.
    let sum = |bytes: fn(&briquette_examples::record::StepRecord) -> u64| records.iter().map(bytes).sum::<u64>();
    assert_eq!(summary.bytes_sent, sum(|r| r.bytes_sent) + sum(|r| r.bytes_received));
    assert_eq!(summary.bytes_received, summary.bytes_sent);
    assert!(summary.bytes_dense > 5 * summary.bytes_sent);
    assert!((summary.compute_seconds - 6.0 * 0.05).abs() < 1e-9, "a fixed clock: {}", summary.compute_seconds);
    assert_eq!(summary.simulated_seconds, records[5].simulated_seconds, "evaluating and saving take no simulated time");
}

#[test]
fn a_run_says_what_it_was_built_from_and_what_its_seconds_are() {
    let runs = Runs::default();
    runs.cifar("run", "").succeeds();
    let summary = runs.summary("run");
    assert!(summary.burn_version.starts_with("0.22."), "{}", summary.burn_version);
    let revision = summary.git_revision.trim_end_matches("-dirty");
    assert!(revision == "unknown" || revision.chars().all(|c| c.is_ascii_hexdigit()), "{revision}");
    let said = runs.metrics("run").into_iter().map(|record| record.seconds_are).chain([summary.seconds_are]);
    assert!(said.into_iter().all(|seconds| seconds == Some(SecondsAre::Simulated)));
}

#[test]
fn without_a_clock_or_network_no_time_is_simulated() {
    let runs = Runs::default();
    let flags = SMALL.replace("--clock fixed:50ms --network 100mbit,1ms", "");
    runs.run(CIFAR, &format!("{flags} --out run")).succeeds();
    assert!(runs.metrics("run").iter().all(|record| record.simulated_seconds.is_none()));
    let summary = runs.summary("run");
    assert!(summary.simulated_seconds.is_none() && summary.compute_seconds > 0.0);
    assert_eq!(summary.seconds_are, Some(SecondsAre::Measured));
}

#[test]
fn a_dense_run_sends_what_the_dense_ring_would_and_its_step_headers() {
    let runs = Runs::default();
    runs.cifar("run", "--reducer dense").succeeds();
    let summary = runs.summary("run");
    assert!(summary.bytes_sent > summary.bytes_dense && summary.bytes_sent < summary.bytes_dense * 101 / 100);
}

#[test]
fn config_toml_given_as_config_reproduces_a_run_to_the_bit() {
    for (program, flags) in
        [(CIFAR, format!("--model resnet8 {GRAVAC}")), (AG_NEWS, "--model lstm --compressor qsgd:4".into())]
    {
        let runs = Runs::default();
        runs.run(program, &format!("{SMALL} --out first {flags}")).succeeds();
        runs.run(program, "--config first/config.toml --out second --plain").succeeds();
        assert_eq!(runs.text("first", "metrics.jsonl"), runs.text("second", "metrics.jsonl"));
        // The test loss depends on all weights and running statistics.
        assert_eq!(runs.summary("first"), runs.summary("second"));
        let config = |out: &str| {
            let text = runs.text(out, "config.toml").replace(&format!("{out:?}"), "\"the same\"");
            let (run, settings) = text.split_once('\n').unwrap();
            (run.to_owned(), settings.to_owned())
        };
        let (first, second) = (config("first"), config("second"));
        assert_eq!(first.1, second.1);
        assert!(first.0.starts_with("run = ") && first.0 != second.0, "each run has an id of its own");
    }
}

#[test]
fn a_run_in_the_directory_of_another_replaces_it_only_when_told_to() {
    let runs = Runs::default();
    runs.cifar("run", "--compressor topk:0.1").succeeds();
    let flags = format!("{} --out run --reducer dense", SMALL.replace("--steps 6", "--steps 2"));
    let before = runs.contents("run");
    runs.run(CIFAR, &flags).refused(&["--out run: there is a run already", "--resume run", "--overwrite"]);
    assert_eq!(runs.contents("run"), before);
    runs.run(CIFAR, &format!("{flags} --overwrite")).succeeds();
    assert_eq!((runs.metrics("run").len(), runs.checkpoints("run")), (2, vec![2]), "else it would resume at step 6");
}

/// Three steps each; all other settings are the trainer's defaults.
const KINDS: [(&str, &str); 40] = [
    (CIFAR, "--momentum-correction on"),
    (CIFAR, "--controller gravac:window=1,min=2x"),
    (CIFAR, "--reducer power-sgd"),
    (CIFAR, "--reducer shared-random-k:5x"),
    (CIFAR, "--compressor qsgd:4 --feedback none"),
    (CIFAR, "--compressor sign"),
    (CIFAR, "--local-steps 2"),
    (CIFAR, "--aggregator trimmed-mean:0 --compressor dense"),
    (CIFAR, "--reducer sparse-all-reduce:10x --feedback error-inside"),
    (CIFAR, "--compressor qsgd:4 --threads 2"),
    (CIFAR, "--reducer sketched-sgd:10x"),
    (CIFAR, "--reducer ternary-all-reduce"),
    (CIFAR, "--reducer multi-step:2 --compressor sign --feedback ef21 --per-slot on"),
    (CIFAR, "--compressor qsgd:4 --feedback diana --rules *.bias=dense,*.weight=qsgd:8 --dense-below 20"),
    (CIFAR, "--bucket-values 20000 --compressor topk:10x:f16"),
    (CIFAR, "--bucket-values 20000 --compressor qsgd:4"),
    (CIFAR, "--set bucket-values=20000 --set during-backward=true"),
    (CIFAR, "--non-iid 0.3"),
    (CIFAR, "--optimizer adam --lr 0.001"),
    (CIFAR, "--optimizer comp-ams --lr 0.001 --compressor topk:20x"),
    (CIFAR, "--optimizer sign-sgd --lr 0.0002"),
    (CIFAR, "--optimizer generic-adam --lr 0.001"),
    (CIFAR, "--optimizer delayed-adagrad --lr 0.01"),
    (CIFAR, "--optimizer delayed-adagrad-momentum --lr 0.01 --schedule exponential"),
    (CIFAR, "--optimizer ftrl-sgd --lr 0.1"),
    (CIFAR, "--optimizer padamw --lr 0.01"),
    (CIFAR, "--optimizer padamw --lr 0.01 --average-from 1"),
    (CIFAR, "--optimizer one-bit-adam --feedback one-bit-adam:2 --reducer two-way:sign,down=sign --lr 0.001"),
    (CIFAR, "--reducer two-way:plain-sign,down=plain-sign --feedback rank-momentum:0.9 --lr 0.001"),
    (CIFAR, "--reducer two-way:sign,down=sign,per_slot=true --feedback error"),
    (CIFAR, "--reducer mcm:qsgd:8 --momentum 0"),
    (CIFAR, "--reducer mcm:qsgd:8,per_rank=true --momentum 0"),
    (CIFAR, "--reducer smooth:qsgd:4,warm_up=2 --momentum 0"),
    (CIFAR, "--reducer byzantine:(gather:qsgd:4),attack=little --aggregator mean"),
    (CIFAR, "--strategy local-sgd:2"),
    (CIFAR, "--set reducer=power-sgd:4 --set feedback=error"),
    (CIFAR, "--set reducer=gather:qsgd:4 --set bucket_values=20000 --set rules=[{slots='*.bias',reducer='dense'}]"),
    (CIFAR, "--set controller.kind=gravac --set controller.window=1 --set controller.min=2x"),
    (CIFAR, "--model vgg11 --compressor f16 --test-limit 4"),
    (AG_NEWS, "--model bilstm --controller schedule:from=2x,epochs=0.5"),
];

fn every_kind_trains(ranks: usize) {
    for (program, flags) in KINDS {
        let runs = Runs::default();
        let limit = if flags.contains("--test-limit") { "" } else { "--test-limit 6" };
        let common = format!("--dataset generated --train-limit 24 {limit} --batch 2 --steps 3 --out run --plain");
        runs.run(program, &format!("{common} --ranks {ranks} {flags}")).succeeds();
        let records = runs.metrics("run");
        assert_eq!(records.len(), 3, "{flags}");
        // Under Local SGD the loss is known where ranks meet.
        let expected = if flags.contains("--local-steps") || flags.contains("local-sgd") { 1 } else { 3 };
        let losses: Vec<f64> = records.iter().filter_map(|record| record.loss).collect();
        assert!(losses.len() == expected && losses.iter().all(|loss| loss.is_finite()), "{flags}: {losses:?}");
        assert!(runs.summary("run").final_test_loss.is_finite(), "{flags}");
    }
}

#[test]
fn every_kind_of_exchange_trains_on_one_rank() {
    every_kind_trains(1);
}

#[test]
fn every_kind_of_exchange_trains_on_two_ranks() {
    every_kind_trains(2);
}

#[test]
fn every_kind_of_exchange_trains_on_three_ranks() {
    every_kind_trains(3);
}

#[test]
fn what_a_compressor_needs_is_the_default_feedback() {
    let runs = Runs::default();
    for (flags, feedback) in [
        ("--compressor sign", "feedback = \"by-optimizer\""),
        ("--compressor qsgd:4", "feedback = \"none\""),
        ("--compressor qsgd:5 --rules *.weight=topk:10x", "feedback = \"by-optimizer\""),
        ("--compressor qsgd:4 --rules *.norm.*=dense,*head.weight=qsgd:8 --dense-below 256", "feedback = \"none\""),
        ("--reducer sparse-all-reduce", "feedback = \"by-optimizer\""),
        ("--reducer ternary-all-reduce", "feedback = \"none\""),
    ] {
        runs.run(CIFAR, &format!("{SMALL} --out run --overwrite {flags}")).succeeds();
        let config = runs.text("run", "config.toml");
        assert!(config.contains(feedback), "{flags}: {config}");
    }
}

#[test]
fn the_mean_of_iterates_is_evaluated_and_training_does_not_change() {
    let runs = Runs::default();
    let train = |out: &str, flags: &str| {
        runs.run(CIFAR, &format!("{SMALL} --out {out} --reducer dense --lr 0.05 {flags}")).succeeds();
        (runs.text(out, "metrics.jsonl"), runs.summary(out).final_test_loss)
    };
    let last = train("last", "");
    let mean = train("mean", "--average-from 1");
    assert!(last.0 == mean.0 && (last.1 - mean.1).abs() > 1e-6, "{} and {}", last.1, mean.1);
    assert!(mean.1.is_finite());
    runs.run(CIFAR, &format!("{SMALL} --out none --average-from 6")).refused(&["--average-from 6", "6 steps"]);
    for flags in ["--average-from 2 --strategy local-sgd:2", "--average-from 2 --server async-sgd --ranks 3"] {
        let small = SMALL.replace("--ranks 2", "");
        runs.run(CIFAR, &format!("{small} --out refused {flags}"))
            .refused(&["--average-from", "--strategy every-step"]);
    }
}

#[test]
fn a_recorded_gradient_is_the_one_of_its_step() {
    let runs = Runs::default();
    for (flag, bytes) in [("--record-gradient 2", 4), ("--record-gradient 2:bf16", 2)] {
        runs.run(CIFAR, &format!("{SMALL} --out run --overwrite --reducer dense {flag}")).succeeds();
        let file = fs::read(runs.path("run").join("gradient.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
        let values: usize = tensors.tensors().iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
        assert_eq!(values, 77_850, "ResNet-8");
        let data: usize = tensors.tensors().iter().map(|(_, view)| view.data().len()).sum();
        assert_eq!(data, bytes * values);
        assert!(tensors.names().iter().any(|name| name.ends_with("weight")), "named by path: {:?}", tensors.names());
        assert!(tensors.tensors().iter().any(|(_, view)| view.data().iter().any(|byte| *byte != 0)));
    }
    runs.run(CIFAR, &format!("{SMALL} --out run --overwrite --record-gradient 100"))
        .refused(&["--record-gradient 100", "6 steps"]);
}

#[test]
fn three_dense_ranks_equal_one_with_three_times_the_batch() {
    let runs = Runs::default();
    let losses = |ranks: usize, batch: usize| {
        let out = format!("ranks-{ranks}");
        let toml = format!(
            "ranks = {ranks}\nbatch = {batch}\nsteps = 6\nreducer = \"dense\"\noptimizer = \"adam\"\nlr = 0.05\nepochs = 2"
        );
        let summary = train(&settings(&runs.path(&out), &toml), &Toy::new(46, None), &quiet()).unwrap();
        let losses = runs.metrics(&out).into_iter().filter_map(|record| record.loss);
        losses.chain([summary.final_test_loss]).collect::<Vec<_>>()
    };
    // 46 samples: the fourth of four steps in an epoch is uneven.
    let (three, one) = (losses(3, 4), losses(1, 12));
    assert_eq!((three.len(), one.len()), (7, 7));
    assert!(three.iter().zip(&one).all(|(a, b)| (a - b).abs() < 1e-5), "{three:?} {one:?}");
    assert!(one[6] < one[0], "and it learns");
}

#[test]
fn local_sgd_ends_with_one_model_and_evaluating_on_the_way_changes_nothing() {
    let runs = Runs::default();
    let run = |out: &str, more: &str| {
        let toml = format!("ranks = 3\nbatch = 2\nepochs = 2\nlocal-steps = 5\n{more}");
        let toy = Toy::new(24, None);
        let summary = train(&settings(&runs.path(out), &toml), &toy, &quiet()).unwrap();
        let scored = toy.scored.lock().unwrap().clone();
        (summary.final_test_loss, scored)
    };
    // Four steps an epoch, averages after steps 5, and at the end.
    let (loss, models) = run("once", "eval-every = 2");
    assert!(models.len() == 3 && models.iter().all(|model| *model == models[0]), "one model");
    let (loss_too, twice) = run("twice", "eval-every = 1");
    assert_eq!((twice.len(), loss, &twice[3..]), (6, loss_too, &models[..]));
    assert!(twice[..3].iter().all(|model| *model == twice[0]) && twice[0] != twice[3]);
}

#[test]
fn one_rank_alone_is_not_compared_with_a_ring() {
    let runs = Runs::default();
    let flags = SMALL.replace("--ranks 2", "--ranks 1");
    let said = runs.run(CIFAR, &format!("{flags} --out run")).succeeds().stdout;
    assert!(said.contains("test accuracy") && said.contains("bytes sent        none"), "{said}");
    assert!(!said.contains("fewer") && !said.contains("wire ratio"), "{said}");
}

#[test]
fn help_names_every_flag_and_shows_an_example() {
    let runs = Runs::default();
    for (program, example) in [(CIFAR, "cifar --dataset generated"), (AG_NEWS, "ag-news --dataset generated")] {
        let help = runs.run(program, "--help").succeeds().stdout;
        let flags = "dataset data model ranks epochs steps batch lr momentum weight-decay schedule seed reducer \
                     momentum-correction compressor feedback controller network clock backend device rebroadcast out resume train-limit \
                     test-limit plain config set strategy optimizer local-steps bucket-values non-iid augment checkpoint-every eval-every overwrite";
        for flag in names(flags) {
            assert!(
                help.contains(&format!("--{flag} ")) || help.contains(&format!("--{flag}\n")),
                "no --{flag} in {help}"
            );
        }
        for text in [
            example,
            "power-sgd[:RANK]",
            "local-sgd[:PERIOD",
            "an all-reduce of factors of low rank",
            "topk:0.01",
            "gravac",
            "100mbit,1ms",
            "fixed:50ms",
            "--version",
        ] {
            assert!(help.contains(text), "no `{text}` in {help}");
        }
    }
}
