//! Flags with impossible values, and flags that cannot be combined.

use super::{refused, refused_flags};
use crate::common::{AG_NEWS, CIFAR, Runs};

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
        &["a world of 4 ranks does not go with 3 samples", "at most 3 ranks or more data"],
    );
}

#[test]
fn ratios_and_fractions_out_of_range_say_what_is_possible() {
    refused_flags("--compressor topk:0.5x", &["--compressor", "compression ratio", "at least 1", "0.5"]);
    refused_flags("--compressor topk:0", &["--compressor", "above 0 and at most 1, got 0"]);
    refused_flags("--compressor topk:1.5", &["--compressor", "above 0 and at most 1, got 1.5"]);
    refused_flags("--compressor topk:-0.1", &["--compressor", "above 0 and at most 1, got -0.1"]);
    refused_flags("--compressor topk:few", &["--compressor", "few", "0.01"]);
    refused_flags("--compressor qsgd:99", &["--compressor", "bits of QSGD must be 2 to 8, got 99"]);
    refused_flags("--reducer shared-random-k:0.5x", &["--reducer", "compression ratio", "at least 1", "0.5"]);
    refused_flags("--reducer power-sgd:0", &["--reducer", "rank of power-sgd must be at least 1, got 0"]);
    refused_flags("--controller schedule:from=0.5x", &["--controller", "at least 1", "0.5"]);
    refused_flags("--controller schedule:epochs=-1", &["--controller", "at least 0, got `-1`"]);
    refused_flags("--controller gravac:min=0.5x", &["--controller", "min", "at least 1"]);
    refused_flags("--controller gravac:window=0", &["window of gravac must be at least 1, got 0"]);
}

#[test]
fn aggregators_say_what_they_need() {
    refused_flags(
        "--aggregator krum:1 --compressor dense",
        &["krum:1 does not go with a world of 4 ranks: it needs at least 5 ranks"],
    );
    refused_flags("--aggregator krum:1,kep=2", &["--aggregator", "unknown field `kep`", "`byzantine` or `keep`"]);
    refused_flags("--aggregator middle", &["unknown aggregator `middle`; valid are: mean, krum, trimmed-mean, median"]);
    refused_flags(
        "--aggregator krum:1 --ranks 5 --reducer power-sgd",
        &["aggregator krum:1 does not go with reducer power-sgd", "it combines messages"],
    );
    let rules = "--aggregator trimmed-mean:1 --compressor dense --rules *.weight=sign --feedback none";
    refused_flags(rules, &["leave out rules and dense_below"]);
    refused_flags("--aggregator krum:1 --bucket-values 100 --ranks 5", &["leave out bucket_values"]);
}

#[test]
fn feedback_that_a_compressor_cannot_have_is_refused_before_data_is_read() {
    refused_flags(
        "--compressor sign --per-slot on --feedback diana",
        &["feedback diana does not go with", "needs an unbiased compressor"],
    );
    let rule = "--rules *.weight=randk:10x:scaled --feedback error";
    refused_flags(rule, &["randk:10x:scaled", "is not contractive", "feedback none, or diana"]);
    refused_flags(
        "--compressor qsgd:2:512:l2 --feedback error",
        &["qsgd:2:512:l2", "is not contractive", "feedback none"],
    );
    refused_flags("--compressor terngrad --momentum-correction on", &["terngrad", "is not contractive"]);
}

#[test]
fn a_rule_that_matches_no_layer_lists_the_layers() {
    let runs = Runs::default();
    let flags = "--dataset generated --train-limit 64 --test-limit 8 --ranks 2 --rules conv9.*=dense --out run --plain";
    runs.run(CIFAR, flags)
        .refused(&["rule `conv9.*` does not go with this model: it matches no slot; there are", ".weight"]);
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
    refused_flags("--compressor zip", &["--compressor", "`zip`", "dense, f16, bf16, ", "topk", "qsgd", "sign"]);
    refused_flags("--compressor topk:0.1:q9", &["--compressor", "q9", "`f32`, `f16`, `q8`"]);
    refused_flags("--controller pid", &["--controller", "`pid`", "none, schedule, cost-aware"]);
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
    refused_flags("--schedule triangle", &["--schedule", "'triangle'", "constant, cosine", "exponential", "one-cycle"]);
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
        ("reducer=power-sgd:0", &["--set", "rank of power-sgd must be at least 1, got 0"]),
        ("reducer.rank=2", &["--set", "`reducer` is left open", "set reducer.kind first"]),
        ("bucket_values=many", &["--set", "bucket_values", "\"many\"", "usize"]),
        ("feedback=diana:2", &["--set", "alpha of diana must be in (0, 1], got 2"]),
    ] {
        refused_flags(&format!("--set {set}"), words);
    }
}

#[test]
fn settings_that_do_not_go_together_say_why() {
    refused_flags("--momentum-correction on --optimizer adam", &["--momentum-correction on", "--optimizer sgd"]);
    refused_flags("--optimizer muon", &["--optimizer muon", "resnet8 has none", "use adam or sgd"]);
    for reducer in ["dense", "power-sgd"] {
        let named = format!("reducer {reducer}");
        let words = ["it sets the compression ratio", &named, "no adjustable ratio", "shared-random-k"];
        refused_flags(&format!("--controller gravac --reducer {reducer}"), &words);
    }
    refused_flags(
        "--controller gravac --compressor sign",
        &["controller", "sign has no adjustable ratio", "qsgd", "topk"],
    );
    refused_flags("--controller schedule --compressor qsgd:4", &["--controller", "--compressor topk"]);
    refused_flags(
        "--local-steps 2 --controller gravac --reducer dense",
        &["controller", "reducer dense", "no adjustable ratio"],
    );
    refused_flags(
        "--local-steps 2 --momentum-correction on",
        &["local-sgd", "momentum included", "use feedback error"],
    );
    refused_flags("--strategy sgp --momentum-correction on", &["sgp", "feedback would be ignored"]);
    refused_flags("--overlap on", &["--overlap", "'on'", "off, backward"]);
    refused_flags("--set overlap=true", &["overlap", "during_backward"]);
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
    ] {
        refused_flags(&format!("--strategy sgp {flags}"), &["strategy sgp", &format!("{key} would be ignored")]);
    }
    refused_flags("--strategy sgp --set during-backward=true", &["strategy sgp", "leave during_backward out"]);
    refused(AG_NEWS, "--dataset generated --augment flip", &["--augment is for images"]);
}
