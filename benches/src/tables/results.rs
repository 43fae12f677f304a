//! Results of a run: accuracy, bytes, ratios, and times on any network.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use briquette::core::CompressionRatio;
use briquette::core::error::ConfigError;
use briquette::sim::{CompressSeconds, Compute, Network, replay};
use briquette_examples::record::{StepRecord, Summary, read_frames};

use super::codecs::exchange;
use super::{Job, Table};

/// Number of ranks of every run.
pub const RANKS: usize = 4;

/// One run's results.
#[derive(Debug)]
pub struct Outcome {
    /// Its summary.
    pub summary: Summary,
    /// Its steps.
    pub steps: Vec<StepRecord>,
    /// Steps done and test accuracy, for each evaluation.
    pub evaluations: Vec<(usize, f64)>,
}

impl Outcome {
    /// Reads the results of a finished run.
    ///
    /// # Errors
    /// If its files cannot be read.
    pub fn read(job: &Job) -> Result<Option<Outcome>> {
        let Some(summary) = job.finished() else { return Ok(None) };
        let text = |name: &str| {
            let path = job.directory.join(name);
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let steps = text("metrics.jsonl")?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let evaluations = text("log.txt")?.lines().filter_map(evaluation).collect();
        Ok(Some(Outcome { summary, steps, evaluations }))
    }

    /// Returns the ratios in force, and their shares of the steps: `nothing 75 %, 1x 12 %, 10x 13 %`.
    pub fn shares(&self) -> String {
        let mut counts = BTreeMap::<_, usize>::new();
        self.ratios().for_each(|ratio| *counts.entry(ratio.map(f64::to_bits)).or_default() += 1);
        let share = |(ratio, count): (&Option<u64>, &usize)| {
            let percent = 100.0 * *count as f64 / self.steps.len() as f64;
            let ratio = ratio.map(|bits| format!("{:.4}x", f64::from_bits(bits)).replace(".0000x", "x"));
            format!("{} {percent:.0} %", ratio.as_deref().unwrap_or("nothing"))
        };
        counts.iter().map(share).collect::<Vec<_>>().join(", ")
    }

    /// Returns the nominal ratio of each step; `None` if it sent nothing, as a local step does.
    pub fn ratios(&self) -> impl Iterator<Item = Option<f64>> {
        self.steps.iter().map(|step| (step.bytes_sent > 0).then(|| step.ratio.unwrap_or(1.0)))
    }

    /// Returns the gradient's norm at tenths of the run, if the controller's reasons state it: `0: 2.31e0, 24: 1.87e0`.
    /// Each is the last one stated in its tenth. Empty under a controller that states none.
    pub fn norms(&self) -> String {
        let stated = self.steps.iter().filter_map(|step| norm(step.reason.as_deref()?));
        let tenths: BTreeMap<u64, (u64, String)> = stated
            .map(|(step, norm)| (step.saturating_mul(10) / (self.steps.len() as u64).max(1), (step, norm)))
            .collect();
        tenths.values().map(|(step, norm)| format!("{step}: {norm}")).collect::<Vec<_>>().join(", ")
    }

    /// Returns the mean bits per value and step, by the nominal ratios.
    pub fn bits(&self) -> f64 {
        self.ratios().flatten().map(|ratio| 32.0 / ratio).sum::<f64>() / self.steps.len() as f64
    }

    /// Returns rank 0's simulated time at the end of every step: its own if it was run on a network, otherwise
    /// replayed, with the codec's mean seconds per step as part of the compute time.
    ///
    /// # Errors
    /// If its frames cannot be read, or replayed.
    pub fn seconds(&self, table: &Table, job: &Job, network: &str, codec: f64) -> Result<Vec<f64>> {
        if job.network.is_some() {
            let seconds = |step: &StepRecord| step.simulated_seconds.context("a step without simulated seconds");
            return self.steps.iter().map(seconds).collect();
        }
        let compute = table.compute.strip_suffix("ms").context("compute in ms")?.parse::<f64>()? * 1e-3 + codec;
        let (frames, network) = (read_frames(&job.directory, RANKS)?, network.parse::<Network>()?);
        let seconds = replay(&frames, network, &Compute::Fixed(Duration::from_secs_f64(compute)))?;
        Ok(seconds.into_iter().next().unwrap_or_default())
    }

    /// Returns the steps to the first evaluation that reaches this accuracy.
    pub fn steps_to(&self, target: f64) -> Option<usize> {
        self.evaluations.iter().find(|(_, accuracy)| *accuracy >= target).map(|(steps, _)| *steps)
    }

    /// Returns the bytes of all ranks after these steps, extrapolated from rank 0's.
    pub fn bytes_to(&self, steps: usize) -> u64 {
        RANKS as u64 * self.steps.iter().take(steps).map(|step| step.bytes_sent).sum::<u64>()
    }
}

/// Parses `gradient norm 2.31e0 at step 24: 5 bits a value`.
fn norm(reason: &str) -> Option<(u64, String)> {
    let (norm, rest) = reason.strip_prefix("gradient norm ")?.split_once(" at step ")?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).map_or(rest, |end| &rest[..end]);
    Some((digits.parse().ok()?, norm.to_owned()))
}

