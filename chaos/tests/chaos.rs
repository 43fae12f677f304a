//! Minimal versions of the soak and of the kills at system calls; the long forms are `scripts/soak.sh` and `scripts/kill-io.sh`.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// Runs one of this package's programs, if the trainers and the launcher are in the same directory.
fn run(program: &str, arguments: &[&str]) -> Option<Output> {
    let missing =
        ["briquette", "cifar", "ag-news"].into_iter().find(|name| !Path::new(program).with_file_name(name).is_file());
    if let Some(name) = missing {
        println!("skipped: no {name} beside {program}; `cargo test --workspace` builds it");
        return None;
    }
    let directory = TempDir::new().unwrap();
    let out = directory.path().join("out");
    Some(Command::new(program).args(arguments).arg("--out").arg(out).output().unwrap())
}

#[track_caller]
fn succeeds(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    (stdout, stderr)
}

#[test]
fn a_short_soak_finds_nothing() {
    let Some(output) = run(env!("CARGO_BIN_EXE_soak"), &["0", "7", "--events", "6"]) else { return };
    let (stdout, _) = succeeds(&output);
    assert!(stdout.contains("bits equal, nothing left over") && stdout.contains("0 findings"), "{stdout}");
    println!("{stdout}");
    briquette_testkit::held!(
        "random harm to a run over TCP and TLS, from a seed",
        6,
        "the bits of a run left alone, nothing left over",
        a_short_soak_finds_nothing
    );
}

/// Covers every seventh call of a run as processes.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_run_killed_at_a_system_call_ends_with_the_bits_of_one_that_was_not() {
    for (scenario, every) in [("begin-processes", "29"), ("resume-threads", "19"), ("overwrite-threads", "19")] {
        let Some(output) = run(env!("CARGO_BIN_EXE_kill-io"), &[scenario, "--every", every]) else { return };
        if output.status.code() == Some(77) {
            return println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        }
        let (stdout, stderr) = succeeds(&output);
        let rows: Vec<&str> = stdout.lines().skip(1).collect();
        assert!(rows.len() == 4 && rows.iter().all(|row| row.ends_with(",0,0")), "{stdout}\n{stderr}");
        println!("{stdout}");
    }
}
