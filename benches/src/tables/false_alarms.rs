//! Alarms of the loss guard on the losses of finished runs.
//!
//! Each run's losses are given to a guard around a constant ratio, and around one that is raised from 5x to 20x in the middle, ten times
//! each: without the first 0 to 9 steps, so that the points of the trend differ. The losses are then given again with a rise added
//! from the middle on, which shows how many harmful runs the guard finds. The runs must be healthy: of fixed ratios or `auto`, with
//! the accuracy of the dense run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};
use briquette::core::CompressionRatio;
use briquette::core::control::{Agreed, Controller};
use briquette::core::control::{
    loss_guard::{LossGuard, LossGuardConfig},
    schedule::Schedule,
};
use briquette::core::reduce::AgreedStep;
use serde::{Deserialize, Serialize};

use crate::ranks::write_csv;
use crate::trainer;

/// Number of ways to divide a run into points.
const OFFSETS: usize = 10;
/// Fewest steps of a run that is used.
const FEWEST: usize = 150;

/// A line of `metrics.jsonl`.
#[derive(Debug, Deserialize)]
struct Line {
    loss: Option<f64>,
}

/// Alarms in the runs of one model.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    case: &'static str,
    runs: usize,
    replays: usize,
    /// Number of replays with an alarm, after the middle in the cases with a rise.
    alarms: usize,
    /// Median number of steps from the start of the rise to the alarm; empty without an alarm or a rise.
    median_delay: Option<usize>,
    machine: String,
    cores: usize,
    date: String,
    command: &'static str,
}

/// The ratios and the harm of a replay.
struct Case {
    name: &'static str,
    ratios: [f64; 2],
    /// Growth of the loss per step after the middle.
    growth: f64,
}

const CASES: [Case; 4] = [
    Case { name: "20x", ratios: [20.0, 20.0], growth: 0.0 },
    Case { name: "5x, then 20x", ratios: [5.0, 20.0], growth: 0.0 },
    Case { name: "5x, then 20x; the loss grows by 1 % per step", ratios: [5.0, 20.0], growth: 0.01 },
    Case { name: "5x, then 20x; the loss grows by 3 % per step", ratios: [5.0, 20.0], growth: 0.03 },
];

/// A run's model and losses.
type Losses = (String, Vec<f64>);

/// Replays the runs below `runs`, and writes `false-alarms.csv` to `csv`.
///
/// # Errors
/// If there is no run of at least 150 steps, a file cannot be read, or the result cannot be written.
pub fn write(runs: &Path, csv: &Path) -> Result<()> {
    let mut models: BTreeMap<String, Vec<Vec<f64>>> = BTreeMap::new();
    for (model, losses) in read(runs)? {
        models.entry(model).or_default().push(losses);
    }
    ensure!(
        !models.is_empty(),
        "no run of at least {FEWEST} steps in {}: name a directory of runs with --out",
        runs.display()
    );
    let mut rows = Vec::new();
    for case in &CASES {
        rows.extend(models.iter().map(|(model, runs)| row(model, case, runs)).collect::<Result<Vec<_>>>()?);
    }
    for Row { model, case, replays, alarms, median_delay, .. } in &rows {
        let delay = median_delay.map_or_else(String::new, |delay| format!("after {delay} steps"));
        println!("{model:12} {case:48} {alarms:4} of {replays:4} {delay}");
    }
    write_csv(Some(&csv.join("false-alarms.csv")), &rows)
}

fn row(model: &str, case: &'static Case, runs: &[Vec<f64>]) -> Result<Row> {
    let replays = runs.iter().flat_map(|losses| (0..OFFSETS).map(|from| &losses[from..]));
    let mut delays = Vec::new();
    for losses in replays.clone() {
        delays.extend(delay(case, losses)?);
    }
    delays.sort_unstable();
    let (machine, cores) = trainer::machine();
    Ok(Row {
        model: model.to_owned(),
        case: case.name,
        runs: runs.len(),
        replays: replays.count(),
        alarms: delays.len(),
        median_delay: delays.get(delays.len() / 2).copied().filter(|_| case.growth > 0.0),
        machine,
        cores,
        date: trainer::day(SystemTime::now())?,
        command: "tables false-alarms",
    })
}

/// Returns the number of steps from the middle to the first alarm, or from the start if no rise is added.
fn delay(case: &Case, losses: &[f64]) -> Result<Option<usize>> {
    let middle = losses.len() / 2;
    let [before, after] = case.ratios;
    let inner = Schedule::staged(CompressionRatio::new(before)?, CompressionRatio::new(after)?, middle as u64, 1)?;
    let mut guard = LossGuard::new(LossGuardConfig::default(), inner)?;
    for (at, loss) in losses.iter().enumerate() {
        let rise = (case.growth * at.saturating_sub(middle) as f64).exp();
        let agreed_step = AgreedStep { step: at as u64, loss: Some(loss * rise), ..AgreedStep::default() };
        guard.observe(&agreed_step);
        let is_alarm =
            guard.decide(&Agreed::new(&agreed_step, &[])).reason.is_some_and(|why| why.contains("expected: at most"));
        if is_alarm && (case.growth == 0.0 || at >= middle) {
            return Ok(Some(if case.growth > 0.0 { at - middle } else { at }));
        }
    }
    Ok(None)
}

/// Returns the models and losses of the runs of at least 150 steps in `directory` and the directories below it.
fn read(directory: &Path) -> Result<Vec<Losses>> {
    let mut runs = Vec::new();
    let mut open: Vec<PathBuf> = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = std::fs::read_dir(&directory).with_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
        let metrics = directory.join("metrics.jsonl");
        if metrics.is_file() {
            let losses = losses(&metrics)?;
            if losses.len() >= FEWEST {
                runs.push((model(&directory)?, losses));
            }
        }
    }
    Ok(runs)
}

fn losses(metrics: &Path) -> Result<Vec<f64>> {
    let text = std::fs::read_to_string(metrics).with_context(|| format!("cannot read {}", metrics.display()))?;
    let lines = text.lines().enumerate().map(|(at, line)| {
        let line = serde_json::from_str::<Line>(line);
        line.map(|line| line.loss).with_context(|| format!("{}, line {}", metrics.display(), at + 1))
    });
    let losses: Vec<Option<f64>> = lines.collect::<Result<_>>()?;
    Ok(losses.into_iter().flatten().collect())
}

fn model(run: &Path) -> Result<String> {
    let path = run.join("config.toml");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let settings: toml::Table = text.parse().with_context(|| format!("{}", path.display()))?;
    let model = settings.get("model").and_then(|model| model.as_str());
    Ok(model.with_context(|| format!("{} names no model", path.display()))?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A loss without noise: no alarm while it falls, and one at the third point of a rise of 3 % per step.
    #[test]
    fn a_rise_is_found_and_a_fall_is_none() {
        let losses: Vec<f64> = (0..200).map(|t| 2.0 - 0.005 * f64::from(t)).collect();
        let delays = CASES.map(|case| delay(&case, &losses).unwrap());
        assert_eq!(delays[..2], [None, None]);
        assert!(delays[2..].iter().all(|delay| delay.is_some_and(|delay| delay < 40)), "{delays:?}");
    }
}
