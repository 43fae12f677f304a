//! Files of a run: `metrics.jsonl`, `summary.json`, and a gradient on request.

mod evaluation;
pub(crate) mod float;
mod metrics;

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use briquette::core::{Layout, Slot, files};
use briquette::sim::Event;
use briquette::{NewGeneration, StepReport};
use safetensors::{Dtype, tensor::TensorView};
use serde::{Deserialize, Serialize};

pub use self::evaluation::Evaluation;
pub use self::metrics::append;
pub(crate) use self::metrics::{Written, keep_before};
use crate::directory::{EVALUATIONS, FRAMES, GRADIENT, METRICS, RunLock, SUMMARY, write_whole};
use crate::settings::Settings;
use crate::spec::RecordSpec;
use crate::task::Score;

/// One line of `metrics.jsonl`. Bytes and seconds are rank 0's own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the file's format, described in docs/trainers.md
pub struct StepRecord {
    pub step: u64,
    pub epoch: u64,
    #[serde(default, with = "float::option")]
    pub loss: Option<f64>,
    #[serde(with = "float")]
    pub lr: f64,
    #[serde(default, with = "float::option")]
    pub ratio: Option<f64>,
    #[serde(with = "float")]
    pub wire_ratio: f64,
    #[serde(default, with = "float::option")]
    pub gain: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub relative_error: Option<f64>,
    /// Norm of the residual in units of a step's gradient, and absolute norm of the residual, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub delay: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub residual_norm: Option<f64>,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    #[serde(with = "float")]
    pub compute_seconds: f64,
    #[serde(with = "float")]
    pub compress_seconds: f64,
    #[serde(with = "float")]
    pub exchange_seconds: f64,
    /// Parts of the compress seconds: gradients from the device, the average to it, probing and encoding, decoding.
    #[serde(default, with = "float")]
    pub read_seconds: f64,
    #[serde(default, with = "float")]
    pub write_seconds: f64,
    #[serde(default, with = "float")]
    pub encode_seconds: f64,
    #[serde(default, with = "float")]
    pub decode_seconds: f64,
    /// Part of the exchange seconds: waiting for the slowest rank in the step header.
    #[serde(default, with = "float")]
    pub wait_seconds: f64,
    /// Encoding, exchanging and decoding in the background. Excluded from all seconds above except those of encoding and decoding.
    #[serde(default, with = "float")]
    pub overlapped_seconds: f64,
    /// Origin of the seconds above.
    #[serde(default)]
    pub seconds_are: Option<SecondsAre>,
    /// Distance by which parameters had drifted apart, if they were re-broadcast.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub drift: Option<f64>,
    /// Seconds on the simulated clock since the run began; absent if time is not simulated.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub simulated_seconds: Option<f64>,
    /// Samples of each rank, if shares follow the ranks' speeds.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub shares: Vec<usize>,
    /// Generations of an elastic world that have begun since the previous exchange.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub generations: Vec<NewGeneration>,
    /// Reason of the controller for changing the ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// State of the controller as text, recorded when it has changed the ratio and at the interval of the slots' table.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub state: Option<String>,
    /// Records of all slots, at an interval of steps.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub slots: Vec<SlotRecord>,
}

/// Origin of the seconds of computing, compressing and exchanging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SecondsAre {
    /// Measured by the wall clock.
    Measured,
    /// Computed by the clock of the simulated network.
    Simulated,
}

impl SecondsAre {
    /// Returns the origin for a run's exchanges.
    pub fn of(settings: &Settings) -> SecondsAre {
        if settings.simulated() { SecondsAre::Simulated } else { SecondsAre::Measured }
    }
}

/// Part of a step that belongs to one slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Path of the slot.
    pub path: String,
    /// Nominal ratio, if known.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub ratio: Option<f64>,
    /// Share of its energy that was sent.
    #[serde(with = "float")]
    pub gain: f64,
    /// Norm of the unsent part relative to the norm of the input.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub relative_error: Option<f64>,
    /// Norm of the residual, if there is error feedback.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub residual_norm: Option<f64>,
    /// Number of values sent as something other than 0.
    #[serde(default)]
    pub kept: u64,
    /// Its share of the bytes sent, in proportion to the values kept.
    pub bytes: u64,
    /// Time by which its gradient arrived before the end of the backward pass on rank 0, if exchanges start during that
    /// pass and seconds are measured.
    #[serde(skip_serializing_if = "Option::is_none", default, with = "float::option")]
    pub lead_seconds: Option<f64>,
}

