//! Cost of telemetry per step: the record of each step, the table of slots, and the numbers for Prometheus, as in the
//! trainers. One rank, top-k 1 % under error feedback; steps of all modes alternate.

use std::fs::File;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use briquette::DistributedConfig;
use briquette::core::comm::Local;
use briquette_benches::overhead::{BILSTM, Case, RESNET8, Steps, Wrapped};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use briquette_cli::measure::median;
use briquette_examples::endpoint::Endpoint;
use briquette_examples::record::{SecondsAre, StepRecord, append};
use burn::tensor::Device;
use clap::Parser;
use serde::Serialize;

/// Cost of telemetry per step
#[derive(Debug, Parser)]
struct Arguments {
    /// Blocks of steps of each mode; the median block counts
    #[arg(long, default_value_t = 5)]
    blocks: usize,
    /// Steps of a block; of the interval between tables of slots, or a multiple of it
    #[arg(long, default_value_t = 50)]
    steps: u64,
    /// Address at which Prometheus finds the page meanwhile
    #[arg(long, default_value = "127.0.0.1:0")]
    metrics_addr: std::net::SocketAddr,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// Nothing is recorded.
    Off,
    /// One record per step, slots every 50 steps.
    Default,
    /// One record with all slots per step.
    EveryStep,
    /// The default, with a page for Prometheus.
    Prometheus,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Off, Mode::Default, Mode::EveryStep, Mode::Prometheus];

    /// Returns the steps between tables of slots.
    fn slots_every(self) -> u64 {
        if self == Mode::EveryStep { 1 } else { 50 }
    }
}

/// Means over a block, of the median block.
#[derive(Debug, Serialize)]
struct Row {
    model: &'static str,
    slots: usize,
    mode: Mode,
    blocks: usize,
    steps: u64,
    step_milliseconds: f64,
    telemetry_microseconds: f64,
    telemetry_share: f64,
    machine: String,
    cores: usize,
    command: String,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let mut rows = measure("resnet8", RESNET8, &arguments)?;
    rows.extend(measure("bilstm", BILSTM, &arguments)?);
    for Row { model, mode, step_milliseconds, telemetry_microseconds, telemetry_share, .. } in &rows {
        let share = 100.0 * telemetry_share;
        println!(
            "{model:8} {mode:10?} step {step_milliseconds:7.1} ms, telemetry {telemetry_microseconds:7.1} µs ({share:.4} %)"
        );
    }
    write_csv(arguments.csv.as_deref(), &rows)
}

/// Seconds of a block's steps, and of their telemetry.
type Block = [f64; 2];

fn measure<C: Case>(model: &'static str, case: C, arguments: &Arguments) -> Result<Vec<Row>> {
    let config = DistributedConfig::top_k(0.01)?;
    let mut trained = Wrapped::new(case, &Device::flex(), Local::world(1).remove(0), config);
    let directory = tempfile::tempdir()?;
    let mut file = File::create(directory.path().join("metrics.jsonl"))?;
    let endpoint = Endpoint::open(arguments.metrics_addr)?;
    let mut blocks: Vec<(Mode, Block)> = Vec::new();
    (0..3).for_each(|_| {
        trained.step();
    });
    for _ in 0..arguments.blocks {
        for mode in Mode::ALL {
            blocks.push((mode, block(&mut trained, mode, arguments.steps, (&mut file, &endpoint))?));
        }
    }
    let slots = trained.optimizer().synchronizer().layout()?.slots().len();
    Ok(Mode::ALL.map(|mode| row((model, slots, mode), &blocks, arguments)).into())
}

fn block<C: Case>(
    trained: &mut Wrapped<C>,
    mode: Mode,
    steps: u64,
    (file, endpoint): (&mut File, &Endpoint),
) -> Result<Block> {
    let mut seconds = [0.0; 2];
    for step in 0..steps {
        let begin = Instant::now();
        trained.step();
        let end = Instant::now();
        if mode != Mode::Off {
            record(trained, mode, step, file)?;
        }
        if mode == Mode::Prometheus {
            endpoint.record(trained.report().context("a wrapped step reports")?);
        }
        seconds[0] += (end - begin).as_secs_f64();
        seconds[1] += end.elapsed().as_secs_f64();
    }
    Ok(seconds.map(|seconds| seconds / steps as f64))
}

fn record<C: Case>(trained: &Wrapped<C>, mode: Mode, step: u64, file: &mut File) -> Result<()> {
    let sync = trained.optimizer().synchronizer();
    let mut record = StepRecord::new(sync.report(), 0, 0.1, SecondsAre::Measured);
    if step.is_multiple_of(mode.slots_every()) {
        record = record.with_state(sync.controller_state()).with_slots(sync.report(), sync.layout()?);
    }
    Ok(append(file, &record)?)
}

fn row((model, slots, mode): (&'static str, usize, Mode), blocks: &[(Mode, Block)], arguments: &Arguments) -> Row {
    let of = |index: usize| {
        median(blocks.iter().filter(|(other, _)| *other == mode).map(|(_, seconds)| seconds[index]).collect())
    };
    let (machine, cores) = machine();
    let Arguments { blocks, steps, .. } = arguments;
    Row {
        model,
        slots,
        mode,
        blocks: *blocks,
        steps: *steps,
        step_milliseconds: 1e3 * of(0),
        telemetry_microseconds: 1e6 * of(1),
        telemetry_share: of(1) / of(0),
        machine,
        cores,
        command: format!("telemetry --blocks {blocks} --steps {steps}"),
    }
}
