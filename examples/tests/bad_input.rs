//! Bad input: one error that says what, where and what is valid; nothing is written, and an earlier run stays whole.
//!
//! Over 400 lines: a table of mistakes and answers, in one place.

mod common;

use std::fs;
use std::time::{Duration, Instant};

use briquette_examples::train::{Control, train};
use common::{AG_NEWS, CIFAR, Fault, Runs, SMALL, Toy, quiet, settings};

/// The trainer refuses the flags with these words, and writes nothing.
#[track_caller]
fn refused(program: &str, flags: &str, words: &[&str]) {
    let runs = Runs::default();
    runs.run(program, &format!("{flags} --out run --plain")).refused(words);
    assert!(!runs.path("run").exists(), "{flags} wrote something");
}

/// On generated data, so that only the flags can be wrong.
#[track_caller]
fn refused_flags(flags: &str, words: &[&str]) {
    refused(CIFAR, &format!("--dataset generated --train-limit 64 --test-limit 8 {flags}"), words);
}

#[test]
fn numbers_out_of_range_name_flag_range_and_value() {
    refused_flags("--ranks 0", &["--ranks must be at least 1, got 0"]);
    refused_flags("--batch 0", &["--batch must be at least 1, got 0"]);
    refused_flags("--steps 0", &["--steps must be at least 1, got 0"]);
    refused_flags("--epochs 0", &["--epochs must be at least 1, got 0"]);
    refused_flags("--eval-every 0", &["--eval-every must be at least 1, got 0"]);
    refused_flags("--local-steps 0", &["--local-steps", "at least 1, got 0"]);
    refused_flags("--bucket-values 0", &["bucket_values must be at least 1, got 0"]);
    refused_flags("--ranks two", &["'two'", "--ranks", "invalid digit"]);
    refused_flags("--ranks=-1", &["'-1'", "--ranks", "invalid digit"]);
    refused_flags("--lr 0", &["--lr must be a positive number up to 3.4e38, got 0"]);
    refused_flags("--lr nan", &["--lr must be a positive number up to 3.4e38, got NaN"]);
    refused_flags("--momentum 1", &["--momentum must be in [0, 1), got 1"]);
    refused_flags("--weight-decay=-1", &["--weight-decay must be at least 0 and at most 3.4e38, got -1"]);
    refused_flags("--non-iid 0", &["--non-iid must be between 1e-6 and 1e6, got 0"]);
    refused(CIFAR, "--dataset generated --train-limit 0", &["--train-limit must be at least 1, got 0"]);
}

#[test]
fn more_ranks_than_samples_says_how_many_would_do() {
    refused(
        CIFAR,
        "--dataset generated --train-limit 3 --test-limit 8 --ranks 4",
        &["4 ranks cannot share 3 samples", "at most 3 ranks or more data"],
    );
}

#[test]
fn factors_and_fractions_out_of_range_say_what_is_possible() {
    refused_flags("--compressor topk:0.5x", &["--compressor", "compression factor", "at least 1", "0.5"]);
    refused_flags("--compressor topk:0", &["--compressor", "above 0 and at most 1, got 0"]);
    refused_flags("--compressor topk:1.5", &["--compressor", "above 0 and at most 1, got 1.5"]);
    refused_flags("--compressor topk:-0.1", &["--compressor", "above 0 and at most 1, got -0.1"]);
    refused_flags("--compressor topk:few", &["--compressor", "few", "0.01"]);
    refused_flags("--compressor qsgd:99", &["--compressor", "bits of QSGD must be 2 to 8, got 99"]);
    refused_flags("--reducer shared-random-k:0.5x", &["--reducer", "compression factor", "at least 1", "0.5"]);
    refused_flags("--reducer power-sgd:0", &["--reducer", "PowerSGD rank must be at least 1, got 0"]);
    refused_flags("--controller schedule:from=0.5x", &["--controller", "at least 1", "0.5"]);
    refused_flags("--controller schedule:epochs=-1", &["--controller", "at least 0, got `-1`"]);
    refused_flags("--controller gravac:min=0.5x", &["--controller", "min", "at least 1"]);
    refused_flags("--controller gravac:window=0", &["window must be at least 1, got 0"]);
}

