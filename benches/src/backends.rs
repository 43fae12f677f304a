//! Step time of each model on each backend: plain Burn, one wrapped rank, and several ranks on one device.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use briquette::core::comm::{Local, run_ranks};
use briquette::core::error::CommError;
use briquette::{DistributedConfig, StepReport, WallClock};
use briquette_cli::measure::median;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::overhead::{Case, Plain, Steps, Wrapped};

/// Kind of exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exchange {
    /// None: plain Burn.
    Plain,
    /// Dense gradients.
    Dense,
    /// The largest 1 % of the values, with error feedback.
    TopK,
    /// The same, in buckets during the backward pass; one rank alone exchanges nothing then.
    TopKDuring,
    /// 8-bit block quantization.
    EightBit,
    /// PowerSGD of rank 2, with error feedback.
    PowerSgd,
    /// The default of the library.
    Auto,
}

impl Exchange {
    /// All kinds, the baseline first.
    pub const ALL: [Exchange; 7] = [
        Exchange::Plain,
        Exchange::Dense,
        Exchange::TopK,
        Exchange::TopKDuring,
        Exchange::EightBit,
        Exchange::PowerSgd,
        Exchange::Auto,
    ];

    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Exchange::Plain => "plain Burn",
            Exchange::Dense => "dense",
            Exchange::TopK => "top-k 1 % + error feedback",
            Exchange::TopKDuring => "top-k 1 % + error feedback, during the pass",
            Exchange::EightBit => "8-bit",
            Exchange::PowerSgd => "PowerSGD rank 2 + error feedback",
            Exchange::Auto => "auto",
        }
    }

    fn config(self) -> Result<DistributedConfig> {
        let text = match self {
            Exchange::Plain | Exchange::Dense => "reducer=dense",
            Exchange::TopK => "reducer=gather:topk:0.01 feedback=error controller=none",
            Exchange::TopKDuring => "reducer=gather:topk:0.01 feedback=error controller=none during_backward=true",
            Exchange::EightBit => "reducer=gather:minmax feedback=none controller=none",
            Exchange::PowerSgd => "reducer=power-sgd:2 feedback=error controller=none",
            Exchange::Auto => "auto",
        };
        text.parse().context("a configuration")
    }
}

/// A measurement. Milliseconds are medians over steps, and the parts are rank 0's.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[allow(missing_docs)] // the names are the table's columns
pub struct Row {
    pub backend: String,
    pub device: String,
    pub model: String,
    pub batch: usize,
    pub ranks: usize,
    pub exchange: String,
    pub steps: usize,
    /// Absent if not measured; the note says why.
    pub ms_per_step: Option<f64>,
    /// Samples of all ranks.
    pub samples_per_second: Option<f64>,
    /// Overhead over plain Burn on the same device, one rank against one, measured in the same minutes.
    pub overhead_percent: Option<f64>,
    pub read_ms: Option<f64>,
    pub encode_ms: Option<f64>,
    pub exchange_ms: Option<f64>,
    pub decode_ms: Option<f64>,
    pub write_ms: Option<f64>,
    pub note: String,
    pub machine: String,
    pub versions: String,
}

/// Parts of a step, in milliseconds.
#[derive(Debug, Clone, Copy, Default)]
struct Parts([f64; 5]);

impl Parts {
    /// Extracts the times of reading, encoding, exchanging, decoding and writing.
    fn of(report: &StepReport) -> Parts {
        let inner = report.exchange.seconds.unwrap_or_default();
        let parts = [
            report.read_seconds,
            inner.encode,
            report.exchange_seconds,
            inner.compress - inner.encode,
            report.write_seconds,
        ];
        Parts(parts.map(|seconds| seconds * 1e3))
    }

    fn fill(parts: &[Parts], row: &mut Row) {
        let part = |index: usize| Some(median(parts.iter().map(|p| p.0[index]).collect()));
        (row.read_ms, row.encode_ms, row.exchange_ms) = (part(0), part(1), part(2));
        (row.decode_ms, row.write_ms) = (part(3), part(4));
    }
}

