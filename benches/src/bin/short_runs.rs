//! Short runs of the larger models on real images, which check that the loss falls.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};
use briquette_benches::trainer;
use briquette_examples::record::StepRecord;
use clap::Parser;

/// Trains ResNet-20 and VGG-11 for a few steps on CIFAR-10 and CIFAR-100 and notes the loss at both ends
#[derive(Debug, Parser)]
struct Cli {
    /// Directory with CIFAR-10
    #[arg(long)]
    cifar10: PathBuf,
    /// Directory with CIFAR-100
    #[arg(long)]
    cifar100: PathBuf,
    /// Directory for runs
    #[arg(long, default_value = "runs/short")]
    out: PathBuf,
    /// The table
    #[arg(long, default_value = "benches/results/short_runs.csv")]
    csv: PathBuf,
}

/// Steps, and the learning rates of ResNet-20 and of VGG-11.
const LENGTHS: [(usize, f64, f64); 2] = [(40, 0.1, 0.05), (100, 0.02, 0.005)];

/// Number of losses averaged into a mean.
const WINDOW: usize = 10;

/// A line of the CSV.
#[derive(Debug, serde::Serialize)]
struct Line {
    dataset: String,
    model: String,
    steps: usize,
    loss_first_10: String,
    loss_last_10: String,
    machine: String,
    cores: usize,
    date: String,
    command: String,
}

fn main() -> Result<()> {
    briquette::zoo::install();
    let cli = &Cli::parse();
    let ((machine, cores), date) = (trainer::machine(), trainer::day(SystemTime::now())?);
    let mut csv = csv::Writer::from_path(&cli.csv)?;
    for (steps, resnet, vgg) in LENGTHS {
        for (dataset, data) in [("cifar10", &cli.cifar10), ("cifar100", &cli.cifar100)] {
            for (model, lr) in [("resnet20", resnet), ("vgg11", vgg)] {
                let flags = format!(
                    "--dataset {dataset} --model {model} --ranks 2 --batch 16 --steps {steps} --lr {lr} --schedule constant \
                     --test-limit 200 --plain"
                );
                let out = cli.out.join(format!("{dataset}-{model}-{steps}"));
                trainer::run("cifar", &flags, data, &out)?;
                let (first, last) = ends(&out)?;
                csv.serialize(Line {
                    dataset: dataset.into(),
                    model: model.into(),
                    steps,
                    loss_first_10: format!("{first:.4}"),
                    loss_last_10: format!("{last:.4}"),
                    machine: machine.clone(),
                    cores,
                    date: date.clone(),
                    command: format!("cifar {flags}"),
                })?;
                csv.flush()?;
            }
        }
    }
    Ok(())
}

/// Returns the mean loss of the first and of the last steps.
fn ends(out: &Path) -> Result<(f64, f64)> {
    let text = fs::read_to_string(out.join("metrics.jsonl"))?;
    let loss = |line| serde_json::from_str::<StepRecord>(line)?.loss.context("a step without a loss");
    let losses = text.lines().map(loss).collect::<Result<Vec<f64>>>()?;
    if losses.len() < WINDOW {
        bail!("{}: {} steps, expected at least {WINDOW}", out.display(), losses.len());
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    Ok((mean(&losses[..WINDOW]), mean(&losses[losses.len() - WINDOW..])))
}
