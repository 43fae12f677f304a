//! CSVs of the results: every run, the rates that were tried, and each row's means paired with the first row of its setting.

use std::path::Path;

use anyhow::{Result, ensure};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

use super::outcome::Outcome;
use super::{Experiment, Kept, Measure, Row, Run, picture};
use crate::paired::Mean;
use crate::ranks::write_csv;

/// Means of a row over seeds.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) experiment: String,
    row: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    setting: Option<String>,
    flags: String,
    seeds: usize,
    lr: Option<f64>,
    /// Set if that rate's search is complete, here or where the rate is from.
    searched: bool,
    pub(super) test_accuracy: f64,
    /// Present if rows are compared by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) test_loss: Option<f64>,
    /// Difference of the accuracy, or of the loss, to that of the first row.
    to_dense: f64,
    standard_error: f64,
    pub(super) bytes_sent: f64,
    /// The first row's bytes divided by these.
    fewer_bytes: f64,
    pub(super) simulated_seconds: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

impl Line {
    pub(super) fn name(&self) -> String {
        [self.row.as_str(), self.setting.as_deref().unwrap_or_default()].join(" ").trim().to_owned()
    }
}

/// Writes the search results of an experiment into a directory, `NAME-rates.csv`; those [so far](Kept::so_far), if requested. Without searches
/// there is no file.
///
/// # Errors
/// If a search is not complete, or a file cannot be read or written.
pub fn write_rates(experiment: &Experiment, kept: &Kept, csv: &Path) -> Result<()> {
    let mut tried = Vec::new();
    for row in experiment.rows.iter().filter(|row| row.rates.len() > 1) {
        let tuning = experiment.search(row, kept);
        if kept.so_far && tuning.tried.is_empty() {
            continue;
        }
        let best = experiment.tuned(row, experiment.search_seed, kept)?;
        let outcomes = outcomes(&tuning.tried, kept);
        tried.extend(outcomes.map(|run| Outcome { chosen: Some(run.command == best.command()), ..run }));
    }
    if tried.is_empty() {
        return Ok(());
    }
    std::fs::create_dir_all(csv)?;
    write_csv(Some(&csv.join(format!("{}-rates.csv", experiment.name))), &tried)
}

/// Writes the tables of an experiment into a directory, `NAME-runs.csv` and `NAME.csv`, and a picture into another one, if requested.
///
/// # Errors
/// If a row was not run with every seed, or a file cannot be read or written.
pub fn write(experiment: &Experiment, kept: &Kept, (csv, svg): (&Path, Option<&Path>)) -> Result<()> {
    let mut runs = Vec::new();
    for seed in &experiment.seeds {
        runs.extend(experiment.runs(*seed, "", kept)?);
    }
    for run in &runs {
        let (name, row, seed) = (&experiment.name, &run.row.name, run.seed);
        ensure!(kept.has(run), "{name}: {row} was not run with seed {seed}: no CSV is written");
    }
    let (outcomes, means) = (outcomes(&runs, kept).collect::<Vec<_>>(), means(experiment, &runs, kept));
    std::fs::create_dir_all(csv)?;
    print(experiment, &means);
    write_csv(Some(&csv.join(format!("{}-runs.csv", experiment.name))), &outcomes)?;
    write_csv(Some(&csv.join(format!("{}.csv", experiment.name))), &means)?;
    svg.map_or(Ok(()), |svg| picture::draw(&svg.join(format!("experiment-{}.svg", experiment.name)), &means))
}

fn outcomes(runs: &[Run], kept: &Kept) -> impl Iterator<Item = Outcome> {
    runs.iter().filter_map(|run| kept.outcome(run)).inspect(Outcome::check_revision)
}

