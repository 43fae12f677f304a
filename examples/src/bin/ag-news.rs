//! Trains a text classifier on AG-News or generated texts, on many ranks.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use briquette::core::Key;
use briquette_datasets::{TextKind, TextSource};
use briquette_examples::cli::{self, Cli};
use briquette_examples::models::TextConfig;
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
    let kind = match settings.dataset.as_str() {
        "ag-news" => TextKind::AgNews,
        "generated" => TextKind::Generated,
        other => bail!("unknown --dataset `{other}`; valid are: ag-news, generated"),
    };
    if settings.augment.is_some() {
        bail!("--augment is for images: omit it");
    }
    let model = settings.model.parse().context("--model")?;
    // About forty words, as text and as numbers.
    cli::check_samples(settings, 500)?;
    let source = TextSource {
        dir: settings.data.clone(),
        train_limit: settings.train_limit,
        test_limit: settings.test_limit,
        seed: settings.seed,
        download: briquette_datasets::Download { quiet: control.plain, ..Default::default() },
        ..TextSource::new(kind)
    };
    let texts = source.load()?;
    for note in &texts.notes {
        control.say(format_args!("note: {note}"));
    }
    control.say(format_args!("{} training and {} test texts\n", texts.train.len(), texts.test.len()));
    let config = TextConfig { vocab: texts.vocabulary.size(), classes: texts.classes, ..TextConfig::default() };
    train(settings, &TextTask { texts, kind: model, config, key: Key::new(settings.seed) }, control)
}
