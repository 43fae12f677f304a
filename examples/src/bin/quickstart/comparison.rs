//! Comparison of two runs: the data shown on the terminal and on the page.

use anyhow::{Context, Result};
use briquette::core::files;
use briquette_cli::report::svg::Curve;
use briquette_cli::terminal::bytes;
use briquette_examples::record::{StepRecord, Summary};
use briquette_examples::settings::Settings;

/// Number of steps whose losses are averaged for display, since single batches are small.
pub(crate) const SMOOTHED: usize = 8;

/// Columns of the table.
pub(crate) const COLUMNS: [&str; 5] = ["exchange", "test accuracy", "bytes sent", "simulated time", "wall time"];

/// One of the runs.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) name: &'static str,
    pub(crate) summary: Summary,
    pub(crate) records: Vec<StepRecord>,
}

/// Both runs.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) network: String,
    pub(crate) ranks: usize,
    pub(crate) dense: Run,
    pub(crate) auto: Run,
}

impl Run {
    /// Reads the records of a finished run from its folder.
    pub(crate) fn read(name: &'static str, settings: &Settings, summary: Summary) -> Result<Run> {
        let path = settings.out.join("metrics.jsonl");
        let text = files::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let records = text.lines().map(serde_json::from_str).collect::<Result<_, _>>();
        Ok(Run { name, summary, records: records.with_context(|| format!("in {}", path.display()))? })
    }

    /// Returns the row of the table.
    pub(crate) fn row(&self) -> [String; 5] {
        let Summary { final_test_accuracy, bytes_sent, simulated_seconds, wall_seconds, .. } = self.summary;
        [
            self.name.to_owned(),
            format!("{:.1} %", 100.0 * final_test_accuracy),
            bytes(bytes_sent),
            format!("{:.1} s (simulated)", simulated_seconds.unwrap_or_default()),
            format!("{wall_seconds:.0} s"),
        ]
    }

    /// Returns the loss on training samples over simulated seconds, each the mean of [`SMOOTHED`] steps.
    pub(crate) fn loss(&self) -> Curve {
        let points: Vec<(f64, f64)> = self.points(|record| Some((record.simulated_seconds?, record.loss?)));
        let smoothed = |window: &[(f64, f64)]| {
            let mean = window.iter().map(|point| point.1).sum::<f64>() / window.len() as f64;
            (window[window.len() - 1].0, mean)
        };
        let length = SMOOTHED.min(points.len()).max(1);
        self.curve(points.windows(length).map(smoothed).collect())
    }

    /// Returns the bytes that rank 0 sends per step.
    pub(crate) fn bytes(&self) -> Curve {
        self.curve(self.points(|record| Some((record.step as f64, record.bytes_sent as f64))))
    }

    /// Returns the nominal compression ratio of each step.
    pub(crate) fn ratios(&self) -> Curve {
        self.curve(self.points(|record| Some((record.step as f64, record.ratio?))))
    }

    /// Returns the newest table of layers, of a compressed step if there is one.
    pub(crate) fn layers(&self) -> Option<&StepRecord> {
        let mut tables = self.records.iter().rev().filter(|record| !record.slots.is_empty());
        let is_compressed = |record: &&StepRecord| record.ratio.is_some_and(|ratio| ratio > 1.0);
        tables.clone().find(is_compressed).or_else(|| tables.next())
    }

    fn curve(&self, points: Vec<(f64, f64)>) -> Curve {
        Curve { name: self.name.to_owned(), class: self.name.to_owned(), points, errors: Vec::new() }
    }

    fn points(&self, of: impl Fn(&StepRecord) -> Option<(f64, f64)>) -> Vec<(f64, f64)> {
        self.records.iter().filter_map(of).filter(|(x, y)| x.is_finite() && y.is_finite()).collect()
    }
}

impl Comparison {
    pub(crate) fn runs(&self) -> [&Run; 2] {
        [&self.dense, &self.auto]
    }

    /// Summarizes the comparison in a sentence.
    pub(crate) fn verdict(&self) -> String {
        let [dense, auto] = self.runs().map(|run| &run.summary);
        if dense.bytes_sent == 0 {
            return "One rank alone sends nothing: use --ranks 2 or more to compare.".to_owned();
        }
        let [before, after] = [dense, auto].map(|summary| summary.simulated_seconds.unwrap_or(1.0));
        format!(
            "auto sends {:.0}x fewer bytes and is {:.1} times as fast as dense, on {} with 50 ms of compute time per step.",
            dense.bytes_sent as f64 / auto.bytes_sent.max(1) as f64,
            before / after.max(1e-9),
            self.network,
        )
    }
}
