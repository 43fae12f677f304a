//! The command as a user runs it.

use std::process::{Command, Output};

fn briquette(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_briquette")).args(arguments).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// 1, −2, 3, … as raw floats.
fn gradient(directory: &std::path::Path) -> String {
    let path = directory.join("gradient.bin");
    let values = (1..=1000).map(|i| if i % 2 == 0 { -(i as f32) } else { i as f32 });
    std::fs::write(&path, values.flat_map(f32::to_le_bytes).collect::<Vec<_>>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn inspect_lists_every_compressor_with_its_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let file = gradient(directory.path());
    let table = stdout(&briquette(&["inspect", &file, "--repeats", "1"]));
    for name in ["1000 values", "topk:100x", "natural", "qsgd:4", "sidco", "one-bit", "+minmax", "adaptive-random"] {
        assert!(table.contains(name), "{name}: {table}");
    }
    let csv = stdout(&briquette(&["inspect", &file, "--repeats", "1", "--csv", "--compressor", "topk:10x"]));
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let header = rows.headers().unwrap().clone();
    let row = rows.records().next().unwrap().unwrap();
    let field = |name: &str| row[header.iter().position(|h| h == name).unwrap()].to_owned();
    // The largest hundred of 1 … 1000: Σ 901² … 1000² of Σ 1² … 1000².
    let share = (901..=1000_u64).map(|i| i * i).sum::<u64>() as f64 / (1..=1000_u64).map(|i| i * i).sum::<u64>() as f64;
    assert!((field("gain").parse::<f64>().unwrap() - share).abs() < 1e-9, "{csv}");
    assert_eq!(field("compressor"), "topk:10x");
    let json = stdout(&briquette(&["inspect", &file, "--repeats", "1", "--json", "--compressor", "sign"]));
    let rows: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(rows[0]["bytes"], 16 + 4 + 125);
}

#[test]
fn codec_writes_what_a_decoder_of_the_message_would() {
    let directory = tempfile::tempdir().unwrap();
    let file = gradient(directory.path());
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    for seed in ["3", "3", "4"] {
        let out = at(&format!("out-{seed}.bin"));
        let before = std::fs::read(&out).ok();
        let message = at("message.bq");
        let arguments =
            ["codec", "--compressor", "qsgd:2", "--seed", seed, "--in", &file, "--out", &out, "--message", &message];
        assert!(stdout(&briquette(&arguments)).contains("4000 bytes to "));
        let decoded = std::fs::read(&out).unwrap();
        assert!(before.is_none_or(|before| before == decoded), "one seed, one result");
        let mut read = briquette_core::Message::default();
        read.decode_from(&std::fs::read(&message).unwrap()).unwrap();
        let mut values = vec![0.0_f32; 1000];
        read.decode_into(&mut values).unwrap();
        assert_eq!(decoded, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
    }
    assert_ne!(std::fs::read(at("out-3.bin")).unwrap(), std::fs::read(at("out-4.bin")).unwrap());
}

#[test]
fn mistakes_say_what_is_possible() {
    let directory = tempfile::tempdir().unwrap();
    let file = gradient(directory.path());
    for (arguments, says) in [
        (vec!["inspect", &file, "--compressor", "topq"], "valid are: dense"),
        (vec!["inspect", "no-such-file"], "no-such-file"),
        (vec!["inspect", &file, "--repeats", "0"], "--repeats"),
        (vec!["codec", "--compressor", "topk", "--in", &file], "--out"),
    ] {
        let output = briquette(&arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(says), "{arguments:?}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn every_command_ends_quietly_where_its_reader_went_away_and_names_a_full_disk() {
    let directory = tempfile::TempDir::new().unwrap();
    let file = gradient(directory.path());
    let (decoded, certificates) = (directory.path().join("decoded.npy"), directory.path().join("certificates"));
    let (decoded, certificates) = (decoded.to_str().unwrap(), certificates.to_str().unwrap());
    let fast = ["inspect", &file, "--compressor", "sign", "--repeats", "1"];
    let commands: [&[&str]; 8] = [
        &fast,
        &[&fast[..], &["--csv"]].concat(),
        &[&fast[..], &["--json"]].concat(),
        &["codec", "--compressor", "sign", "--in", &file, "--out", decoded],
        &["token"],
        &["cert", "--force", "--out", certificates],
        &["launch", "--ranks", "2", "--dry-run", "--", "sh"],
        &["--help"],
    ];
    for command in commands {
        let run = |stdout: std::process::Stdio| {
            let mut program = Command::new(env!("CARGO_BIN_EXE_briquette"));
            let ended = program.args(command).stdout(stdout).output().expect("the command starts");
            (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
        };
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(run(writer.into()), (Some(0), String::new()), "{command:?}");
        let Ok(full) = std::fs::File::options().write(true).open("/dev/full") else { continue };
        // What the command line's parser writes by itself is not checked for room.
        if command != ["--help"] {
            let (code, error) = run(full.into());
            assert_eq!(code, Some(1), "{command:?}: {error}");
            assert!(error.starts_with("error: ") && error.contains("standard output cannot be written"), "{error}");
        }
    }
}
