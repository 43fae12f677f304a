//! Strategies beside each other on real data: trains what is not trained yet, and writes the CSVs.
//!
//! The trainers are run as they are: build them in release mode first.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::strategies::{Task, run, write};
use clap::Parser;

/// Trains strategies on real data, each at the best rate of its own grid, and writes accuracy, bytes and simulated time
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  strategies --data datasets --tune && strategies --data datasets --svg docs/images
Runs that came to their end with the same flags are not done again.")]
struct Cli {
    /// Which; all if none is named
    #[arg(value_enum)]
    tasks: Vec<Task>,
    /// Directory with cifar10/ and ag_news/
    #[arg(long)]
    data: PathBuf,
    /// Seeds, the same in every row
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Try the rates instead, with a seed that is in no table
    #[arg(long)]
    tune: bool,
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Runs at a time; each computes on one thread
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where runs are kept
    #[arg(long, default_value = "runs/strategies")]
    out: PathBuf,
    /// Where CSVs are written
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    csv: PathBuf,
    /// Draw a picture of each task into this directory: strategies-TASK.svg
    #[arg(long)]
    svg: Option<PathBuf>,
    /// Run nothing, only write what is there
    #[arg(long)]
    report: bool,
}

fn main() -> Result<()> {
    let cli = Cli::parse();
    let tasks = if cli.tasks.is_empty() { Task::ALL.to_vec() } else { cli.tasks.clone() };
    if !cli.report {
        let mut runs = Vec::new();
        for task in tasks {
            match cli.tune {
                true => runs.extend(task.tuning(&cli.out)),
                // Seed by seed, so that an early look compares all rows.
                false => {
                    for seed in &cli.seeds {
                        runs.extend(task.runs(*seed, &cli.out)?);
                    }
                }
            }
        }
        runs.retain(|run| run.row.name.contains(&cli.only));
        run(runs, &cli.data, cli.jobs)?;
    }
    write(&cli.seeds, &cli.out, &cli.csv, cli.svg.as_deref())
}
