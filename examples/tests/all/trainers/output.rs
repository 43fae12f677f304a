//! Readers of a trainer's output that go away, stop reading, or have no room: the run does not depend on them.
#![cfg(unix)]

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write, pipe};
use std::process::{Child, Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use crate::common::{AG_NEWS, CIFAR, Runs, SMALL};

/// Starts a trainer that writes to these streams.
fn start(runs: &Runs, program: &str, flags: &str, stdout: impl Into<Stdio>, stderr: impl Into<Stdio>) -> Child {
    let mut command = Command::new(program);
    command.args(flags.split_whitespace()).current_dir(runs.path("")).env("RAYON_NUM_THREADS", "1");
    command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn().unwrap()
}

/// Returns the exit code of a program that ends in time.
#[track_caller]
fn code(mut child: Child) -> Option<i32> {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("waits for its reader");
        }
        sleep(Duration::from_millis(10));
    }
}

/// Returns the flags of a run of six steps that evaluates after each epoch.
fn small(out: &str) -> String {
    format!("{} --train-limit 16 --epochs 3 --out {out}", SMALL.replace("--train-limit 64", ""))
}

#[track_caller]
fn is_complete(runs: &Runs, out: &str) {
    assert_eq!((runs.summary(out).steps, runs.metrics(out).len(), runs.checkpoints(out).last()), (6, 6, Some(&6)));
}

#[test]
fn a_run_whose_reader_goes_away_ends_well_and_complete() {
    let runs = Runs::default();
    let (out, err) = (pipe().unwrap(), pipe().unwrap());
    let child = start(&runs, CIFAR, &small("run"), out.1, err.1);
    let mut line = String::new();
    BufReader::new(out.0).read_line(&mut line).unwrap();
    assert!(line.contains("dataset = "), "{line}");
    drop(err.0);
    assert_eq!(code(child), Some(0));
    is_complete(&runs, "run");
    briquette_testkit::held!(
        "the reader of the output goes away",
        1,
        "exit code 0, all files complete",
        a_run_whose_reader_goes_away_ends_well_and_complete
    );
}

/// Creates a pipe that is full and never read.
fn full() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().unwrap();
    let mut filler = writer.try_clone().unwrap();
    // Until the reader is dropped.
    spawn(move || while filler.write_all(&[b'.'; 1024]).is_ok() {});
    sleep(Duration::from_millis(300));
    (reader, writer)
}

#[test]
fn a_run_whose_reader_stops_reading_ends_well_and_complete() {
    let runs = Runs::default();
    let ((reader, writer), (errors, warnings)) = (full(), full());
    assert_eq!(code(start(&runs, CIFAR, &small("run"), writer, warnings)), Some(0));
    is_complete(&runs, "run");
    drop((reader, errors));
    briquette_testkit::held!(
        "the reader of output and errors stops reading",
        1,
        "exit code 0, all files complete",
        a_run_whose_reader_stops_reading_ends_well_and_complete
    );
}

#[cfg(target_os = "linux")]
#[test]
fn a_run_whose_log_disk_is_full_ends_well_and_complete() {
    let runs = Runs::default();
    let disk = || OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(code(start(&runs, CIFAR, &small("run"), disk(), disk())), Some(0));
    is_complete(&runs, "run");
    briquette_testkit::held!(
        "the disk of the output is full",
        1,
        "exit code 0, all files complete",
        a_run_whose_log_disk_is_full_ends_well_and_complete
    );
}

#[test]
fn an_error_reaches_its_reader_where_that_of_the_output_stops() {
    let runs = Runs::default();
    let (reader, writer) = full();
    let mut child = start(&runs, CIFAR, &format!("{} --rules conv9.*=dense", small("run")), writer, Stdio::piped());
    let errors = child.stderr.take().unwrap();
    assert_ne!(code(child), Some(0));
    let text: Vec<String> = BufReader::new(errors).lines().map(Result::unwrap).collect();
    assert!(text.iter().any(|line| line.starts_with("error: ") && line.contains("conv9")), "{text:?}");
    drop(reader);
}

#[test]
fn other_commands_end_quietly_where_their_reader_is_gone() {
    let runs = Runs::default();
    for program in [CIFAR, AG_NEWS] {
        for flags in ["--backend list", "--help", "--version"] {
            let (reader, writer) = pipe().unwrap();
            drop(reader);
            let mut child = start(&runs, program, flags, writer, Stdio::piped());
            let errors = child.stderr.take().unwrap();
            assert_eq!(code(child), Some(0), "{flags}");
            assert_eq!(BufReader::new(errors).lines().count(), 0, "{flags}");
        }
    }
}