#[test]
fn aggregators_say_what_they_need() {
    refused_flags("--aggregator krum:1 --compressor dense", &["krum:1 needs at least 5 ranks, got 4"]);
    refused_flags("--aggregator krum:1,kep=2", &["--aggregator", "unknown field `kep`", "`byzantine` or `keep`"]);
    refused_flags("--aggregator median", &["unknown aggregator `median`; valid are: mean, krum, trimmed-mean"]);
    refused_flags(
        "--aggregator krum:1 --ranks 5 --reducer power-sgd",
        &["krum:1 combines messages", "reducer power-sgd"],
    );
    let rules = "--aggregator trimmed-mean:1 --compressor dense --rules *.weight=sign --feedback none";
    refused_flags(rules, &["leave out rules and dense_below"]);
    refused_flags("--aggregator krum:1 --bucket-values 100 --ranks 5", &["leave out bucket values"]);
}

#[test]
fn feedback_that_a_compressor_cannot_have_is_refused_before_data_is_read() {
    refused_flags("--compressor sign --per-slot on --feedback diana", &["diana needs an unbiased compressor"]);
    let rule = "--rules *.weight=randk:10x:scaled --feedback error";
    refused_flags(rule, &["randk:10x:scaled is not contractive", "feedback none, or diana"]);
    refused_flags(
        "--compressor qsgd:2:512:l2 --feedback error",
        &["qsgd:2:512:l2 is not contractive", "feedback none"],
    );
    refused_flags("--compressor terngrad --momentum-correction on", &["terngrad:2.5 is not contractive"]);
}

#[test]
fn a_rule_that_matches_no_layer_lists_the_layers() {
    let runs = Runs::default();
    let flags = "--dataset generated --train-limit 64 --test-limit 8 --ranks 2 --rules conv9.*=dense --out run --plain";
    runs.run(CIFAR, flags).refused(&["rule `conv9.*` matches no slot; there are", ".weight"]);
}

#[test]
fn unknown_values_of_flags_list_the_valid_ones() {
    refused_flags("--model alexnet", &["--model", "alexnet", "resnet8", "resnet20", "vgg11"]);
    refused(AG_NEWS, "--dataset generated --model resnet8", &["--model", "resnet8", "lstm, bilstm"]);
    refused(CIFAR, "--dataset mnist", &["unknown --dataset `mnist`; valid are: cifar10, cifar100, generated"]);
    refused(AG_NEWS, "--dataset cifar10", &["unknown --dataset `cifar10`; valid are: ag-news, generated"]);
    refused_flags(
        "--reducer circle",
        &["--reducer", "`circle`", "valid are: dense, gather, shared-random-k, power-sgd"],
    );
    refused_flags("--rules fc", &["--rules", "`fc` is not PATTERN=COMPRESSOR"]);
    refused_flags("--compressor zip", &["--compressor", "`zip`", "dense; f16, bf16; ", "topk[", "qsgd", "sign"]);
    refused_flags("--compressor topk:0.1:q9", &["--compressor", "q9", "f32, f16, q8"]);
    refused_flags("--controller pid", &["--controller", "`pid`", "none, constant, schedule, gravac"]);
    refused_flags("--controller gravac:epsilom=1", &["--controller", "`epsilom`", "`epsilon`", "`window`"]);
    refused_flags("--controller gravac:epsilon", &["--controller", "`min`", "10x", "got epsilon"]);
    refused_flags("--controller schedule:to=4x", &["--controller", "`to`", "from, epochs"]);
    refused_flags("--network fast", &["--network", "fast", "unlimited", "100mbit,1ms"]);
    refused_flags("--clock sun", &["--clock", "`sun`", "wall, fixed:50ms"]);
    refused_flags("--clock fixed:-1s", &["--clock", "`fixed:-1s`", "from 0 s to 1000000 s"]);
    refused_flags(
        "--backend abacus",
        &["--backend", "unknown backend `abacus`", "flex, ndarray, tch, wgpu", "this build has"],
    );
    refused_flags("--device 7", &["--device", "`flex` has no device 7", "0 (Flex(Cpu))"]);
    refused_flags("--device first", &["--device first", "`--backend list`"]);
    refused_flags("--local-steps 2 --rebroadcast 5", &["--rebroadcast", "--strategy local-sgd:2", "omit it"]);
    refused_flags("--ranks 1 --backend flex,flex", &["--backend flex,flex", "2 backends for --ranks 1"]);
    #[cfg(not(feature = "metal"))]
    refused_flags("--backend metal", &["`metal` is not in this build", "`--features metal`"]);
    refused_flags("--schedule exponential", &["--schedule", "'exponential'", "constant, cosine, one-cycle"]);
    refused_flags("--optimizer rmsprop", &["--optimizer", "'rmsprop'", "sgd, adam"]);
    refused_flags("--feedback all", &["--feedback", "'all'", "none, error, error-inside, momentum, inner-momentum"]);
    refused_flags("--momentum-correction yes", &["--momentum-correction", "'yes'", "on, off"]);
    refused_flags("--augment blur", &["--augment", "'blur'", "none, flip, crop-flip"]);
    refused_flags("--rank 3", &["--rank", "--ranks"]);
    refused_flags("--seed 1 --seed 2", &["--seed", "multiple times"]);
}

