//! Aggregators against a rank that sends something else than its gradient.

use std::path::PathBuf;

use anyhow::{Context, Result};
use briquette::core::Key;
use briquette::core::config::AggregatorConfig;
use briquette_benches::trainer::machine;
use briquette_datasets::{Augment, ImageKind, ImageSource};
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::models::{ImageModel, ImageModelKind};
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::task::{ImageTask, Place, Score, Task};
use briquette_examples::train::{Control, train};
use burn::tensor::{Device, Tensor};
use clap::Parser;

/// Trains ResNet-8 on CIFAR-10 with one rank of five that multiplies its gradient, under each aggregator
#[derive(Debug, Parser)]
struct Cli {
    /// Directory with CIFAR-10
    #[arg(long)]
    data: PathBuf,
    /// Runs of each pair, with seeds from 1 on
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Optimizer steps
    #[arg(long, default_value_t = 160)]
    steps: u64,
    /// Where runs are kept
    #[arg(long, default_value = "runs/byzantine")]
    out: PathBuf,
    /// The table
    #[arg(long, default_value = "benches/results/byzantine.csv")]
    csv: PathBuf,
}

/// What rank 0 makes of its gradient, as a factor. Reversed six times it outweighs the four others: their inner product with the
/// mean is negative (inner-product manipulation, with its own gradient as its estimate of theirs).
const ATTACKS: [(&str, f64); 4] = [("none", 1.0), ("sign-flipped", -1.0), ("inner-product", -6.0), ("large", 1000.0)];

const AGGREGATORS: [&str; 4] = ["mean", "krum:1", "krum:1,keep=2", "trimmed-mean:1"];

/// A line of the CSV.
#[derive(Debug, serde::Serialize)]
struct Line {
    aggregator: String,
    attack: &'static str,
    factor: f64,
    seed: u64,
    test_accuracy: f64,
    test_loss: f64,
    end: String,
    steps: u64,
    ranks: usize,
    machine: String,
    cores: usize,
}

/// Images, and a rank 0 whose loss, and so whose gradient, is multiplied.
struct Attacked {
    task: ImageTask,
    factor: f64,
}

impl Task for Attacked {
    type Model = ImageModel;

    fn build(&self, device: &Device) -> ImageModel {
        self.task.build(device)
    }
    fn train_labels(&self) -> &[u8] {
        self.task.train_labels()
    }
    fn test_len(&self) -> usize {
        self.task.test_len()
    }
    fn fingerprints(&self) -> [String; 2] {
        self.task.fingerprints()
    }
    fn loss(&self, model: &ImageModel, indices: &[usize], place: Place, device: &Device) -> Tensor<1> {
        let loss = self.task.loss(model, indices, place, device);
        if place.rank == 0 { loss.mul_scalar(self.factor) } else { loss }
    }
    fn score(&self, model: &ImageModel, indices: &[usize], device: &Device) -> Score {
        self.task.score(model, indices, device)
    }
}

fn settings(cli: &Cli, aggregator: AggregatorConfig, name: &str, seed: u64) -> Result<Settings> {
    let options = Options {
        dataset: Some("cifar10".into()),
        data: Some(cli.data.clone()),
        model: Some("resnet8".into()),
        compressor: Some("dense".parse()?),
        aggregator: Some(aggregator),
        ranks: Some(5),
        batch: Some(16),
        epochs: Some(1000),
        steps: Some(cli.steps),
        lr: Some(0.1),
        augment: Some(AugmentSpec::Flip),
        schedule: Some(LrSchedule::OneCycle),
        eval_every: Some(1000),
        checkpoint_every: Some(0),
        train_limit: Some(5000),
        test_limit: Some(1000),
        seed: Some(seed),
        out: Some(cli.out.join(format!("{aggregator}-{name}-{seed}"))),
        ..Options::default()
    };
    options.resolve()
}

fn main() -> Result<()> {
    let cli = &Cli::parse();
    let mut csv = csv::Writer::from_path(&cli.csv).with_context(|| format!("cannot write {}", cli.csv.display()))?;
    for seed in 1..=cli.seeds {
        for (name, factor) in ATTACKS {
            for aggregator in AGGREGATORS {
                let aggregator: AggregatorConfig = aggregator.parse()?;
                let settings = settings(cli, aggregator, name, seed)?;
                let source = ImageSource {
                    dir: settings.data.clone(),
                    train_limit: settings.train_limit,
                    test_limit: settings.test_limit,
                    seed,
                    ..ImageSource::new(ImageKind::Cifar10)
                };
                let (images, key) = (source.load()?, Key::new(seed));
                let task = ImageTask { images, kind: ImageModelKind::ResNet8, augment: Some(Augment::flip()), key };
                let control = Control { plain: true, overwrite: true, ..Control::default() };
                let ended = train(&settings, &Attacked { task, factor }, &control);
                let line = Line {
                    aggregator: aggregator.to_string(),
                    attack: name,
                    factor,
                    seed,
                    test_accuracy: ended.as_ref().map_or(f64::NAN, |summary| summary.final_test_accuracy),
                    test_loss: ended.as_ref().map_or(f64::NAN, |summary| summary.final_test_loss),
                    end: ended.map_or_else(|error| format!("{error:#}"), |_| "whole".into()),
                    steps: cli.steps,
                    ranks: 5,
                    machine: machine().0,
                    cores: machine().1,
                };
                println!("{line:?}");
                csv.serialize(line)?;
                csv.flush()?;
            }
        }
    }
    Ok(())
}
