//! Trains an image classifier on CIFAR-10, CIFAR-100 or generated images, on many ranks.

use std::process::ExitCode;

use anyhow::Result;
use briquette_examples::cli::{self, Program};
use briquette_examples::lr_schedule::LrSchedule;
use briquette_examples::record::Summary;
use briquette_examples::settings::{AugmentSpec, Options, Settings};
use briquette_examples::task::ImageTask;
use briquette_examples::train::{Control, train};

const EXAMPLES: &str = "Examples:
  cifar --dataset generated --model resnet8 --ranks 4
  cifar --data cifar-10-batches-bin --model resnet20 --controller gravac:10x,max=100x,epsilon=0.4,window=25 --momentum-correction on
  cifar --compressor topk:50x:q8 --momentum-correction on --controller schedule --network 100mbit,1ms --clock fixed:50ms
  cifar --resume runs/latest
  cifar --schedule constant --epochs 5 --out runs/long, and later: cifar --resume runs/long --epochs 10";

fn main() -> ExitCode {
    let program = Program {
        name: "cifar",
        about: "Trains CIFAR-10, CIFAR-100 or generated images on many ranks",
        examples: EXAMPLES,
    };
    let defaults = Options {
        dataset: Some("cifar10".into()),
        model: Some("resnet8".into()),
        lr: Some(0.2),
        weight_decay: Some(5e-4),
        schedule: Some(LrSchedule::OneCycle),
        augment: Some(AugmentSpec::Flip),
        ..Options::default()
    };
    cli::main(program, defaults, run)
}

fn run(settings: &Settings, control: &Control) -> Result<Summary> {
    train(settings, &ImageTask::load(settings, control)?, control)
}