fn means(experiment: &Experiment, runs: &[Run], kept: &Kept) -> Vec<Line> {
    let of_row = |row: &Row| {
        let of_row = runs.iter().filter(|run| run.row == *row);
        of_row.filter_map(|run| Some((run, kept.outcome(run)?))).collect::<Vec<_>>()
    };
    let measured = |of_row: &[(&Run, Outcome)]| {
        let measured = |outcome: &Outcome| outcome.test_loss.unwrap_or(outcome.test_accuracy);
        of_row.iter().map(|(_, outcome)| (outcome.seed, measured(outcome))).collect::<Vec<_>>()
    };
    let mean = |of_row: &[(&Run, Outcome)], of: fn(&Outcome) -> f64| {
        Mean::of(&of_row.iter().map(|(_, outcome)| of(outcome)).collect::<Vec<_>>()).mean
    };
    let bytes = |outcome: &Outcome| outcome.bytes_sent as f64;
    let seeds = experiment.seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let so_far = if kept.so_far { " --so-far" } else { "" };
    let line = |row: &Row| {
        let baseline = of_row(experiment.rows.iter().find(|first| first.setting == row.setting)?);
        let of_row = of_row(row);
        let (run, last) = of_row.last()?;
        let difference = Mean::of_differences(&measured(&of_row), &measured(&baseline));
        Some(Line {
            experiment: experiment.name.clone(),
            row: row.name.clone(),
            setting: row.setting.clone(),
            flags: run.flags.clone(),
            seeds: difference.count,
            lr: run.rate,
            searched: experiment.is_searched(row, kept),
            test_accuracy: mean(&of_row, |outcome| outcome.test_accuracy),
            test_loss: (experiment.measure == Measure::TestLoss)
                .then(|| mean(&of_row, |outcome| outcome.test_loss.unwrap_or(f64::NAN))),
            to_dense: difference.mean,
            standard_error: difference.error,
            bytes_sent: mean(&of_row, bytes),
            fewer_bytes: mean(&baseline, bytes) / mean(&of_row, bytes),
            simulated_seconds: mean(&of_row, |outcome| outcome.simulated_seconds.unwrap_or(f64::NAN)),
            machine: last.machine.clone(),
            cores: last.cores,
            date: last.date.clone(),
            command: format!(
                "experiment benches/experiments/{}.toml --data datasets --seeds {seeds}{so_far}",
                experiment.name
            ),
        })
    };
    experiment.rows.iter().filter_map(line).collect()
}

fn print(experiment: &Experiment, lines: &[Line]) {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        &experiment.name,
        "flags",
        "rate",
        "test accuracy or loss",
        "to the first row, points or loss",
        "fewer bytes",
        "simulated time",
    ]);
    for line in lines {
        let rate = line.lr.map_or_else(|| "default".into(), |rate| rate.to_string());
        table.add_row([
            line.name(),
            line.flags.clone(),
            format!("{rate}{}", if line.searched { "" } else { ", not searched to the end" }),
            format!("{:.4}", line.test_loss.unwrap_or(line.test_accuracy)),
            match line.test_loss {
                None => {
                    format!("{:+.1} ± {:.1} ({} seeds)", 100.0 * line.to_dense, 100.0 * line.standard_error, line.seeds)
                }
                Some(_) => format!("{:+.4} ± {:.4} ({} seeds)", line.to_dense, line.standard_error, line.seeds),
            },
            format!("{:.1}x", line.fewer_bytes),
            format!("{:.1} s", line.simulated_seconds),
        ]);
    }
    println!("{table}\nrates were tried with seed {}", experiment.search_seed);
}

#[cfg(test)]
mod tests {
    use super::super::tests::of;
    use super::*;

