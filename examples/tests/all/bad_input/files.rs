//! Invalid data and settings files.

use std::fs;

use super::refused;
use crate::common::{AG_NEWS, CIFAR, Runs};

/// Runs on data files with these bytes, and expects a refusal.
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
    with("[config]\nreducer = \"power-sgd:0\"\n", &[file, "line 2", "rank of power-sgd must be at least 1, got 0"]);
    with("[config]\nreducre = \"dense\"\n", &[file, "line 2", "unknown field `reducre`", "`reducer`"]);
    refused(CIFAR, "--config absent.toml", &["--config absent.toml", "No such file"]);
}
