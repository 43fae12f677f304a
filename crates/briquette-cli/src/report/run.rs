//! A run's directory: `metrics.jsonl`, `summary.json` and `config.toml`, each of which may be missing.

mod find;
mod metrics;

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette_core::comm::{Record, culprits};
use briquette_core::files;
use serde::Serialize;
use serde_json::Value;

pub(super) use self::find::find;
use self::metrics::Evaluation;

const METRICS: &str = "metrics.jsonl";

/// Steps between two points, and their means.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Point {
    /// The last step.
    pub(super) step: u64,
    /// Seconds and bytes of rank 0 since the start, at the end of that step.
    pub(super) seconds: f64,
    pub(super) bytes: f64,
    pub(super) loss: Mean,
    pub(super) ratio: Mean,
    pub(super) gain: Mean,
    pub(super) delay: Mean,
    /// Results on test samples, of an evaluation.
    pub(super) accuracy: Mean,
    pub(super) test_loss: Mean,
    /// Seconds of a step: computing, compressing, waiting for the slowest rank, exchanging.
    pub(super) parts: [Mean; 4],
}

/// A mean of the values that there are.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mean {
    sum: f64,
    count: f64,
}

impl Mean {
    fn of(value: Option<f64>) -> Mean {
        value.map_or(Mean::default(), |sum| Mean { sum, count: 1.0 })
    }

    pub(super) fn and(self, other: Mean) -> Mean {
        Mean { sum: self.sum + other.sum, count: self.count + other.count }
    }

    pub(super) fn get(self) -> Option<f64> {
        (self.count > 0.0).then(|| self.sum / self.count)
    }
}

impl Serialize for Mean {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.get().filter(|value| value.is_finite()).serialize(serializer)
    }
}

impl Point {
    fn merge(&self, later: &Point) -> Point {
        let mut parts = self.parts;
        parts.iter_mut().zip(later.parts).for_each(|(part, later)| *part = part.and(later));
        Point {
            loss: self.loss.and(later.loss),
            ratio: self.ratio.and(later.ratio),
            gain: self.gain.and(later.gain),
            delay: self.delay.and(later.delay),
            parts,
            ..*later
        }
    }
}

/// Decision of a controller, or change of an elastic world, in words.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Decision {
    pub(super) step: u64,
    pub(super) seconds: f64,
    pub(super) ratio: Option<f64>,
    pub(super) reason: String,
    pub(super) state: String,
}

/// Layers at a step, by path.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Layers {
    pub(super) step: u64,
    pub(super) slots: BTreeMap<String, Layer>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Layer {
    pub(super) ratio: Option<f64>,
    pub(super) error: Option<f64>,
    pub(super) bytes: Option<f64>,
}

/// A run.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Run {
    pub(super) path: PathBuf,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) summary: BTreeMap<String, Value>,
    pub(super) points: Vec<Point>,
    /// Evaluations, each at its last step of training.
    pub(super) evaluations: Vec<Point>,
    pub(super) decisions: Vec<Decision>,
    pub(super) layers: Vec<Layers>,
    /// Paths of layers in their order in the model.
    #[serde(skip)]
    pub(super) paths: Vec<String>,
    /// Notes on files that are missing or damaged.
    pub(super) notes: Vec<String>,
    /// Set if seconds are those of a simulated network.
    pub(super) is_simulated: bool,
    /// Last transfers of the ranks that left a record.
    #[serde(skip)]
    pub(super) transfers: Vec<Record>,
    /// Ranks that caused the run's failure, in words.
    pub(super) culprits: Vec<String>,
}

impl Run {
    /// Reads a run's folder. Files that are missing or damaged are notes.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub(super) fn read(path: &Path) -> Result<Run> {
        let mut run = Run { path: path.to_owned(), ..Run::default() };
        run.read_settings()?;
        run.read_evaluations()?;
        run.read_metrics()?;
        run.read_summary()?;
        run.read_transfers()?;
        Ok(run)
    }

    fn read_transfers(&mut self) -> Result<()> {
        let folder = self.path.join("transfers");
        let Ok(entries) = fs::read_dir(&folder) else { return Ok(()) };
        for entry in entries {
            let path = entry.with_context(|| format!("cannot read {}", folder.display()))?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let bytes = files::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            match serde_json::from_slice(&bytes) {
                Ok(record) => self.transfers.push(record),
                Err(error) => self.notes.push(format!("{} is damaged: {error}", path.display())),
            }
        }
        self.transfers.sort_by_key(|record| record.rank);
        self.culprits = culprits(&self.transfers).into_iter().map(|(_, why)| why).collect();
        let is_failed = self.transfers.iter().any(|record| record.failure.is_some());
        let what = if is_failed { "the run failed" } else { "ranks wait" };
        self.notes.extend(self.culprits.iter().map(|why| format!("{what}: {why}")));
        Ok(())
    }

    fn read_settings(&mut self) -> Result<()> {
        let Some(text) = self.text("config.toml")? else { return Ok(()) };
        match text.parse::<toml::Table>() {
            Ok(table) => flatten("", &table, &mut self.settings),
            Err(error) => self.notes.push(format!("config.toml is damaged: {}", error.message())),
        }
        Ok(())
    }

    /// Reads the evaluations, if there are any. Their seconds and bytes are known once the metrics are read.
    fn read_evaluations(&mut self) -> Result<()> {
        let path = self.path.join("evaluations.json");
        let bytes = match files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        match serde_json::from_slice::<Vec<Evaluation>>(&bytes) {
            Ok(evaluations) => self.evaluations = evaluations.iter().filter_map(Evaluation::point).collect(),
            Err(error) => self.notes.push(format!("evaluations.json is damaged: {error}")),
        }
        Ok(())
    }

    fn read_summary(&mut self) -> Result<()> {
        let Some(text) = self.text("summary.json")? else { return Ok(()) };
        match serde_json::from_str(&text) {
            Ok(summary) => self.summary = summary,
            Err(error) => self.notes.push(format!("summary.json is damaged: {error}")),
        }
        if self.summary.get("interrupted") == Some(&Value::Bool(true)) {
            self.notes.push("the run was interrupted".into());
        }
        let last_step = self.points.last().map_or(0, |last| last.step + 1);
        if self.number("steps").is_some_and(|steps| (steps as u64) < last_step) {
            self.notes.push("summary.json is of the run before it was resumed, and is left out".into());
            self.summary.clear();
        }
        Ok(())
    }

    /// Returns a file's text, or notes that there is none.
    fn text(&mut self, name: &str) -> Result<Option<String>> {
        let path = self.path.join(name);
        match files::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.notes.push(match name {
                    "summary.json" => "no summary.json: the run has not ended".into(),
                    _ => format!("no {name}"),
                });
                Ok(None)
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    /// Returns a number of the summary.
    pub(super) fn number(&self, name: &str) -> Option<f64> {
        let value = self.summary.get(name)?;
        value.as_f64().or_else(|| value.as_str()?.parse().ok())
    }
}

fn flatten(prefix: &str, table: &toml::Table, out: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => flatten(&format!("{prefix}{key}."), table, out),
            toml::Value::String(text) => {
                out.insert(format!("{prefix}{key}"), text.clone());
            }
            value => {
                out.insert(format!("{prefix}{key}"), value.to_string());
            }
        }
    }
}
