//! Strategies, compressors and optimizers compared on real data: accuracy, bytes and simulated time, each row at its
//! best learning rate.
//!
//! A run is one trainer on one thread, in a separate directory; a run that finished with its flags, there or in the
//! CSVs, is not repeated. Rates are tuned with a [seed](TUNING_SEED) that is in no table, for all rows by one rule:
//! starting from two rates, by factors of two, until the best lies between two others.

mod outcome;
mod picture;
mod rows;
mod tuning;
mod write;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::ValueEnum;

use crate::trainer;

use tuning::Tuning;

pub use outcome::Kept;
pub use write::{write, write_rates};

/// Seed of the learning-rate search.
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
    /// ResNet-8 where one rank takes ten times as long for a step, 1 epoch
    Straggler,
    /// Compressors and reducers on ResNet-8, 5000 images of CIFAR-10 (4000 of the tests), 2 epochs: 158 steps
    Compressors,
    /// Optimizers on ResNet-8, the same images, 4 epochs: 316 steps
    Optimizers,
}

/// A compared setting with its flags.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// Its name.
    pub name: &'static str,
    /// Its flags.
    pub flags: &'static str,
    /// Learning rates to try first. A single rate is used without a search; an empty list means the rate of the row's
    /// namesake in the first table.
    pub rates: &'static [f64],
    /// Alternative flags, tried at the best rate of the row's own flags, and at other rates if they are better.
    pub instead: &'static [&'static str],
}

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Its task.
    pub task: Task,
    /// Its row.
    pub row: Row,
    /// The row's flags, or their alternative.
    pub flags: &'static str,
    /// Its learning rate.
    pub rate: f64,
    /// Its seed.
    pub seed: u64,
    /// Directory of its files.
    pub directory: PathBuf,
}

impl Task {
    /// All tasks.
    pub const ALL: [Task; 6] =
        [Task::ResNet8, Task::ByClass, Task::BiLstm, Task::Straggler, Task::Compressors, Task::Optimizers];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Task::ResNet8 => "resnet8",
            Task::ByClass => "by-class",
            Task::BiLstm => "bilstm",
            Task::Straggler => "straggler",
            Task::Compressors => "compressors",
            Task::Optimizers => "optimizers",
        }
    }

    /// Returns its rows, dense first.
    pub fn rows(self) -> &'static [Row] {
        match self {
            Task::ResNet8 => rows::RESNET8,
            Task::ByClass => rows::BY_CLASS,
            Task::BiLstm => rows::BILSTM,
            Task::Straggler => rows::STRAGGLER,
            Task::Compressors => rows::COMPRESSORS,
            Task::Optimizers => rows::OPTIMIZERS,
        }
    }

    fn trainer(self) -> &'static str {
        if self == Task::BiLstm { "ag-news" } else { "cifar" }
    }

    fn data(self) -> &'static str {
        if self == Task::BiLstm { "ag_news" } else { "cifar10" }
    }

    /// Returns the flags that all its runs share, apart from those of a row.
    fn flags(self, row: &str) -> String {
        let schedule = if row.contains("--schedule") { "" } else { " --schedule one-cycle" };
        let images =
            format!("--dataset cifar10 --model resnet8 --weight-decay 5e-4{schedule} --augment flip --train-limit");
        let (of_task, batch, epochs) = match self {
            Task::ResNet8 => (format!("{images} 10000"), 32, 3),
            Task::ByClass => (format!("{images} 10000 --non-iid 0.3"), 32, 3),
            Task::BiLstm => {
                let optimizer = if row.contains("--optimizer") { "" } else { " --optimizer adam" };
                (format!("--model bilstm{optimizer} --train-limit 25600"), 32, 3)
            }
            Task::Straggler => (format!("{images} 10000"), 32, 1),
            Task::Compressors => (format!("{images} 5000 --test-limit 4000"), 16, 2),
            Task::Optimizers => (format!("{images} 5000 --test-limit 4000"), 16, 4),
        };
        let defaults = [("--ranks", "4"), ("--clock", "fixed:50ms"), ("--network", "100mbit,10ms")];
        let open = defaults.into_iter().filter(|(flag, _)| !row.contains(flag));
        let defaults: String = open.map(|(flag, value)| format!(" {flag} {value}")).collect();
        format!(
            "{of_task} --batch {batch} --epochs {epochs}{defaults} --eval-every 3 --checkpoint-every 0 --plain {row}"
        )
    }

    fn named(self, only: &str) -> impl Iterator<Item = &'static Row> {
        self.rows().iter().filter(move |row| row.name.contains(only))
    }

    /// Returns the next runs to try for rows whose name contains a text, with the seed for tuning; empty if all
    /// searches are complete.
    pub fn tuning(self, only: &str, kept: &Kept) -> Vec<Run> {
        self.named(only).filter(|row| row.rates.len() > 1).flat_map(|row| self.search(row, kept).next).collect()
    }

    /// Returns a run of each row whose name contains a text, with the settings found by the search.
    ///
    /// # Errors
    /// If a row's search is not complete.
    pub fn runs(self, seed: u64, only: &str, kept: &Kept) -> Result<Vec<Run>> {
        self.named(only).map(|row| self.tuned(row, seed, kept)).collect()
    }

    fn search(self, row: &Row, kept: &Kept) -> Tuning {
        let run = |rate, instead: Option<_>| {
            Run::new(self, *row, instead.unwrap_or(row.flags), (rate, TUNING_SEED), &kept.directory)
        };
        tuning::search(row.rates, row.instead, run, |run| Some(kept.outcome(run)?.test_accuracy))
    }

    /// Returns the row whose rate a row uses.
    fn namesake(self, row: &Row) -> (Task, Row) {
        let first = Task::ResNet8.rows().iter().find(|first| first.name == row.name);
        first.filter(|_| row.rates.is_empty()).map_or((self, *row), |first| (Task::ResNet8, *first))
    }

    /// Returns whether a row's rate search is complete.
    fn searched(self, row: &Row, kept: &Kept) -> bool {
        let (task, row) = self.namesake(row);
        row.rates.len() > 1 && task.search(&row, kept).best.is_some()
    }

    fn tuned(self, row: &Row, seed: u64, kept: &Kept) -> Result<Run> {
        let (task, first) = self.namesake(row);
        let (flags, rate) = match first.rates {
            [rate] => (row.flags, *rate),
            _ => {
                let tuning = task.search(&first, kept);
                let best = tuning.best.clone().or(tuning.so_far.clone().filter(|_| kept.so_far));
                let searched = match &tuning.so_far {
                    Some(so_far) if tuning.next.is_empty() => {
                        format!(
                            "none lies between two others, {} is the best so far and --so-far takes it",
                            so_far.rate
                        )
                    }
                    _ => "--tune searches it".into(),
                };
                let unknown = || format!("the rate of {} in {} is not known: {searched}", row.name, task.name());
                let best = best.with_context(unknown)?;
                (if task == self { best.flags } else { row.flags }, best.rate)
            }
        };
        Ok(Run::new(self, *row, flags, (rate, seed), &kept.directory))
    }
}

