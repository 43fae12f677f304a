//! Map of the gain of compression: dense step time divided by compressed step time, over bandwidth and compute time.
//!
//! A step takes `a + c + 8·b / B` seconds for each MB of the gradient: compute time, codec time, and bytes over a link of `B` bit/s. A dense step is
//! `s` times as long as a compressed one where `a = (dense − s·compressed) / (s − 1)`, with the times of both exchanges. For `s` near 1 that is the
//! break-even line. Latency, and overlap with the backward pass, are left out.

use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;

use super::break_even::{Cost, Run, costs, read};
use super::{DENSE, Model};
use crate::ranks::write_csv;

/// Model whose codec times are used, per MB: the largest.
const MEASURED: Model = Model::BiLstm;
/// Choices that lost at most 0.3 points in the tables.
const CHOICES: [&str; 4] = ["ring bf16", "ring int8", "topk:10x:q8", "topk:20x:q8"];
/// Factors of the lines. The first is the break-even line.
const FACTORS: [f64; 5] = [1.02, 1.25, 2.0, 4.0, 8.0];

/// A training set-up: a link, and the compute time of a step.
struct Setup {
    name: &'static str,
    mbit: f64,
    /// Seconds of a step, and MB of its gradient in f32.
    step: (f64, f64),
    source: &'static str,
}

const OWN: &str = "benches/results/never-slower.csv";

/// Set-ups of this repository's tables and of papers.
const SETUPS: [Setup; 5] = [
    Setup { name: "ResNet-8, 100 Mbit/s", mbit: 100.0, step: (0.05, 0.3114), source: OWN },
    Setup { name: "BiLSTM, 100 Mbit/s", mbit: 100.0, step: (0.05, 5.621), source: OWN },
    Setup { name: "BiLSTM, 10 Gbit/s", mbit: 10_000.0, step: (0.05, 5.621), source: OWN },
    Setup {
        name: "ResNet-50, 8 V100 a node, 10 Gbit/s",
        mbit: 10_000.0,
        step: (0.271, 102.2),
        source: "Wang et al., SlowMo, ICLR 2020: 271 ms per iteration of overlapped SGP, taken for the compute time",
    },
    Setup {
        name: "72 B transformer, 500 Mbit/s",
        mbit: 500.0,
        step: (42.0, 288_000.0),
        source: "Sarfi et al., SparseLoCo, 2025: 70 s of communication per round of 30 steps, 94.5 % utilization",
    },
];

/// A point of a line, or a set-up.
#[derive(Debug, Serialize)]
struct Point {
    kind: &'static str,
    row: String,
    mbit: f64,
    /// Milliseconds of compute time per MB of the gradient in f32.
    compute_ms_per_mb: f64,
    /// Dense step time divided by the time of the fastest choice.
    times_faster: f64,
    choice: String,
    source: String,
    ranks: usize,
    machine: String,
    cores: usize,
    date: String,
    command: &'static str,
}

/// Seconds of exchanges, per MB of the gradient.
struct Exchanges {
    dense: Cost,
    choices: Vec<(String, Cost)>,
}

impl Exchanges {
    fn of(runs: &[Run]) -> Result<Exchanges> {
        let costs = costs(MEASURED, runs);
        let megabytes = 4.0 * MEASURED.values() as f64 / 1e6;
        let per_mb = |cost: Cost| Cost { bytes: cost.bytes / megabytes, codec: cost.codec / megabytes };
        let of = |name: &str| -> Result<Cost> {
            let found = costs.iter().find(|(row, _)| row.split(',').next() == Some(name));
            Ok(per_mb(found.with_context(|| format!("no run of {name}"))?.1.1))
        };
        let choices = CHOICES.iter().map(|name| Ok(((*name).to_owned(), of(name)?))).collect::<Result<_>>()?;
        Ok(Exchanges { dense: of(DENSE)?, choices })
    }

    fn fastest(&self, mbit: f64) -> (&str, f64) {
        let seconds = self.choices.iter().map(|(name, cost)| (name.as_str(), cost.seconds(mbit)));
        seconds.min_by(|a, b| a.1.total_cmp(&b.1)).expect("there are choices")
    }

    /// Compute seconds per MB with which a dense step is `factor` times as long as the fastest compressed one; `None` if none is.
    fn compute(&self, mbit: f64, factor: f64) -> Option<f64> {
        let compute = (self.dense.seconds(mbit) - factor * self.fastest(mbit).1) / (factor - 1.0);
        (compute > 0.0).then_some(compute)
    }

    /// Returns the time of a dense step divided by that of the fastest compressed one.
    fn times_faster(&self, mbit: f64, compute: f64) -> f64 {
        (compute + self.dense.seconds(mbit)) / (compute + self.fastest(mbit).1)
    }
}

