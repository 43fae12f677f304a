//! Changing links: static choices and `auto` on link traces (`benches/traces.py`), with the bound of an oracle that knows the trace.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use briquette::sim::Network;
use serde::Serialize;

use super::results::{Codecs, Outcome};
use super::{DENSE, Job, Model, Row, Table};
use crate::paired::Mean;
use crate::ranks::write_csv;
use crate::trainer::{self, machine};

/// Static rows, replayed, and `auto`, run on each trace.
pub const TABLE: Table = Table {
    name: "changing-links",
    trainer: None,
    models: &Model::ALL,
    rows,
    networks: |_| TRACES.to_vec(),
    compute: "50ms",
    rate: None,
};

const TRACES: [&str; 6] = [
    "trace:benches/data/traces/square.csv",
    "trace:benches/data/traces/office.csv",
    "trace:benches/data/traces/bursts.csv",
    "trace:benches/data/traces/wifi.csv",
    "trace:benches/data/traces/slow-link.csv",
    "trace:benches/data/traces/decline.csv",
];

/// Ratios at equal value codes.
const RATIOS: [u32; 5] = [5, 10, 20, 50, 100];

/// Accuracy that the oracle may lose to dense.
const LOSS: f64 = 0.005;

fn rows(model: Model) -> Vec<Row> {
    let ring = |wire: &str| Row::new(format!("ring {wire}"), format!("--reducer ring:{wire} --feedback none"));
    let local = |period: u32, reducer: &str| {
        let flags = match reducer {
            "dense" => format!("--strategy local-sgd:{period} --reducer dense"),
            _ => format!("--strategy local-sgd:{period} --reducer gather:{reducer} --feedback error"),
        };
        Row::new(format!("Local SGD, H = {period}, {reducer}"), flags)
    };
    let mut rows = vec![Row::dense(), ring("bf16"), ring("int8")];
    rows.extend(RATIOS.map(|ratio| Row::corrected(&format!("topk:{ratio}x:q8"), model)));
    rows.push(Row::new("PowerSGD 2", "--reducer power-sgd:2 --feedback error"));
    rows.extend([4, 8, 16].map(|period| local(period, "dense")));
    rows.push(local(4, "topk:10x:q8"));
    rows.extend(Row::local(model));
    rows.push(Row::auto());
    rows.push(Row::auto_local(model));
    rows
}