#[test]
fn a_key_that_cannot_be_set_is_named_with_what_is_valid() {
    for (set, words) in [
        ("reducre=dense", &["--set", "unknown field `reducre`", "`strategy`, `reducer`, `aggregator`"][..]),
        ("reducer", &["--set", "`reducer` is not KEY=VALUE"]),
        ("reducer=circle", &["--set", "unknown reducer `circle`", "dense, gather"]),
        ("reducer=power-sgd:0", &["--set", "PowerSGD rank must be at least 1, got 0"]),
        ("reducer.rank=2", &["--set", "`reducer` is \"gather:topk:20x:q8\"", "set reducer.kind first"]),
        ("bucket_values=many", &["--set", "bucket_values", "\"many\"", "usize"]),
        ("feedback=diana:2", &["--set", "alpha of diana must be above 0 and at most 1, got 2"]),
    ] {
        refused_flags(&format!("--set {set}"), words);
    }
}

#[test]
fn settings_that_do_not_go_together_say_why() {
    refused_flags("--momentum-correction on --optimizer adam", &["--momentum-correction on", "--optimizer sgd"]);
    for reducer in ["dense", "power-sgd"] {
        let words =
            ["a controller sets the compression ratio", &format!("reducer {reducer}"), "has none", "shared-random-k"];
        refused_flags(&format!("--controller gravac --reducer {reducer}"), &words);
    }
    refused_flags("--controller gravac --compressor sign", &["controller", "sign has none", "qsgd", "topk"]);
    refused_flags("--controller schedule --compressor qsgd:4", &["--controller", "--compressor topk"]);
    refused_flags("--local-steps 2 --controller gravac", &["local-sgd", "controller would be ignored"]);
    refused_flags("--local-steps 2 --momentum-correction on", &["local-sgd", "feedback would be ignored"]);
    refused_flags("--overlap on", &["overlap", "without bucket values"]);
}

