//! The CIFAR or AG-News trainer, which also records candidate signals of the accuracy lost to compression: `signals.csv` in --out.

use std::process::ExitCode;
use std::sync::{Arc, PoisonError};

use anyhow::Result;
use briquette::core::config::Config;
use briquette::strategy::BuildStrategy;
use briquette_benches::observed::{Observed, Signals};
use briquette_benches::ranks::write_csv;
use briquette_examples::cli::{self, Program};
use briquette_examples::record::Summary;
use briquette_examples::settings::{Options, Settings};
use briquette_examples::task::{ImageTask, Place, Score, Task, TextTask};
use briquette_examples::train::{Control, train};
use burn::tensor::{Device, Tensor};

fn main() -> ExitCode {
    briquette::zoo::install();
    let about = "A trainer that writes candidates for a signal of what compression costs to signals.csv in --out";
    let example = "Example:
  observe --dataset cifar10 --data cifar-10-batches-bin --model resnet8 --lr 0.2 --compressor topk:10x";
    let program = Program { name: "observe", about, examples: example };
    let defaults = Options { dataset: Some("cifar10".into()), ..Options::default() };
    cli::main(program, defaults, |settings, control| match settings.dataset.as_str() {
        "ag-news" => observe(settings, control, TextTask::load(settings, control)?),
        _ => observe(settings, control, ImageTask::load(settings, control)?),
    })
}

fn observe<T: Task>(settings: &Settings, control: &Control, task: T) -> Result<Summary> {
    let task = Around { task, signals: Signals::default() };
    let summary = train(settings, &task, control)?;
    let signals = task.signals.lock().unwrap_or_else(PoisonError::into_inner);
    write_csv(Some(&settings.out.join("signals.csv")), &signals)?;
    Ok(summary)
}

/// A task with observation of rank 0.
struct Around<T> {
    task: T,
    signals: Signals,
}

impl<T: Task> Task for Around<T> {
    type Model = T::Model;

    fn build(&self, device: &Device) -> T::Model {
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
    fn loss(&self, model: &T::Model, indices: &[usize], place: Place, device: &Device) -> Tensor<1> {
        self.task.loss(model, indices, place, device)
    }
    fn score(&self, model: &T::Model, indices: &[usize], device: &Device) -> Score {
        self.task.score(model, indices, device)
    }
    fn strategy(&self, config: Config, rank: usize) -> impl BuildStrategy + 'static {
        let signals = if rank == 0 { Arc::clone(&self.signals) } else { Signals::default() };
        Observed { config, signals }
    }
}