/// The bound of an oracle for one model on one trace.
#[derive(Debug, Serialize)]
struct Bound {
    model: &'static str,
    network: &'static str,
    /// Fewest seeds of a static row.
    seeds: usize,
    /// Seconds of the fastest static row that loses at most half a point, and its name.
    best_static: String,
    static_seconds: f64,
    /// Seconds of the oracle that takes the fastest of these rows at every speed of the trace.
    rows_seconds: f64,
    /// Seconds of the oracle that mixes all static rows.
    mixed_seconds: f64,
    /// Accuracy that the mixture loses, if the losses of steps add up.
    mixed_loss: f64,
    /// Share of the steps of each row in the mixture.
    mixture: String,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

/// A static row as the oracle sees it.
struct Choice {
    name: String,
    /// Accuracy that all steps at this row lose to dense.
    loss: f64,
    /// Mean seconds of a step on the network between two changes of the trace.
    seconds: Vec<f64>,
}

/// Writes the oracle's bounds. At every step, the oracle knows the speed of the link, and how long each static row takes at it (the mean
/// step of a replay at this speed). The mixture takes the row with the smallest `seconds + price · loss`, at the lowest price at which the
/// mean loss of its steps is at most half a point.
///
/// # Errors
/// If a run cannot be read or replayed.
pub fn write_bounds(jobs: &[Job], codecs: &Codecs, models: &[Model], csv: &Path) -> Result<()> {
    let mut bounds = Vec::new();
    for &model in models {
        for trace in TRACES {
            bounds.extend(bound(jobs, codecs, model, trace).with_context(|| format!("{} on {trace}", model.name()))?);
        }
    }
    for bound in &bounds {
        println!(
            "{:10} {:38} best static {:34} {:8.2} s, oracle over rows {:8.2} s, mixture {:8.2} s: {}",
            bound.model,
            bound.network,
            bound.best_static,
            bound.static_seconds,
            bound.rows_seconds,
            bound.mixed_seconds,
            bound.mixture
        );
    }
    write_csv(Some(&csv.join("changing-links-bounds.csv")), &bounds)
}

fn bound(jobs: &[Job], codecs: &Codecs, model: Model, trace: &'static str) -> Result<Option<Bound>> {
    let network: Network = trace.parse()?;
    let (changes, length) = (network.changes(), network.repeats_after().context("a trace")?);
    let mut rows: BTreeMap<&str, Vec<(&Job, Outcome)>> = BTreeMap::new();
    for job in jobs.iter().filter(|job| job.model == model && !job.row.reads_seconds) {
        if let Some(outcome) = Outcome::read(job)? {
            rows.entry(&job.row.name).or_default().push((job, outcome));
        }
    }
    let accuracies = |runs: &[(&Job, Outcome)]| {
        runs.iter().map(|(job, outcome)| (job.seed, outcome.summary.final_test_accuracy)).collect::<Vec<_>>()
    };
    let Some(dense) = rows.get(DENSE).map(|runs| accuracies(runs)) else { return Ok(None) };
    let steps = rows[DENSE][0].1.steps.len();
    let (mut choices, mut best) = (Vec::new(), (f64::INFINITY, ""));
    for (name, runs) in &rows {
        let loss = -Mean::of_differences(&accuracies(runs), &dense).mean;
        let (job, outcome) = &runs[0];
        let codec = codecs.mean(job, outcome)?.unwrap_or(0.0);
        let end = |network: &str| -> Result<f64> {
            outcome.seconds(&TABLE, job, network, codec)?.last().copied().context("a run without steps")
        };
        // A trace returns to few speeds.
        let mut known: BTreeMap<String, f64> = BTreeMap::new();
        let mut seconds = Vec::new();
        for second in &changes {
            let network = network.at(*second).to_string();
            if !known.contains_key(&network) {
                known.insert(network.clone(), end(&network)? / steps as f64);
            }
            seconds.push(known[&network]);
        }
        let whole = end(trace)?;
        if loss <= LOSS && whole < best.0 {
            best = (whole, name);
        }
        choices.push(Choice { name: (*name).to_owned(), loss, seconds });
    }
    let run = |price: f64, among: &[&Choice]| follow(price, among, (&changes, length), steps);
    let allowed: Vec<&Choice> = choices.iter().filter(|choice| choice.loss <= LOSS).collect();
    let all: Vec<&Choice> = choices.iter().collect();
    // The loss of the mixture falls as the price rises.
    let (mut low, mut high) = (0.0, 1e6);
    for _ in 0..60 {
        let price = f64::midpoint(low, high);
        if run(price, &all).loss <= LOSS { high = price } else { low = price }
    }
    let mixed = run(high, &all);
    let share = |(index, count): (usize, &usize)| {
        (*count > 0).then(|| format!("{} {:.0} %", all[index].name, 100.0 * *count as f64 / steps as f64))
    };
    let mixture = mixed.counts.iter().enumerate().filter_map(share).collect::<Vec<_>>().join("; ");
    let (machine, cores) = machine();
    Ok(Some(Bound {
        model: model.name(),
        network: trace,
        seeds: rows.values().map(Vec::len).min().unwrap_or_default(),
        best_static: best.1.to_owned(),
        static_seconds: best.0,
        rows_seconds: run(0.0, &allowed).seconds,
        mixed_seconds: mixed.seconds,
        mixed_loss: mixed.loss,
        mixture,
        machine,
        cores,
        date: trainer::day(std::time::SystemTime::now())?,
        command: "tables changing-links --report".into(),
    }))
}

/// A run of the oracle.
struct Followed {
    seconds: f64,
    /// Mean loss of its steps.
    loss: f64,
    /// Steps of each choice.
    counts: Vec<usize>,
}

/// Follows a trace, with the choice that is best at each step.
fn follow(price: f64, among: &[&Choice], (changes, length): (&[f64], f64), steps: usize) -> Followed {
    let (mut seconds, mut loss, mut counts) = (0.0, 0.0, vec![0; among.len()]);
    for _ in 0..steps {
        let at = changes.partition_point(|change| *change <= seconds % length) - 1;
        let cost = |choice: &Choice| choice.seconds[at] + price * choice.loss;
        let Some(best) = (0..among.len()).min_by(|a, b| cost(among[*a]).total_cmp(&cost(among[*b]))) else { break };
        seconds += among[best].seconds[at];
        loss += among[best].loss / steps as f64;
        counts[best] += 1;
    }
    Followed { seconds, loss, counts }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two speeds of 1 s each: a step of the free row takes 1/8 and 1 s, one of the lossy row 1/8 and 1/4 s.
    #[test]
    fn the_oracle_pays_accuracy_where_it_saves_most() {
        let choice = |loss, seconds: [f64; 2]| Choice { name: String::new(), loss, seconds: seconds.into() };
        let (free, lossy) = (choice(0.0, [0.125, 1.0]), choice(0.1, [0.125, 0.25]));
        let run = |price| follow(price, &[&free, &lossy], (&[0.0, 1.0], 2.0), 14);
        assert_eq!((run(0.0).counts, run(100.0).counts), (vec![10, 4], vec![14, 0]));
    }
}