/// Writes `gain-map.csv` from the committed runs in `csv`, and draws it into `svg`.
///
/// # Errors
/// If runs are missing, or a file cannot be written.
pub fn write(csv: &Path, svg: &Path) -> Result<()> {
    let runs = read(csv)?;
    let exchanges = Exchanges::of(&runs)?;
    let run = runs.iter().find(|run| run.model == MEASURED.name()).context("no run of the measured model")?;
    let point = |kind, row: String, mbit, compute: f64, source: &str| Point {
        kind,
        row,
        mbit,
        compute_ms_per_mb: 1e3 * compute,
        times_faster: exchanges.times_faster(mbit, compute),
        choice: exchanges.fastest(mbit).0.to_owned(),
        source: source.to_owned(),
        ranks: super::results::RANKS,
        machine: run.machine.clone(),
        cores: run.cores,
        date: run.date.clone(),
        command: "tables map",
    };
    let mut points = Vec::new();
    for factor in FACTORS {
        // Ten for each factor of ten, from 10 Mbit/s to 100 Gbit/s.
        for mbit in (10..=50).map(|tenth| 10_f64.powf(f64::from(tenth) / 10.0)) {
            let Some(compute) = exchanges.compute(mbit, factor) else { continue };
            points.push(point("line", format!("{factor}x"), mbit, compute, ""));
        }
    }
    for Setup { name, mbit, step: (seconds, megabytes), source } in SETUPS {
        points.push(point("set-up", name.to_owned(), mbit, seconds / megabytes, source));
    }
    for Point { row, times_faster, choice, .. } in points.iter().filter(|point| point.kind == "set-up") {
        println!("{row:40} {times_faster:6.2}x with {choice}");
    }
    write_csv(Some(&csv.join("gain-map.csv")), &points)?;
    draw(&points, &svg.join("gain-map.svg"))
}

fn draw(points: &[Point], svg: &Path) -> Result<()> {
    paint(points, svg).map_err(|error| anyhow!("cannot draw {}: {error}", svg.display()))
}

fn paint(points: &[Point], svg: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(svg, (860, 520)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption("dense step time / time of the fastest compressed exchange, 4 ranks", ("sans-serif", 18))
        .margin(12)
        .margin_right(44)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d((10.0..1e5).log_scale(), (0.03..1e5).log_scale())?;
    let number = |value: &f64| value.to_string();
    let mesh = &mut chart.configure_mesh();
    mesh.x_label_formatter(&number).y_label_formatter(&number).label_style(("sans-serif", 13));
    mesh.light_line_style(WHITE).x_desc("Mbit/s").y_desc("compute, ms per MB of the gradient").draw()?;
    let place = |point: &Point| (point.mbit, point.compute_ms_per_mb);
    for (number, factor) in FACTORS.iter().enumerate() {
        let name = format!("{factor}x");
        let line: Vec<_> = points.iter().filter(|point| point.row == name).map(place).collect();
        let color = HSLColor(0.62 - 0.15 * number as f64, 0.8, 0.4);
        let (x, y) = *line.first().context("a line without a point")?;
        chart.draw_series(LineSeries::new(line, color.stroke_width(2)))?;
        let style = ("sans-serif", 15).into_font().color(&color);
        chart.draw_series(std::iter::once(Text::new(name, (1.1 * x, 1.5 * y), style)))?;
    }
    for point in points.iter().filter(|point| point.kind == "set-up") {
        let (x, y) = place(point);
        chart.draw_series(std::iter::once(Circle::new((x, y), 4, BLACK.filled())))?;
        // Names of set-ups at the right are to the left of their points.
        let side = if x < 5000.0 { HPos::Left } else { HPos::Right };
        let text = if x < 5000.0 { 1.15 * x } else { x / 1.15 };
        let style = ("sans-serif", 14).into_font().color(&BLACK).pos(Pos::new(side, VPos::Center));
        chart.draw_series(std::iter::once(Text::new(point.row.clone(), (text, y), style)))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dense: 2 MB of bytes and no codec. Compressed: 0.1 MB and 1 ms. At 80 Mbit/s these take 200 ms and 11 ms.
    #[test]
    fn a_line_by_hand() {
        let choice = Cost { bytes: 0.1e6, codec: 0.001 };
        let dense = Cost { bytes: 2e6, codec: 0.0 };
        let exchanges = Exchanges { dense, choices: vec![("a".into(), choice)] };
        let compute = exchanges.compute(80.0, 2.0).unwrap();
        assert!((compute - 0.178).abs() < 1e-12, "{compute}");
        assert!((exchanges.times_faster(80.0, compute) - 2.0).abs() < 1e-12);
        // Dense is as fast where 15.2 Mbit take 1 ms.
        assert!(exchanges.compute(15_300.0, 1.02).is_none() && exchanges.times_faster(15_300.0, 0.0) < 1.0);
        assert!(exchanges.times_faster(15_100.0, 0.0) > 1.0);
    }

    #[test]
    fn the_committed_map_is_that_of_the_runs() {
        let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results"));
        let exchanges = Exchanges::of(&read(results).unwrap()).unwrap();
        let mut lines = csv::Reader::from_path(results.join("gain-map.csv")).unwrap();
        let head = lines.headers().unwrap().clone();
        let place = |name: &str| head.iter().position(|column| column == name).unwrap();
        let [mbit, compute, times] = ["mbit", "compute_ms_per_mb", "times_faster"].map(place);
        let mut count = 0;
        for line in lines.records().map(|line| line.unwrap()) {
            let [mbit, compute, times] = [mbit, compute, times].map(|at| line[at].parse::<f64>().unwrap());
            assert!((exchanges.times_faster(mbit, compute / 1e3) - times).abs() < 1e-9, "{line:?}");
            count += 1;
        }
        assert!(count > 100);
    }
}
