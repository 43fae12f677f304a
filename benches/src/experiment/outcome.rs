//! Results of runs: in their directories, and in the CSVs of earlier runs.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette_examples::record::GIT_REVISION;
use serde::{Deserialize, Serialize};

use super::Run;
use crate::trainer::{LOG, day, diverged, finished, machine};

/// Result by which runs are compared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Accuracy on test samples, the higher the better.
    #[default]
    TestAccuracy,
    /// Loss on test samples, the lower the better, in a column of the CSVs.
    TestLoss,
}

/// A finished run: a line of `NAME-runs.csv` or `NAME-rates.csv`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Outcome {
    #[serde(alias = "task")]
    pub(super) experiment: String,
    pub(super) row: String,
    /// Values of the axes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) setting: Option<String>,
    /// Empty for the trainer's default.
    pub(super) lr: Option<f64>,
    pub(super) seed: u64,
    /// If several settings were tried, whether this one was chosen for the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) chosen: Option<bool>,
    /// 0 if it diverged.
    pub(super) test_accuracy: f64,
    /// Present if runs are compared by it; infinite if the run diverged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) test_loss: Option<f64>,
    pub(super) bytes_sent: u64,
    pub(super) simulated_seconds: Option<f64>,
    pub(super) steps: u64,
    /// Version of the results.
    #[serde(default = "super::first_version")]
    pub(super) version: u32,
    pub(super) revision: String,
    pub(super) machine: String,
    pub(super) cores: usize,
    pub(super) date: String,
    pub(super) command: String,
}

/// Stored runs and their results.
#[derive(Debug)]
pub struct Kept {
    /// Directory with a subdirectory for each experiment.
    pub directory: PathBuf,
    /// Set if a row uses the best rate so far when its search is not complete.
    pub so_far: bool,
    /// Results from the CSVs, by experiment, command and version.
    written: HashMap<(String, String, u32), Outcome>,
}

impl Kept {
    /// Uses the runs in a directory only.
    pub fn new(directory: PathBuf, so_far: bool) -> Self {
        Kept { directory, so_far, written: HashMap::new() }
    }

    /// Adds results of earlier runs from the CSVs of another directory, `*-runs.csv` and `*-rates.csv`, if there are any.
    ///
    /// # Errors
    /// For a CSV with other columns.
    pub fn with_csv(mut self, csv: &Path) -> Result<Self> {
        for file in fs::read_dir(csv).into_iter().flatten() {
            let path = file?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if !name.ends_with("-runs.csv") && !name.ends_with("-rates.csv") {
                continue;
            }
            for line in csv::Reader::from_path(&path)?.deserialize() {
                let line: Outcome = line.with_context(|| format!("{} has other columns", path.display()))?;
                let key = (line.experiment.clone(), line.command.clone(), line.version);
                self.written.insert(key, Outcome { chosen: None, ..line });
            }
        }
        Ok(self)
    }

    /// Returns the outcome of a run that finished or diverged.
    pub(super) fn outcome(&self, run: &Run) -> Option<Outcome> {
        self.in_directory(run).or_else(|| {
            let written = self.written.get(&(run.experiment.clone(), run.command(), run.version))?.clone();
            let Run { experiment, row, .. } = run;
            let (experiment, setting) = (experiment.clone(), row.setting.clone());
            let test_loss = written.test_loss.filter(|_| run.measure == Measure::TestLoss);
            let is_measured = run.measure == Measure::TestAccuracy || test_loss.is_some();
            is_measured.then(|| Outcome { experiment, row: row.name.clone(), setting, test_loss, ..written })
        })
    }

    fn in_directory(&self, run: &Run) -> Option<Outcome> {
        let (directory, key) = (&run.directory, run.key());
        let summary = finished(directory, &key);
        if summary.is_none() && !diverged(directory, &key) {
            return None;
        }
        let loss = summary.as_ref().map(|summary| summary.final_test_loss);
        let loss = loss.filter(|loss| loss.is_finite()).unwrap_or(f64::INFINITY);
        let (machine, cores) = machine();
        let ended = fs::metadata(directory.join(LOG)).and_then(|file| file.modified()).ok()?;
        Some(Outcome {
            experiment: run.experiment.clone(),
            row: run.row.name.clone(),
            setting: run.row.setting.clone(),
            lr: run.rate,
            seed: run.seed,
            chosen: None,
            test_accuracy: summary.as_ref().map_or(0.0, |summary| summary.final_test_accuracy),
            test_loss: (run.measure == Measure::TestLoss).then_some(loss),
            bytes_sent: summary.as_ref().map_or(0, |summary| summary.bytes_sent),
            simulated_seconds: summary.as_ref().and_then(|summary| summary.simulated_seconds),
            steps: summary.as_ref().map_or(0, |summary| summary.steps),
            version: run.version,
            revision: summary.map_or_else(|| GIT_REVISION.into(), |summary| summary.git_revision),
            machine,
            cores,
            date: day(ended).ok()?,
            command: run.command(),
        })
    }

    /// Returns whether a run finished.
    pub fn has(&self, run: &Run) -> bool {
        self.outcome(run).is_some()
    }
}

impl Outcome {
    /// Returns what runs are compared by, the higher the better.
    pub(super) fn score(&self) -> f64 {
        self.test_loss.map_or(self.test_accuracy, |loss| -loss)
    }

    /// Warns of sources that are in no revision.
    pub(super) fn check_revision(&self) {
        if self.revision.ends_with("-dirty") {
            eprintln!("of sources with changes, {}: {}", self.revision, self.command);
        }
    }
}
