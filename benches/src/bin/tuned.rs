//! Strategies, compressors and optimizers compared on real data: trains the missing runs, and writes the CSVs.
//!
//! The trainers are used as built: build them in release mode first.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::trainer;
use briquette_benches::tuned::{Kept, Run, Task, write, write_rates};
use clap::Parser;

/// Trains strategies, compressors and optimizers on real data, each at the best rate that a search found for it, and writes accuracy, bytes and simulated time
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tuned --data datasets --tune && tuned --data datasets --svg docs/images
Runs that came to their end with the same flags are not done again, nor are those that the CSVs have (--afresh does these). Each task has CSVs of its own, and only those of the named tasks are
written: TASK-rates.csv by --tune, TASK.csv and TASK-runs.csv otherwise, where every row has every seed.")]
struct Cli {
    /// Tasks; all if none is named
    #[arg(value_enum)]
    tasks: Vec<Task>,
    /// Directory with cifar10/ and ag_news/
    #[arg(long)]
    data: PathBuf,
    /// Seeds, the same in every row
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Search each row's rate instead, with a seed that is in no table
    #[arg(long)]
    tune: bool,
    /// Take the best rate so far where a search is not at its end: such rows are marked
    #[arg(long)]
    so_far: bool,
    /// Run only rows whose name contains this, and write nothing
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "report")]
    only: String,
    /// Runs at a time; each computes on one thread
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Directory for runs
    #[arg(long, default_value = "runs/tuned")]
    out: PathBuf,
    /// Directory for CSVs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results/tuned"))]
    csv: PathBuf,
    /// Draw a picture of each task into this directory: tuned-TASK.svg
    #[arg(long, conflicts_with = "tune")]
    svg: Option<PathBuf>,
    /// Do not take runs from the CSVs
    #[arg(long)]
    afresh: bool,
    /// Run nothing, only write what is there
    #[arg(long)]
    report: bool,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    let tasks = if cli.tasks.is_empty() { Task::ALL.to_vec() } else { cli.tasks.clone() };
    let kept = Kept::new(cli.out.clone(), cli.so_far);
    let kept = if cli.afresh { kept } else { kept.with_csv(&cli.csv)? };
    if !cli.report {
        loop {
            let runs = missing(&cli, &tasks, &kept)?;
            if runs.is_empty() {
                break;
            }
            // The next rates of a search are known once these are done.
            trainer::each(runs, cli.jobs, |run| run.train(&cli.data))?;
        }
    }
    if !cli.only.is_empty() {
        eprintln!("rows were left out: no CSV is written");
        return Ok(());
    }
    if cli.tune {
        write_rates(&tasks, &kept, &cli.csv)
    } else {
        write(&tasks, &cli.seeds, &kept, (&cli.csv, cli.svg.as_deref()))
    }
}

/// Returns the requested runs that are missing.
fn missing(cli: &Cli, tasks: &[Task], kept: &Kept) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for task in tasks {
        if cli.tune {
            runs.extend(task.tuning(&cli.only, kept));
            continue;
        }
        // Seed by seed, so that an early look compares all rows.
        for seed in &cli.seeds {
            runs.extend(task.runs(*seed, &cli.only, kept)?);
        }
    }
    runs.retain(|run| !kept.has(run));
    Ok(runs)
}