#[test]
fn a_flag_that_would_be_ignored_is_refused_by_name() {
    for (flags, flag, under) in [
        ("--momentum-correction on --feedback none", "--feedback", "--momentum-correction on"),
        ("--momentum-correction on --feedback error", "--feedback", "--momentum-correction on"),
        ("--reducer dense --compressor topk:0.1", "--compressor", "--reducer dense"),
        ("--reducer power-sgd --compressor topk:0.1", "--compressor", "--reducer power-sgd:2"),
        ("--reducer dense --feedback error", "--feedback", "--reducer dense"),
        ("--local-steps 2 --compressor topk:0.1", "--compressor", "--strategy local-sgd:2"),
        ("--local-steps 2 --strategy every-step", "--local-steps", "--strategy"),
        ("--optimizer adam --momentum 0.9", "--momentum", "--optimizer adam"),
        ("--data somewhere", "--data", "--dataset generated"),
    ] {
        refused_flags(flags, &[&format!("{flag} would be ignored under {under}"), "omit it"]);
    }
    for (flags, key) in [
        ("--reducer gather", "reducer"),
        ("--feedback error", "feedback"),
        ("--bucket-values 100", "bucket_values"),
        ("--threads 2", "threads"),
        ("--set overlap=true", "overlap"),
    ] {
        refused_flags(&format!("--local-steps 2 {flags}"), &["local-sgd", &format!("{key} would be ignored")]);
    }
    refused(AG_NEWS, "--dataset generated --augment flip", &["--augment is for images"]);
}

/// Runs on data files made of these bytes.
#[track_caller]
fn refused_files(program: &str, files: &[(&str, &[u8])], words: &[&str]) {
    let runs = Runs::default();
    fs::create_dir(runs.path("data")).unwrap();
    for (name, bytes) in files {
        fs::write(runs.path("data").join(name), bytes).unwrap();
    }
    runs.run(program, "--data data --ranks 1 --batch 2 --steps 1 --out run --plain").refused(words);
    assert!(!runs.path("run").exists());
}

#[test]
fn bad_image_files_are_named_with_record_and_length() {
    let record = |label: u8| [vec![label], vec![7; 3072]].concat();
    let good = [record(0), record(9)].concat();
    let cut = &good[..5000];
    let label = [record(3), record(10)].concat();
    let with = |train: &[u8], words: &[&str]| {
        refused_files(CIFAR, &[("data_batch_1.bin", train), ("test_batch.bin", &good)], words);
    };
    with(b"", &["data_batch_1.bin: the file is empty"]);
    with(cut, &["data_batch_1.bin: 5000 bytes are not a multiple of the record of 3073 bytes", "1927 bytes"]);
    with(&label, &["data_batch_1.bin: record 1 (counted from 0) has label 10, expected 0 to 9"]);
    refused_files(CIFAR, &[("data_batch_1.bin", &good), ("test_batch.bin", &label)], &["test_batch.bin: record 1"]);
}

#[test]
fn bad_rows_of_text_are_named_with_their_line() {
    let good = "\"3\",\"Oil up\",\"Crude rose again\"\n\"1\",\"Talks\",\"They met\"\n";
    let with = |train: String, words: &[&str]| {
        refused_files(AG_NEWS, &[("train_partial.csv", train.as_bytes()), ("test.csv", good.as_bytes())], words);
    };
    with(String::new(), &["train_partial.csv: the file is empty"]);
    with(format!("{good}\"2\",\"No description\"\n"), &["train_partial.csv, line 3", "2 columns, expected 3"]);
    with(format!("{good}\"5\",\"a\",\"b\"\n"), &["train_partial.csv, line 3: the class is \"5\", expected 1 to 4"]);
    with(format!("{good}\"2\",\"a\",\"b\n{good}"), &["train_partial.csv, line 3: a quote is not closed"]);
}