impl StepRecord {
    /// Creates a record from the optimizer's report.
    pub fn new(report: &StepReport, epoch: u64, lr: f64, seconds_are: SecondsAre) -> StepRecord {
        StepRecord {
            step: report.step,
            epoch,
            loss: report.loss,
            lr,
            ratio: report.exchange.ratio.map(|ratio| ratio.get()),
            wire_ratio: report.wire_ratio(),
            gain: report.exchange.gain,
            relative_error: report.exchange.relative_error(),
            delay: report.exchange.delay(),
            residual_norm: report.exchange.residual_energy.map(|waiting| waiting.residual_norm()),
            bytes_sent: report.traffic.sent,
            bytes_received: report.traffic.received,
            compute_seconds: report.compute_seconds,
            compress_seconds: report.compress_seconds,
            exchange_seconds: report.exchange_seconds,
            read_seconds: report.read_seconds,
            write_seconds: report.write_seconds,
            encode_seconds: report.encode_seconds(),
            decode_seconds: report.decode_seconds(),
            wait_seconds: report.wait_seconds,
            overlapped_seconds: report.overlapped_seconds(),
            drift: report.drift,
            seconds_are: Some(seconds_are),
            simulated_seconds: (seconds_are == SecondsAre::Simulated).then_some(report.clock),
            shares: Vec::new(),
            generations: report.generations.clone(),
            reason: report.exchange.reason.clone(),
            state: None,
            slots: Vec::new(),
        }
    }

    /// Adds the controller's state.
    #[must_use]
    pub fn with_state(self, state: Option<String>) -> StepRecord {
        StepRecord { state, ..self }
    }

