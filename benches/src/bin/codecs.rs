//! Every compressor on one long vector, compared with `memcpy` of the same bytes: size, loss, speed.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use briquette::core::Key;
use briquette::core::config::CompressorConfig;
use briquette_benches::trainer::machine;
use briquette_benches::vectors::Source;
use briquette_cli::file;
use briquette_cli::measure::{Measured, measure, on_threads};
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Size, loss and speed of each compressor on a long vector, next to memcpy.
#[derive(Debug, Parser)]
struct Arguments {
    /// Values of the vector.
    #[arg(long, default_value_t = 1 << 24)]
    values: usize,
    /// Source of the values.
    #[arg(long, value_enum, default_value_t = Source::Gaussian)]
    source: Source,
    /// A gradient instead: .safetensors, .npy, or raw little-endian f32.
    #[arg(long, conflicts_with_all = ["values", "source"])]
    file: Option<PathBuf>,
    /// Timed runs of each; the median counts.
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// Threads that share the work on the vector; the copy beside it is always one thread's.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Only compressors whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Write the table here as CSV too.
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    source: String,
    values: usize,
    threads: usize,
    compressor: String,
    class: String,
    ratio: f64,
    wire_ratio: f64,
    gain: f64,
    relative_error: f64,
    encode_gigabytes_per_second: f64,
    encode_to_memcpy: f64,
    decode_gigabytes_per_second: f64,
    decode_to_memcpy: f64,
    machine: String,
    cores: usize,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let arguments = Arguments::parse();
    let (source, x) = match &arguments.file {
        Some(path) => (path.file_name().unwrap_or_default().to_string_lossy().into_owned(), file::read(path)?.values),
        None => (arguments.source.name().to_owned(), arguments.source.values(arguments.values)?),
    };
    ensure!(!x.is_empty(), "the vector is empty");
    let (machine, cores) = machine();
    let mut rows = Vec::new();
    let chosen = |config: &CompressorConfig| config.to_string().contains(&arguments.only);
    let coded = ["topk+minmax", "topk+dither"].map(|text| text.parse().expect("the text of a compressor"));
    for config in CompressorConfig::defaults().into_iter().chain(coded).filter(chosen) {
        eprintln!("{config}");
        let measured = on_threads(arguments.threads.into(), || measure(&config, &x, Key::new(7), arguments.repeats))?;
        ensure!(measured.gain <= 1.0, "{config}: a gain of {}", measured.gain);
        rows.push(row(measured, (&source, arguments.threads.into()), x.len(), (&machine, cores)));
    }
    println!("{}", table(&rows));
    if let Some(path) = &arguments.csv {
        let mut out = csv::Writer::from_path(path).with_context(|| format!("{}", path.display()))?;
        rows.iter().try_for_each(|row| out.serialize(row))?;
        out.flush()?;
    }
    Ok(())
}

fn row(measured: Measured, (source, threads): (&str, usize), values: usize, (machine, cores): (&str, usize)) -> Row {
    let (gigabytes, copying) = (4e-9 * values as f64, measured.copy_seconds);
    Row {
        source: source.to_owned(),
        values,
        threads,
        encode_gigabytes_per_second: gigabytes / measured.encode_seconds,
        encode_to_memcpy: copying / measured.encode_seconds,
        decode_gigabytes_per_second: gigabytes / measured.decode_seconds,
        decode_to_memcpy: copying / measured.decode_seconds,
        compressor: measured.compressor,
        class: measured.class,
        ratio: measured.ratio,
        wire_ratio: measured.wire_ratio,
        gain: measured.gain,
        relative_error: measured.relative_error,
        machine: machine.to_owned(),
        cores,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "compressor",
        "class here",
        "wire",
        "gain",
        "rel. error",
        "encode",
        "÷ memcpy",
        "decode",
        "÷ memcpy",
    ]);
    for row in rows {
        table.add_row([
            row.compressor.clone(),
            row.class.clone(),
            format!("{:.1}x", row.wire_ratio),
            format!("{:.4}", row.gain),
            format!("{:.4}", row.relative_error),
            format!("{:.2} GB/s", row.encode_gigabytes_per_second),
            format!("{:.2}", row.encode_to_memcpy),
            format!("{:.2} GB/s", row.decode_gigabytes_per_second),
            format!("{:.2}", row.decode_to_memcpy),
        ]);
    }
    (2..9).filter_map(|i| table.column_mut(i).map(|c| c.set_cell_alignment(CellAlignment::Right))).for_each(drop);
    table
}
