//! Cost of aggregating contributions relative to copying them, by aggregator, number of ranks and compressor.

use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use briquette::core::config::{AggregatorConfig, CompressorConfig};
use briquette::core::{Key, Message};
use briquette_benches::ranks::write_csv;
use briquette_benches::trainer::{day, machine};
use briquette_benches::vectors::Source;
use briquette_cli::measure::median;
use clap::Parser;
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

/// Times each aggregator over the messages of several numbers of ranks, beside a copy of as many vectors
#[derive(Debug, Parser)]
struct Cli {
    /// Values of a vector
    #[arg(long, default_value_t = 1 << 20)]
    values: usize,
    /// Numbers of ranks
    #[arg(long, value_delimiter = ',', default_values = ["5", "10", "20", "40"])]
    ranks: Vec<usize>,
    /// Compressors of the ranks' messages
    #[arg(long, value_delimiter = ';', default_values = ["dense", "qsgd:4", "topk:0.01", "sign"])]
    compressors: Vec<CompressorConfig>,
    /// Aggregators; F stands for a fifth of the ranks
    #[arg(long, value_delimiter = ';', default_values = ["mean", "median", "geometric-median", "trimmed-mean:F", "krum:F", "cge:F", "licm"])]
    aggregators: Vec<String>,
    /// Timed runs of each; the median counts
    #[arg(long, default_value_t = 9)]
    repeats: usize,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Row {
    /// Aggregator as given: with F for a fifth of the ranks.
    rule: String,
    aggregator: String,
    compressor: String,
    ranks: usize,
    values: usize,
    milliseconds: f64,
    /// Time to copy as many vectors.
    copy_milliseconds: f64,
    to_copy: f64,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let ((machine, cores), date) = (machine(), day(std::time::SystemTime::now())?);
    let command = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let mut rows = Vec::new();
    for name in &cli.aggregators {
        for compressor in &cli.compressors {
            for &ranks in &cli.ranks {
                let config: AggregatorConfig = name.replace('F', &(ranks / 5).max(1).to_string()).parse()?;
                if config.get().min_ranks() > ranks {
                    continue;
                }
                eprintln!("{config} {compressor} {ranks}");
                let (seconds, copy) = times(&config, compressor, ranks, &cli)?;
                rows.push(Row {
                    aggregator: config.to_string(),
                    rule: name.clone(),
                    compressor: compressor.to_string(),
                    ranks,
                    values: cli.values,
                    milliseconds: 1e3 * seconds,
                    copy_milliseconds: 1e3 * copy,
                    to_copy: seconds / copy,
                    machine: machine.clone(),
                    cores,
                    date: date.clone(),
                    command: format!("aggregators {command}").trim_end().to_owned(),
                });
            }
        }
    }
    println!("{}", table(&cli, &rows));
    write_csv(cli.csv.as_deref(), &rows)
}

/// Returns the seconds to rate and combine whole vectors, and to copy them: medians of alternating runs.
fn times(config: &AggregatorConfig, compressor: &CompressorConfig, ranks: usize, cli: &Cli) -> Result<(f64, f64)> {
    let x = Source::Gaussian.values(cli.values + 1000 * ranks)?;
    // Ranks' vectors differ: each begins elsewhere. As many as there are to read, so that caches hold no more of them than of the messages.
    let vectors: Vec<Vec<f32>> = (0..ranks).map(|rank| x[1000 * rank..][..cli.values].to_vec()).collect();
    let messages: Vec<Message> = vectors.iter().zip(0..).map(|(x, rank)| encoded(compressor, x, rank)).collect();
    let wholes: Vec<&[Message]> = messages.iter().map(std::slice::from_ref).collect();
    let parts: Vec<&Message> = messages.iter().collect();
    let (mut out, mut copies) = (vec![0.0; cli.values], vectors.clone());
    let (mut weights, mut own, mut copying) = (Vec::new(), Vec::new(), Vec::new());
    let mut aggregator = config.get().build();
    for run in 0..=cli.repeats.max(1) {
        let begin = Instant::now();
        copies.iter_mut().zip(&vectors).for_each(|(copy, x)| copy.copy_from_slice(black_box(x)));
        black_box(&mut copies);
        let start = Instant::now();
        if aggregator.rates() {
            aggregator.rate(black_box(&wholes), &mut weights)?;
        }
        aggregator.combine(&weights, black_box(&parts), &mut out)?;
        black_box(&mut out);
        // The first finds storage.
        if run > 0 {
            copying.push((start - begin).as_secs_f64());
            own.push(start.elapsed().as_secs_f64());
        }
    }
    Ok((median(own), median(copying)))
}

fn encoded(compressor: &CompressorConfig, x: &[f32], rank: u64) -> Message {
    let mut message = Message::default();
    compressor.build().compress_into(x, Key::new(rank), &mut message);
    message
}

/// Creates a row for each aggregator and compressor: the time relative to the copy's, by ranks, and its growth with them.
fn table(cli: &Cli, rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    let ranks = cli.ranks.iter().map(|ranks| format!("{ranks} ranks, ÷ copy"));
    table.set_header(["aggregator".into(), "messages".into()].into_iter().chain(ranks).chain(["grows as".into()]));
    for of_both in rows.chunk_by(|a, b| a.rule == b.rule && a.compressor == b.compressor) {
        let at = |ranks: &usize| of_both.iter().find(|row| row.ranks == *ranks);
        let cells = cli.ranks.iter().map(|ranks| at(ranks).map_or("".into(), |row| format!("{:.1}", row.to_copy)));
        let (first, last) = (&of_both[0], &of_both[of_both.len() - 1]);
        let slope = (last.milliseconds / first.milliseconds).ln() / (last.ranks as f64 / first.ranks as f64).ln();
        let names = [first.rule.clone(), first.compressor.clone()];
        table.add_row(names.into_iter().chain(cells).chain([format!("W^{slope:.2}")]));
    }
    (2..table.column_count())
        .filter_map(|i| table.column_mut(i).map(|c| c.set_cell_alignment(CellAlignment::Right)))
        .for_each(drop);
    table
}
