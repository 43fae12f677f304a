//! Strategies beside each other on real data: accuracy, bytes and simulated time, each row at the best rate of its own grid.
//!
//! A run is a trainer's, on one thread, in a directory of its own; a run that came to its end with its flags is not done again. Rates are
//! tried with a [seed](TUNING_SEED) that is in no table.

mod picture;
mod rows;
mod write;

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};
use briquette_examples::record::Summary;
use clap::ValueEnum;

use crate::trainer;

pub use write::write;

/// What rates are tried with.
pub const TUNING_SEED: u64 = 11;

/// A model and data, over a link of 100 Mbit/s and 10 ms, 50 ms of computing a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Task {
    /// ResNet-8 on 10 000 images of CIFAR-10, 3 epochs
    #[value(name = "resnet8")]
    ResNet8,
    /// The same, where every rank has its own mixture of classes (Dirichlet, concentration 0.3)
    ByClass,
    /// BiLSTM on 25 600 texts of AG-News, 3 epochs: 600 steps
    #[value(name = "bilstm")]
    BiLstm,
}

/// A strategy, with its settings.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Its flags.
    pub flags: &'static str,
    /// Learning rates to be tried: one is taken as it is.
    pub rates: &'static [f64],
}

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its task.
    pub task: Task,
    /// Its row.
    pub row: Row,
    /// Its learning rate.
    pub rate: f64,
    /// Its seed.
    pub seed: u64,
    /// Its files.
    pub directory: PathBuf,
}

impl Task {
    /// All of them.
    pub const ALL: [Task; 3] = [Task::ResNet8, Task::ByClass, Task::BiLstm];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Task::ResNet8 => "resnet8",
            Task::ByClass => "by-class",
            Task::BiLstm => "bilstm",
        }
    }

    /// Its rows, dense first.
    pub fn rows(self) -> &'static [Row] {
        match self {
            Task::ResNet8 => rows::RESNET8,
            Task::ByClass => rows::BY_CLASS,
            Task::BiLstm => rows::BILSTM,
        }
    }

    fn trainer(self) -> &'static str {
        if self == Task::BiLstm { "ag-news" } else { "cifar" }
    }

    fn data(self) -> &'static str {
        if self == Task::BiLstm { "ag_news" } else { "cifar10" }
    }

    /// What all its runs share, but for what a row has of its own.
    fn flags(self, row: &str) -> String {
        let images = "--dataset cifar10 --model resnet8 --weight-decay 5e-4 --schedule one-cycle --augment flip --train-limit 10000";
        let of_task = match self {
            Task::ResNet8 => images.to_owned(),
            Task::ByClass => format!("{images} --non-iid 0.3"),
            Task::BiLstm => "--model bilstm --optimizer adam --train-limit 25600".to_owned(),
        };
        let defaults = [("--ranks", "4"), ("--clock", "fixed:50ms"), ("--network", "100mbit,10ms")];
        let open = defaults.into_iter().filter(|(flag, _)| !row.contains(flag));
        let defaults: String = open.map(|(flag, value)| format!(" {flag} {value}")).collect();
        format!("{of_task} --batch 32 --epochs 3{defaults} --eval-every 3 --checkpoint-every 0 --plain {row}")
    }

    /// A run of each rate of each row that has several, with the seed for tuning.
    pub fn tuning(self, out: &Path) -> Vec<Run> {
        let tried = self.rows().iter().filter(|row| row.rates.len() > 1);
        tried.flat_map(|row| row.rates.iter().map(|rate| Run::new(self, *row, (*rate, TUNING_SEED), out))).collect()
    }

    /// A run of each row at its best rate.
    ///
    /// # Errors
    /// Where a row was not tuned.
    pub fn runs(self, seed: u64, out: &Path) -> Result<Vec<Run>> {
        let best = |row: &Row| Ok(Run::new(self, *row, (self.best(row, out)?, seed), out));
        self.rows().iter().map(best).collect()
    }

    /// The rate of its grid at which a row was most accurate.
    fn best(self, row: &Row, out: &Path) -> Result<f64> {
        if let [rate] = row.rates {
            return Ok(*rate);
        }
        let tried = row.rates.iter().map(|rate| (*rate, Run::new(self, *row, (*rate, TUNING_SEED), out).finished()));
        let tried: Vec<(f64, Summary)> = tried.filter_map(|(rate, summary)| Some((rate, summary?))).collect();
        ensure!(tried.len() == row.rates.len(), "{} of {} was not tuned: --tune does", row.name, self.name());
        let accuracy = |(_, summary): &&(f64, Summary)| summary.final_test_accuracy;
        let best = tried.iter().max_by(|a, b| accuracy(a).total_cmp(&accuracy(b)));
        Ok(best.map_or(f64::NAN, |(rate, _)| *rate))
    }
}

impl Run {
    fn new(task: Task, row: Row, (rate, seed): (f64, u64), out: &Path) -> Run {
        let name: String = row.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let directory = out.join(task.name()).join(name).join(format!("lr-{rate}-seed-{seed}"));
        Run { task, row, rate, seed, directory }
    }

    /// All of its flags.
    pub fn flags(&self) -> String {
        format!("{} --lr {} --seed {}", self.task.flags(self.row.flags), self.rate, self.seed)
    }

    /// Its command.
    pub fn command(&self) -> String {
        format!("{} {}", self.task.trainer(), self.flags())
    }

    /// The day on which it came to its end.
    fn day(&self) -> Result<String> {
        trainer::day(std::fs::metadata(self.directory.join("summary.json"))?.modified()?)
    }

    /// Its summary, where it came to its end.
    pub fn finished(&self) -> Option<Summary> {
        trainer::finished(&self.directory, &self.flags())
    }
}

/// Does what is not done yet, some runs at a time.
///
/// # Errors
/// When a run fails; those that are under way come to their end first.
pub fn run(runs: Vec<Run>, data: &Path, at_a_time: usize) -> Result<()> {
    let queue = Mutex::new(runs.into_iter());
    let work = || -> Result<()> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some(run) = next else { return Ok(()) };
            if run.finished().is_none() {
                eprintln!("{} seed {} at {}: {}", run.task.name(), run.seed, run.rate, run.row.name);
                trainer::run(run.task.trainer(), &run.flags(), &data.join(run.task.data()), &run.directory)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_a_time.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_network_of_its_own() {
        let flags = Task::ResNet8.flags("--reducer dense --network 100mbit,10ms,2");
        assert_eq!(flags.matches("--network").count(), 1);
        assert!(flags.contains("--clock fixed:50ms") && flags.contains("--ranks 4"));
    }

    #[test]
    fn rows_of_a_task_have_their_own_directories() {
        for task in Task::ALL {
            let mut directories: Vec<PathBuf> =
                task.rows().iter().map(|row| Run::new(task, *row, (0.1, 1), Path::new("o")).directory).collect();
            let count = directories.len();
            directories.sort();
            directories.dedup();
            assert_eq!(directories.len(), count, "{task:?}");
            assert_eq!(task.rows()[0].name, "dense");
        }
    }
}
