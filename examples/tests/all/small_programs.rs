//! The programs in `examples/examples`, each run for a few steps.
#![cfg(all(unix, feature = "flex"))]

use std::path::Path;

use crate::common::{CIFAR, Ended, Runs};

/// Runs a program that Cargo builds next to the trainers when all targets of the package are built.
#[track_caller]
fn run(name: &str, flags: &str) -> Ended {
    let path = Path::new(CIFAR).with_file_name("examples").join(name);
    assert!(path.is_file(), "no {}: test with `cargo test --workspace`, which builds it", path.display());
    Runs::default().run(path.to_str().unwrap(), flags)
}

#[test]
fn two_processes_come_together_without_a_launcher_and_end_together() {
    let ended = run("tcp_by_hand", "20").succeeds();
    let mut lines: Vec<_> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines.len(), 2, "{lines:?}");
    let process = |line: &str| line.split_whitespace().nth(4).unwrap().to_owned();
    assert!(lines[0].starts_with("rank 0 in process ") && lines[1].starts_with("rank 1 in process "), "{lines:?}");
    assert_ne!(process(lines[0]), process(lines[1]));
}

#[test]
fn a_second_process_that_cannot_begin_is_an_error_of_the_first() {
    let ended = run("tcp_by_hand", "many");
    assert_eq!(ended.code, Some(1), "{}", ended.stderr);
    assert!(ended.stdout.is_empty(), "{}", ended.stdout);
}

#[test]
fn nothing_frozen_is_sent() {
    let ended = run("frozen", "3").succeeds();
    // Of two ranks, each sends the other half of the gradient and half of the average; the rest is the step's header.
    let gradient = 4 * 1025;
    assert!(ended.stdout.contains("sent: head.weight and head.bias, 1025 of 67585 values"), "{}", ended.stdout);
    assert!(ended.stdout.contains("the body is unchanged: true"), "{}", ended.stdout);
    let bytes = ended.stdout.split_whitespace().zip(ended.stdout.split_whitespace().skip(1));
    let bytes: usize = bytes.filter(|(_, word)| *word == "bytes").find_map(|(n, _)| n.parse().ok()).unwrap();
    assert!((gradient..gradient + 256).contains(&bytes), "{bytes}");
}

#[test]
fn a_learner_of_four_ranks_speaks_once() {
    let directory = tempfile::tempdir().unwrap();
    let ended = run("learner", &format!("2 {}", directory.path().display())).succeeds();
    for once in ["Starting training for 2 epochs", "Learner Summary", "the model is in"] {
        assert_eq!(ended.stdout.matches(once).count(), 1, "{once}: {}", ended.stdout);
    }
    assert!(directory.path().join("model.bpk").is_file());
    let values = std::fs::read_to_string(directory.path().join("valid/epoch-2/Accuracy.log")).unwrap();
    assert!(values.lines().last().unwrap().ends_with(",final"), "{values}");
}

#[test]
fn compressing_in_one_process_changes_what_the_optimizer_sees() {
    let ended = run("compressed", "40").succeeds();
    let losses: Vec<f64> = ended.stdout.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert_eq!(losses.len(), 3, "{}", ended.stdout);
    assert!(losses.windows(2).all(|pair| pair[0] < pair[1]), "the less is sent, the later it learns: {losses:?}");
}
