//! CSVs of a table: every run, and each row's means paired with dense over seeds.

use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use super::results::{Codecs, Outcome, RANKS};
use super::{DENSE, Job, Model, Row, Table};
use crate::paired::Mean;
use crate::ranks::write_csv;
use crate::trainer::machine;

/// One run on one network.
#[derive(Debug, Clone, Serialize)]
pub struct Run {
    model: &'static str,
    row: String,
    seed: u64,
    lr: f64,
    network: &'static str,
    test_accuracy: f64,
    bytes_sent: u64,
    /// Bytes of the dense ring divided by the bytes sent.
    wire_ratio: f64,
    /// Mean bits per value and step, by the ratios in force; 0 in local steps.
    nominal_bits: f64,
    /// Bits sent per value to each other rank.
    sent_bits: f64,
    shares: String,
    /// Gradient norm at tenths of the run, if a controller states it.
    norms: String,
    simulated_seconds: f64,
    /// Mean codec seconds of a step, part of the above; empty if not measured.
    codec_seconds: Option<f64>,
    /// Target accuracy, and seconds and bytes to it; empty if it was not reached.
    target: f64,
    seconds_to_target: Option<f64>,
    bytes_to_target: Option<u64>,
    steps: u64,
    revision: String,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// Means of a row over seeds.
#[derive(Debug, Serialize)]
struct Line {
    model: &'static str,
    row: String,
    network: &'static str,
    seeds: usize,
    test_accuracy: f64,
    to_dense: f64,
    standard_error: f64,
    wire_ratio: f64,
    nominal_bits: f64,
    simulated_seconds: f64,
    /// Ratio to the seconds of the fastest static row that loses at most [`LOSS`].
    times_best_static: f64,
    /// Seconds of the reference divided by this row's.
    speed_up: f64,
    seconds_to_target: Option<f64>,
    shares: String,
    machine: String,
    cores: usize,
    /// Date of the last run.
    date: String,
    command: String,
}

/// Target accuracy of a table, relative to dense's final accuracy.
const TARGET: f64 = 0.95;

/// Maximum accuracy that the best static row may lose to dense.
const LOSS: f64 = 0.005;

/// Returns every finished run of a table.
///
/// # Errors
/// If a run's files cannot be read.
pub fn runs(table: &Table, jobs: &[Job], codecs: &Codecs) -> Result<Vec<Run>> {
    let dense = |job: &Job| {
        let same = |other: &&Job| (other.model, other.seed, other.row.name.as_str()) == (job.model, job.seed, DENSE);
        jobs.iter().find(same).and_then(Job::finished).map(|summary| summary.final_test_accuracy)
    };
    let mut runs = Vec::new();
    for job in jobs {
        let (Some(outcome), Some(dense)) = (Outcome::read(job)?, dense(job)) else { continue };
        let networks = job.network.map_or_else(|| (table.networks)(job.model), |network| vec![network]);
        for network in networks {
            let run = run(table, job, (&outcome, codecs), (network, TARGET * dense));
            runs.push(run.with_context(|| job.directory.display().to_string())?);
        }
    }
    Ok(runs)
}

fn run(
    table: &Table,
    job: &Job,
    (outcome, codecs): (&Outcome, &Codecs),
    (network, target): (&'static str, f64),
) -> Result<Run> {
    let codec = codecs.mean(job, outcome)?;
    let ends = outcome.seconds(table, job, network, codec.unwrap_or(0.0))?;
    let (summary, steps_to) = (&outcome.summary, outcome.steps_to(target));
    let (machine, cores) = machine();
    let receivers = (RANKS * (RANKS - 1)) as f64 * summary.steps as f64 * job.model.values() as f64;
    Ok(Run {
        model: job.model.name(),
        row: job.row.name.clone(),
        seed: job.seed,
        lr: job.rate,
        network,
        test_accuracy: summary.final_test_accuracy,
        bytes_sent: summary.bytes_sent,
        wire_ratio: summary.bytes_dense as f64 / summary.bytes_sent as f64,
        nominal_bits: outcome.bits(),
        sent_bits: 8.0 * summary.bytes_sent as f64 / receivers,
        shares: outcome.shares(),
        norms: outcome.norms(),
        simulated_seconds: ends.last().copied().unwrap_or(f64::NAN),
        codec_seconds: codec,
        target,
        seconds_to_target: steps_to.and_then(|steps| ends.get(steps.checked_sub(1)?).copied()),
        bytes_to_target: steps_to.map(|steps| outcome.bytes_to(steps)),
        steps: summary.steps,
        revision: summary.git_revision.clone(),
        machine,
        cores,
        date: date(job)?,
        command: job.command(),
    })
}

/// Returns the date of a run.
fn date(job: &Job) -> Result<String> {
    let written = std::fs::metadata(job.directory.join("summary.json"))?.modified()?;
    crate::trainer::day(written)
}

/// Writes all runs, and the means; `reference` is the reference row of speed-ups.
///
/// # Errors
/// If a file cannot be written.
pub fn write(table: &Table, runs: &[Run], reference: &str, directory: &Path) -> Result<()> {
    write_csv(Some(&directory.join(format!("{}-runs.csv", table.name))), runs)?;
    let mut lines = Vec::new();
    for &model in table.models {
        for network in (table.networks)(model) {
            let here: Vec<_> = runs.iter().filter(|run| (run.model, run.network) == (model.name(), network)).collect();
            lines.extend(means(table, model, &here, reference));
        }
    }
    for line in &lines {
        println!(
            "{:10} {:14} {:38} {:1} seeds {:.4} {:+6.2} ± {:.2} {:6.1}x {:5.2} bits {:8.2} s {:6.2} of the best static {}",
            line.model,
            line.network,
            line.row,
            line.seeds,
            line.test_accuracy,
            100.0 * line.to_dense,
            100.0 * line.standard_error,
            line.wire_ratio,
            line.nominal_bits,
            line.simulated_seconds,
            line.times_best_static,
            line.shares
        );
    }
    write_csv(Some(&directory.join(format!("{}.csv", table.name))), &lines)
}

/// Returns the shares over all seeds together: `nothing 50 %, 1x 25 %, 20x 25 %`.
fn mean_shares(runs: &[&str]) -> String {
    let mut sums: Vec<(&str, f64)> = Vec::new();
    for part in runs.iter().flat_map(|shares| shares.split(", ")) {
        let Some((ratio, share)) = part.trim_end_matches(" %").split_once(' ') else { continue };
        let share = share.parse().unwrap_or(f64::NAN) / runs.len() as f64;
        match sums.iter_mut().find(|(known, _)| *known == ratio) {
            Some((_, sum)) => *sum += share,
            None => sums.push((ratio, share)),
        }
    }
    let number = |ratio: &str| ratio.trim_end_matches('x').parse().unwrap_or(0.0);
    sums.sort_by(|(a, _), (b, _)| f64::total_cmp(&number(a), &number(b)));
    let texts = sums.into_iter().map(|(ratio, share)| format!("{ratio} {share:.0} %"));
    texts.collect::<Vec<_>>().join(", ")
}

/// Returns the means of one model on one network.
fn means(table: &Table, model: Model, runs: &[&Run], reference: &str) -> Vec<Line> {
    let of = |row: &str| runs.iter().filter(|run| run.row == row).copied().collect::<Vec<_>>();
    let mean = |runs: &[&Run], of: fn(&Run) -> f64| Mean::of(&runs.iter().map(|run| of(run)).collect::<Vec<_>>()).mean;
    let accuracies = |runs: &[&Run]| runs.iter().map(|run| (run.seed, run.test_accuracy)).collect::<Vec<_>>();
    let rows = (table.rows)(model);
    let seconds = |row: &str| mean(&of(row), |run| run.simulated_seconds);
    let (dense, reference) = (accuracies(&of(DENSE)), seconds(reference));
    let fixed = rows.iter().filter(|row| !row.reads_seconds && !row.flags.contains("--controller"));
    let is_choice = |row: &&Row| Mean::of_differences(&accuracies(&of(&row.name)), &dense).mean >= -LOSS;
    let fastest = fixed.filter(is_choice).map(|row| seconds(&row.name)).fold(f64::INFINITY, f64::min);
    let line = |name: &str| -> Option<Line> {
        let runs = of(name);
        let first = runs.first()?;
        let difference = Mean::of_differences(&accuracies(&runs), &dense);
        let reached: Option<Vec<f64>> = runs.iter().map(|run| run.seconds_to_target).collect();
        Some(Line {
            model: model.name(),
            row: name.to_owned(),
            network: first.network,
            seeds: difference.count,
            test_accuracy: mean(&runs, |run| run.test_accuracy),
            to_dense: difference.mean,
            standard_error: difference.error,
            wire_ratio: mean(&runs, |run| run.wire_ratio),
            nominal_bits: mean(&runs, |run| run.nominal_bits),
            simulated_seconds: seconds(name),
            times_best_static: seconds(name) / fastest,
            speed_up: reference / seconds(name),
            seconds_to_target: reached.map(|seconds| Mean::of(&seconds).mean),
            shares: mean_shares(&runs.iter().map(|run| run.shares.as_str()).collect::<Vec<_>>()),
            machine: first.machine.clone(),
            cores: first.cores,
            date: runs.iter().map(|run| run.date.clone()).max()?,
            command: format!("tables {} --report", table.name),
        })
    };
    rows.iter().filter_map(|row| line(&row.name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_shares_begin_with_the_steps_that_send_nothing() {
        let seeds = ["nothing 50 %, 4x 50 %", "4x 50 %, 20x 50 %"];
        assert_eq!(mean_shares(&seeds), "nothing 25 %, 4x 50 %, 20x 25 %");
    }
}