    /// Simulates a finished run: the accuracy is higher the nearer its rate is to 0.1, and the loss is lower the nearer it is to 0.4.
    fn finish(run: &Run) {
        let [accuracy, inverse] = [0.1, 0.4].map(|best| 1.0 / (1.0 + (run.rate.unwrap() / best).ln().abs()));
        let loss = 1.0 / inverse;
        let summary = format!(
            r#"{{"final_test_accuracy": {accuracy}, "best_test_accuracy": 0.5, "final_test_loss": {loss}, "steps": 3, "bytes_sent": 1,
            "bytes_received": 1, "bytes_dense": 1, "wall_seconds": 1.0, "simulated_seconds": 2.0, "compute_seconds": 1.0,
            "compress_seconds": 0.0, "exchange_seconds": 0.0, "interrupted": false, "git_revision": "unknown", "version": "0.1.0",
            "burn_version": "0.22"}}"#
        );
        std::fs::create_dir_all(&run.directory).unwrap();
        std::fs::write(run.directory.join("summary.json"), summary).unwrap();
        std::fs::write(run.directory.join("flags.txt"), run.key()).unwrap();
        std::fs::write(run.directory.join("log.txt"), "").unwrap();
    }

    fn search_to_the_end(experiment: &Experiment, kept: &Kept) {
        loop {
            let next = experiment.tuning("", kept);
            next.iter().for_each(finish);
            if next.is_empty() {
                return;
            }
        }
    }

    const ROWS: &str = "seeds = [1, 2]
        [[row]]\nname = 'dense'\nflags = '--reducer dense'\nrates = [0.2, 0.4]
        [[row]]\nname = 'local'\nflags = '--strategy local-sgd:4'\nrates = [0.2, 0.4]";

    fn names(csv: &Path) -> Vec<String> {
        let files = std::fs::read_dir(csv).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.collect();
        names.sort();
        names
    }

    #[test]
    fn a_table_is_written_whole() {
        let at = tempfile::tempdir().unwrap();
        let (kept, csv) = (Kept::new(at.path().join("runs"), false), at.path().join("csv"));
        let experiment = of(ROWS).unwrap();
        let table = || write(&experiment, &kept, (&csv, None));
        assert!(write_rates(&experiment, &kept, &csv).is_err() && table().is_err() && !csv.exists());
        search_to_the_end(&experiment, &kept);
        write_rates(&experiment, &kept, &csv).unwrap();
        assert_eq!(names(&csv), ["example-rates.csv"]);
        let runs: Vec<Run> = [1, 2].iter().flat_map(|seed| experiment.runs(*seed, "", &kept).unwrap()).collect();
        assert!(runs.iter().all(|run| run.rate == Some(0.1)));
        runs[1..].iter().for_each(finish);
        let missing = table().unwrap_err().to_string();
        assert!(missing.contains("dense was not run with seed 1"), "{missing}");
        assert_eq!(names(&csv), ["example-rates.csv"]);
        finish(&runs[0]);
        table().unwrap();
        assert_eq!(names(&csv), ["example-rates.csv", "example-runs.csv", "example.csv"]);

        // The CSVs alone say the same, and nothing is run again.
        let read =
            || names(&csv).iter().map(|name| std::fs::read_to_string(csv.join(name)).unwrap()).collect::<Vec<_>>();
        let before = read();
        let known = Kept::new(at.path().join("nothing"), false).with_csv(&csv).unwrap();
        assert!(experiment.tuning("", &known).is_empty() && runs.iter().all(|run| known.has(run)));
        write_rates(&experiment, &known, &csv).unwrap();
        write(&experiment, &known, (&csv, None)).unwrap();
        assert_eq!(read(), before);

        // A later version does not count them.
        let next = of(&format!("version = 2\n{ROWS}")).unwrap();
        assert!(!next.tuning("", &known).is_empty() && !next.tuning("", &kept).is_empty());
    }

    #[test]
    fn rows_are_compared_by_their_loss() {
        let at = tempfile::tempdir().unwrap();
        let (kept, csv) = (Kept::new(at.path().join("runs"), false), at.path().join("csv"));
        let by_loss = format!("measure = 'test-loss'\n{ROWS}\n[[row]]\nname = 'slow'\nflags = '--slow'\nrates = [0.2]");
        let experiment = of(&by_loss).unwrap();
        search_to_the_end(&experiment, &kept);
        let runs: Vec<Run> = [1, 2].iter().flat_map(|seed| experiment.runs(*seed, "", &kept).unwrap()).collect();
        assert_eq!(runs.iter().map(|run| run.rate.unwrap()).collect::<Vec<_>>(), [0.4, 0.4, 0.2, 0.4, 0.4, 0.2]);
        runs.iter().for_each(finish);
        write_rates(&experiment, &kept, &csv).unwrap();
        write(&experiment, &kept, (&csv, None)).unwrap();
        let mut lines = csv::Reader::from_path(csv.join("example.csv")).unwrap();
        let [loss, difference] = ["test_loss", "to_dense"]
            .map(|name| lines.headers().unwrap().iter().position(|head| head == name).unwrap());
        let lines: Vec<[f64; 2]> = lines
            .records()
            .map(|line| line.unwrap())
            .map(|line| [loss, difference].map(|at| line[at].parse().unwrap()))
            .collect();
        let slow = 1.0 + 2.0_f64.ln();
        assert_eq!(lines, [[1.0, 0.0], [1.0, 0.0], [slow, slow - 1.0]]);
        // Results without a loss do not count.
        let by_accuracy = of(ROWS).unwrap();
        search_to_the_end(&by_accuracy, &kept);
        write_rates(&by_accuracy, &kept, &csv).unwrap();
        let written = Kept::new(at.path().join("nothing"), false).with_csv(&csv).unwrap();
        let missing = |experiment: &Experiment| experiment.tuning("dense", &written).len();
        assert_eq!([missing(&by_accuracy), missing(&experiment)], [0, 2]);
    }

    /// On each link rows are compared with the first row on that link.
    #[test]
    fn a_row_is_compared_in_its_own_setting() {
        let at = tempfile::tempdir().unwrap();
        let (kept, csv) = (Kept::new(at.path().join("runs"), false), at.path().join("csv"));
        let rows = "seeds = [1]\naxes.network = ['a', 'b']
            [[row]]\nname = 'dense'\nflags = ''\nrates = [0.1]\n[[row]]\nname = 'half'\nflags = '--half'\nrates = [0.2]";
        let experiment = of(rows).unwrap();
        experiment.runs(1, "", &kept).unwrap().iter().for_each(finish);
        write(&experiment, &kept, (&csv, None)).unwrap();
        let mut lines = csv::Reader::from_path(csv.join("example.csv")).unwrap();
        let lines: Vec<[String; 3]> =
            lines.records().map(|line| line.unwrap()).map(|line| [1, 2, 8].map(|column| line[column].into())).collect();
        let half = (1.0 / (1.0 + 2.0_f64.ln()) - 1.0).to_string();
        let line = |row: &str, setting: &str, difference: &str| [row, setting, difference].map(str::to_owned);
        let [a, b] = ["--network a", "--network b"];
        assert_eq!(
            lines,
            [line("dense", a, "0.0"), line("half", a, &half), line("dense", b, "0.0"), line("half", b, &half)]
        );
    }
}
