//! The tables of controllers beside static settings: which runs each has, and what is read from them.
//!
//! A run is a trainer's, on one thread, in a directory of its own; a run that came to its end with its flags is not done again.
//! Runs whose decisions do not depend on seconds are made once and [replayed](results) on every network.

pub mod codecs;
pub mod dq_sgd;
pub mod gravac;
pub mod near_limit;
pub mod never_slower;
pub mod rates;
pub mod results;
pub mod signals;
pub mod summary;
pub mod unstable;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, anyhow};
use briquette_examples::record::Summary;
use clap::ValueEnum;

use crate::trainer;

/// A model, its data and how it is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Model {
    /// 77 850 parameters, on 10 000 images of CIFAR-10.
    #[value(name = "resnet8")]
    ResNet8,
    /// 579 098 parameters, on the same images.
    #[value(name = "vgg11-slim")]
    Vgg11Slim,
    /// 1 405 316 parameters, on 16 000 texts of AG-News.
    #[value(name = "bilstm")]
    BiLstm,
}

impl Model {
    /// All of them.
    pub const ALL: [Model; 3] = [Model::ResNet8, Model::Vgg11Slim, Model::BiLstm];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Model::ResNet8 => "resnet8",
            Model::Vgg11Slim => "vgg11-slim",
            Model::BiLstm => "bilstm",
        }
    }

    /// Values of its gradient.
    pub fn values(self) -> usize {
        match self {
            Model::ResNet8 => 77_850,
            Model::Vgg11Slim => 579_098,
            Model::BiLstm => 1_405_316,
        }
    }

    /// The directory of its data.
    pub fn data(self) -> &'static str {
        if self.is_adam() { "ag_news" } else { "cifar10" }
    }

    fn trainer(self) -> &'static str {
        if self.is_adam() { "ag-news" } else { "cifar" }
    }

    /// Whether its optimizer is Adam. The others' is SGD with momentum.
    pub fn is_adam(self) -> bool {
        self == Model::BiLstm
    }

    /// The learning rate in the middle of the [grid](rates).
    pub fn rate(self) -> f64 {
        match self {
            Model::ResNet8 => 0.2,
            Model::Vgg11Slim => 0.1,
            Model::BiLstm => 2e-3,
        }
    }

    /// What makes the runs of all tables alike.
    fn flags(self, rate: f64) -> String {
        let (name, common) = (self.name(), "--ranks 4 --batch 32");
        match self.is_adam() {
            true => format!(
                "--dataset ag-news --model {name} --optimizer adam --lr {rate} {common} --epochs 2 --train-limit 16000"
            ),
            false => format!(
                "--dataset cifar10 --model {name} --optimizer sgd --lr {rate} --weight-decay 5e-4 --schedule one-cycle \
                 --augment flip {common} --epochs 3 --train-limit 10000"
            ),
        }
    }
}

/// What is compared: a name, and the flags of its exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its flags.
    pub flags: String,
    /// Whether what it decides depends on seconds: it must be run on each network.
    pub reads_seconds: bool,
}

/// The row that others are compared with.
pub const DENSE: &str = "dense";

impl Row {
    /// With what is not sent remembered in one of these ways.
    pub fn new(name: impl Into<String>, flags: impl Into<String>) -> Row {
        Row { name: name.into(), flags: flags.into(), reads_seconds: false }
    }

    /// One that must be run on each network.
    #[must_use]
    pub fn reading_seconds(mut self) -> Row {
        self.reads_seconds = true;
        self
    }

    /// The exact mean.
    pub fn dense() -> Row {
        Row::new(DENSE, "--reducer dense")
    }

    /// What is used where no flag names an exchange.
    pub fn auto() -> Row {
        Row::new("auto", "").reading_seconds()
    }

    /// A compressor under error feedback.
    pub fn error_feedback(compressor: &str) -> Row {
        Row::new(format!("{compressor}, error feedback"), format!("--compressor {compressor} --feedback error"))
    }

    /// A compressor under momentum correction, where the optimizer is SGD with momentum; else under error feedback.
    pub fn corrected(compressor: &str, model: Model) -> Row {
        if model.is_adam() {
            return Row::error_feedback(compressor);
        }
        let name = format!("{compressor}, momentum correction");
        Row::new(name, format!("--compressor {compressor} --momentum-correction on"))
    }

    /// A compressor without a memory.
    pub fn forgetting(compressor: &str) -> Row {
        Row::new(format!("{compressor}, no memory"), format!("--compressor {compressor} --feedback none"))
    }
}

