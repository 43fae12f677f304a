//! Running the trainers as they are, and reading what they left.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use briquette_examples::record::Summary;

/// What a flag is when it is not given; `--lr`, `--schedule` and their like are each trainer's own and no row changes them.
const DEFAULTS: [(&str, &str); 5] = [
    ("reducer", "gather"),
    ("momentum-correction", "off"),
    ("compressor", "topk:20x:q8"),
    ("feedback", "error"),
    ("controller", "constant"),
];

/// Runs a trainer that lies beside this program, on one thread, its words in `out/log.txt`. What is in `out` is replaced.
///
/// # Errors
/// When it cannot be run or does not succeed.
pub fn run(trainer: &str, flags: &str, data: &Path, out: &Path) -> Result<()> {
    let exe = std::env::current_exe()?.with_file_name(trainer);
    let log = fs::create_dir_all(out).and_then(|()| fs::File::create(out.join("log.txt")))?;
    let status = Command::new(&exe)
        .args(flags.split_whitespace())
        .args(["--data".as_ref(), data.as_os_str(), "--out".as_ref(), out.as_os_str(), "--overwrite".as_ref()])
        .env("RAYON_NUM_THREADS", "1")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .status()
        .with_context(|| format!("cannot run {}: build the trainers in release mode first", exe.display()))?;
    if !status.success() {
        bail!("{trainer} {flags}: {status}; see {}", out.join("log.txt").display());
    }
    Ok(())
}

/// The summary of a run that came to its end with these flags; nothing otherwise.
pub fn finished(out: &Path, flags: &str) -> Option<Summary> {
    let summary: Summary = serde_json::from_str(&fs::read_to_string(out.join("summary.json")).ok()?).ok()?;
    let config = toml::from_str(&fs::read_to_string(out.join("config.toml")).ok()?).ok()?;
    let whole = !summary.interrupted && summary.final_test_accuracy.is_finite();
    (whole && has_flags(&config, flags)).then_some(summary)
}

/// Whether a run's settings are what these flags say, and the defaults elsewhere. A setting without a part in the run may
/// be absent.
fn has_flags(config: &toml::Table, flags: &str) -> bool {
    let given = pairs(flags);
    let same = |flag: &str, value: &str| config.get(flag).is_some_and(|stored| equal(stored, value));
    let untouched = |(flag, value): &(&str, &str)| {
        given.iter().any(|(other, _)| other == flag) || !config.contains_key(*flag) || same(flag, value)
    };
    given.iter().all(|(flag, value)| same(flag, value)) && DEFAULTS.iter().all(untouched)
}

/// `--flag value` pairs; flags without a value say nothing of the result.
fn pairs(flags: &str) -> Vec<(&str, &str)> {
    let (mut words, mut pairs) = (flags.split_whitespace().peekable(), Vec::new());
    while let Some(word) = words.next() {
        if let (Some(flag), Some(value)) = (word.strip_prefix("--"), words.next_if(|next| !next.starts_with("--"))) {
            pairs.push((flag, value));
        }
    }
    pairs
}

fn equal(stored: &toml::Value, flag: &str) -> bool {
    let number = |value: &toml::Value| value.as_float().or(value.as_integer().map(|i| i as f64));
    match (number(stored), flag.parse::<f64>()) {
        (Some(stored), Ok(flag)) => stored == flag,
        _ => stored.as_str() == Some(flag),
    }
}

/// The processor's name and how many threads it runs at once, for committed results.
pub fn machine() -> (String, usize) {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let name = model.map_or("unknown", |(_, name)| name).trim().to_owned();
    (name, std::thread::available_parallelism().map_or(0, std::num::NonZero::get))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLAGS: &str = "--ranks 4 --plain --lr 0.2 --reducer dense --seed 3";
    const CONFIG: &str = "ranks = 4\nlr = 0.2\nreducer = \"dense\"\nseed = 3\nmomentum-correction = \"off\"\n";

    #[test]
    fn a_run_belongs_to_a_row_only_with_the_row_s_flags() {
        let has = |config: &str| has_flags(&toml::from_str(config).unwrap(), FLAGS);
        assert!(has(CONFIG));
        // Earlier versions wrote settings that had no part in the run.
        assert!(has(&format!("{CONFIG}compressor = \"topk:20x:q8\"\nfeedback = \"error\"")));
        assert!(!has(&CONFIG.replace("seed = 3", "seed = 4")));
        assert!(!has(&CONFIG.replace("dense", "gather")));
        assert!(!has(&CONFIG.replace("ranks = 4\n", "")));
        assert!(!has(&CONFIG.replace("\"off\"", "\"on\"")), "what the row does not say is the default");
    }

    #[test]
    fn only_a_run_that_came_to_its_end_counts() {
        let out = tempfile::tempdir().unwrap();
        fs::write(out.path().join("config.toml"), CONFIG).unwrap();
        let summary = r#"{"final_test_accuracy": 0.5, "best_test_accuracy": 0.5, "final_test_loss": 1.0, "steps": 3,
            "bytes_sent": 1, "bytes_received": 1, "bytes_dense": 1, "wall_seconds": 1.0, "simulated_seconds": null,
            "compute_seconds": 1.0, "compress_seconds": 0.0, "exchange_seconds": 0.0, "interrupted": false,
            "git_revision": "unknown", "version": "0.1.0", "burn_version": "0.22"}"#;
        let with = |text: &str| {
            fs::write(out.path().join("summary.json"), text).unwrap();
            finished(out.path(), FLAGS).is_some()
        };
        assert!(with(summary));
        assert!(!with(&summary.replace("false", "true")), "interrupted");
        assert!(!with(&summary.replace("\"final_test_accuracy\": 0.5", "\"final_test_accuracy\": null")));
        assert!(finished(out.path(), "--ranks 2").is_none());
    }
}