    /// Adds the record of each slot.
    #[must_use]
    pub fn with_slots(mut self, report: &StepReport, layout: &Layout) -> StepRecord {
        let kept: usize = report.exchange.slots.iter().map(|s| s.kept).sum();
        let is_measured = self.seconds_are == Some(SecondsAre::Measured);
        let lead = |slot| report.arrivals.iter().find(|arrival| is_measured && arrival.slot == slot);
        self.slots = (layout.slots().iter().zip(&report.exchange.slots).enumerate())
            .map(|(index, (slot, part))| SlotRecord {
                path: slot.path().to_owned(),
                ratio: part.ratio.map(|ratio| ratio.get()),
                gain: part.gain,
                relative_error: Some(part.relative_error()),
                residual_norm: part.left.map(f64::sqrt),
                kept: part.kept as u64,
                bytes: (report.traffic.sent as f64 * part.kept as f64 / kept.max(1) as f64) as u64,
                lead_seconds: lead(index).map(|arrival| arrival.lead.as_secs_f64()),
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
    #[serde(with = "float")]
    pub wall_seconds: f64,
    #[serde(with = "float")]
    pub compute_seconds: f64,
    #[serde(with = "float")]
    pub compress_seconds: f64,
    #[serde(with = "float")]
    pub exchange_seconds: f64,
    /// Latest evaluation, with means over the test samples.
    pub score: Option<Score>,
    /// Step of that evaluation.
    #[serde(default)]
    pub evaluated: Option<u64>,
    #[serde(with = "float")]
    pub best_test_accuracy: f64,
    /// All evaluations so far.
    #[serde(default)]
    pub evaluations: Vec<Evaluation>,
    /// Number of records written so far.
    #[serde(default)]
    pub records: u64,
    #[serde(default)]
    pub elastic: Changes,
}

/// Changes of an elastic world.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the file's format, described in docs/trainers.md
pub struct Changes {
    pub generations: u64,
    pub lost_ranks: u64,
    pub new_members: u64,
    /// Time that this rank spent forming generations.
    #[serde(with = "float")]
    pub seconds: f64,
}

impl Changes {
    pub(crate) fn add(&mut self, begun: &[NewGeneration]) {
        for generation in begun {
            self.generations += 1;
            self.lost_ranks += generation.lost.len() as u64;
            self.new_members += generation.new_members as u64;
            self.seconds += generation.seconds;
        }
    }
}

/// Contents of `summary.json`. Bytes are sums over ranks, seconds those of rank 0, accuracies in 0–1. Evaluation
/// results are not numbers (`"NaN"` in the file) in a run that was interrupted before the first evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the file's format, described in docs/trainers.md
pub struct Summary {
    #[serde(with = "float")]
    pub final_test_accuracy: f64,
    #[serde(with = "float")]
    pub best_test_accuracy: f64,
    #[serde(with = "float")]
    pub final_test_loss: f64,
    pub steps: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_dense: u64,
    #[serde(with = "float")]
    pub wall_seconds: f64,
    /// `null` if time is not simulated.
    #[serde(default, with = "float::option")]
    pub simulated_seconds: Option<f64>,
    #[serde(with = "float")]
    pub compute_seconds: f64,
    #[serde(with = "float")]
    pub compress_seconds: f64,
    #[serde(with = "float")]
    pub exchange_seconds: f64,
    /// Origin of the three values above; wall seconds are always measured.
    #[serde(default)]
    pub seconds_are: Option<SecondsAre>,
    /// Absent if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elastic: Option<Changes>,
    pub interrupted: bool,
    pub git_revision: String,
    pub version: String,
    pub burn_version: String,
}

/// Files of a run, written by rank 0.
#[derive(Debug)]
pub struct RunFiles {
    directory: PathBuf,
    metrics: File,
    /// Released when everything is written.
    _lock: RunLock,
}

impl RunFiles {
    pub(crate) fn new(directory: PathBuf, metrics: File, lock: RunLock) -> RunFiles {
        RunFiles { directory, metrics, _lock: lock }
    }

    /// Appends a record.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        metrics::append(&mut self.metrics, record).with_context(|| format!("cannot write {METRICS}"))
    }

    /// Writes the evaluations so far.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn evaluated(&mut self, evaluations: &[Evaluation]) -> Result<()> {
        let path = self.directory.join(EVALUATIONS);
        let text = serde_json::to_string_pretty(evaluations)? + "\n";
        write_whole(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Writes the summary.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(&mut self, summary: &Summary) -> Result<()> {
        let path = self.directory.join(SUMMARY);
        let text = serde_json::to_string_pretty(summary)? + "\n";
        write_whole(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Revision of the sources of this build, with `-dirty` if they had changed since; `unknown` outside of git.
pub const GIT_REVISION: &str = env!("BRIQUETTE_GIT_REVISION");

/// Version of Burn of this build.
pub const BURN_VERSION: &str = env!("BRIQUETTE_BURN_VERSION");

/// Writes the frames that a rank sent and received.
pub(crate) fn write_frames(out: &Path, rank: usize, frames: &[Event]) -> Result<()> {
    let path = out.join(FRAMES).join(format!("rank-{rank}.json"));
    let written = std::fs::create_dir_all(out.join(FRAMES)).and_then(|()| {
        let text = serde_json::to_vec(frames).map_err(std::io::Error::other)?;
        write_whole(&path, &text)
    });
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Reads the frames that the ranks of a run sent and received, if they were recorded, in rank order.
///
/// # Errors
/// If a file cannot be read.
pub fn read_frames(out: &Path, ranks: usize) -> Result<Vec<Vec<Event>>> {
    let read = |rank| {
        let path = out.join(FRAMES).join(format!("rank-{rank}.json"));
        let text = files::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("in {}", path.display()))
    };
    (0..ranks).map(read).collect()
}

/// Writes a gradient to `gradient.safetensors`, tensor by tensor.
///
/// # Errors
/// If the file cannot be written.
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
    let path = settings.out.join(GRADIENT);
    let written = safetensors::serialize(views, None).map_err(std::io::Error::other);
    written.and_then(|bytes| write_whole(&path, &bytes)).with_context(|| format!("cannot write {}", path.display()))
}
