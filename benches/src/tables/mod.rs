//! Tables of controllers compared with static settings: their runs and their results.
//!
//! A run is one trainer on one thread, in a separate directory; a run that finished with its flags is not repeated.
//! Runs whose decisions do not depend on measured times are made once and [replayed](results) on every network.

pub mod break_even;
pub mod changing_links;
pub mod codecs;
pub mod dq_sgd;
pub mod false_alarms;
pub mod goodput;
pub mod gravac;
pub mod held_out;
pub mod local_steps;
pub mod map;
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
    /// All models.
    pub const ALL: [Model; 3] = [Model::ResNet8, Model::Vgg11Slim, Model::BiLstm];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Model::ResNet8 => "resnet8",
            Model::Vgg11Slim => "vgg11-slim",
            Model::BiLstm => "bilstm",
        }
    }

    /// Returns the number of values of its gradient.
    pub fn values(self) -> usize {
        match self {
            Model::ResNet8 => 77_850,
            Model::Vgg11Slim => 579_098,
            Model::BiLstm => 1_405_316,
        }
    }

    /// Returns the directory of its data.
    pub fn data(self) -> &'static str {
        if self.is_adam() { "ag_news" } else { "cifar10" }
    }

    fn trainer(self) -> &'static str {
        if self.is_adam() { "ag-news" } else { "cifar" }
    }

    /// Returns whether its optimizer is Adam; otherwise it is SGD with momentum.
    pub fn is_adam(self) -> bool {
        self == Model::BiLstm
    }

    /// Returns the learning rate in the middle of the [grid](rates).
    pub fn rate(self) -> f64 {
        match self {
            Model::ResNet8 => 0.2,
            Model::Vgg11Slim => 0.1,
            Model::BiLstm => 2e-3,
        }
    }

    /// Returns the flags that the runs of all tables share.
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

/// A compared setting: a name, and the flags of its exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its flags.
    pub flags: String,
    /// Set if its decisions depend on measured times: it must be run on each network.
    pub reads_seconds: bool,
}

/// Name of the row to which others are compared.
pub const DENSE: &str = "dense";

impl Row {
    /// Creates a row from its name and flags.
    pub fn new(name: impl Into<String>, flags: impl Into<String>) -> Row {
        Row { name: name.into(), flags: flags.into(), reads_seconds: false }
    }

    /// Marks a row that must be run on each network.
    #[must_use]
    pub fn reading_seconds(mut self) -> Row {
        self.reads_seconds = true;
        self
    }

    /// Returns the row of the exact mean.
    pub fn dense() -> Row {
        Row::new(DENSE, "--reducer dense")
    }

    /// Returns the row of the default exchange, used if no flag names one.
    pub fn auto() -> Row {
        Row::new("auto", "").reading_seconds()
    }

    /// Returns the row of local steps whose number follows the link, with the ratios of `auto`: DiLoCo under Adam, and Local SGD under SGD.
    pub fn auto_local(model: Model) -> Row {
        let strategy = if model.is_adam() { "diloco:adapt=true" } else { "local-sgd:4,adapt=true" };
        Row::new("auto, local steps", format!("--strategy {strategy}")).reading_seconds()
    }

    /// Returns the static rows of local steps that are compared with [`auto_local`](Self::auto_local): none under SGD with momentum.
    pub fn local(model: Model) -> Vec<Row> {
        let row = |period: u32| {
            let flags = format!("--strategy diloco:{period} --reducer gather:topk:20x:q8 --feedback error");
            Row::new(format!("DiLoCo, H = {period}, topk:20x:q8"), flags)
        };
        if model.is_adam() { [8, 16].map(row).into() } else { Vec::new() }
    }

    /// Returns the row of a compressor under error feedback.
    pub fn error_feedback(compressor: &str) -> Row {
        Row::new(format!("{compressor}, error feedback"), format!("--compressor {compressor} --feedback error"))
    }

    /// Returns the row of a compressor under momentum correction if the optimizer is SGD with momentum, else under error feedback.
    pub fn corrected(compressor: &str, model: Model) -> Row {
        if model.is_adam() {
            return Row::error_feedback(compressor);
        }
        let name = format!("{compressor}, momentum correction");
        Row::new(name, format!("--compressor {compressor} --momentum-correction on"))
    }

    /// Returns the row of a compressor without error feedback.
    pub fn forgetting(compressor: &str) -> Row {
        Row::new(format!("{compressor}, no memory"), format!("--compressor {compressor} --feedback none"))
    }
}

/// Runs of a table.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// Its name, and its directory among the runs.
    pub name: &'static str,
    /// Trainer, if it is not the model's own.
    pub trainer: Option<&'static str>,
    /// Its models.
    pub models: &'static [Model],
    /// Its rows, dense first.
    pub rows: fn(Model) -> Vec<Row>,
    /// Networks for which times are computed.
    pub networks: fn(Model) -> Vec<&'static str>,
    /// Compute time of a step.
    pub compute: &'static str,
    /// Learning rate of all rows, if it is not the model's.
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
    /// Network, if its decisions depend on it.
    pub network: Option<&'static str>,
    /// All of its flags.
    pub flags: String,
    /// Directory of its files.
    pub directory: PathBuf,
    trainer: &'static str,
}

impl Table {
    /// Returns the runs of a seed: one for each row, and one per network if the row reads seconds. With dense's
    /// [tuned](rates) rate, or the middle of the grid; the same in every row.
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

    /// Returns one run with a given learning rate.
    pub fn job(
        &self,
        out: &Path,
        model: Model,
        row: &Row,
        (seed, rate, network): (u64, f64, Option<&'static str>),
    ) -> Job {
        let on = network.unwrap_or(if self.trainer.is_some() { "100mbit,1ms" } else { "unlimited" });
        let record = if network.is_none() && self.trainer.is_none() { " --record-frames on" } else { "" };
        // Encode and decode times, if decisions depend on times; otherwise they are added to replayed times.
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
    /// Returns its summary, if it finished.
    pub fn finished(&self) -> Option<Summary> {
        trainer::finished(&self.directory, &self.flags)
    }

    /// Returns its command.
    pub fn command(&self) -> String {
        format!("{} {}", self.trainer, self.flags)
    }
}

/// Makes the missing runs, several at a time. A failed run is reported, and the others continue.
///
/// # Errors
/// If runs failed: their number.
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
                    let data = data.join(job.model.data());
                    let ran = trainer::run(job.trainer, &job.flags, &job.flags, Some(&data), &job.directory);
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
