//! `briquette`: starts ranks (`launch`), compares compressors (`inspect`, `codec`), predicts times (`plan`, `probe`), shows runs (`report`), checks settings, shows checkpoints, makes tokens and certificates.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use briquette_cli::cert::Cert;
use briquette_cli::check::Check;
use briquette_cli::checkpoint;
use briquette_cli::file::{self, Vector};
#[cfg(unix)]
use briquette_cli::launch::Listening;
use briquette_cli::launch::{Launch, LaunchError};
use briquette_cli::measure::{Measured, measure, on_threads};
use briquette_cli::memory::TooLarge;
use briquette_cli::plan::Plan;
use briquette_cli::probe::Probe;
use briquette_cli::report::Report;
use briquette_cli::terminal::{complain, printable, progress, show, show_records};
use briquette_cli::{memory, token};
use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};
use clap::{Args, Parser, Subcommand};
use comfy_table::{CellAlignment, Table, presets};

/// Starts the ranks of a training run, and shows what compressors make of gradients.
#[derive(Debug, Parser)]
#[command(version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Starts the ranks of a world as processes, prefixes their output, and ends them together.
    Launch(Launch),
    /// Prints a new secret for ranks on several machines: 32 random bytes as hexadecimal digits.
    Token,
    /// Makes the certificates with which ranks on several machines speak TLS.
    Cert(Cert),
    /// Shows the checkpoints of a run: step, ranks, notes, files and checksums.
    Checkpoint(checkpoint::Show),
    /// Checks the settings of an exchange: prints each with its reason, and whether they can be combined.
    Check(Check),
    /// Prints for every compressor, or those named, what it would make of a gradient: size, loss, time.
    Inspect(Inspect),
    /// Measures the network between machines, for `plan`.
    Probe(Probe),
    /// Predicts the time of training on a network of yours, for several exchanges and numbers of ranks.
    Plan(Plan),
    /// Writes a page about training runs: charts and tables of loss, accuracy, bytes, time and layers.
    Report(Report),
    /// Compresses a vector, writes the message and what it decodes to, so that implementations can be compared.
    Codec(Codec),
    #[cfg(unix)]
    #[command(hide = true)]
    RunRank(briquette_cli::launch::child::RunRank),
}

const KEYS: &str = "Random bits: `--seed N` gives the key Key::new(N) of briquette-core, used as it is (in training, step, \
                    bucket and rank are folded in as well). Values 4096·i, 4096·i + 1, … of the vector take 16 bits each (where a \
                    value is kept or not: 32) from eight xoshiro128++ generators that are seeded from the key and i; the \
                    module documentation of a compressor says which of the bits decide.";

#[derive(Debug, Args)]
#[command(after_help = KEYS)]
struct Inspect {
    /// A gradient: .safetensors (its floating-point tensors in the order of their names), .npy, or raw little-endian f32
    /// (.f32, .bin, .raw, .dat).
    file: PathBuf,
    /// A compressor, such as topk:0.01 or qsgd:4; may be given several times. All of them if not given.
    #[arg(long = "compressor", value_name = "SPEC")]
    compressors: Vec<CompressorConfig>,
    /// Seed of the random bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Timed runs; the median is shown.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeats: u16,
    /// Threads that share the work on one vector. The messages are the same, whatever their number.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Print CSV instead of a table.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = KEYS)]
struct Codec {
    /// The compressor, such as topk:0.01 or qsgd:4.
    #[arg(long, value_name = "SPEC")]
    compressor: CompressorConfig,
    /// Seed of the random bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The vector: .safetensors, .npy, or raw little-endian f32.
    #[arg(long = "in", value_name = "FILE")]
    input: PathBuf,
    /// File for the decoded vector, in the format its name asks for.
    #[arg(long = "out", value_name = "FILE")]
    output: PathBuf,
    /// File for the message (docs/wire.md specifies it).
    #[arg(long, value_name = "FILE")]
    message: Option<PathBuf>,
}

fn main() -> ExitCode {
    briquette_zoo::install();
    match run() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            complain(format_args!("error: {}", printable(&format!("{error:#}"))));
            let is_too_large =
                |cause: &(dyn Error + 'static)| cause.downcast_ref().is_some_and(|it: &TooLarge| !it.may_pass);
            let is_too_large = error.chain().any(is_too_large);
            ExitCode::from(error.downcast_ref().map_or(if is_too_large { 2 } else { 1 }, LaunchError::exit_code))
        }
    }
}

