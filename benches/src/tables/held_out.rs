//! Held-out settings: `auto` with models, optimizers, batches and worlds on which its limits were not chosen.
//!
//! The limits of [`auto`](briquette::core::control::auto) were read off the three models of the other tables. Each case here differs from them in the
//! model, the data, the optimizer, the batch or the number of ranks. In every row the compute time is fixed, and encoding takes no time.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;
use briquette_examples::record::Summary;
use serde::Serialize;

use super::{DENSE, Model, Row};
use crate::paired::Mean;
use crate::ranks::write_csv;
use crate::trainer::{self, day, machine};

/// A way to train that is in no other table.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    /// Directory of its data.
    data: &'static str,
    trainer: &'static str,
    flags: &'static str,
    /// Set if its optimizer is SGD with momentum.
    has_momentum: bool,
}

impl Case {
    const fn texts(name: &'static str, flags: &'static str, has_momentum: bool) -> Case {
        Case { name, data: "ag_news", trainer: "ag-news", flags, has_momentum }
    }

    const fn images(name: &'static str, flags: &'static str, has_momentum: bool) -> Case {
        Case { name, data: "cifar10", trainer: "cifar", flags, has_momentum }
    }
}

const CASES: [Case; 8] = [
    Case::texts(
        "lstm, Adam, 4 ranks x 32",
        "--dataset ag-news --model lstm --optimizer adam --lr 0.002 --ranks 4 --batch 32 --epochs 2 --train-limit 16000",
        false,
    ),
    Case::texts(
        "lstm, Adam, 8 ranks x 16",
        "--dataset ag-news --model lstm --optimizer adam --lr 0.002 --ranks 8 --batch 16 --epochs 2 --train-limit 16000",
        false,
    ),
    Case::texts(
        "lstm, SGD with momentum, 4 ranks x 8",
        "--dataset ag-news --model lstm --optimizer sgd --lr 0.2 --ranks 4 --batch 8 --epochs 2 --train-limit 8000",
        true,
    ),
    Case::texts(
        "bilstm, Adam, 2 ranks x 8",
        "--dataset ag-news --model bilstm --optimizer adam --lr 0.001 --ranks 2 --batch 8 --epochs 1 --train-limit 6400",
        false,
    ),
    Case::images(
        "resnet8, SGD without momentum, 4 ranks x 8",
        "--dataset cifar10 --model resnet8 --optimizer sgd --momentum 0 --lr 0.5 --weight-decay 5e-4 --schedule one-cycle \
         --augment flip --ranks 4 --batch 8 --epochs 1 --train-limit 12800",
        false,
    ),
    Case::images(
        "resnet8, SGD with momentum, 16 ranks x 8",
        "--dataset cifar10 --model resnet8 --optimizer sgd --lr 0.2 --weight-decay 5e-4 --schedule one-cycle \
         --augment flip --ranks 16 --batch 8 --epochs 2 --train-limit 12800",
        true,
    ),
    Case::images(
        "resnet20, SGD with momentum, 4 ranks x 8",
        "--dataset cifar10 --model resnet20 --optimizer sgd --lr 0.1 --weight-decay 5e-4 --schedule one-cycle \
         --augment flip --ranks 4 --batch 8 --epochs 1 --train-limit 9600",
        true,
    ),
    Case::images(
        "resnet8, Adam, 4 ranks x 16",
        "--dataset cifar10 --model resnet8 --optimizer adam --lr 0.005 --schedule one-cycle \
         --augment flip --ranks 4 --batch 16 --epochs 2 --train-limit 9600",
        false,
    ),
];

const NETWORK: &str = "100mbit,1ms";

/// Name of the row that is judged.
const AUTO: &str = "auto";

/// Accuracy that a row may lose to dense.
const LOSS: f64 = 0.005;

fn rows(case: &Case) -> Vec<Row> {
    let corrected = |ratio: u32| {
        // The feedback of a model of the other tables with the same kind of optimizer.
        let like = if case.has_momentum { Model::ResNet8 } else { Model::BiLstm };
        Row::corrected(&format!("topk:{ratio}x:q8"), like)
    };
    let ring = Row::new("ring int8", "--reducer ring:int8 --feedback none");
    [Row::dense(), ring].into_iter().chain([10, 20, 50].map(corrected)).chain([Row::auto()]).collect()
}

struct Run {
    case: Case,
    row: Row,
    seed: u64,
    flags: String,
    directory: PathBuf,
}

fn runs(out: &Path, seeds: &[u64]) -> Vec<Run> {
    let plain = |text: &str| text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect::<String>();
    let mut runs = Vec::new();
    for (seed, case) in seeds.iter().flat_map(|seed| CASES.map(|case| (*seed, case))) {
        for row in rows(&case) {
            let flags = format!(
                "{} --clock fixed:50ms --network {NETWORK} --eval-every 1 --checkpoint-every 0 --plain {} --seed {seed}",
                case.flags, row.flags
            );
            let directory =
                out.join("held-out").join(plain(case.name)).join(plain(&row.name)).join(format!("seed-{seed}"));
            runs.push(Run { case, row, seed, flags, directory });
        }
    }
    runs
}

