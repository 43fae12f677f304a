//! Trains every row of a table with several seeds and compares each with dense, seed by seed.
//!
//! Resumable: a run that finished with the row's flags is not repeated. The trainers are used as built
//! (`cargo build --release` first). Means are over the seeds that dense has too.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::paired::Mean;
use briquette_benches::trainer;
use briquette_examples::record::Summary;
use clap::{Parser, ValueEnum};
use comfy_table::{Table, presets::ASCII_MARKDOWN};

/// Trains every row of a table with several seeds and compares each with dense, seed by seed
#[derive(Debug, Parser)]
struct Cli {
    /// The table
    table: Which,
    /// Directory with the dataset
    #[arg(long)]
    data: PathBuf,
    /// Seeds 1 to N; init and data order are paired across rows
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Runs at a time; each computes on one thread
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Directory for runs
    #[arg(long, default_value = "runs/experiments")]
    out: PathBuf,
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Write the table here as CSV too
    #[arg(long)]
    csv: Option<PathBuf>,
    /// Run nothing, only print what is there
    #[arg(long)]
    report: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    /// ResNet-8 on 10 000 images of CIFAR-10, 5 epochs
    Cifar,
    /// BiLSTM on AG-News, 3 epochs
    AgNews,
}

/// Name of the row, and its flags.
type Row = (&'static str, &'static str);

const CIFAR: &[Row] = &[
    ("dense", "--reducer dense"),
    ("top-k 10x, error feedback", "--compressor topk:10x"),
    ("top-k 10x q8, momentum correction", "--compressor topk:10x:q8 --momentum-correction on --controller schedule"),
    ("top-k 20x q8, momentum correction", "--compressor topk:20x:q8 --momentum-correction on --controller schedule"),
    ("top-k 50x q8, momentum correction", "--compressor topk:50x:q8 --momentum-correction on --controller schedule"),
    (
        "GraVAC 0.7 q8, momentum correction",
        "--compressor topk:10x:q8 --momentum-correction on --controller gravac:10x,max=100x,epsilon=0.7,window=25 --set probing=first",
    ),
    (
        "GraVAC 0.4 q8, momentum correction",
        "--compressor topk:10x:q8 --momentum-correction on --controller gravac:10x,max=100x,epsilon=0.4,window=25 --set probing=first",
    ),
];

const AG_NEWS: &[Row] = &[
    ("dense", "--reducer dense"),
    ("top-k 100x q8, error feedback", "--compressor topk:100x:q8"),
    (
        "GraVAC q8, error feedback",
        "--compressor topk:20x:q8 --controller gravac:20x,max=100x,epsilon=0.4,window=25 --set probing=first",
    ),
];

impl Which {
    fn rows(self) -> &'static [Row] {
        match self {
            Which::Cifar => CIFAR,
            Which::AgNews => AG_NEWS,
        }
    }

    fn trainer(self) -> &'static str {
        match self {
            Which::Cifar => "cifar",
            Which::AgNews => "ag-news",
        }
    }

    fn common(self) -> &'static str {
        match self {
            Which::Cifar => {
                "--model resnet8 --ranks 4 --batch 32 --epochs 5 --train-limit 10000 --clock fixed:50ms --network 100mbit,1ms \
                 --eval-every 5 --checkpoint-every 0 --plain"
            }
            Which::AgNews => {
                "--model bilstm --ranks 4 --batch 32 --epochs 3 --clock fixed:50ms --network 100mbit,1ms --eval-every 3 \
                 --checkpoint-every 0 --plain"
            }
        }
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = &Cli::parse();
    // Seed by seed, so that an early look compares all rows.
    let rows = cli.table.rows().iter().filter(|(name, _)| name.contains(&cli.only));
    let jobs = (1..=cli.seeds).flat_map(|seed| rows.clone().map(move |row| (seed, *row)));
    if !cli.report {
        trainer::each(jobs.collect(), cli.jobs, |(seed, row)| work(cli, seed, row))?;
    }
    print(cli)
}

