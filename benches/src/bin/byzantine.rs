//! Accuracy of a network under attacks, by aggregator and compressor.

use std::path::PathBuf;
use std::sync::Mutex;

use anyhow::{Context, Result};
use briquette::core::Key;
use briquette::core::config::{AggregatorConfig, Feedback};
use briquette::zoo::wrapper::byzantine::Attack;
use briquette_benches::trainer::{day, each, machine};
use briquette_datasets::{Augment, ImageKind, ImageSource};
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::models::ImageModelKind;
use briquette_examples::record::GIT_REVISION;
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::task::ImageTask;
use briquette_examples::train::{Control, train};
use clap::Parser;

/// Trains ResNet-8 on CIFAR-10 with Byzantine ranks: each attack under each aggregator, for each compressor
#[derive(Debug, Parser)]
#[command(after_help = "Example, an hour on two cores:
  RAYON_NUM_THREADS=1 cargo run --release --bin byzantine -- --data datasets
Rows that the CSV already has are kept and not run again.")]
struct Cli {
    /// Directory with CIFAR-10
    #[arg(long)]
    data: PathBuf,
    /// Runs of each row, with seeds from 1 on
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Ranks, and how many of them are Byzantine
    #[arg(long, value_delimiter = ',', default_values = ["5:1", "10:3"], value_parser = world)]
    worlds: Vec<(usize, usize)>,
    /// Compressors of the ranks; signs and sparse messages with error feedback
    #[arg(long, value_delimiter = ';', default_values = ["dense", "qsgd:4", "topk:0.01", "sign"])]
    compressors: Vec<String>,
    /// Attacks of the Byzantine ranks
    #[arg(long, value_delimiter = ',', default_values = ["none", "large", "sign-flip", "inner-product:6", "little:1.5", "mimic", "crash", "stale:10"])]
    attacks: Vec<String>,
    /// Aggregators; F stands for the number of Byzantine ranks
    #[arg(long, value_delimiter = ';', default_values = ["mean", "median", "geometric-median", "trimmed-mean:F", "krum:F", "cge:F", "licm"])]
    aggregators: Vec<String>,
    /// Each rank sends its own momentum, 0.9, in place of the optimizer's; only what is sent without error feedback
    #[arg(long)]
    rank_momentum: bool,
    /// Learning rate of the optimizer's momentum, 0.9; ten times that where ranks have it, as theirs is a mean
    #[arg(long, default_value_t = 0.1)]
    lr: f64,
    /// Optimizer steps
    #[arg(long, default_value_t = 60)]
    steps: u64,
    /// Samples of all ranks in a step
    #[arg(long, default_value_t = 40)]
    batch: usize,
    /// Runs at a time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Directory for runs
    #[arg(long, default_value = "runs/byzantine")]
    out: PathBuf,
    /// The table
    #[arg(long, default_value = "benches/results/byzantine.csv")]
    csv: PathBuf,
}

