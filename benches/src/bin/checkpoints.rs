//! Cost of checkpoints, and the part that background writing overlaps: a loop that saves every few steps, synchronously
//! and in the background in turn, and the same loop without saving.
//!
//! Ranks are threads; each writes its own file with the model and its momenta. `blocked` is the time for which training
//! waits inside `save`; in the background that includes waiting for the previous write, if it is not complete. `cycle`
//! covers the steps and the save. Medians over all cycles of rank 0 but the first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use briquette::core::comm::{Local, Session, run_ranks};
use briquette::{DistributedConfig, DistributedOptimizer, Error};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use briquette_cli::measure::median;
use burn::nn::{Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor};
use clap::Parser;
use comfy_table::{Table, presets};
use serde::Serialize;

/// Cost of checkpoints, and the part that background writing overlaps
#[derive(Debug, Parser)]
struct Arguments {
    /// Sizes of the model, in MiB of parameters
    #[arg(long, value_delimiter = ',', default_value = "1,16,64")]
    mib: Vec<usize>,
    /// Ranks, each a thread
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Steps between saves
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Saves of each kind
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Directory to save to, on the disk to be measured; a directory is made there and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    directory: PathBuf,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// Mode of saving.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Never,
    AtOnce,
    Background,
}

/// One row of the table; all times are in milliseconds.
#[derive(Debug, Serialize)]
struct Row {
    model_mib: usize,
    ranks: usize,
    saving: Mode,
    file_mib: f64,
    cycle_ms: f64,
    blocked_ms: f64,
    serialize_ms: f64,
    write_ms: f64,
    sync_ms: f64,
    complete_ms: f64,
    steps: usize,
    cpu: String,
    cores: usize,
}

/// Seconds of one cycle: the whole, the blocked part, and the four of the report; and the bytes of the file.
type Cycle = ([f64; 6], u64);

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let rows = measure(&arguments)?;
    show(&rows);
    write_csv(arguments.csv.as_deref(), &rows)
}

fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &model_mib in &arguments.mib {
        for saving in [Mode::Never, Mode::AtOnce, Mode::Background] {
            let directory = arguments.directory.join(format!(".checkpoints-{}", std::process::id()));
            let world = Local::world(arguments.ranks);
            let cycles = run_ranks(world, |comm| cycles(comm, arguments, (model_mib, saving), &directory));
            // Nothing is there where nothing was saved.
            let _ = std::fs::remove_dir_all(&directory);
            rows.push(row(arguments, (model_mib, saving), &cycles.into_iter().next().context("there is a rank")??));
        }
    }
    Ok(rows)
}

fn row(arguments: &Arguments, (model_mib, saving): (usize, Mode), cycles: &[Cycle]) -> Row {
    let ms = |index: usize| 1e3 * median(cycles.iter().map(|(seconds, _)| seconds[index]).collect());
    let (cpu, cores) = machine();
    Row {
        model_mib,
        ranks: arguments.ranks,
        saving,
        file_mib: cycles.last().map_or(0, |(_, bytes)| *bytes) as f64 / f64::from(1 << 20),
        cycle_ms: ms(0),
        blocked_ms: ms(1),
        serialize_ms: ms(2),
        write_ms: ms(3),
        sync_ms: ms(4),
        complete_ms: ms(5),
        steps: arguments.steps,
        cpu,
        cores,
    }
}

/// Runs the cycles. Rank 0's cycles count, except the first, whose files are new.
fn cycles(
    comm: Session,
    arguments: &Arguments,
    (mib, mode): (usize, Mode),
    directory: &Path,
) -> Result<Vec<Cycle>, Error> {
    let device = Device::default().autodiff();
    let side = (mib * (1 << 20) / 4).isqrt();
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let inner = SgdConfig::new().with_momentum(Some(momentum)).init();
    let mut optim = DistributedOptimizer::new(inner, comm, DistributedConfig::dense(), 1)
        .with_background_saving(mode == Mode::Background);
    let mut model: Linear = optim.join(LinearConfig::new(side, side).with_bias(false).init(&device))?;
    let mut cycles = Vec::new();
    for _ in 0..=arguments.repeats {
        let begin = Instant::now();
        for _ in 0..arguments.steps {
            let input = Tensor::<2>::full([4, side], 0.01, &device);
            let grads = GradientsParams::from_grads(model.forward(input).square().mean().backward(), &model);
            model = optim.step(1e-3, model, grads)?;
        }
        let trained = begin.elapsed();
        if mode != Mode::Never {
            optim.save(&model, directory, &BTreeMap::new())?;
        }
        let (cycle, report) = (begin.elapsed(), optim.save_report());
        let parts = [report.serialize_seconds, report.write_seconds, report.sync_seconds, report.complete_seconds];
        let [a, b, c, d] = parts;
        cycles.push(([cycle.as_secs_f64(), (cycle - trained).as_secs_f64(), a, b, c, d], report.bytes));
    }
    optim.finish_saving()?;
    // In the background a report comes a cycle late.
    Ok(cycles.split_off(1))
}

fn show(rows: &[Row]) {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header(["model", "saving", "file", "cycle", "blocked", "serialize", "write", "sync", "complete"]);
    for row in rows {
        let ms = |value: f64| format!("{value:.1} ms");
        table.add_row([
            format!("{} MiB", row.model_mib),
            format!("{:?}", row.saving),
            format!("{:.1} MiB", row.file_mib),
            ms(row.cycle_ms),
            ms(row.blocked_ms),
            ms(row.serialize_ms),
            ms(row.write_ms),
            ms(row.sync_ms),
            ms(row.complete_ms),
        ]);
    }
    println!("{table}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_of_the_model_and_its_momenta_however_it_is_saved() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().to_str().unwrap();
        let flags = ["checkpoints", "--mib", "1", "--steps", "1", "--repeats", "2", "--directory", at];
        let rows = measure(&Arguments::parse_from(flags)).unwrap();
        assert_eq!(
            rows.iter().map(|row| row.saving).collect::<Vec<_>>(),
            [Mode::Never, Mode::AtOnce, Mode::Background]
        );
        assert_eq!((rows[0].file_mib, rows[0].blocked_ms.round()), (0.0, 0.0));
        for row in &rows[1..] {
            assert!((2.0..2.1).contains(&row.file_mib), "{row:?}");
            assert!(row.cycle_ms > row.blocked_ms && row.blocked_ms > 0.0, "{row:?}");
            assert!(row.serialize_ms > 0.0 && row.sync_ms > 0.0, "{row:?}");
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    }
}