/// A table's runs.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Its name, and its directory among runs.
    pub name: &'static str,
    /// The trainer, where it is not the model's own.
    pub trainer: Option<&'static str>,
    /// Its models.
    pub models: &'static [Model],
    /// Its rows, dense first.
    pub rows: fn(Model) -> Vec<Row>,
    /// The networks that times are of.
    pub networks: fn(Model) -> Vec<&'static str>,
    /// Seconds of computing a step.
    pub compute: &'static str,
    /// The learning rate of all rows, where it is not the model's.
    pub rate: Option<f64>,
}

/// One run.
#[derive(Debug, Clone)]
pub struct Job {
    /// Its model.
    pub model: Model,
    /// Its row.
    pub row: Row,
    /// Its seed.
    pub seed: u64,
    /// Its learning rate.
    pub rate: f64,
    /// Where it runs, where its decisions depend on it.
    pub network: Option<&'static str>,
    /// All of its flags.
    pub flags: String,
    /// Its files.
    pub directory: PathBuf,
    trainer: &'static str,
}

impl Table {
    /// The runs of a seed: one for each row, and for each network where the row reads seconds. With dense's [tuned](rates) rate, or the
    /// middle of the grid; the same in every row.
    pub fn jobs(&self, out: &Path, models: &[Model], seed: u64, tuned: bool) -> Result<Vec<Job>> {
        let mut jobs = Vec::new();
        for &model in self.models.iter().filter(|model| models.contains(model)) {
            let rate = match self.rate {
                Some(rate) => rate,
                None if tuned => rates::tuned(model)?,
                None => model.rate(),
            };
            for row in (self.rows)(model) {
                match row.reads_seconds {
                    true => (self.networks)(model)
                        .into_iter()
                        .for_each(|network| jobs.push(self.job(out, model, &row, (seed, rate, Some(network))))),
                    false => jobs.push(self.job(out, model, &row, (seed, rate, None))),
                }
            }
        }
        Ok(jobs)
    }

    /// One run with a learning rate of its own.
    pub fn job(
        &self,
        out: &Path,
        model: Model,
        row: &Row,
        (seed, rate, network): (u64, f64, Option<&'static str>),
    ) -> Job {
        let on = network.unwrap_or(if self.trainer.is_some() { "100mbit,1ms" } else { "unlimited" });
        let record = if network.is_none() && self.trainer.is_none() { " --record-frames on" } else { "" };
        // What it takes to encode and decode, where seconds decide; added to replayed seconds elsewhere.
        let codecs = if network.is_some() { " --compress-seconds benches/results/codec-seconds.csv" } else { "" };
        let evaluate = if self.trainer.is_some() { "--eval-every 3" } else { "--eval-every 1" };
        let flags = format!(
            "{} --clock fixed:{} --network {on} {evaluate} --checkpoint-every 0 --plain{record}{codecs} {} --seed {seed}",
            model.flags(rate),
            self.compute,
            row.flags
        );
        let name = [row.name.as_str(), network.unwrap_or("")].join(" ");
        let name: String =
            name.trim().chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
        let seed_and_rate = format!("seed-{seed}-lr-{rate}");
        let directory = out.join(self.name).join(model.name()).join(name).join(seed_and_rate);
        let trainer = self.trainer.unwrap_or(model.trainer());
        Job { model, row: row.clone(), seed, rate, network, flags, directory, trainer }
    }
}

impl Job {
    /// Its summary, where it came to its end.
    pub fn finished(&self) -> Option<Summary> {
        trainer::finished(&self.directory, &self.flags)
    }

    /// Its command.
    pub fn command(&self) -> String {
        format!("{} {}", self.trainer, self.flags)
    }
}

/// Does what is not done yet, some runs at a time. A run that fails is reported, and the others go on.
///
/// # Errors
/// When runs failed: their number.
pub fn run(jobs: Vec<Job>, data: &Path, at_a_time: usize) -> Result<()> {
    let (queue, failed) = (Mutex::new(jobs.into_iter()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..at_a_time.max(1) {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(job) = next else { return };
                    if job.finished().is_some() {
                        continue;
                    }
                    eprintln!("{} seed {}: {}", job.model.name(), job.seed, job.row.name);
                    let ran = trainer::run(job.trainer, &job.flags, &data.join(job.model.data()), &job.directory);
                    if let Err(error) = ran {
                        eprintln!("{error:#}");
                        failed.lock().unwrap_or_else(PoisonError::into_inner).push(job.row.name);
                    }
                }
            });
        }
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        failed if failed.is_empty() => Ok(()),
        failed => Err(anyhow!("{} runs failed: {}", failed.len(), failed.join(", "))),
    }
}