/// Runs the command and returns its exit code.
fn run() -> Result<u8> {
    // Before anything else: an earlier signal is lost if the launcher was started in the background of a script.
    #[cfg(unix)]
    let signals =
        std::env::args_os().nth(1).filter(|command| command == "launch").map(|_| Listening::start()).transpose()?;
    match Cli::parse().command {
        #[cfg(unix)]
        Command::Launch(launch) => {
            let signals = signals.map_or_else(Listening::start, Ok)?;
            return Ok(launch.run(&signals)?);
        }
        #[cfg(not(unix))]
        Command::Launch(launch) => return Ok(launch.run()?),
        Command::Token => show(token::new()?)?,
        Command::Cert(cert) => show(cert.run()?)?,
        Command::Checkpoint(checkpoint) => return Ok(u8::from(!checkpoint.run()?)),
        Command::Check(check) => return check.run(),
        Command::Inspect(inspect) => inspect.run()?,
        Command::Probe(probe) => probe.run()?,
        Command::Plan(plan) => plan.run()?,
        Command::Report(report) => report.run()?,
        Command::Codec(codec) => codec.run()?,
        #[cfg(unix)]
        Command::RunRank(rank) => return Ok(rank.run()),
    }
    Ok(0)
}

impl Inspect {
    fn run(&self) -> Result<()> {
        let vector = read(&self.file)?;
        let all = CompressorConfig::defaults();
        let compressors = if self.compressors.is_empty() { &all } else { &self.compressors };
        let bar = progress("");
        bar.set_length(compressors.len() as u64);
        let mut rows = Vec::new();
        let (key, repeats) = (Key::new(self.seed), usize::from(self.repeats));
        for config in compressors {
            bar.set_message(config.to_string());
            rows.push(on_threads(usize::from(self.threads), || measure(config, &vector.values, key, repeats))?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        if self.json || self.csv {
            show_records(&rows, self.json)?;
        } else {
            show(summary(&self.file, &vector))?;
            show(table(&rows, 4.0 * vector.values.len() as f64))?;
        }
        Ok(())
    }
}

/// Reads the vector of a file, if there is memory to compress it. In addition to the vector, compression needs its sum
/// or copy, two messages and the bytes of one, each of which may be as large.
fn read(path: &std::path::Path) -> Result<Vector> {
    let vector = file::read(path)?;
    vector.notes.iter().for_each(|note| complain(format_args!("note: {}", printable(note))));
    let needed = 5 * 4 * vector.values.len() as u64;
    memory::check("to compress it takes", needed).with_context(|| format!("{}", path.display()))?;
    Ok(vector)
}

fn summary(path: &std::path::Path, vector: &Vector) -> String {
    let norm = vector.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let zeros = vector.values.iter().filter(|v| **v == 0.0).count();
    format!(
        "{}: {} values in {} tensors, norm {norm:.4e}, {:.1} % zeros",
        printable(&path.display().to_string()),
        vector.values.len(),
        vector.tensors.len(),
        100.0 * zeros as f64 / vector.values.len().max(1) as f64
    )
}

fn table(rows: &[Measured], dense_bytes: f64) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "compressor",
        "class here",
        "ratio",
        "wire ratio",
        "gain",
        "rel. error",
        "encode",
        "decode",
        "÷ copy",
    ]);
    for row in rows {
        let speed = |seconds: f64| format!("{:.2} ms, {:.1} GB/s", 1e3 * seconds, dense_bytes / seconds / 1e9);
        table.add_row([
            row.compressor.clone(),
            row.class.clone(),
            format!("{:.1}x", row.ratio),
            format!("{:.1}x", row.wire_ratio),
            format!("{:.4}", row.gain),
            format!("{:.4}", row.relative_error),
            speed(row.encode_seconds),
            speed(row.decode_seconds),
            format!("{:.2}, {:.2}", row.copy_seconds / row.encode_seconds, row.copy_seconds / row.decode_seconds),
        ]);
    }
    (2..9).filter_map(|i| table.column_mut(i).map(|c| c.set_cell_alignment(CellAlignment::Right))).for_each(drop);
    table
}

impl Codec {
    fn run(&self) -> Result<()> {
        let mut vector = read(&self.input)?;
        let (mut message, mut bytes) = (Message::default(), Vec::new());
        self.compressor.build().compress_into(&vector.values, Key::new(self.seed), &mut message);
        message.encode_into(&mut bytes);
        if let Some(path) = &self.message {
            std::fs::write(path, &bytes).with_context(|| format!("{}", path.display()))?;
        }
        // Decoded from the bytes, as on another machine.
        let mut read = Message::default();
        read.decode_from(&bytes)?;
        let dense = 4 * vector.values.len();
        let gain = read.kept_energy(&vector.values) / vector.values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
        read.decode_into(&mut vector.values)?;
        file::write(&self.output, &vector)?;
        show(format_args!("{}: {dense} bytes to {}, gain {gain:.6}", self.compressor, bytes.len()))?;
        Ok(())
    }
}
