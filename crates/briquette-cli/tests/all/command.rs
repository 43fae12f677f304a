//! The command as a user runs it.

use std::process::{Command, Output};

use briquette_core::manifest::Manifest;

fn briquette(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_briquette")).args(arguments).output().expect("the command starts")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// Writes 1, −2, 3, … as raw floats.
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
    for name in ["1000 values", "topk:100x", "natural", "qsgd:4", "sidco", "one-bit", "+natural", "adaptive-random"] {
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

/// A run of 4 ranks with 1 M values, 100 steps and 20 ms of compute time each.
#[test]
fn plan_takes_the_numbers_of_a_run_and_gives_advice() {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().to_str().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    write("config.toml", "ranks = 4\nlr = 0.1\n");
    let summary = r#"{"steps": 100, "bytes_dense": 2400000000, "compute_seconds": 2.0, "seconds_are": "measured"}"#;
    write("summary.json", summary);
    let slow = ["plan", run, "--network", "10mbit,1ms", "--world", "2,4"];
    let text = stdout(&briquette(&slow));
    for part in
        ["100 steps of 1000000 values, 20ms", "4 ranks: a dense step takes 5", "auto is up to", "sparse-loco:30 is"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let csv = stdout(&briquette(
        &[&slow[..], &["--csv", "--compressor=qsgd:4", "--compressor=topk:10x:q8", "--steps=7"]].concat(),
    ));
    let mut rows = csv::Reader::from_reader(csv.as_bytes());
    let rows: Vec<std::collections::HashMap<String, String>> = rows.deserialize().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 2 * 10);
    let adaptive: Vec<_> = rows.iter().filter(|row| row["config"] == "strategy=diloco:adapt=true").collect();
    assert!(
        adaptive.len() == 2 && adaptive.iter().all(|row| row["steps_per_exchange"] == "1"),
        "7 steps: {adaptive:?}"
    );
    let long: serde_json::Value =
        serde_json::from_str(&stdout(&briquette(&[&slow[..], &["--json", "--steps=20k"]].concat()))).unwrap();
    let adaptive = long.as_array().unwrap().iter().filter(|row| row["exchange"] == "diloco:adapt=true");
    assert_eq!(adaptive.map(|row| row["steps_per_exchange"].as_u64()).collect::<Vec<_>>(), [Some(32), Some(32)]);
    let number = |row: usize, name: &str| rows[row][name].parse::<f64>().unwrap();
    // 2·1/2 of 4 MB at 10 Mbit/s, and 12 % of TCP and headers.
    let network = number(0, "network_seconds");
    assert!(rows[0]["exchange"] == "dense" && (3.55..3.65).contains(&network), "{network}");
    assert!((number(0, "total_seconds") / number(0, "step_seconds") - 7.0).abs() < 1e-9);
    assert!(rows.iter().any(|row| row["config"] == "reducer=gather:qsgd:4"));
    let fast = ["plan", run, "--network", "unlimited", "--compute", "10s", "--world", "2", "--json"];
    let json: serde_json::Value = serde_json::from_str(&stdout(&briquette(&fast))).unwrap();
    assert_eq!((&json[0]["ranks"], &json[0]["compute_seconds"]), (&2.into(), &10.0.into()));
    let adaptive = json.as_array().unwrap().iter().find(|row| row["exchange"] == "diloco:adapt=true").unwrap();
    assert_eq!(adaptive["steps_per_exchange"], 1);
    let text = stdout(&briquette(&fast[..fast.len() - 1]));
    assert!(text.contains("Do not compress"), "{text}");
    // The dense bytes of a world whose size has changed do not give the number of values.
    write("summary.json", &summary.replace('}', r#", "elastic": {"generations": 2}}"#));
    let error = briquette(&slow).stderr;
    assert!(String::from_utf8_lossy(&error).contains("the number of parameters is not known: give --values"));
}

/// Three ranks on this machine.
#[cfg(unix)]
#[test]
fn a_probe_measures_the_ranks_of_a_launcher_for_a_plan() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("network.json");
    let file = file.to_str().unwrap();
    let program = env!("CARGO_BIN_EXE_briquette");
    let out = stdout(&briquette(&[
        "launch",
        "--ranks",
        "3",
        "--only-rank",
        "0",
        "--",
        program,
        "probe",
        "--time",
        "20ms",
        "--out",
        file,
    ]));
    for part in ["0 to 1", "2 to 1", "ring of 3", "for briquette plan: --network "] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let text = std::fs::read_to_string(file).unwrap();
    let mut measured: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&measured["ranks"], measured["links"].as_array().unwrap().len()), (&3.into(), 6));
    // Codecs that take a second for each value.
    measured["codec_seconds_per_value"] = 1.0.into();
    std::fs::write(file, measured.to_string()).unwrap();
    let plan = ["plan", "--values", "1k", "--compute", "1ms", "--world", "3", "--json", "--network", file];
    let plan: serde_json::Value = serde_json::from_str(&stdout(&briquette(&plan))).unwrap();
    let row = plan.as_array().unwrap().iter().find(|row| row["exchange"] == "topk:20x:q8").unwrap();
    let seconds = row["codec_seconds"].as_f64().unwrap();
    // Slower by some millions than this machine, of which one encoder and three decoders take microseconds.
    assert!(seconds > 10.0, "{seconds}");
    std::fs::write(file, "{}").unwrap();
    let error = briquette(&["plan", "--network", file]).stderr;
    let error = String::from_utf8_lossy(&error);
    assert!(error.contains("network.json: not a file of `briquette probe --out`"), "{error}");
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

#[test]
fn checkpoint_exits_with_1_for_a_damaged_manifest_and_shows_it() {
    let directory = tempfile::tempdir().unwrap();
    let step = directory.path().join("checkpoints/step-00000007");
    std::fs::create_dir_all(&step).unwrap();
    let text = Manifest { step: 7, ..Manifest::default() }.to_text().unwrap();
    let another = text.replace("\"world\": 0", "\"world\": 2");
    for (text, code, says) in
        [(&text, 0, "step 7, 0 ranks"), (&another, 1, "damaged: manifest.json: damaged: its checksum")]
    {
        std::fs::write(step.join("manifest.json"), text).unwrap();
        for given in [directory.path(), &step] {
            let output = briquette(&["checkpoint", given.to_str().unwrap()]);
            let shown = String::from_utf8_lossy(&output.stdout);
            assert!(shown.contains(says), "{shown}");
            assert_eq!(output.status.code(), Some(code), "{shown}");
        }
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
    let commands: [&[&str]; 9] = [
        &fast,
        &[&fast[..], &["--csv"]].concat(),
        &[&fast[..], &["--json"]].concat(),
        &["codec", "--compressor", "sign", "--in", &file, "--out", decoded],
        &["plan", "--values=1k", "--compute=1ms", "--network=1gbit", "--world=2"],
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
        // Output of the command line's parser is not checked for write errors.
        if command != ["--help"] {
            let (code, error) = run(full.into());
            assert_eq!(code, Some(1), "{command:?}: {error}");
            assert!(error.starts_with("error: ") && error.contains("standard output cannot be written"), "{error}");
        }
    }
}

/// It takes no room on the disk, and would take more than there is in memory.
/// Threat F2.
#[cfg(target_os = "linux")]
#[test]
fn a_file_larger_than_memory_is_refused_before_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["huge.bin", "huge.npy", "huge.safetensors"] {
        let path = directory.path().join(name);
        std::fs::File::create(&path).unwrap().set_len(1 << 42).unwrap();
        let output = briquette(&["inspect", path.to_str().unwrap()]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let words = format!("error: {}: its bytes and the values in them take 8.8 TB of memory, and ", path.display());
        assert!(error.starts_with(&words) && error.ends_with("B are available\n"), "{error}");
    }
}

/// Covers every flag that takes a value, as listed by the command's own help.
#[test]
fn numbers_that_nobody_means_are_taken_or_refused_in_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = gradient(directory.path());
    let out = directory.path().join("out").to_str().unwrap().to_owned();
    let commands = [
        vec!["inspect", &file, "--repeats=1", "--compressor=sign", "--csv"],
        vec!["codec", "--compressor=qsgd:4", "--in", &file, "--out", &out],
        vec!["launch", "--dry-run", "--ranks=2"],
        vec!["plan", "--values=1k", "--compute=1ms", "--network=1gbit", "--world=2"],
    ];
    let mut tried = 0;
    for command in commands {
        let help = stdout(&briquette(&[command[0], "--help"]));
        let flags = help.split_whitespace().filter(|word| word.starts_with("--"));
        let flags: Vec<&str> = flags.filter(|flag| help.contains(&format!("{flag} <"))).collect();
        for flag in
            flags.iter().filter(|flag| !["--in", "--out", "--message", "--log-dir", "--gradient"].contains(flag))
        {
            for number in
                ["0", "1", "2147483648", "9223372036854775808", "18446744073709551615", "-1", "NaN", "1e308", "inf"]
            {
                let given = format!("{flag}={number}");
                let mut arguments: Vec<&str> =
                    command.iter().copied().filter(|word| !word.starts_with(&format!("{flag}="))).collect();
                arguments.push(&given);
                if command[0] == "launch" {
                    arguments.extend(["--", "true"]);
                }
                let output = briquette(&arguments);
                let error = String::from_utf8_lossy(&output.stderr).into_owned();
                let is_line = error.matches("error: ").count() == 1 && !error.contains("panicked");
                let code = output.status.code();
                assert!(code == Some(0) || code == Some(2) && is_line, "{arguments:?}: {code:?} {error}");
                tried += 1;
            }
        }
    }
    assert!(tried > 100, "{tried}");
}
