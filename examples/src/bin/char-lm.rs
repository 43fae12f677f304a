//! Trains a language model of characters on AG-News or generated texts, on many ranks.

use std::process::ExitCode;

use anyhow::Result;
use briquette_examples::cli::{self, Program};
use briquette_examples::record::Summary;
use briquette_examples::settings::{OptimizerKind, Options, Settings};
use briquette_examples::task::CharTask;
use briquette_examples::train::{Control, train};

const EXAMPLES: &str = "Examples:
  char-lm --dataset generated --ranks 2 --steps 100
  char-lm --data ag_news_csv --train-limit 20000 --epochs 1
  char-lm --strategy sparse-loco:15 --network 100mbit,10ms

A sample is a window of 128 characters. Test losses are in bits per character; accuracy is that of the next character.";

fn main() -> ExitCode {
    let program = Program {
        name: "char-lm",
        about: "Trains a transformer on the characters of AG-News or generated texts, on many ranks",
        examples: EXAMPLES,
    };
    let defaults = Options {
        dataset: Some("ag-news".into()),
        model: Some("transformer".into()),
        optimizer: Some(OptimizerKind::Adam),
        lr: Some(1e-3),
        batch: Some(16),
        epochs: Some(1),
        ..Options::default()
    };
    cli::main(program, defaults, run)
}

fn run(settings: &Settings, control: &Control) -> Result<Summary> {
    train(settings, &CharTask::load(settings, control)?, control)
}
