//! What came out: every run, the rates that were tried, and each row's means paired with dense.

use std::path::Path;

use anyhow::Result;
use briquette_examples::record::Summary;
use comfy_table::{Table, presets::ASCII_MARKDOWN};
use serde::Serialize;

use super::{Run, TUNING_SEED, Task, picture};
use crate::paired::Mean;
use crate::ranks::write_csv;
use crate::trainer::machine;

/// A run that came to its end.
#[derive(Debug, Serialize)]
struct RunLine {
    task: &'static str,
    row: &'static str,
    lr: f64,
    seed: u64,
    test_accuracy: f64,
    bytes_sent: u64,
    simulated_seconds: Option<f64>,
    steps: u64,
    revision: String,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// A row's means over seeds.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) task: &'static str,
    pub(super) row: &'static str,
    seeds: usize,
    lr: f64,
    pub(super) test_accuracy: f64,
    to_dense: f64,
    standard_error: f64,
    pub(super) bytes_sent: f64,
    /// Dense's over these.
    fewer_bytes: f64,
    pub(super) simulated_seconds: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// Writes all there is into a directory: `strategies-rates.csv`, `strategies-runs.csv` and `strategies.csv`; into another one a picture of each
/// task, where that is asked for.
///
/// # Errors
/// When a file cannot be read or written.
pub fn write(seeds: &[u64], out: &Path, csv: &Path, svg: Option<&Path>) -> Result<()> {
    let (mut tried, mut all, mut means) = (Vec::new(), Vec::new(), Vec::new());
    for task in Task::ALL {
        tried.extend(lines(&task.tuning(out))?);
        let runs = seeds.iter().filter_map(|seed| task.runs(*seed, out).ok()).flatten().collect::<Vec<_>>();
        all.extend(lines(&runs)?);
        let of_task = of_task(task, &runs)?;
        print(task, &of_task);
        if let Some(svg) = svg.filter(|_| !of_task.is_empty()) {
            picture::draw(&svg.join(format!("strategies-{}.svg", task.name())), &of_task)?;
        }
        means.extend(of_task);
    }
    write_csv(Some(&csv.join("strategies-rates.csv")), &tried)?;
    write_csv(Some(&csv.join("strategies-runs.csv")), &all)?;
    write_csv(Some(&csv.join("strategies.csv")), &means)
}

fn lines(runs: &[Run]) -> Result<Vec<RunLine>> {
    let (machine, cores) = machine();
    let finished = runs.iter().filter_map(|run| Some((run, run.finished()?)));
    let line = |(run, summary): (&Run, Summary)| {
        Ok(RunLine {
            task: run.task.name(),
            row: run.row.name,
            lr: run.rate,
            seed: run.seed,
            test_accuracy: summary.final_test_accuracy,
            bytes_sent: summary.bytes_sent,
            simulated_seconds: summary.simulated_seconds,
            steps: summary.steps,
            revision: summary.git_revision,
            machine: machine.clone(),
            cores,
            date: run.day()?,
            command: run.command(),
        })
    };
    finished.map(line).collect()
}

fn of_task(task: Task, runs: &[Run]) -> Result<Vec<Line>> {
    let (machine, cores) = machine();
    let of_row = |name: &str| {
        let of_row = runs.iter().filter(|run| run.row.name == name);
        of_row.filter_map(|run| Some((run, run.finished()?))).collect::<Vec<_>>()
    };
    let accuracies = |of_row: &[(&Run, Summary)]| {
        of_row.iter().map(|(run, summary)| (run.seed, summary.final_test_accuracy)).collect::<Vec<_>>()
    };
    let mean = |of_row: &[(&Run, Summary)], of: fn(&Summary) -> f64| {
        Mean::of(&of_row.iter().map(|(_, summary)| of(summary)).collect::<Vec<_>>()).mean
    };
    let bytes = |summary: &Summary| summary.bytes_sent as f64;
    let dense = of_row("dense");
    let line = |row: &super::Row| {
        let of_row = of_row(row.name);
        let Some((run, _)) = of_row.last() else { return Ok(None) };
        let difference = Mean::of_differences(&accuracies(&of_row), &accuracies(&dense));
        Ok(Some(Line {
            task: task.name(),
            row: row.name,
            seeds: difference.count,
            lr: run.rate,
            test_accuracy: mean(&of_row, |summary| summary.final_test_accuracy),
            to_dense: difference.mean,
            standard_error: difference.error,
            bytes_sent: mean(&of_row, bytes),
            fewer_bytes: mean(&dense, bytes) / mean(&of_row, bytes),
            simulated_seconds: mean(&of_row, |summary| summary.simulated_seconds.unwrap_or(f64::NAN)),
            machine: machine.clone(),
            cores,
            date: run.day()?,
            command: format!("strategies {} --data datasets --tune && strategies {0} --data datasets", task.name()),
        }))
    };
    task.rows().iter().filter_map(|row| line(row).transpose()).collect()
}

fn print(task: Task, lines: &[Line]) {
    if lines.is_empty() {
        return;
    }
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([task.name(), "rate", "test accuracy", "to dense, points", "fewer bytes", "simulated time"]);
    for line in lines {
        table.add_row([
            line.row.to_owned(),
            line.lr.to_string(),
            format!("{:.4}", line.test_accuracy),
            format!("{:+.1} ± {:.1} ({} seeds)", 100.0 * line.to_dense, 100.0 * line.standard_error, line.seeds),
            format!("{:.1}x", line.fewer_bytes),
            format!("{:.1} s", line.simulated_seconds),
        ]);
    }
    println!("{table}\nrates were tried with seed {TUNING_SEED}");
}
