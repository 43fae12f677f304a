//! Break-even lines: the link speed below which a row is faster than another.
//!
//! A step of row `a` takes `c_a + 8·b_a / B` seconds beyond its compute time: its codec seconds, and its bytes over a link of `B` bit/s. Row
//! `a` with fewer bytes is faster than `b` below `B = 8·(b_b − b_a) / (c_a − c_b)`, and at every speed if its codec is no slower. Latency is
//! left out: it is the same for rows of one pattern, and larger for rings than for gathers.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::results::RANKS;
use super::{DENSE, Model};
use crate::ranks::write_csv;

/// A finished run, as in `never-slower-runs.csv`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Run {
    pub(super) model: String,
    row: String,
    wire_ratio: f64,
    codec_seconds: Option<f64>,
    pub(super) machine: String,
    pub(super) cores: usize,
    pub(super) date: String,
}

/// Bytes and codec seconds of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cost {
    /// Bytes that a rank sends per step.
    pub(super) bytes: f64,
    /// Codec seconds per step.
    pub(super) codec: f64,
}

impl Cost {
    /// Returns the seconds over a link.
    pub(super) fn seconds(self, mbit: f64) -> f64 {
        self.codec + 8.0 * self.bytes / (1e6 * mbit)
    }

    /// Returns the Mbit/s below which this row is faster than `other`, which sends more bytes; infinite if it always is.
    fn break_even(self, other: Cost) -> f64 {
        let (bits, seconds) = (8.0 * (other.bytes - self.bytes), self.codec - other.codec);
        if seconds <= 0.0 { f64::INFINITY } else { bits / seconds / 1e6 }
    }
}

/// Break-even speeds of a row.
#[derive(Debug, Serialize)]
struct Line {
    model: &'static str,
    row: String,
    bytes_per_step: f64,
    codec_seconds: f64,
    /// Mbit/s below which the row is faster than dense.
    faster_than_dense_below: f64,
    /// Mbit/s below which the row is faster than the 8-bit ring; empty for rows that send more.
    faster_than_ring8_below: Option<f64>,
    ranks: usize,
    /// Machine, cores and date of the run.
    machine: String,
    cores: usize,
    date: String,
    command: &'static str,
}

/// Name of the row to which sparse rows are compared.
const RING: &str = "ring int8";

/// Computes the lines from the committed runs in `csv`, and writes `break-even.csv` there.
///
/// # Errors
/// If `never-slower-runs.csv` is missing or invalid, or the file cannot be written.
pub fn write(csv: &Path) -> Result<()> {
    let runs = read(csv)?;
    let lines = Model::ALL.iter().flat_map(|model| lines(*model, &runs)).collect::<Vec<_>>();
    for Line { model, row, codec_seconds, faster_than_dense_below, faster_than_ring8_below, .. } in &lines {
        let ring = faster_than_ring8_below.map_or_else(String::new, |below| format!("{below:.0}"));
        println!("{model:12} {row:40} {:8.2} ms {faster_than_dense_below:8.0} {ring:>8}", 1e3 * codec_seconds);
    }
    write_csv(Some(&csv.join("break-even.csv")), &lines)
}

/// Reads the committed runs.
pub(super) fn read(csv: &Path) -> Result<Vec<Run>> {
    let path = csv.join("never-slower-runs.csv");
    let rows = csv::Reader::from_path(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(rows.into_deserialize().collect::<Result<_, _>>()?)
}

/// Returns the costs of a model's static rows.
pub(super) fn costs(model: Model, runs: &[Run]) -> BTreeMap<&str, (&Run, Cost)> {
    let dense_bytes = 2.0 * (RANKS - 1) as f64 / RANKS as f64 * 4.0 * model.values() as f64;
    let mut costs: BTreeMap<&str, (&Run, Cost)> = BTreeMap::new();
    let is_static = |row: &str| row == DENSE || row.starts_with("ring ") || row.starts_with("topk:");
    for run in runs.iter().filter(|run| run.model == model.name() && is_static(&run.row)) {
        if let Some(codec) = run.codec_seconds {
            costs.entry(&run.row).or_insert((run, Cost { bytes: dense_bytes / run.wire_ratio, codec }));
        }
    }
    costs
}

/// Returns the lines of a model's static rows, by bytes.
fn lines(model: Model, runs: &[Run]) -> Vec<Line> {
    let costs = costs(model, runs);
    let (Some(&(_, dense)), Some(&(_, ring))) = (costs.get(DENSE), costs.get(RING)) else { return Vec::new() };
    let mut lines: Vec<Line> = costs
        .values()
        .filter(|(run, _)| run.row != DENSE)
        .map(|(run, cost)| Line {
            model: model.name(),
            row: run.row.clone(),
            bytes_per_step: cost.bytes,
            codec_seconds: cost.codec,
            faster_than_dense_below: cost.break_even(dense),
            faster_than_ring8_below: (cost.bytes < ring.bytes).then(|| cost.break_even(ring)),
            ranks: RANKS,
            machine: run.machine.clone(),
            cores: run.cores,
            date: run.date.clone(),
            command: "tables break-even",
        })
        .collect();
    lines.sort_by(|a, b| b.bytes_per_step.total_cmp(&a.bytes_per_step));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1 MB against 3 MB in 16 ms more: 16 Mbit in 16 ms are 1 Gbit/s. There both take the same time.
    #[test]
    fn a_break_even_speed_by_hand() {
        let (few, many) = (Cost { bytes: 1e6, codec: 0.018 }, Cost { bytes: 3e6, codec: 0.002 });
        assert!((few.break_even(many) - 1000.0).abs() < 1e-9);
        let seconds = |cost: Cost| cost.codec + 8.0 * cost.bytes / 1e9;
        assert!((seconds(few) - seconds(many)).abs() < 1e-12);
        assert_eq!(Cost { codec: 0.002, ..few }.break_even(many), f64::INFINITY);
    }

    #[test]
    fn controllers_have_no_line() {
        let run = |row: &str, wire_ratio, codec| Run {
            model: "resnet8".to_owned(),
            row: row.to_owned(),
            wire_ratio,
            codec_seconds: Some(codec),
            machine: "a machine".to_owned(),
            cores: 2,
            date: "2026-11-28".to_owned(),
        };
        let runs = [run(DENSE, 1.0, 1e-4), run(RING, 4.0, 2e-4), run("auto", 9.0, 1e-3), run("auto", 9.0, 2e-3)];
        let lines = lines(Model::ResNet8, &runs);
        assert_eq!(lines.iter().map(|line| line.row.as_str()).collect::<Vec<_>>(), [RING]);
        // Three quarters of 467 100 bytes, 8 bits each, in 0.1 ms.
        assert!((lines[0].faster_than_dense_below - 28_026.0).abs() < 1e-6, "{}", lines[0].faster_than_dense_below);
    }
}