/// Parses `epoch   1  step     78  test accuracy 0.4012  test loss …`.
fn evaluation(line: &str) -> Option<(usize, f64)> {
    let mut words = line.strip_prefix("epoch ")?.split_whitespace();
    let step = words.nth(2)?.parse().ok()?;
    let accuracy = words.nth(2)?.parse().ok()?;
    Some((step, accuracy))
}

/// Codec times of a step, measured once; a trainer reads the first four columns with `--compress-seconds`.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Codec {
    /// Reducer, as in a trainer's config.toml.
    pub reducer: String,
    /// Ratio in force.
    pub ratio: f64,
    /// Number of values of the model.
    pub values: usize,
    /// One rank's own seconds of a step's exchange: encoding, decoding, adding.
    pub seconds: f64,
    /// Part of these outside the session's calls.
    pub compress_seconds: f64,
    /// Feedback around the reducer.
    pub memory: String,
    /// Processor.
    pub machine: String,
    /// Number of its threads.
    pub cores: usize,
    /// Date of the measurement.
    pub date: String,
    /// Command of the measurement.
    pub command: String,
}

/// All measured codec times.
#[derive(Debug, Default)]
pub struct Codecs(Vec<Codec>);

impl Codecs {
    /// Reads the committed times.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn read(path: &Path) -> Result<Codecs> {
        let rows = csv::Reader::from_path(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Codecs(rows.into_deserialize().collect::<Result<_, _>>()?))
    }

    /// Returns the mean codec seconds of a run's steps, each by its ratio, and 0 for one that sent nothing; `None` for a reducer that was
    /// not measured.
    ///
    /// # Errors
    /// If the row's flags, or measured seconds, are invalid.
    pub fn mean(&self, job: &Job, outcome: &Outcome) -> Result<Option<f64>> {
        let reducer = exchange(job.model, &job.row)?.reducer;
        let is_measured = |codec: &&Codec| codec.reducer.parse().as_ref() == Ok(&reducer);
        let of_row = self.0.iter().filter(|codec| codec.values == job.model.values()).filter(is_measured);
        let points: Vec<_> = of_row.map(|codec| (codec.ratio, codec.seconds)).collect();
        if points.is_empty() {
            return Ok(None);
        }
        let seconds = CompressSeconds::new(&points)?;
        let each = outcome.ratios().flatten().map(|ratio| Ok(seconds.at(CompressionRatio::new(ratio)?)));
        let sum: f64 = each.sum::<Result<f64, ConfigError>>()?;
        Ok(Some(sum / outcome.steps.len() as f64))
    }
}

#[cfg(test)]
mod tests {
    use briquette::StepReport;
    use briquette_examples::record::SecondsAre;

    use super::super::Model;
    use super::*;

    #[test]
    fn evaluations_are_read_from_the_trainer_s_lines() {
        let line = "epoch   2  step    156  test accuracy 0.5012  test loss 1.4  ratio 10.0  wire ratio 8.1";
        assert_eq!(evaluation(line), Some((156, 0.5012)));
        assert_eq!(evaluation("10000 training and 10000 test images"), None);
    }

    #[test]
    fn local_steps_have_no_codec_time_and_no_bits() {
        let jobs = super::super::local_steps::TABLE.jobs(Path::new("runs"), &[Model::BiLstm], 1, false).unwrap();
        let job = jobs.iter().find(|job| job.row.name.starts_with("DiLoCo")).unwrap();
        let run = |bytes: &[u64]| {
            let summary = serde_json::json!({
                "final_test_accuracy": 0.5, "best_test_accuracy": 0.5, "final_test_loss": 1.0, "steps": bytes.len(), "bytes_sent": 1,
                "bytes_received": 1, "bytes_dense": 1, "wall_seconds": 1.0, "compute_seconds": 1.0, "compress_seconds": 1.0,
                "exchange_seconds": 1.0, "interrupted": false, "git_revision": "", "version": "", "burn_version": ""
            });
            let step = |bytes_sent: &u64| {
                let ratio = (*bytes_sent > 0).then_some(20.0);
                let step = StepRecord::new(&StepReport::default(), 0, 0.1, SecondsAre::Simulated);
                StepRecord { ratio, bytes_sent: *bytes_sent, ..step }
            };
            let (summary, steps) = (serde_json::from_value(summary).unwrap(), bytes.iter().map(step).collect());
            Outcome { summary, steps, evaluations: Vec::new() }
        };
        let local = run(&[0, 0, 0, 90]);
        assert_eq!((local.shares().as_str(), local.bits()), ("nothing 75 %, 20x 25 %", 32.0 / 20.0 / 4.0));
        let codecs = Codecs::read(Path::new("results/codec-seconds.csv")).unwrap();
        let [local, every] = [local, run(&[90])].map(|run| codecs.mean(job, &run).unwrap().unwrap());
        assert!(every > 0.0 && (4.0 * local / every - 1.0).abs() < 1e-12, "{local} {every}");
    }

    #[test]
    fn norms_are_read_from_the_reasons_of_dq_sgd() {
        let read = |reason: &str| norm(reason).map(|(step, norm)| format!("{step}: {norm}"));
        assert_eq!(read("gradient norm 2.31e0 at step 24: 5 bits a value").as_deref(), Some("24: 2.31e0"));
        assert_eq!(
            read("gradient norm 1.00e1 at step 7 needs 9 bits for this error: 8 bits a value").as_deref(),
            Some("7: 1.00e1")
        );
        assert_eq!(read("window over: trying 20x"), None);
    }
}