/// Threat F2.
#[test]
fn a_wrong_config_file_is_named_with_line_and_key() {
    let with = |toml: &str, words: &[&str]| {
        let runs = Runs::default();
        fs::write(runs.path("run.toml"), toml).unwrap();
        runs.run(CIFAR, "--config run.toml --out run --plain").refused(words);
        assert!(!runs.path("run").exists());
    };
    let file = "--config run.toml";
    with("dataset = \"generated\"\nrank = 3\n", &[file, "line 2", "unknown field `rank`", "`ranks`"]);
    with("ranks = \"three\"\n", &[file, "line 1", "ranks"]);
    with("seed = 1\nreducer = \"circle\"\n", &[file, "line 2", "`circle`", "dense, gather"]);
    with("schedule = \"slow\"\n", &[file, "line 1", "`slow`", "`one-cycle`"]);
    with("ranks = \n", &[file, "line 1"]);
    with("compressor = \"topk:2\"\n", &[file, "line 1", "above 0 and at most 1"]);
    with("[config]\nreducer = \"power-sgd:0\"\n", &[file, "line 2", "PowerSGD rank must be at least 1, got 0"]);
    with("[config]\nreducre = \"dense\"\n", &[file, "line 2", "unknown field `reducre`", "`reducer`"]);
    refused(CIFAR, "--config absent.toml", &["--config absent.toml", "No such file"]);
}

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
        ("--set feedback=none", vec!["--feedback is \"error\" there, \"none\" here"]),
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

/// How a toy run on `ranks` ranks fails, and how long that takes.
fn failure(ranks: usize, fault: Fault, more: &str) -> (String, Duration) {
    let runs = Runs::default();
    let toml = format!("ranks = {ranks}\nbatch = 2\nsteps = 8\ncheckpoint-every = 1\n{more}");
    let (settings, begin) = (settings(&runs.path("run"), &toml), Instant::now());
    let error = train(&settings, &Toy::new(96, Some(fault)), &quiet()).unwrap_err();
    let (Fault::Nan(_, step) | Fault::Panic(_, step) | Fault::Stop(step)) = fault else {
        panic!("{fault:?} stops nothing")
    };
    assert!(runs.metrics("run").len() as u64 >= step, "the steps before it are on record");
    assert_eq!(runs.checkpoints("run").last(), Some(&step), "and saved");
    (format!("{error:#}"), begin.elapsed())
}

#[test]
fn a_gradient_that_is_not_finite_stops_all_ranks_and_names_rank_slot_and_step() {
    for more in
        ["reducer = \"dense\"", "compressor = \"topk:0.5\"", "clock = \"fixed:50ms\"\nmomentum-correction = \"on\""]
    {
        let (error, took) = failure(3, Fault::Nan(1, 3), more);
        for word in ["step 3", "rank 1", "non-finite", "`weight`"] {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
        assert!(took < Duration::from_secs(10), "{took:?}");
    }
}

#[test]
fn what_was_trained_before_a_refused_gradient_is_saved_and_can_be_resumed() {
    let runs = Runs::default();
    let toml = "ranks = 3\nbatch = 2\nsteps = 8\ncheckpoint-every = 0\ncompressor = \"topk:0.5\"";
    let settings = settings(&runs.path("run"), toml);
    let error = train(&settings, &Toy::new(96, Some(Fault::Nan(1, 3))), &quiet()).unwrap_err();
    let error = format!("{error:#}");
    for word in ["stopped before step 3 and saved", "--resume", "computes this step again", "rank 1", "non-finite"] {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert_eq!(runs.checkpoints("run"), [3]);
    // What has diverged stops there again, as was said.
    let control = Control { resume: true, ..quiet() };
    let again = train(&settings, &Toy::new(96, Some(Fault::Nan(1, 3))), &control).unwrap_err();
    assert_eq!(format!("{again:#}"), error);
    let control = Control { resume: true, ..quiet() };
    assert_eq!(train(&settings, &Toy::new(96, None), &control).unwrap().steps, 8);
    assert_eq!(runs.metrics("run").len(), 8);
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

#[test]
fn a_rank_that_panics_stops_the_others_at_once_and_is_named() {
    for more in ["reducer = \"dense\"", "clock = \"fixed:50ms\"", "network = \"100mbit\"\nlocal-steps = 2"] {
        let (error, took) = failure(3, Fault::Panic(1, 2), more);
        for word in ["rank 1", "panicked: out of luck"] {
            assert!(error.contains(word), "no `{word}` in: {error}");
        }
        assert!(took < Duration::from_secs(10), "the deadline is far longer: {took:?}");
    }
}