fn work(cli: &Cli, seed: u64, row: Row) -> Result<()> {
    let (directory, flags) = (directory(cli, row.0, seed), flags(cli, row.1, seed));
    if trainer::finished(&directory, &flags).is_none() {
        eprintln!("seed {seed}: {}", row.0);
        trainer::run(cli.table.trainer(), &flags, &cli.data, &directory)?;
    }
    Ok(())
}

fn flags(cli: &Cli, row: &str, seed: u64) -> String {
    format!("{} {row} --seed {seed}", cli.table.common())
}

fn directory(cli: &Cli, row: &str, seed: u64) -> PathBuf {
    let name: String = row.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    cli.out.join(cli.table.trainer()).join(name).join(format!("seed-{seed}"))
}

fn summaries(cli: &Cli, (name, row): Row) -> Vec<(u64, Summary)> {
    let read = |seed| trainer::finished(&directory(cli, name, seed), &flags(cli, row, seed));
    (1..=cli.seeds).filter_map(|seed| Some((seed, read(seed)?))).collect()
}

/// A line of the CSV.
#[derive(Debug, serde::Serialize)]
struct Line {
    row: String,
    seeds: usize,
    test_accuracy: f64,
    difference_to_dense: f64,
    standard_error: f64,
    bytes_sent: f64,
    /// Bytes of the dense ring divided by the bytes sent.
    wire_ratio: f64,
    simulated_seconds: f64,
    machine: String,
    cores: usize,
    flags: String,
}

impl Line {
    fn cells(&self) -> [String; 6] {
        [
            self.row.clone(),
            self.seeds.to_string(),
            format!("{:.4}", self.test_accuracy),
            match self.standard_error.is_nan() {
                // One seed has none.
                true => format!("{:+.2}", 100.0 * self.difference_to_dense),
                false => format!("{:+.2} ± {:.2}", 100.0 * self.difference_to_dense, 100.0 * self.standard_error),
            },
            format!("{:.1}x", self.wire_ratio),
            format!("{:.1} s", self.simulated_seconds),
        ]
    }
}

fn print(cli: &Cli) -> Result<()> {
    let accuracy = |all: &[(u64, Summary)]| all.iter().map(|(s, v)| (*s, v.final_test_accuracy)).collect::<Vec<_>>();
    let dense = accuracy(&summaries(cli, cli.table.rows()[0]));
    let (machine, cores) = trainer::machine();
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["row", "seeds", "test accuracy", "to dense, points", "wire ratio", "simulated time"]);
    let mut csv = cli.csv.as_ref().map(csv::Writer::from_path).transpose()?;
    for (name, flags) in cli.table.rows() {
        let mut all = summaries(cli, (name, flags));
        all.retain(|(seed, _)| dense.iter().any(|(other, _)| other == seed));
        if all.is_empty() {
            continue;
        }
        let mean = |f: fn(&Summary) -> f64| Mean::of(&all.iter().map(|(_, s)| f(s)).collect::<Vec<_>>()).mean;
        let difference = Mean::of_differences(&accuracy(&all), &dense);
        let line = Line {
            row: (*name).into(),
            seeds: all.len(),
            test_accuracy: mean(|s| s.final_test_accuracy),
            difference_to_dense: difference.mean,
            standard_error: difference.error,
            bytes_sent: mean(|s| s.bytes_sent as f64),
            wire_ratio: mean(|s| s.bytes_dense as f64 / s.bytes_sent as f64),
            simulated_seconds: mean(|s| s.simulated_seconds.unwrap_or(f64::NAN)),
            machine: machine.clone(),
            cores,
            flags: format!("{} {} {flags}", cli.table.trainer(), cli.table.common()),
        };
        table.add_row(line.cells());
        csv.as_mut().map(|csv| csv.serialize(&line)).transpose()?;
    }
    println!("{table}");
    csv.map(|mut csv| csv.flush()).transpose()?;
    Ok(())
}
