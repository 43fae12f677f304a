//! Absurd numbers: every numeric flag of the trainers accepts them, or refuses them in one line. The flags are read
//! from clap, so that a new one is tested too.

use std::any::TypeId;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::common::{AG_NEWS, CIFAR, Runs};
use briquette_examples::settings::Options;
use clap::{Args, Command};

const NUMBERS: [&str; 11] = [
    "0",
    "1",
    "2147483648",
    "99999999999",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "-1",
    "NaN",
    "1e308",
    "inf",
];

/// Numbers within texts.
const TEXTS: [&str; 26] = [
    "--clock=fixed:1e300s",
    "--clock=fixed:1e308ms",
    "--clock=fixed:1e6s",
    "--network=1e300mbit,1ms",
    "--network=1e-300bit",
    "--network=1mbit,1e300ms",
    "--network=1mbit,1e18s",
    "--network=1mbit,1ms,18446744073709551615",
    "--compressor=topk:18446744073709551615x",
    "--compressor=topk:1e308x",
    "--compressor=qsgd:18446744073709551615",
    "--compressor=sign:18446744073709551615",
    "--compressor=minmax:9223372036854775808",
    "--reducer=power-sgd:99999999999",
    "--reducer=power-sgd:18446744073709551615",
    "--reducer=multi-step:18446744073709551615",
    "--reducer=shared-random-k:1e308x",
    "--reducer=sketched-sgd:1e308x",
    "--controller=gravac:window=18446744073709551615",
    "--server=async-local-sgd:4294967295",
    "--server=synthesis:18446744073709551615",
    "--server=backup:18446744073709551615",
    "--strategy=local-sgd:18446744073709551615",
    "--controller=schedule:epochs=1e308",
    "--feedback=diana:1e308",
    "--record-gradient=18446744073709551615",
];

/// One step of a small run; the flag under test replaces its own.
const SMALL: [&str; 8] = [
    "--dataset=generated",
    "--train-limit=4",
    "--test-limit=2",
    "--batch=2",
    "--ranks=2",
    "--epochs=1",
    "--schedule=constant",
    "--plain",
];

/// Returns every flag that takes a number.
fn numeric() -> Vec<String> {
    let types = [TypeId::of::<usize>(), TypeId::of::<u64>(), TypeId::of::<f64>()];
    let command = Options::augment_args(Command::new("trainer"));
    let numeric =
        command.get_arguments().filter(|flag| types.iter().any(|id| flag.get_value_parser().type_id() == *id));
    numeric.filter_map(|flag| flag.get_long().map(|name| format!("--{name}="))).collect()
}

/// Checks that the run succeeds, or is refused with exit code 2 and one line.
fn ends_or_is_refused(program: &str, given: &str) {
    let runs = Runs::default();
    let name = given.split_inclusive('=').next().unwrap_or_default();
    // With as many epochs as there can be, one step is enough.
    let steps = if name == "--epochs=" { "--steps=1" } else { "" };
    let others = SMALL.into_iter().filter(|flag| !flag.starts_with(name)).chain([given, steps]);
    let flags: Vec<&str> = others.collect();
    let ended = runs.run(program, &format!("{} --out run", flags.join(" ")));
    assert!(!ended.stderr.contains("panicked"), "{given}: {}", ended.stderr);
    match ended.code {
        Some(0) => {}
        Some(2) => {
            assert_eq!(ended.stderr.matches("error: ").count(), 1, "{given}: {}", ended.stderr);
            assert!(!runs.path("run").exists(), "{given} wrote something");
        }
        code => panic!("{given}: exit code {code:?}\n{}", ended.stderr),
    }
}

#[test]
fn numbers_that_nobody_means_are_taken_or_refused_in_a_line() {
    let flags = numeric();
    assert!(flags.len() > 15 && flags.contains(&"--lr=".to_owned()), "{flags:?}");
    let given: Vec<String> = flags.iter().flat_map(|flag| NUMBERS.map(|number| format!("{flag}{number}"))).collect();
    let given: Vec<&str> = given.iter().map(String::as_str).chain(TEXTS).collect();
    let next = AtomicUsize::new(0);
    // Each run is a process, and waits for its own disk and thread.
    thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while let Some(given) = given.get(next.fetch_add(1, Ordering::Relaxed)) {
                    ends_or_is_refused(CIFAR, given);
                }
            });
        }
    });
}

/// The flags are the same, but the text trainer handles samples differently.
#[test]
fn so_are_they_by_the_trainer_of_texts() {
    for flag in ["--train-limit=", "--test-limit=", "--batch="] {
        NUMBERS.iter().for_each(|number| ends_or_is_refused(AG_NEWS, &format!("{flag}{number}")));
    }
}

/// Runs under a limit of the address space, as a batch system sets it.
#[cfg(target_os = "linux")]
#[test]
fn more_than_the_memory_there_is_is_refused_before_it_is_taken() {
    let program = |flags: &str| {
        let runs = Runs::default();
        std::fs::write(runs.path("limited"), format!("ulimit -v 6000000; exec {CIFAR} \"$@\"")).unwrap();
        runs.run("sh", &format!("limited {flags} --dataset generated --test-limit 2 --plain"))
    };
    for (flags, words) in [
        ("--ranks 4096 --train-limit 5000", "--ranks 4096: that many models of 78330 values take at least"),
        ("--train-limit 99999999", "--train-limit and --test-limit: 100000001 samples take 307."),
    ] {
        let ended = program(flags);
        assert_eq!(ended.code, Some(2), "{}", ended.stderr);
        ended.refused(&[words, "GB of memory, and", "are available"]);
    }
}
