//! CSVs of the results: every run, the rates that were tried, and each row's means paired with dense.

use std::path::Path;

use anyhow::{Result, ensure};
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

use super::outcome::Outcome;
use super::{Kept, Run, TUNING_SEED, Task, picture};
use crate::paired::Mean;
use crate::ranks::write_csv;

/// Means of a row over seeds.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) task: &'static str,
    pub(super) row: &'static str,
    flags: &'static str,
    seeds: usize,
    lr: f64,
    /// Set if that rate's search is complete, in this task or the first.
    searched: bool,
    pub(super) test_accuracy: f64,
    to_dense: f64,
    standard_error: f64,
    pub(super) bytes_sent: f64,
    /// Dense's bytes divided by these.
    fewer_bytes: f64,
    pub(super) simulated_seconds: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// Writes the search results of some tasks into a directory, `TASK-rates.csv`; those [so far](Kept::so_far), if requested.
///
/// # Errors
/// If a search is not complete, or a file cannot be read or written.
pub fn write_rates(tasks: &[Task], kept: &Kept, csv: &Path) -> Result<()> {
    let mut files = Vec::new();
    for task in tasks {
        let mut tried = Vec::new();
        for row in task.rows().iter().filter(|row| row.rates.len() > 1) {
            let tuning = task.search(row, kept);
            if kept.so_far && tuning.tried.is_empty() {
                continue;
            }
            let best = task.tuned(row, TUNING_SEED, kept)?;
            let outcomes = outcomes(&tuning.tried, kept);
            tried.extend(outcomes.map(|run| Outcome { chosen: Some(run.command == best.command()), ..run }));
        }
        files.push((format!("{}-rates.csv", task.name()), tried));
    }
    std::fs::create_dir_all(csv)?;
    let mut written = files.into_iter().filter(|(_, tried)| !tried.is_empty());
    written.try_for_each(|(name, tried)| write_csv(Some(&csv.join(name)), &tried))
}

/// Writes the tables of some tasks into a directory, `TASK-runs.csv` and `TASK.csv`; and a picture of each into another
/// one, if requested.
///
/// # Errors
/// If a row was not run with every seed, or a file cannot be read or written: nothing is written then.
pub fn write(tasks: &[Task], seeds: &[u64], kept: &Kept, (csv, svg): (&Path, Option<&Path>)) -> Result<()> {
    let mut tables = Vec::new();
    for task in tasks {
        let mut runs = Vec::new();
        for seed in seeds {
            runs.extend(task.runs(*seed, "", kept)?);
        }
        for run in &runs {
            let (task, row, seed) = (task.name(), run.row.name, run.seed);
            ensure!(kept.has(run), "{task}: {row} was not run with seed {seed}: no CSV is written");
        }
        tables.push((*task, outcomes(&runs, kept).collect::<Vec<_>>(), of_task(*task, &runs, kept)));
    }
    std::fs::create_dir_all(csv)?;
    for (task, runs, means) in tables {
        print(task, &means);
        write_csv(Some(&csv.join(format!("{}-runs.csv", task.name()))), &runs)?;
        write_csv(Some(&csv.join(format!("{}.csv", task.name()))), &means)?;
        if let Some(svg) = svg {
            picture::draw(&svg.join(format!("tuned-{}.svg", task.name())), &means)?;
        }
    }
    Ok(())
}

fn outcomes(runs: &[Run], kept: &Kept) -> impl Iterator<Item = Outcome> {
    runs.iter().filter_map(|run| kept.outcome(run)).inspect(Outcome::check_revision)
}

fn of_task(task: Task, runs: &[Run], kept: &Kept) -> Vec<Line> {
    let of_row = |name: &str| {
        let of_row = runs.iter().filter(|run| run.row.name == name);
        of_row.filter_map(|run| Some((run, kept.outcome(run)?))).collect::<Vec<_>>()
    };
    let accuracies = |of_row: &[(&Run, Outcome)]| {
        of_row.iter().map(|(_, outcome)| (outcome.seed, outcome.test_accuracy)).collect::<Vec<_>>()
    };
    let mean = |of_row: &[(&Run, Outcome)], of: fn(&Outcome) -> f64| {
        Mean::of(&of_row.iter().map(|(_, outcome)| of(outcome)).collect::<Vec<_>>()).mean
    };
    let bytes = |outcome: &Outcome| outcome.bytes_sent as f64;
    let dense = of_row("dense");
    let so_far = if kept.so_far { " --so-far" } else { "" };
    let line = |row: &super::Row| {
        let of_row = of_row(row.name);
        let (run, last) = of_row.last()?;
        let difference = Mean::of_differences(&accuracies(&of_row), &accuracies(&dense));
        Some(Line {
            task: task.name(),
            row: row.name,
            flags: run.flags,
            seeds: difference.count,
            lr: run.rate,
            searched: task.searched(row, kept),
            test_accuracy: mean(&of_row, |outcome| outcome.test_accuracy),
            to_dense: difference.mean,
            standard_error: difference.error,
            bytes_sent: mean(&of_row, bytes),
            fewer_bytes: mean(&dense, bytes) / mean(&of_row, bytes),
            simulated_seconds: mean(&of_row, |outcome| outcome.simulated_seconds.unwrap_or(f64::NAN)),
            machine: last.machine.clone(),
            cores: last.cores,
            date: last.date.clone(),
            command: format!("tuned {} --data datasets --tune && tuned {0} --data datasets{so_far}", task.name()),
        })
    };
    task.rows().iter().filter_map(line).collect()
}

