//! Signals in the first third of training that predict the accuracy lost to compression.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::results::Outcome;
use super::{DENSE, Job, Model, Row, Table};
use crate::observed::Signal;
use crate::ranks::write_csv;
use crate::trainer::machine;

/// Static settings of every kind, at the learning rate to which dense was tuned.
pub const TABLE: Table = Table {
    name: "signals",
    trainer: Some("observe"),
    models: &Model::ALL,
    rows,
    networks: |_| vec!["100mbit,1ms"],
    compute: "50ms",
    rate: None,
};

fn rows(model: Model) -> Vec<Row> {
    let power = |rank: u32| {
        let flags = format!("--reducer power-sgd:{rank} --feedback error");
        Row::new(format!("power-sgd:{rank}, error feedback"), flags)
    };
    let mut rows = vec![Row::dense()];
    rows.extend(["topk:10x", "topk:100x"].map(Row::error_feedback));
    rows.extend(["topk:1000x", "sign", "randk:10x", "topk:5x", "randk:100x", "topk:50x:q8"].map(Row::error_feedback));
    rows.extend(["qsgd:2", "qsgd:4"].map(Row::forgetting));
    rows.push(power(1));
    if model.is_adam() {
        rows.extend(["topk:20x:q8", "topk:200x:q8"].map(Row::error_feedback));
        rows.push(power(4));
    } else {
        let corrected = ["topk:10x:q8", "topk:50x:q8", "topk:200x:q8", "topk:1000x:q8"];
        rows.extend(corrected.map(|compressor| Row::corrected(compressor, model)));
    }
    rows
}

/// Candidate signals, each computed over the first third of training.
pub const CANDIDATES: [&str; 7] =
    ["gain", "delay", "cosine_10", "cosine_30", "loss_slope", "loss_to_dense", "relative_error"];

/// Groups of rows that are compared: all, those with any feedback, and those with one kind of feedback.
const GROUPS: [&str; 4] = ["all", "with a memory", "error feedback", "momentum correction"];

/// One run.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    model: &'static str,
    row: String,
    seed: u64,
    /// Dense's accuracy minus this run's.
    accuracy_lost: f64,
    test_accuracy: f64,
    /// Means over the steps.
    gain: f64,
    delay: f64,
    /// Means over the windows.
    cosine_10: f64,
    cosine_30: f64,
    /// Slope per step of the least-squares line through the losses.
    loss_slope: f64,
    /// Mean loss minus dense's.
    loss_to_dense: f64,
    /// `√(1 − gain)`, averaged over the steps.
    relative_error: f64,
    wire_ratio: f64,
    revision: String,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

impl Run {
    fn candidate(&self, name: &str) -> f64 {
        match name {
            "gain" => self.gain,
            "delay" => self.delay,
            "cosine_10" => self.cosine_10,
            "cosine_30" => self.cosine_30,
            "loss_slope" => self.loss_slope,
            "loss_to_dense" => self.loss_to_dense,
            _ => self.relative_error,
        }
    }
}

/// Returns every finished run for whose seed dense finished too.
///
/// # Errors
/// If files cannot be read.
pub fn runs(jobs: &[Job]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for job in jobs {
        let same = |other: &&Job| (other.model, other.seed, other.row.name.as_str()) == (job.model, job.seed, DENSE);
        let dense = jobs.iter().find(same).map(Outcome::read).transpose()?.flatten();
        if let (Some(outcome), Some(dense)) = (Outcome::read(job)?, dense) {
            runs.push(run(job, &outcome, &dense).with_context(|| job.directory.display().to_string())?);
        }
    }
    Ok(runs)
}

fn run(job: &Job, outcome: &Outcome, dense: &Outcome) -> Result<Run> {
    let third = outcome.steps.len() / 3;
    let path = job.directory.join("signals.csv");
    let signals: Vec<Signal> = csv::Reader::from_path(&path)?.into_deserialize().collect::<Result<_, _>>()?;
    let signals = &signals[..third.min(signals.len())];
    let losses =
        |outcome: &Outcome| -> Vec<f64> { outcome.steps[..third].iter().filter_map(|step| step.loss).collect() };
    let (machine, cores) = machine();
    let (accuracy, summary) = (outcome.summary.final_test_accuracy, &outcome.summary);
    Ok(Run {
        model: job.model.name(),
        row: job.row.name.clone(),
        seed: job.seed,
        accuracy_lost: dense.summary.final_test_accuracy - accuracy,
        test_accuracy: accuracy,
        gain: mean(signals.iter().map(|signal| signal.gain)),
        delay: mean(signals.iter().map(|signal| signal.delay)),
        cosine_10: mean(signals.iter().filter_map(|signal| signal.cosine_10)),
        cosine_30: mean(signals.iter().filter_map(|signal| signal.cosine_30)),
        loss_slope: slope(&losses(outcome)),
        loss_to_dense: mean(losses(outcome)) - mean(losses(dense)),
        relative_error: mean(signals.iter().map(|signal| (1.0 - signal.gain).max(0.0).sqrt())),
        wire_ratio: summary.bytes_dense as f64 / summary.bytes_sent as f64,
        revision: summary.git_revision.clone(),
        machine,
        cores,
        date: crate::trainer::day(std::fs::metadata(&path)?.modified()?)?,
        command: job.command(),
    })
}

fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    crate::paired::Mean::of(&values.into_iter().collect::<Vec<_>>()).mean
}

/// Returns the slope of the least-squares line through values at 0, 1, 2, …
fn slope(values: &[f64]) -> f64 {
    let middle = (values.len() as f64 - 1.0) / 2.0;
    let level = mean(values.iter().copied());
    let at = || (0..values.len()).map(|i| i as f64 - middle);
    at().zip(values).map(|(x, y)| x * (y - level)).sum::<f64>() / at().map(|x| x * x).sum::<f64>()
}

/// Returns ranks from 0, with means for equal values.
fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count();
        let equal = values.iter().filter(|other| *other == value).count();
        below as f64 + (equal as f64 - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

/// Returns Pearson's correlation.
fn correlation(pairs: &[(f64, f64)]) -> f64 {
    let (x, y) = (mean(pairs.iter().map(|p| p.0)), mean(pairs.iter().map(|p| p.1)));
    let sum = |of: &dyn Fn(&(f64, f64)) -> f64| pairs.iter().map(of).sum::<f64>();
    sum(&|p| (p.0 - x) * (p.1 - y)) / (sum(&|p| (p.0 - x).powi(2)) * sum(&|p| (p.1 - y).powi(2))).sqrt()
}

/// Replaces both coordinates by their ranks, scaled to 0 to 1.
fn ranked(pairs: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (x, y): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let most = (pairs.len() as f64 - 1.0).max(1.0);
    ranks(&x).into_iter().zip(ranks(&y)).map(|(x, y)| (x / most, y / most)).collect()
}

/// Spearman's correlation of one candidate with the accuracy lost.
#[derive(Debug, Serialize)]
struct Correlation {
    signal: &'static str,
    /// Model; `pooled` uses ranks within each model and seed.
    model: String,
    /// One of the groups.
    rows: &'static str,
    runs: usize,
    spearman: f64,
    machine: String,
    cores: usize,
    /// Date of the last run.
    date: String,
    command: &'static str,
}

/// Writes all runs and all correlations.
///
/// # Errors
/// If a file cannot be written.
pub fn write(runs: &[Run], directory: &Path) -> Result<()> {
    write_csv(Some(&directory.join("signals-runs.csv")), runs)?;
    let mut all = Vec::new();
    for rows in GROUPS {
        let forgets = |run: &Run| run.row == DENSE || run.row.ends_with("no memory");
        let counts = |run: &&Run| match rows {
            "all" => true,
            "with a memory" => !forgets(run),
            memory => run.row.ends_with(memory),
        };
        let runs: Vec<&Run> = runs.iter().filter(counts).collect();
        for signal in CANDIDATES {
            all.extend(of_signal(signal, rows, &runs));
        }
    }
    for line in &all {
        println!("{:15} {:14} {:12} {:3} runs {:+.3}", line.signal, line.rows, line.model, line.runs, line.spearman);
    }
    write_csv(Some(&directory.join("signals.csv")), &all)
}

fn of_signal(signal: &'static str, rows: &'static str, runs: &[&Run]) -> Vec<Correlation> {
    let pairs = |model: &str, seed: Option<u64>| -> Vec<(f64, f64)> {
        let counts = |run: &&&Run| run.model == model && seed.is_none_or(|seed| run.seed == seed);
        runs.iter().filter(counts).map(|run| (run.candidate(signal), run.accuracy_lost)).collect()
    };
    let line = |model: &str, pairs: &[(f64, f64)]| Correlation {
        signal,
        model: model.to_owned(),
        rows,
        runs: pairs.len(),
        spearman: correlation(pairs),
        machine: runs.first().map(|run| run.machine.clone()).unwrap_or_default(),
        cores: runs.first().map_or(0, |run| run.cores),
        date: runs.iter().map(|run| run.date.clone()).max().unwrap_or_default(),
        command: "tables signals --report",
    };
    let mut seeds: Vec<u64> = runs.iter().map(|run| run.seed).collect();
    seeds.sort_unstable();
    seeds.dedup();
    let within =
        |model: Model| seeds.iter().flat_map(|seed| ranked(&pairs(model.name(), Some(*seed)))).collect::<Vec<_>>();
    let each = Model::ALL.map(|model| (model.name(), within(model)));
    let pooled: Vec<_> = each.iter().flat_map(|(_, pairs)| pairs.clone()).collect();
    let some = |(_, pairs): &&(&str, Vec<(f64, f64)>)| pairs.len() > 1;
    each.iter().filter(some).map(|(model, pairs)| line(model, pairs)).chain([line("pooled", &pooled)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_share_their_rank_and_monotone_is_one() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        let monotone = ranked(&[(1.0, 10.0), (2.0, 11.0), (3.0, 1000.0)]);
        assert!((correlation(&monotone) - 1.0).abs() < 1e-12);
        let turned = ranked(&[(1.0, 5.0), (2.0, 4.0), (3.0, -7.0)]);
        assert!((correlation(&turned) + 1.0).abs() < 1e-12);
    }

    #[test]
    fn slope_is_that_of_a_line() {
        assert!((slope(&[2.0, 1.5, 1.0, 0.5]) + 0.5).abs() < 1e-12);
    }

    #[test]
    fn every_model_has_at_least_twelve_settings_beside_dense() {
        for model in Model::ALL {
            assert!(rows(model).len() > 12, "{model:?}");
        }
    }
}
