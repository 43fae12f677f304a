//! A run's directory: `metrics.jsonl`, `summary.json` and `config.toml`, each of which may be missing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use briquette_core::comm::{Record, culprits};
use briquette_core::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) const METRICS: &str = "metrics.jsonl";
/// Points that are kept of a run: neighbors are merged while there are twice as many.
const POINTS: usize = 400;
/// Tables of layers that are kept.
const TABLES: usize = 40;
/// Decisions that are kept.
const DECISIONS: usize = 300;
/// Folders below which runs are searched.
const DEPTH: usize = 5;

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

/// A number, or the text of one that is not finite.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Other(NotFinite),
}

#[derive(Debug, Clone, Copy, Deserialize)]
enum NotFinite {
    #[serde(rename = "NaN")]
    Nan,
    #[serde(rename = "inf")]
    Infinite,
    #[serde(rename = "-inf")]
    MinusInfinite,
}

impl Number {
    fn get(self) -> f64 {
        match self {
            Number::Finite(value) => value,
            Number::Other(NotFinite::Nan) => f64::NAN,
            Number::Other(NotFinite::Infinite) => f64::INFINITY,
            Number::Other(NotFinite::MinusInfinite) => f64::NEG_INFINITY,
        }
    }
}

/// A line of `metrics.jsonl`, in which all but the step may be missing.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Line {
    step: Option<u64>,
    loss: Option<Number>,
    ratio: Option<Number>,
    gain: Option<Number>,
    delay: Option<Number>,
    bytes_sent: u64,
    compute_seconds: Option<Number>,
    compress_seconds: Option<Number>,
    exchange_seconds: Option<Number>,
    wait_seconds: Option<Number>,
    simulated_seconds: Option<Number>,
    generations: Vec<Generation>,
    reason: Option<String>,
    state: Option<String>,
    slots: Vec<Slot>,
}

#[derive(Debug, Deserialize)]
struct Generation {
    number: u64,
    world: usize,
    lost: Vec<usize>,
    new_members: usize,
}

#[derive(Debug, Deserialize)]
struct Slot {
    path: String,
    ratio: Option<Number>,
    relative_error: Option<Number>,
    bytes: Option<Number>,
}

/// Returns the folders of runs that `path` is or contains, sorted.
///
/// # Errors
/// If there is no such folder, or no run in it.
pub(super) fn find(path: &Path) -> Result<Vec<PathBuf>> {
    let here = path.display();
    if !path.is_dir() {
        let is_metrics = path.file_name().is_some_and(|name| name == METRICS);
        if let (true, Some(folder)) = (is_metrics && path.is_file(), path.parent()) {
            return Ok(vec![folder.to_owned()]);
        }
        bail!("{here}: there is no such folder; a run's folder is the trainers' --out, by default below runs/");
    }
    let mut found = Vec::new();
    search(path, DEPTH, &mut found).with_context(|| format!("cannot read {here}"))?;
    if found.is_empty() {
        bail!("{here}: no run is in this folder: it has no {METRICS}, and neither has a folder below it");
    }
    found.sort();
    Ok(found)
}

fn search(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> std::io::Result<()> {
    if folder.join(METRICS).is_file() {
        found.push(folder.to_owned());
        return Ok(());
    }
    if depth == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Links may lead around in circles.
        if entry.file_type()?.is_dir() && !entry.file_name().to_string_lossy().starts_with('.') {
            search(&entry.path(), depth - 1, found)?;
        }
    }
    Ok(())
}

