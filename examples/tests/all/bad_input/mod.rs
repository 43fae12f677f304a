//! Bad input: one error that names the problem, its location and the valid input; nothing is written, and an earlier
//! run stays intact.

mod files;
mod flags;
mod resume;
mod training;

use crate::common::{CIFAR, Runs};

/// Checks that the trainer refuses the flags with these words, and writes nothing.
#[track_caller]
fn refused(program: &str, flags: &str, words: &[&str]) {
    let runs = Runs::default();
    runs.run(program, &format!("{flags} --out run --plain")).refused(words);
    assert!(!runs.path("run").exists(), "{flags} wrote something");
}

/// Checks a refusal on generated data, so that only the flags can be wrong.
#[track_caller]
fn refused_flags(flags: &str, words: &[&str]) {
    refused(CIFAR, &format!("--dataset generated --train-limit 64 --test-limit 8 {flags}"), words);
}
