//! Trains an image classifier on CIFAR-10, CIFAR-100 or generated images, on many ranks.

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use briquette::core::Key;
use briquette_datasets::{Augment, ImageKind, ImageSource, PIXELS};
use briquette_examples::cli::{self, Cli};
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::record::Summary;
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::task::ImageTask;
use briquette_examples::train::{Control, train};
use clap::FromArgMatches;

const EXAMPLES: &str = "Examples:
  cifar --dataset generated --model resnet8 --ranks 4
  cifar --data cifar-10-batches-bin --model resnet20 --controller gravac:10x,max=100x,epsilon=0.4,window=25 --momentum-correction on
  cifar --compressor topk:50x:q8 --momentum-correction on --controller schedule --network 100mbit,1ms --clock fixed:50ms
  cifar --resume runs/latest
  cifar --schedule constant --epochs 5 --out runs/long, and later: cifar --resume runs/long --epochs 10";

fn main() -> ExitCode {
    let command = cli::command("cifar", "Trains CIFAR-10, CIFAR-100 or generated images on many ranks", EXAMPLES);
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|e| e.exit());
    let defaults = Options {
        dataset: Some("cifar10".into()),
        model: Some("resnet8".into()),
        lr: Some(0.2),
        weight_decay: Some(5e-4),
        schedule: Some(LrSchedule::OneCycle),
        augment: Some(AugmentSpec::Flip),
        ..Options::default()
    };
    cli::main(cli, defaults, run)
}

fn run(settings: &Settings, control: &Control) -> Result<Summary> {
    let kind = match settings.dataset.as_str() {
        "cifar10" => ImageKind::Cifar10,
        "cifar100" => ImageKind::Cifar100,
        "generated" => ImageKind::Generated { classes: 10 },
        other => bail!("unknown --dataset `{other}`; valid are: cifar10, cifar100, generated"),
    };
    let model = settings.model.parse().context("--model")?;
    cli::check_samples(settings, PIXELS as u64 + 1)?;
    let source = ImageSource {
        dir: settings.data.clone(),
        train_limit: settings.train_limit,
        test_limit: settings.test_limit,
        seed: settings.seed,
        download: briquette_datasets::Download { quiet: control.plain, ..Default::default() },
        ..ImageSource::new(kind)
    };
    let images = source.load()?;
    for note in &images.notes {
        control.say(format_args!("note: {note}"));
    }
    control.say(format_args!("{} training and {} test images\n", images.train.len(), images.test.len()));
    let augment = match settings.augment {
        None | Some(AugmentSpec::None) => None,
        Some(AugmentSpec::Flip) => Some(Augment::flip()),
        Some(AugmentSpec::CropFlip) => Some(Augment::crop_and_flip()),
    };
    train(settings, &ImageTask { images, kind: model, augment, key: Key::new(settings.seed) }, control)
}