/// Parses `RANKS:BYZANTINE`.
fn world(text: &str) -> Result<(usize, usize), String> {
    let parsed =
        text.split_once(':').and_then(|(ranks, byzantine)| Some((ranks.parse().ok()?, byzantine.parse().ok()?)));
    parsed
        .filter(|(ranks, byzantine)| byzantine < ranks)
        .ok_or_else(|| "as 5:1, fewer Byzantine ranks than ranks".into())
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Line {
    ranks: usize,
    byzantine: usize,
    compressor: String,
    aggregator: String,
    attack: String,
    rank_momentum: bool,
    seed: u64,
    steps: u64,
    batch: usize,
    lr: f64,
    test_accuracy: f64,
    /// End of the training: `whole`, or the error with which it ended.
    end: String,
    revision: String,
    machine: String,
    cores: usize,
    date: String,
}

impl Line {
    /// Returns the name of the run.
    fn name(&self) -> String {
        let Line { ranks, byzantine, compressor, aggregator, attack, rank_momentum, seed, steps, batch, lr, .. } = self;
        let momentum = if *rank_momentum { " rank-momentum" } else { "" };
        format!(
            "{byzantine} of {ranks} {attack}, {aggregator}, {compressor}{momentum}, {steps} steps of {batch} at {lr}, seed {seed}"
        )
    }

    fn feeds_back(&self) -> bool {
        matches!(self.compressor.split(':').next(), Some("topk" | "sign"))
    }

    fn settings(&self, cli: &Cli) -> Result<Settings> {
        let gather = format!("gather:{}", self.compressor);
        let reducer = match &self.attack[..] {
            "none" => gather,
            attack => format!("byzantine:({gather}),attack={},ranks={}", attack.parse::<Attack>()?, self.byzantine),
        };
        let feedback = match (self.feeds_back(), self.rank_momentum) {
            (true, _) => Feedback::error(),
            (false, true) => "rank-momentum:0.9".parse()?,
            (false, false) => Feedback::none(),
        };
        let options = Options {
            dataset: Some("cifar10".into()),
            data: Some(cli.data.clone()),
            model: Some("resnet8".into()),
            reducer: Some(reducer.parse()?),
            aggregator: Some(self.aggregator.parse()?),
            feedback: Some(feedback),
            ranks: Some(self.ranks),
            batch: Some((self.batch / self.ranks).max(1)),
            epochs: Some(1000),
            steps: Some(self.steps),
            lr: Some(self.lr),
            momentum: Some(if self.rank_momentum { 0.0 } else { 0.9 }),
            augment: Some(AugmentSpec::Flip),
            schedule: Some(LrSchedule::OneCycle),
            eval_every: Some(1000),
            checkpoint_every: Some(0),
            train_limit: Some(5000),
            test_limit: Some(1000),
            seed: Some(self.seed),
            out: Some(cli.out.join(self.name().replace([':', ' ', ','], "_"))),
            ..Options::default()
        };
        options.resolve()
    }

    /// Trains the run and fills in the results.
    fn run(mut self, cli: &Cli) -> Result<Line> {
        let settings = self.settings(cli)?;
        let source = ImageSource {
            dir: settings.data.clone(),
            train_limit: settings.train_limit,
            test_limit: settings.test_limit,
            seed: self.seed,
            ..ImageSource::new(ImageKind::Cifar10)
        };
        let (images, key) = (source.load()?, Key::new(self.seed));
        let task = ImageTask { images, kind: ImageModelKind::ResNet8, augment: Some(Augment::flip()), key };
        let ended = train(&settings, &task, &Control { plain: true, overwrite: true, ..Control::default() });
        self.test_accuracy = ended.as_ref().map_or(f64::NAN, |summary| summary.final_test_accuracy);
        self.end = match ended {
            Ok(_) => "whole".into(),
            // Of training, and no more: what is around it names where this run was kept.
            Err(error) => error.downcast::<briquette::Error>()?.to_string(),
        };
        self.date = day(std::time::SystemTime::now())?;
        Ok(self)
    }
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = &Cli::parse();
    let done: Vec<Line> = match csv::Reader::from_path(&cli.csv) {
        Ok(mut reader) => reader.deserialize().collect::<Result<_, _>>().context("the CSV has other columns")?,
        Err(_) if !cli.csv.exists() => Vec::new(),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", cli.csv.display())),
    };
    let mut csv = csv::Writer::from_path(&cli.csv).with_context(|| format!("cannot write {}", cli.csv.display()))?;
    done.iter().try_for_each(|line| csv.serialize(line))?;
    csv.flush()?;
    let (machine, cores) = machine();
    let mut lines = Vec::new();
    for seed in 1..=cli.seeds {
        for &(ranks, byzantine) in &cli.worlds {
            for aggregator in &cli.aggregators {
                let aggregator: AggregatorConfig = aggregator.replace('F', &byzantine.to_string()).parse()?;
                if aggregator.get().min_ranks() > ranks {
                    eprintln!("{aggregator} needs {} ranks, not {ranks}", aggregator.get().min_ranks());
                    continue;
                }
                let pairs = cli.compressors.iter().flat_map(|c| cli.attacks.iter().map(move |attack| (c, attack)));
                lines.extend(pairs.map(|(compressor, attack)| Line {
                    ranks,
                    byzantine,
                    compressor: compressor.clone(),
                    aggregator: aggregator.to_string(),
                    attack: attack.clone(),
                    rank_momentum: cli.rank_momentum,
                    seed,
                    steps: cli.steps,
                    batch: cli.batch,
                    lr: cli.lr * if cli.rank_momentum { 10.0 } else { 1.0 },
                    test_accuracy: f64::NAN,
                    end: String::new(),
                    revision: GIT_REVISION.into(),
                    machine: machine.clone(),
                    cores,
                    date: String::new(),
                }));
            }
        }
    }
    lines.retain(|line| !(line.rank_momentum && line.feeds_back()));
    lines.retain(|line| done.iter().all(|done| done.name() != line.name()));
    let (count, csv) = (lines.len(), Mutex::new((csv, 0)));
    each(lines, cli.jobs, |line| {
        let line = line.run(cli)?;
        let (csv, done) = &mut *csv.lock().expect("no run panics while it writes");
        *done += 1;
        println!("{done} of {count}: {}: {:.3} {}", line.name(), line.test_accuracy, line.end);
        csv.serialize(line)?;
        Ok(csv.flush()?)
    })
}
