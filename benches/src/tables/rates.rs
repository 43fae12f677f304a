//! Tuning of dense's learning rate, on a grid, with seeds that are in no table.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Job, Model, Row, Table};
use crate::trainer::{day, machine};

/// Factors on the model's own rate.
pub const GRID: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// Seeds of the grid.
pub const SEEDS: [u64; 2] = [11, 12];

/// A run of the grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Its model.
    pub model: String,
    /// Its learning rate.
    pub lr: f64,
    /// Its seed.
    pub seed: u64,
    /// Resulting accuracy.
    pub test_accuracy: f64,
    /// Machine on which it ran.
    pub machine: String,
    /// Number of its cores.
    pub cores: usize,
    /// Date.
    pub date: String,
    /// Command of the trainer.
    pub command: String,
}

/// Runs of the grid.
const TUNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/learning-rates.csv");

/// Returns the rate with the best mean accuracy of the grid.
///
/// # Errors
/// If the committed runs cannot be read, or do not cover this model's grid.
pub fn tuned(model: Model) -> Result<f64> {
    best(&read()?, model)
        .with_context(|| format!("{TUNED}: runs of {}'s grid are missing; --tune makes them", model.name()))
}

fn read() -> Result<Vec<Tuning>> {
    if !Path::new(TUNED).exists() {
        return Ok(Vec::new());
    }
    csv::Reader::from_path(TUNED)?.into_deserialize().collect::<Result<_, _>>().with_context(|| TUNED)
}

/// Returns the best rate; `None` if a run of the grid is missing, since means over different seeds would be compared.
fn best(runs: &[Tuning], model: Model) -> Option<f64> {
    let accuracy = |lr: f64, seed: u64| {
        let run = runs.iter().find(|run| (run.model.as_str(), run.lr, run.seed) == (model.name(), lr, seed));
        run.map(|run| run.test_accuracy).filter(|accuracy| accuracy.is_finite())
    };
    let sum = |lr: f64| SEEDS.iter().map(|seed| accuracy(lr, *seed)).sum::<Option<f64>>();
    let sums: Option<Vec<_>> = GRID.iter().map(|times| times * model.rate()).map(|lr| Some((lr, sum(lr)?))).collect();
    sums?.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).map(|(lr, _)| lr)
}

/// Returns the runs of the grid.
pub fn jobs(table: &Table, out: &Path, models: &[Model]) -> Vec<Job> {
    let models = table.models.iter().filter(|model| models.contains(model));
    let grid = models.flat_map(|model| GRID.into_iter().flat_map(move |times| SEEDS.map(|seed| (*model, times, seed))));
    grid.map(|(model, times, seed)| table.job(out, model, &Row::dense(), (seed, times * model.rate(), None))).collect()
}

/// Adds the finished runs of the grid to the committed ones, in order.
///
/// # Errors
/// If a file cannot be read or written.
pub fn write(jobs: &[Job]) -> Result<()> {
    let mut runs = read()?;
    for job in jobs {
        let Some(summary) = job.finished() else { continue };
        let model = job.model.name().to_owned();
        runs.retain(|run| (&run.model, run.lr, run.seed) != (&model, job.rate, job.seed));
        let (lr, seed, test_accuracy) = (job.rate, job.seed, summary.final_test_accuracy);
        let (machine, cores) = machine();
        let date = day(std::fs::metadata(job.directory.join("summary.json"))?.modified()?)?;
        runs.push(Tuning { model, lr, seed, test_accuracy, machine, cores, date, command: job.command() });
    }
    runs.sort_by(|a, b| a.model.cmp(&b.model).then(a.lr.total_cmp(&b.lr)).then(a.seed.cmp(&b.seed)));
    crate::ranks::write_csv(Some(Path::new(TUNED)), &runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rate_is_best_by_its_mean() {
        let run = |lr: f64, seed: u64, test_accuracy: f64| Tuning {
            model: "resnet8".into(),
            lr,
            seed,
            test_accuracy,
            machine: String::new(),
            cores: 1,
            date: String::new(),
            command: String::new(),
        };
        // Of the second seed 0.2 is much worse than of the first.
        let accuracies = [(0.05, 0.4, 0.4), (0.1, 0.5, 0.5), (0.2, 0.6, 0.3), (0.4, 0.4, 0.5), (0.8, 0.1, 0.1)];
        let runs: Vec<_> = accuracies.iter().flat_map(|(lr, a, b)| [run(*lr, 11, *a), run(*lr, 12, *b)]).collect();
        assert_eq!(best(&runs, Model::ResNet8), Some(0.1));
        assert_eq!(best(&runs[..9], Model::ResNet8), None, "one run is missing");
        assert_eq!(best(&runs, Model::BiLstm), None);
    }
}
