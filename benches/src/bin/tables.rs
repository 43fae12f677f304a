//! Tables of controllers compared with static settings: trains the missing runs, and writes the CSVs.
//!
//! The trainers are used as built: build them in release mode first. Must run in the repository root: rows that read
//! seconds take `benches/results/codec-seconds.csv` from there.

use std::path::{Path, PathBuf};

use anyhow::Result;
use briquette_benches::tables::results::Codecs;
use briquette_benches::tables::{
    self, Model, Table, break_even, changing_links, dq_sgd, false_alarms, goodput, gravac, held_out, local_steps, map,
    near_limit, never_slower, rates, signals, summary, unstable,
};
use clap::{Parser, ValueEnum};

/// Trains the runs of a table, and writes its CSVs
#[derive(Debug, Parser)]
#[command(after_help = "Example:
  tables signals --data datasets --seeds 1,2,3
  tables never-slower --data datasets --tune && tables never-slower --data datasets --tuned --csv tuned")]
struct Cli {
    /// The table
    table: Which,
    /// Directory with cifar10/ and ag_news/
    #[arg(long, default_value = "datasets")]
    data: PathBuf,
    /// Seeds, the same in every row
    #[arg(long, value_delimiter = ',', default_value = "1,2,3")]
    seeds: Vec<u64>,
    /// Only these models
    #[arg(long, value_enum, value_delimiter = ',')]
    models: Vec<Model>,
    /// Only rows whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Leave out rows that must be run on every network
    #[arg(long)]
    replayed: bool,
    /// With the learning rate that dense was tuned to, where the table does not fix one, instead of the middle of the grid
    #[arg(long)]
    tuned: bool,
    /// Try the grid of learning rates for dense instead, with seeds that are in no table, and write what came out beside the results
    #[arg(long)]
    tune: bool,
    /// Runs at a time; each computes on one thread
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Directory for runs
    #[arg(long, default_value = "runs/tables")]
    out: PathBuf,
    /// Directory for CSVs
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/results"))]
    csv: PathBuf,
    /// Directory for pictures
    #[arg(long, default_value = "docs/images")]
    svg: PathBuf,
    /// Run nothing, only write what is there
    #[arg(long)]
    report: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Which {
    /// Number of the first third of training that best predicts the accuracy lost
    Signals,
    /// Static ratios and controllers on four networks
    NeverSlower,
    /// Mean bits and accuracy of quantizers
    DqSgd,
    /// Sparsifiers at fixed ratios, GraVAC over each, and Accordion
    Gravac,
    /// Links on which dense spends 90 % of a step in the exchange
    NearLimit,
    /// Static choices, `auto` and an oracle on link traces
    ChangingLinks,
    /// Static and adaptive local steps on four networks
    LocalSteps,
    /// `auto` with models, optimizers, batches and worlds on which its limits were not chosen
    HeldOut,
    /// A large learning rate at 1000x, bare and guarded
    Unstable,
    /// Link speeds below which a compressor is faster, from the runs of never-slower
    BreakEven,
    /// Map of the gain of compression over bandwidth and compute time, from the same runs
    Map,
    /// Alarms of the loss guard on the losses of the runs below --out
    FalseAlarms,
    /// Useful share of rank-seconds of simulated elastic worlds, and of restarts from checkpoints
    Goodput,
}

impl Which {
    /// Returns its rows and models; `None` if it has [cases](held_out) of its own, or [needs no run](break_even).
    fn table(self) -> Option<Table> {
        Some(match self {
            Which::Signals => signals::TABLE,
            Which::NeverSlower => never_slower::TABLE,
            Which::DqSgd => dq_sgd::TABLE,
            Which::Gravac => gravac::TABLE,
            Which::NearLimit => near_limit::TABLE,
            Which::ChangingLinks => changing_links::TABLE,
            Which::LocalSteps => local_steps::TABLE,
            Which::Unstable => unstable::TABLE,
            Which::HeldOut | Which::BreakEven | Which::Map | Which::FalseAlarms | Which::Goodput => return None,
        })
    }

    /// Returns the reference row of speed-ups.
    fn reference(self) -> &'static str {
        if let Which::Gravac = self { "Top-k 10x" } else { tables::DENSE }
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = Cli::parse();
    match cli.table {
        Which::BreakEven => return break_even::write(&cli.csv),
        Which::Map => return map::write(&cli.csv, &cli.svg),
        Which::FalseAlarms => return false_alarms::write(&cli.out, &cli.csv),
        Which::Goodput => return goodput::write(&cli.csv),
        _ => {}
    }
    let Some(table) = cli.table.table() else {
        return held_out::run(&cli.out, &cli.seeds, &cli.data, cli.jobs, cli.report, &cli.csv);
    };
    let models = if cli.models.is_empty() { Model::ALL.to_vec() } else { cli.models.clone() };
    let mut jobs = if cli.tune { rates::jobs(&table, &cli.out, &models) } else { Vec::new() };
    // Seed by seed, so that an early look compares all rows.
    for &seed in cli.seeds.iter().filter(|_| !cli.tune) {
        jobs.extend(table.jobs(&cli.out, &models, seed, cli.tuned)?);
    }
    let counts = |job: &&tables::Job| job.row.name.contains(&cli.only) && !(cli.replayed && job.row.reads_seconds);
    if !cli.report {
        tables::run(jobs.iter().filter(counts).cloned().collect(), &cli.data, cli.jobs)?;
    }
    if cli.tune {
        return rates::write(&jobs);
    }
    if let Which::Signals = cli.table {
        return signals::write(&signals::runs(&jobs)?, &cli.csv);
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("results/codec-seconds.csv");
    let codecs = if path.exists() { Codecs::read(&path)? } else { Codecs::default() };
    let runs = summary::runs(&table, &jobs, &codecs)?;
    summary::write(&table, &runs, cli.table.reference(), &cli.csv)?;
    if let Which::ChangingLinks = cli.table {
        changing_links::write_bounds(&jobs, &codecs, &models, &cli.csv)?;
    }
    Ok(())
}