#[derive(Debug, Serialize)]
struct Line {
    case: &'static str,
    row: String,
    seeds: usize,
    accuracy: f64,
    /// Mean difference to dense, and its standard error with two seeds or more.
    to_dense: f64,
    error: f64,
    simulated_seconds: f64,
    wire_ratio: f64,
    /// Seconds over those of the fastest static row that loses at most half a point.
    over_best_static: f64,
    /// Set if the row loses at most half a point.
    holds: bool,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// Makes the missing runs unless `is_report`, and writes `held-out.csv`.
///
/// # Errors
/// If a run fails, or a file cannot be written.
pub fn run(out: &Path, seeds: &[u64], data: &Path, at_a_time: usize, is_report: bool, csv: &Path) -> Result<()> {
    let runs = runs(out, seeds);
    if !is_report {
        trainer::each(runs.iter().collect(), at_a_time, |run| {
            if trainer::finished(&run.directory, &run.flags).is_some() {
                return Ok(());
            }
            eprintln!("{}, seed {}: {}", run.case.name, run.seed, run.row.name);
            let data = data.join(run.case.data);
            trainer::run(run.case.trainer, &run.flags, &run.flags, Some(&data), &run.directory)
        })?;
    }
    let mut lines = Vec::new();
    for case in CASES {
        let mut rows: BTreeMap<&str, Vec<(&Run, Summary)>> = BTreeMap::new();
        for run in runs.iter().filter(|run| run.case.name == case.name) {
            if let Some(summary) = trainer::finished(&run.directory, &run.flags) {
                rows.entry(&run.row.name).or_default().push((run, summary));
            }
        }
        lines.extend(judge(&rows)?);
    }
    for line in &lines {
        let Line { case, row, accuracy, to_dense, simulated_seconds, over_best_static, .. } = line;
        println!(
            "{case:44} {row:36} {accuracy:.4} {:+.2} {simulated_seconds:8.2} s {over_best_static:.3}",
            100.0 * to_dense
        );
    }
    let auto: Vec<&Line> = lines.iter().filter(|line| line.row == AUTO).collect();
    let count = |holds: fn(&Line) -> bool| auto.iter().filter(|line| holds(line)).count();
    let (accurate, fast) = (count(|line| line.holds), count(|line| line.over_best_static <= 1.05));
    println!("auto: accuracy holds in {accurate} of {} cases, time in {fast}", auto.len());
    write_csv(Some(&csv.join("held-out.csv")), &lines)
}

/// Returns the lines of a case.
fn judge(rows: &BTreeMap<&str, Vec<(&Run, Summary)>>) -> Result<Vec<Line>> {
    let accuracies = |runs: &[(&Run, Summary)]| {
        runs.iter().map(|(run, summary)| (run.seed, summary.final_test_accuracy)).collect::<Vec<_>>()
    };
    let Some(dense) = rows.get(DENSE).map(|runs| accuracies(runs)) else { return Ok(Vec::new()) };
    let (machine, cores) = machine();
    let mut lines = Vec::new();
    for (name, runs) in rows {
        let mean = |of: fn(&Summary) -> f64| Mean::of(&runs.iter().map(|(_, s)| of(s)).collect::<Vec<_>>()).mean;
        let difference = Mean::of_differences(&accuracies(runs), &dense);
        let (run, _) = &runs[0];
        lines.push(Line {
            case: run.case.name,
            row: (*name).to_owned(),
            seeds: runs.len(),
            accuracy: mean(|summary| summary.final_test_accuracy),
            to_dense: difference.mean,
            error: difference.error,
            simulated_seconds: mean(|summary| summary.simulated_seconds.unwrap_or(f64::NAN)),
            wire_ratio: mean(|summary| summary.bytes_dense as f64 / summary.bytes_sent as f64),
            over_best_static: f64::NAN,
            holds: difference.mean >= -LOSS,
            machine: machine.clone(),
            cores,
            date: day(std::time::SystemTime::now())?,
            command: format!("{} {}", run.case.trainer, run.flags),
        });
    }
    let fits = |line: &&Line| line.row != AUTO && line.holds;
    let best = lines.iter().filter(fits).map(|line| line.simulated_seconds).fold(f64::INFINITY, f64::min);
    lines.iter_mut().for_each(|line| line.over_best_static = line.simulated_seconds / best);
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flags that a trainer refuses would only be seen hours into the runs.
    #[test]
    fn every_run_has_valid_flags_and_a_directory_of_its_own() {
        let runs = runs(Path::new("out"), &[1, 2]);
        assert_eq!(runs.len(), 2 * 8 * 6);
        for run in &runs {
            let words = format!("{} {} {}", run.case.trainer, run.case.flags, run.row.flags);
            super::super::codecs::exchange_of(&words).unwrap_or_else(|error| panic!("{words}: {error:#}"));
        }
        let mut directories: Vec<_> = runs.iter().map(|run| &run.directory).collect();
        directories.sort();
        directories.dedup();
        assert_eq!(directories.len(), runs.len());
    }
}