impl Run {
    fn new(task: Task, row: Row, flags: &'static str, (rate, seed): (f64, u64), out: &Path) -> Run {
        let name = row.name.chars().chain(if flags == row.flags { "" } else { flags }.chars());
        let name: String = name.map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let directory = out.join(task.name()).join(name).join(format!("lr-{rate}-seed-{seed}"));
        Run { task, row, flags, rate, seed, directory }
    }

    /// Returns all of its flags.
    pub fn flags(&self) -> String {
        format!("{} --lr {} --seed {}", self.task.flags(self.flags), self.rate, self.seed)
    }

    /// Returns its command.
    pub fn command(&self) -> String {
        format!("{} {}", self.task.trainer(), self.flags())
    }

    /// Trains the run.
    ///
    /// # Errors
    /// If the trainer cannot be run or does not succeed.
    pub fn train(&self, data: &Path) -> Result<()> {
        eprintln!("{} seed {} at {}: {}", self.task.name(), self.seed, self.rate, self.flags);
        trainer::run(self.task.trainer(), &self.flags(), &data.join(self.task.data()), &self.directory)
    }
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
            let mut directories: Vec<PathBuf> = task
                .rows()
                .iter()
                .map(|row| Run::new(task, *row, row.flags, (0.1, 1), Path::new("o")).directory)
                .collect();
            let count = directories.len();
            directories.sort();
            directories.dedup();
            assert_eq!(directories.len(), count, "{task:?}");
            assert_eq!(task.rows()[0].name, "dense");
        }
    }

    #[test]
    fn a_row_without_rates_has_a_namesake_in_the_first_table() {
        for row in Task::ALL.iter().flat_map(|task| task.rows()).filter(|row| row.rates.is_empty()) {
            let first = Task::ResNet8.rows().iter().find(|first| first.name == row.name).unwrap();
            assert!(row.flags.starts_with(first.flags) && !first.rates.is_empty(), "{}", row.name);
        }
    }
}
