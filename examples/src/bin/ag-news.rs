//! Trains a text classifier on AG-News or generated texts, on many ranks.

use std::process::ExitCode;

use anyhow::Result;
use briquette_examples::cli::{self, Program};
use briquette_examples::record::Summary;
use briquette_examples::settings::{OptimizerKind, Options, Settings};
use briquette_examples::task::TextTask;
use briquette_examples::train::{Control, train};

const EXAMPLES: &str = "Examples:
  ag-news --dataset generated --model lstm --ranks 2
  ag-news --data ag_news_csv --epochs 3 --controller gravac:10x,max=100x,epsilon=0.4,window=25
  ag-news --reducer dense --network 100mbit,1ms";

fn main() -> ExitCode {
    let program =
        Program { name: "ag-news", about: "Trains AG-News or generated texts on many ranks", examples: EXAMPLES };
    let defaults = Options {
        dataset: Some("ag-news".into()),
        model: Some("bilstm".into()),
        optimizer: Some(OptimizerKind::Adam),
        lr: Some(2e-3),
        epochs: Some(3),
        ..Options::default()
    };
    cli::main(program, defaults, run)
}

fn run(settings: &Settings, control: &Control) -> Result<Summary> {
    train(settings, &TextTask::load(settings, control)?, control)
}
