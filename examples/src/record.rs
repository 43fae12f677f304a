//! What a run writes: `config.toml`, `metrics.jsonl`, `summary.json`, and a gradient where asked for.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette::StepReport;
use briquette::core::{Layout, Slot};
use safetensors::{Dtype, tensor::TensorView};
use serde::{Deserialize, Deserializer, Serialize};

use crate::settings::Settings;
use crate::spec::RecordSpec;
use crate::task::Score;

/// One line of `metrics.jsonl`. Bytes and seconds are rank 0's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the file's format, described in the README
pub struct StepRecord {
    pub step: u64,
    pub epoch: u64,
    pub loss: Option<f64>,
    pub lr: f64,
    pub factor: Option<f64>,
    pub wire_factor: f64,
    pub gain: Option<f64>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub compute_seconds: f64,
    pub compress_seconds: f64,
    pub exchange_seconds: f64,
    /// Parts of the compress seconds: gradients from the device, the average to it.
    #[serde(default)]
    pub read_seconds: f64,
    #[serde(default)]
    pub write_seconds: f64,
    /// What the seconds above are.
    #[serde(default)]
    pub seconds_are: Option<SecondsAre>,
    /// How far parameters had drifted apart, where they were re-broadcast.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drift: Option<f64>,
    /// Seconds on the simulated clock since the run began; absent when time is not simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated_seconds: Option<f64>,
    /// Why the controller changed the factor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Gain and bytes of every slot, every so many steps.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub slots: Vec<SlotRecord>,
}

/// Where seconds of computing, compressing and exchanging come from. Files of older versions do not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecondsAre {
    /// What it took, by the wall clock.
    Measured,
    /// What it would have taken, by the clock of the simulated network.
    Simulated,
}

impl SecondsAre {
    /// Of a run's exchanges.
    pub fn of(settings: &Settings) -> SecondsAre {
        if settings.simulated() { SecondsAre::Simulated } else { SecondsAre::Measured }
    }
}

/// One slot's part of a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// The slot's path.
    pub path: String,
    /// Share of its energy that was sent.
    pub gain: f64,
    /// Its share of the bytes sent, by values kept.
    pub bytes: u64,
}

impl StepRecord {
    /// From what the optimizer reports.
    pub fn new(report: &StepReport, epoch: u64, lr: f64, seconds_are: SecondsAre) -> StepRecord {
        StepRecord {
            step: report.step,
            epoch,
            loss: report.loss,
            lr,
            factor: report.exchange.factor.map(|f| f.get()),
            wire_factor: report.wire_factor(),
            gain: report.exchange.gain,
            bytes_sent: report.traffic.sent,
            bytes_received: report.traffic.received,
            compute_seconds: report.compute_seconds,
            compress_seconds: report.compress_seconds,
            exchange_seconds: report.exchange_seconds,
            read_seconds: report.read_seconds,
            write_seconds: report.write_seconds,
            drift: report.drift,
            seconds_are: Some(seconds_are),
            simulated_seconds: (seconds_are == SecondsAre::Simulated).then_some(report.clock),
            reason: report.exchange.reason.clone(),
            slots: Vec::new(),
        }
    }

    /// Adds what each slot kept.
    #[must_use]
    pub fn with_slots(mut self, report: &StepReport, layout: &Layout) -> StepRecord {
        let kept: usize = report.exchange.slots.iter().map(|s| s.kept).sum();
        self.slots = (layout.slots().iter().zip(&report.exchange.slots))
            .map(|(slot, part)| SlotRecord {
                path: slot.path().to_owned(),
                gain: part.gain,
                bytes: (report.traffic.sent as f64 * part.kept as f64 / kept.max(1) as f64) as u64,
            })
            .collect();
        self
    }
}

/// Sums over all ranks, carried through checkpoints.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are those of summary.json
pub struct Totals {
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_dense: u64,
    pub wall_seconds: f64,
    pub compute_seconds: f64,
    pub compress_seconds: f64,
    pub exchange_seconds: f64,
    /// The newest evaluation, means over the test samples.
    pub score: Option<Score>,
    /// The step of that evaluation.
    #[serde(default)]
    pub evaluated: Option<u64>,
    pub best_test_accuracy: f64,
}

/// `summary.json`. Bytes are sums over ranks, seconds those of rank 0, accuracies in 0–1. What comes from an evaluation is
/// not a number (`null` in the file) in a run that was interrupted before the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the file's format, described in the README
pub struct Summary {
    #[serde(deserialize_with = "nan_from_null")]
    pub final_test_accuracy: f64,
    #[serde(deserialize_with = "nan_from_null")]
    pub best_test_accuracy: f64,
    #[serde(deserialize_with = "nan_from_null")]
    pub final_test_loss: f64,
    pub steps: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_dense: u64,
    pub wall_seconds: f64,
    /// `null` when time is not simulated.
    pub simulated_seconds: Option<f64>,
    pub compute_seconds: f64,
    pub compress_seconds: f64,
    pub exchange_seconds: f64,
    /// What the three above are; wall seconds are always measured.
    #[serde(default)]
    pub seconds_are: Option<SecondsAre>,
    pub interrupted: bool,
    pub git_revision: String,
    pub version: String,
    pub burn_version: String,
}

