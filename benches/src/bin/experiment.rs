//! Experiments of a file: trains the missing runs, and writes the CSVs.
//!
//! The trainers are used as built: build them in release mode first.

use std::path::PathBuf;

use anyhow::Result;
use briquette_benches::experiment::{Experiment, Kept, Run, train, write, write_rates};
use clap::Parser;

/// Trains the rows of an experiment with several seeds, each at the best rate that a search found for it, and writes accuracy, bytes and
/// simulated time
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  experiment benches/experiments/bilstm.toml --data datasets --svg docs/images
A file names a trainer, flags that all runs share, and rows with flags and learning rates; rows are compared with the first. Runs that came to
their end are not done again, nor are those that the CSVs have (--afresh does these); a run that was interrupted resumes. Each experiment has
CSVs of its own: NAME-rates.csv of the searches, NAME-runs.csv of the runs, NAME.csv of the means. They are written when all rows have all
seeds.")]
struct Cli {
    /// Files
    #[arg(required = true)]
    experiments: Vec<PathBuf>,
    /// Directory with cifar10/ and ag_news/
    #[arg(long, default_value = "datasets")]
    data: PathBuf,
    /// Seeds, instead of the file's
    #[arg(long, value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Take the best rate so far where a search is not at its end: such rows are marked
    #[arg(long)]
    so_far: bool,
    /// Run only rows whose name contains this, and write nothing
    #[arg(long, default_value = "", hide_default_value = true, conflicts_with = "report")]
    only: String,
    /// Runs at a time, each on one thread [default: as many as there are cores, and memory for]
    #[arg(long)]
    jobs: Option<usize>,
    /// Directory for runs
    #[arg(long, default_value = "runs/experiments")]
    out: PathBuf,
    /// Directory for CSVs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results/experiments"))]
    csv: PathBuf,
    /// Draw a picture of each experiment into this directory: experiment-NAME.svg
    #[arg(long)]
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
    let mut experiments =
        cli.experiments.iter().map(|path| Experiment::read(path)).collect::<Result<Vec<Experiment>>>()?;
    if !cli.seeds.is_empty() {
        experiments.iter_mut().for_each(|experiment| experiment.seeds.clone_from(&cli.seeds));
    }
    let kept = Kept::new(cli.out.clone(), cli.so_far);
    let kept = if cli.afresh { kept } else { kept.with_csv(&cli.csv)? };
    for experiment in &experiments {
        let jobs = cli.jobs.unwrap_or_else(|| experiment.jobs());
        if !cli.report {
            // The next rates of a search are known once these are done.
            while let runs @ [_, ..] = &missing(experiment, &cli.only, &kept)?[..] {
                train(runs, &cli.data, jobs)?;
            }
        }
        if !cli.only.is_empty() {
            eprintln!("{}: rows were left out: no CSV is written", experiment.name);
            continue;
        }
        write_rates(experiment, &kept, &cli.csv)?;
        write(experiment, &kept, (&cli.csv, cli.svg.as_deref()))?;
    }
    Ok(())
}

/// Returns the runs that are missing: of searches first.
fn missing(experiment: &Experiment, only: &str, kept: &Kept) -> Result<Vec<Run>> {
    let mut runs = experiment.tuning(only, kept);
    if runs.is_empty() {
        // Seed by seed, so that an early look compares all rows.
        for seed in &experiment.seeds {
            runs.extend(experiment.runs(*seed, only, kept)?);
        }
    }
    runs.retain(|run| !kept.has(run));
    Ok(runs)
}