/// A measurement to be made.
#[derive(Debug, Clone)]
pub struct Plan<C> {
    /// Model with its batch.
    pub case: C,
    /// Device.
    pub device: Device,
    /// Number of measured steps.
    pub steps: usize,
    /// Values that all rows share.
    pub base: Row,
}

/// Measures one rank: plain Burn and every exchange in turn, so that all run under the same machine load.
///
/// # Errors
/// If an exchange cannot be configured, or its result differs from plain Burn's.
pub fn alone<C: Case>(plan: &Plan<C>) -> Result<Vec<Row>> {
    let Plan { case, device, steps, base } = plan;
    let steps = *steps;
    let mut all: Vec<Box<dyn Steps>> = vec![Box::new(Plain::new(case.clone(), device))];
    for exchange in &Exchange::ALL[1..] {
        let comm = Local::builder(1).clock(Arc::new(WallClock::start())).build().remove(0);
        all.push(Box::new(Wrapped::new(case.clone(), device, comm, exchange.config()?)));
    }
    let first: Vec<f32> = all.iter_mut().map(|each| each.step()).collect();
    ensure!(first.iter().all(|loss| (loss - first[0]).abs() <= 1e-4 * first[0].abs()), "losses differ: {first:?}");
    let (mut times, mut parts) = (vec![Vec::new(); all.len()], vec![Vec::new(); all.len()]);
    for turn in 0..steps + WARM_UP {
        for place in 0..all.len() {
            let which = (place + turn) % all.len();
            let start = Instant::now();
            all[which].step();
            let seconds = start.elapsed().as_secs_f64();
            if turn >= WARM_UP {
                times[which].push(seconds);
                parts[which].extend(all[which].report().map(Parts::of));
            }
        }
    }
    let ratios = |which: usize| median(times[which].iter().zip(&times[0]).map(|(a, b)| a / b).collect());
    let rows = Exchange::ALL.iter().enumerate().map(|(which, exchange)| {
        let mut row = timed(base, *exchange, 1, median(times[which].clone()), steps);
        if which > 0 {
            row.overhead_percent = Some((ratios(which) - 1.0) * 100.0);
            Parts::fill(&parts[which], &mut row);
        }
        row
    });
    Ok(rows.collect())
}

/// Steps for compiling kernels and filling caches.
const WARM_UP: usize = 3;

/// Measures several ranks on one device, as threads.
///
/// # Errors
/// If a rank fails.
pub fn together<C: Case + Sync>(plan: &Plan<C>, ranks: usize, exchange: Exchange) -> Result<Row> {
    let Plan { case, device, steps, base } = plan;
    let steps = *steps;
    let config = exchange.config()?;
    let comms = Local::builder(ranks).clock(Arc::new(WallClock::start())).build();
    let results = run_ranks(comms, |comm| {
        let mut rank = Wrapped::new(case.clone(), device, comm, config.clone());
        let (mut times, mut parts) = (Vec::new(), Vec::new());
        for step in 0..steps + WARM_UP {
            let start = Instant::now();
            rank.step();
            if step >= WARM_UP {
                times.push(start.elapsed().as_secs_f64());
                parts.extend(rank.report().map(Parts::of));
            }
        }
        Ok::<_, CommError>((median(times), parts))
    });
    let (seconds, parts) = results.into_iter().collect::<Result<Vec<_>, _>>()?.swap_remove(0);
    let mut row = timed(base, exchange, ranks, seconds, steps);
    Parts::fill(&parts, &mut row);
    Ok(row)
}

fn timed(base: &Row, exchange: Exchange, ranks: usize, seconds: f64, steps: usize) -> Row {
    Row {
        ranks,
        exchange: exchange.name().into(),
        steps,
        ms_per_step: Some(seconds * 1e3),
        samples_per_second: Some((ranks * base.batch) as f64 / seconds),
        ..base.clone()
    }
}