fn nan_from_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

/// Whether a run was written to this directory.
pub fn holds_a_run(directory: &Path) -> bool {
    ["config.toml", "metrics.jsonl", "summary.json", "checkpoints"].iter().any(|name| directory.join(name).exists())
}

/// The files of a run; rank 0 writes them.
#[derive(Debug)]
pub struct RunFiles {
    directory: PathBuf,
    metrics: BufWriter<File>,
}

impl RunFiles {
    /// Starts a run's files in place of an earlier run's, or continues them: records from `from_step` on are dropped, since
    /// they will be written again. What is kept is never rewritten, so that a full disk loses none of it.
    ///
    /// # Errors
    /// Names the file that cannot be read or written.
    pub fn open(settings: &Settings, from_step: Option<u64>) -> Result<RunFiles> {
        let directory = settings.out.clone();
        let path = directory.join("metrics.jsonl");
        fs::create_dir_all(&directory).with_context(|| format!("cannot make --out {}", directory.display()))?;
        let text = toml::to_string(settings)?;
        let file = match from_step {
            Some(step) => keep_before(&path, step),
            None => forget(&directory).and_then(|()| File::create(&path)),
        };
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        write_whole(&directory.join("config.toml"), &text)?;
        Ok(RunFiles { directory, metrics: BufWriter::new(file) })
    }

    /// Appends a record.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        serde_json::to_writer(&mut self.metrics, record).context("cannot write metrics.jsonl")?;
        writeln!(self.metrics).and_then(|()| self.metrics.flush()).context("cannot write metrics.jsonl")
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn finish(&mut self, summary: &Summary) -> Result<()> {
        write_whole(&self.directory.join("summary.json"), &(serde_json::to_string_pretty(summary)? + "\n"))
    }
}

/// The file, cut off before the record of `step`, or before half a line that a killed run left.
fn keep_before(path: &Path, step: u64) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let (mut kept, mut line, mut reader) = (0, String::new(), BufReader::new(&file));
    while reader.read_line(&mut line)? > 0 {
        let record = serde_json::from_str::<StepRecord>(&line);
        if !line.ends_with('\n') || record.map_or(true, |record| record.step >= step) {
            break;
        }
        kept += line.len() as u64;
        line.clear();
    }
    file.set_len(kept)?;
    file.seek(SeekFrom::Start(kept))?;
    Ok(file)
}

/// Removes what an earlier run in this directory would say about the one that begins.
pub(crate) fn forget(directory: &Path) -> io::Result<()> {
    if !directory.join("config.toml").is_file() {
        return Ok(());
    }
    let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let summary = fs::remove_file(directory.join("summary.json"));
    let checkpoints = fs::remove_dir_all(directory.join("checkpoints"));
    [summary, checkpoints].into_iter().find(|r| r.as_ref().is_err_and(|e| !absent(e))).unwrap_or(Ok(()))
}

/// The whole text or, on a full disk, what was there before.
fn write_whole(path: &Path, text: &str) -> Result<()> {
    let partial = path.with_extension("partial");
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, path));
    written.with_context(|| {
        let _ = fs::remove_file(&partial);
        format!("cannot write {}", path.display())
    })
}

/// The revision this was built from, with `-dirty` where the sources had changed since; `unknown` outside of git.
pub const GIT_REVISION: &str = env!("BRIQUETTE_GIT_REVISION");

/// The version of Burn this was built with.
pub const BURN_VERSION: &str = env!("BRIQUETTE_BURN_VERSION");
/// Writes a gradient to `gradient.safetensors`, tensor by tensor.
///
/// # Errors
/// When the file cannot be written.
pub fn gradient(settings: &Settings, layout: &Layout, values: &[f32]) -> Result<()> {
    let half = settings.record_gradient.is_some_and(RecordSpec::is_bf16);
    let (size, dtype) = if half { (2, Dtype::BF16) } else { (4, Dtype::F32) };
    let bytes: Vec<u8> = match half {
        true => values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect(),
        false => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    };
    let view = |slot: &Slot| {
        let place = size * slot.range().start..size * slot.range().end;
        TensorView::new(dtype, slot.shape().to_vec(), &bytes[place]).map(|view| (slot.path().to_owned(), view))
    };
    let views = layout.slots().iter().map(view).collect::<Result<Vec<_>, _>>()?;
    let path = settings.out.join("gradient.safetensors");
    safetensors::serialize_to_file(views, None, &path).with_context(|| format!("cannot write {}", path.display()))
}
