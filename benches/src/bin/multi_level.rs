//! GraVAC's table 3: two messages of one vector, either both made of the vector (direct), or the higher-ratio one made
//! of the lower-ratio one (multi-level).

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use briquette::core::compress::Compressor;
use briquette::core::config::CompressorConfig;
use briquette::core::{CompressionRatio, Key, Message};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::machine;
use briquette_benches::vectors::Source;
use briquette_cli::measure::{median, on_threads};
use clap::Parser;
use serde::Serialize;

/// Time to make two messages of one vector, directly and multi-level, for the compressors that GraVAC was published with
#[derive(Debug, Parser)]
struct Arguments {
    /// Values of the vectors; by default those of the paper's ResNet101, VGG16 and LSTM
    #[arg(long, value_delimiter = ',', default_value = "44500000,132000000,63000000")]
    values: Vec<usize>,
    /// Source of the values
    #[arg(long, value_enum, default_value_t = Source::Laplace)]
    source: Source,
    /// The safe ratio
    #[arg(long, default_value = "10x")]
    safe: CompressionRatio,
    /// Bolder ratios, each a row
    #[arg(long, value_delimiter = ',', default_value = "20x,1000x")]
    bold: Vec<CompressionRatio>,
    /// Timed runs of each; the median counts
    #[arg(long, default_value_t = 11)]
    repeats: usize,
    /// Threads that share the work
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

const COMPRESSORS: [&str; 4] = ["topk", "threshold-topk", "redsync", "randk"];

#[derive(Debug, Serialize)]
struct Row {
    source: &'static str,
    values: usize,
    compressor: &'static str,
    safe: f64,
    bold: f64,
    direct_milliseconds: f64,
    multi_level_milliseconds: f64,
    direct_to_multi_level: f64,
    direct_gain: f64,
    multi_level_gain: f64,
    same_message: bool,
    threads: usize,
    repeats: usize,
    machine: String,
    cores: usize,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let mut rows = Vec::new();
    println!(
        "{:>11} {:>15} {:>6} {:>10} {:>12} {:>6}",
        "values", "compressor", "bold", "direct", "multi-level", "same"
    );
    for &values in &arguments.values {
        let x = arguments.source.values(values)?;
        for compressor in COMPRESSORS {
            for &bold in &arguments.bold {
                let row = on_threads(arguments.threads, || row(&arguments, compressor, bold, &x))??;
                println!(
                    "{values:>11} {compressor:>15} {bold:>6} {:>7.1} ms {:>9.1} ms {:>6}",
                    row.direct_milliseconds, row.multi_level_milliseconds, row.same_message
                );
                rows.push(row);
            }
        }
    }
    write_csv(arguments.csv.as_deref(), &rows)
}

fn tune(compressor: &mut Box<dyn Compressor>, ratio: CompressionRatio) -> Result<()> {
    compressor.knob().context("a compressor without a knob")?.tune(ratio);
    Ok(())
}

/// Times both ways in turn, so that other load on the machine affects both.
fn row(arguments: &Arguments, name: &'static str, bold: CompressionRatio, x: &[f32]) -> Result<Row> {
    let (key, mut compressor) = (Key::new(7), name.parse::<CompressorConfig>()?.build());
    let [mut safe, mut direct, mut refined] = [(); 3].map(|()| Message::default());
    let (mut directly, mut multi_level) = (Vec::new(), Vec::new());
    // The first run finds storage; it does not count.
    for run in 0..=arguments.repeats {
        for is_multi_level in [false, true] {
            let begin = Instant::now();
            tune(&mut compressor, arguments.safe)?;
            compressor.compress_into(black_box(x), key, &mut safe);
            tune(&mut compressor, bold)?;
            if is_multi_level {
                compressor.refine_into(black_box(x), &safe, key, &mut refined);
            } else {
                compressor.compress_into(black_box(x), key, &mut direct);
            }
            let seconds = begin.elapsed().as_secs_f64();
            if run > 0 {
                if is_multi_level { &mut multi_level } else { &mut directly }.push(seconds);
            }
        }
    }
    let energy: f64 = x.iter().map(|v| f64::from(*v).powi(2)).sum();
    let (direct_seconds, multi_level_seconds) = (median(directly), median(multi_level));
    let (machine, cores) = machine();
    Ok(Row {
        source: arguments.source.name(),
        values: x.len(),
        compressor: name,
        safe: arguments.safe.get(),
        bold: bold.get(),
        direct_milliseconds: 1e3 * direct_seconds,
        multi_level_milliseconds: 1e3 * multi_level_seconds,
        direct_to_multi_level: direct_seconds / multi_level_seconds,
        direct_gain: direct.kept_energy(x) / energy,
        multi_level_gain: refined.kept_energy(x) / energy,
        same_message: direct == refined,
        threads: arguments.threads,
        repeats: arguments.repeats,
        machine,
        cores,
    })
}
