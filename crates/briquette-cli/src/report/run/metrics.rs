//! `metrics.jsonl` of a run of any length, as a bounded number of points, decisions and tables of layers.

use std::io::{BufRead, BufReader};

use anyhow::{Context, Result};
use briquette_core::files;
use serde::Deserialize;

use super::{Decision, Layer, Layers, METRICS, Mean, Point, Run};

/// Points that are kept of a run: neighbors are merged while there are twice as many.
const POINTS: usize = 400;
/// Tables of layers that are kept.
const TABLES: usize = 40;
/// Decisions that are kept.
const DECISIONS: usize = 300;

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

/// An element of `evaluations.json`.
#[derive(Debug, Deserialize)]
pub(super) struct Evaluation {
    step: u64,
    test_accuracy: Option<Number>,
    test_loss: Option<Number>,
}

impl Evaluation {
    /// Returns the results at the last step before it; those of a model without training have none.
    pub(super) fn point(&self) -> Option<Point> {
        let [accuracy, test_loss] =
            [self.test_accuracy, self.test_loss].map(|number| Mean::of(number.map(Number::get)));
        Some(Point { step: self.step.checked_sub(1)?, accuracy, test_loss, ..Point::default() })
    }
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

impl Run {
    pub(super) fn read_metrics(&mut self) -> Result<()> {
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
        // Those after the last step are of before the run was resumed.
        let last = self.points.last().map_or(0, |last| last.step);
        self.evaluations.retain(|evaluation| evaluation.step <= last);
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
        // The last record before an evaluation counts, as the one of its step may be damaged.
        for evaluation in self.evaluations.iter_mut().filter(|evaluation| evaluation.step >= step) {
            (evaluation.seconds, evaluation.bytes) = (total.seconds, total.bytes);
        }
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
                ..Point::default()
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
