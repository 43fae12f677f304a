//! Experiments of a file: trains the missing runs, and writes the CSVs.
//!
//! The trainers are used as built: build them in release mode first.

use std::path::PathBuf;

use anyhow::{Result, bail};
use briquette_benches::experiment::{Experiment, Kept, Run, train, write, write_rates};
use clap::Parser;

/// Trains the rows of an experiment with several seeds, each at the best rate that a search found for it, and writes accuracy, bytes and
/// simulated time
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  experiment benches/experiments/bilstm.toml --data datasets --svg docs/images
A file names a trainer, flags that all runs share, and rows with flags and learning rates; rows are compared with the first. Finished runs,
including those in the CSVs, are not repeated; --afresh ignores the CSVs. An interrupted run resumes. Each experiment has separate CSVs:
NAME-rates.csv of the searches, NAME-runs.csv of the runs, NAME.csv of the means. They are written when all rows have all seeds.")]
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
    /// Search no rates: take the best so far of an incomplete search. Such rows are marked
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
    let read = |path: &PathBuf| {
        let experiment = Experiment::read(path)?;
        if cli.seeds.is_empty() { Ok(experiment) } else { experiment.with_seeds(&cli.seeds) }
    };
    let experiments = cli.experiments.iter().map(read).collect::<Result<Vec<_>>>()?;
    let kept = Kept::new(cli.out.clone(), cli.so_far);
    let kept = if cli.afresh { kept } else { kept.with_csv(&cli.csv)? };
    for experiment in &experiments {
        if !cli.report {
            train_all(experiment, &kept, &cli)?;
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

/// Trains what is missing: searches, whose next rates are known once the ones before are done, and then the rows, seed by seed, so that an early
/// look compares all rows.
fn train_all(experiment: &Experiment, kept: &Kept, cli: &Cli) -> Result<()> {
    let jobs = cli.jobs.unwrap_or_else(|| experiment.jobs());
    let trained = |runs: &[Run]| {
        train(runs, &cli.data, jobs)?;
        let lost = runs.iter().find(|run| !kept.has(run));
        lost.map_or(Ok(()), |run| bail!("{}: the trainer left no result that can be read", run.directory.display()))
    };
    let next = || if cli.so_far { Vec::new() } else { experiment.tuning(&cli.only, kept) };
    while let runs @ [_, ..] = &next()[..] {
        trained(runs)?;
    }
    let known = experiment.seeds.iter().flat_map(|seed| experiment.known_runs(*seed, &cli.only, kept));
    trained(&known.filter(|run| !kept.has(run)).collect::<Vec<_>>())
}
