//! Trains a text classifier on AG-News or generated texts, on many ranks.

use std::process::ExitCode;

use anyhow::Result;
use briquette_examples::cli::{self, Cli};
use briquette_examples::record::Summary;
use briquette_examples::settings::{OptimizerKind, Options, Settings};
use briquette_examples::task::TextTask;
use briquette_examples::train::{Control, train};
use clap::FromArgMatches;

const EXAMPLES: &str = "Examples:
  ag-news --dataset generated --model lstm --ranks 2
  ag-news --data ag_news_csv --epochs 3 --controller gravac:10x,max=100x,epsilon=0.4,window=25
  ag-news --reducer dense --network 100mbit,1ms";

fn main() -> ExitCode {
    let command = cli::command("ag-news", "Trains AG-News or generated texts on many ranks", EXAMPLES);
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|e| e.exit());
    let defaults = Options {
        dataset: Some("ag-news".into()),
        model: Some("bilstm".into()),
        optimizer: Some(OptimizerKind::Adam),
        lr: Some(2e-3),
        epochs: Some(3),
        ..Options::default()
    };
    cli::main(cli, defaults, run)
}

fn run(settings: &Settings, control: &Control) -> Result<Summary> {
    train(settings, &TextTask::load(settings, control)?, control)
}