impl Run {
    /// Reads a run's folder. Files that are missing or damaged are notes.
    ///
    /// # Errors
    /// If a file is there and cannot be read.
    pub(super) fn read(path: &Path) -> Result<Run> {
        let mut run = Run { path: path.to_owned(), ..Run::default() };
        run.read_settings()?;
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
        self.notes.extend(self.culprits.iter().map(|why| format!("the run failed: {why}")));
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
            return Ok(());
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

    fn read_metrics(&mut self) -> Result<()> {
        let path = self.path.join(METRICS);
        let file = files::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (mut file, mut line, mut damaged, mut total) =
            (BufReader::new(file), Vec::new(), 0_usize, Totals::default());
        loop {
            line.clear();
            if file.read_until(b'\n', &mut line).with_context(|| format!("cannot read {}", path.display()))? == 0 {
                break;
            }
            let is_cut = !line.ends_with(b"\n");
            match serde_json::from_slice::<Line>(&line) {
                Ok(line) if line.step.is_some() => self.add(line, &mut total),
                _ if line.trim_ascii().is_empty() => {}
                _ if is_cut => {
                    self.notes.push(format!("the last line of {METRICS} is cut off, as by a run that was killed"))
                }
                _ => damaged += 1,
            }
        }
        if damaged > 0 {
            self.notes.push(format!("lines of {METRICS} that cannot be read: {damaged}"));
        }
        if self.points.is_empty() {
            self.notes.push(format!("no step in {METRICS}"));
        }
        if total.more_decisions > 0 {
            self.notes.push(format!("{} later decisions are not shown", total.more_decisions));
        }
        Ok(())
    }

    fn add(&mut self, line: Line, total: &mut Totals) {
        let step = line.step.unwrap_or_default();
        let number = |number: Option<Number>| number.map(Number::get);
        let finite = |value: Option<Number>| number(value).filter(|value| value.is_finite() && *value >= 0.0);
        let [compute, compress, exchange, wait] =
            [line.compute_seconds, line.compress_seconds, line.exchange_seconds, line.wait_seconds].map(finite);
        self.is_simulated |= line.simulated_seconds.is_some();
        let measured = [compute, compress, exchange].into_iter().flatten().sum::<f64>();
        total.seconds = finite(line.simulated_seconds).unwrap_or(total.seconds + measured);
        total.bytes += line.bytes_sent as f64;
        let exchanging = exchange.map(|exchange| (exchange - wait.unwrap_or(0.0)).max(0.0));
        let ratio = number(line.ratio);
        self.push(
            Point {
                step,
                seconds: total.seconds,
                bytes: total.bytes,
                loss: Mean::of(number(line.loss)),
                ratio: Mean::of(ratio),
                gain: Mean::of(number(line.gain)),
                delay: Mean::of(number(line.delay)),
                parts: [compute, compress, wait, exchanging].map(Mean::of),
            },
            total,
        );
        let words = line.reason.map(|reason| (reason, line.state.unwrap_or_default()));
        for (reason, state) in line.generations.iter().map(Generation::words).chain(words) {
            if self.decisions.len() < DECISIONS {
                self.decisions.push(Decision { step, seconds: total.seconds, ratio, reason, state });
            } else {
                total.more_decisions += 1;
            }
        }
        if !line.slots.is_empty() {
            self.add_layers(step, line.slots, total);
        }
    }

    fn push(&mut self, point: Point, total: &mut Totals) {
        match self.points.last_mut() {
            Some(last) if total.merged < total.width => *last = last.merge(&point),
            _ => {
                self.points.push(point);
                total.merged = 0;
            }
        }
        total.merged += 1;
        if self.points.len() > 2 * POINTS {
            self.points =
                self.points.chunks(2).map(|pair| pair[1..].iter().fold(pair[0].clone(), |a, b| a.merge(b))).collect();
            total.width = 2 * total.width.max(1);
            // The last point may be half of a pair.
            total.merged = total.width;
        }
    }

    fn add_layers(&mut self, step: u64, slots: Vec<Slot>, total: &mut Totals) {
        total.tables += 1;
        if !(total.tables - 1).is_multiple_of(total.every.max(1)) {
            return;
        }
        let finite = |number: Option<Number>| number.map(Number::get).filter(|value| value.is_finite());
        let mut layers = Layers { step, ..Layers::default() };
        for slot in slots {
            if !self.paths.contains(&slot.path) {
                self.paths.push(slot.path.clone());
            }
            let [ratio, error, bytes] = [slot.ratio, slot.relative_error, slot.bytes].map(finite);
            layers.slots.insert(slot.path, Layer { ratio, error, bytes });
        }
        self.layers.push(layers);
        if self.layers.len() > TABLES {
            let mut index = 0;
            self.layers.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            total.every = 2 * total.every.max(1);
        }
    }
}

impl Generation {
    fn words(&self) -> (String, String) {
        let Generation { number, world, lost, new_members } = self;
        let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
        let lost = if lost.is_empty() { String::new() } else { format!("; lost: rank {}", lost.join(", ")) };
        let new = if *new_members > 0 { format!("; new members: {new_members}") } else { String::new() };
        (format!("generation {number} of {world} ranks{lost}{new}"), String::new())
    }
}

/// Counts while a run is read.
#[derive(Debug, Default)]
struct Totals {
    seconds: f64,
    bytes: f64,
    more_decisions: usize,
    /// Steps of a point, and of the last one so far.
    width: usize,
    merged: usize,
    /// Tables of layers so far, of which each of this number is kept.
    tables: usize,
    every: usize,
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