fn print(task: Task, lines: &[Line]) {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        task.name(),
        "flags",
        "rate",
        "test accuracy",
        "to dense, points",
        "fewer bytes",
        "simulated time",
    ]);
    for line in lines {
        table.add_row([
            line.row.to_owned(),
            line.flags.to_owned(),
            format!("{}{}", line.lr, if line.searched { "" } else { ", not searched to the end" }),
            format!("{:.4}", line.test_accuracy),
            format!("{:+.1} ± {:.1} ({} seeds)", 100.0 * line.to_dense, 100.0 * line.standard_error, line.seeds),
            format!("{:.1}x", line.fewer_bytes),
            format!("{:.1} s", line.simulated_seconds),
        ]);
    }
    println!("{table}\nrates were tried with seed {TUNING_SEED}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a finished run: the accuracy is higher the nearer its rate is to 0.1.
    fn finish(run: &Run) {
        let accuracy = 1.0 / (1.0 + (run.rate / 0.1).ln().abs());
        let summary = format!(
            r#"{{"final_test_accuracy": {accuracy}, "best_test_accuracy": 0.5, "final_test_loss": 1.0, "steps": 3, "bytes_sent": 1,
            "bytes_received": 1, "bytes_dense": 1, "wall_seconds": 1.0, "simulated_seconds": 2.0, "compute_seconds": 1.0,
            "compress_seconds": 0.0, "exchange_seconds": 0.0, "interrupted": false, "git_revision": "unknown", "version": "0.1.0",
            "burn_version": "0.22"}}"#
        );
        std::fs::create_dir_all(&run.directory).unwrap();
        std::fs::write(run.directory.join("summary.json"), summary).unwrap();
        std::fs::write(run.directory.join("flags.txt"), run.flags()).unwrap();
    }

    #[test]
    fn a_table_is_written_whole_and_no_other_with_it() {
        let at = tempfile::tempdir().unwrap();
        let (kept, csv) = (Kept::new(at.path().join("runs"), false), at.path().join("csv"));
        let (task, tables) = (Task::ByClass, |tasks: &[Task]| write(tasks, &[1, 2], &kept, (&csv, None)));
        assert!(write_rates(&[task], &kept, &csv).is_err() && tables(&[task]).is_err() && !csv.exists());
        loop {
            let next = task.tuning("", &kept);
            next.iter().for_each(finish);
            if next.is_empty() {
                break;
            }
        }
        write_rates(&[task], &kept, &csv).unwrap();
        let names = || {
            let files = std::fs::read_dir(&csv).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> = files.collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["by-class-rates.csv"]);
        let runs: Vec<Run> = [1, 2].iter().flat_map(|seed| task.runs(*seed, "", &kept).unwrap()).collect();
        assert!(runs.iter().all(|run| run.rate == 0.1));
        runs[1..].iter().for_each(finish);
        let missing = tables(&[task]).unwrap_err().to_string();
        assert!(missing.contains("dense was not run with seed 1"), "{missing}");
        assert_eq!(names(), ["by-class-rates.csv"]);
        finish(&runs[0]);
        assert!(tables(&[task, Task::BiLstm]).is_err() && names().len() == 1, "another task is not tuned");
        tables(&[task]).unwrap();
        assert_eq!(names(), ["by-class-rates.csv", "by-class-runs.csv", "by-class.csv"]);

        // The CSVs alone say the same, and nothing is run again.
        let read =
            || names().into_iter().map(|name| std::fs::read_to_string(csv.join(name)).unwrap()).collect::<Vec<_>>();
        let before = read();
        let known = Kept::new(at.path().join("nothing"), false).with_csv(&csv).unwrap();
        assert!(task.tuning("", &known).is_empty() && runs.iter().all(|run| known.has(run)));
        write_rates(&[task], &known, &csv).unwrap();
        write(&[task], &[1, 2], &known, (&csv, None)).unwrap();
        assert_eq!(read(), before);
    }
}
