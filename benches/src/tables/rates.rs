//! Learning rates, tuned on a grid, with seeds that are in no table.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::{Job, Model, Row, Table};

/// Times the model's own rate.
pub const GRID: [f64; 5] = [0.25, 0.5, 1.0, 2.0, 4.0];

/// The seeds.
pub const SEEDS: [u64; 2] = [11, 12];

/// A run of the grid.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// Its model.
    pub model: String,
    /// Its row.
    pub row: String,
    /// Its learning rate.
    pub lr: f64,
    /// Its seed.
    pub seed: u64,
    /// What came out.
    pub test_accuracy: f64,
}

/// The runs of the grid.
const TUNED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/results/learning-rates.csv");

/// The rate with the best mean accuracy of the grid, the model's own where this row was not tuned.
///
/// # Errors
/// When the committed runs cannot be read.
pub fn tuned(model: Model, row: &str) -> Result<f64> {
    if !Path::new(TUNED).exists() {
        return Ok(model.rate());
    }
    let runs: Vec<Tuning> =
        csv::Reader::from_path(TUNED)?.into_deserialize().collect::<Result<_, _>>().with_context(|| TUNED)?;
    Ok(best(&runs, model, row).unwrap_or(model.rate()))
}

fn best(runs: &[Tuning], model: Model, row: &str) -> Option<f64> {
    let of_row = || runs.iter().filter(|run| run.model == model.name() && run.row == row);
    let mean = |lr: f64| {
        let accuracies: Vec<f64> = of_row().filter(|run| run.lr == lr).map(|run| run.test_accuracy).collect();
        accuracies.iter().sum::<f64>() / accuracies.len() as f64
    };
    of_row().max_by(|a, b| mean(a.lr).total_cmp(&mean(b.lr))).map(|run| run.lr)
}

/// The grid's runs for a table. Rows that read seconds run on the first network.
pub fn jobs(table: &Table, out: &Path, models: &[Model]) -> Vec<Job> {
    let models = table.models.iter().copied().filter(|model| models.contains(model));
    let grid = models.flat_map(|model| {
        (table.rows)(model)
            .into_iter()
            .flat_map(move |row| GRID.map(|times| (model, row.clone(), model.rate() * times)))
            .flat_map(|(model, row, rate)| SEEDS.map(|seed| (model, row.clone(), rate, seed)))
    });
    let job = |(model, row, rate, seed): (Model, Row, f64, u64)| {
        let network = row.reads_seconds.then(|| (table.networks)(model)[0]);
        table.job(out, model, &row, (seed, rate, network))
    };
    grid.map(job).collect()
}

/// Adds the grid's runs that came to their end to the committed ones, in order.
///
/// # Errors
/// When the file cannot be read or written.
pub fn write(jobs: &[Job]) -> Result<()> {
    let mut runs: Vec<Tuning> = match Path::new(TUNED).exists() {
        true => csv::Reader::from_path(TUNED)?.into_deserialize().collect::<Result<_, _>>()?,
        false => Vec::new(),
    };
    for job in jobs {
        let Some(summary) = job.finished() else { continue };
        let (model, row) = (job.model.name().to_owned(), job.row.name.clone());
        runs.retain(|run| (&run.model, &run.row, run.lr, run.seed) != (&model, &row, job.rate, job.seed));
        runs.push(Tuning { model, row, lr: job.rate, seed: job.seed, test_accuracy: summary.final_test_accuracy });
    }
    runs.sort_by(|a, b| {
        (&a.model, &a.row).cmp(&(&b.model, &b.row)).then(a.lr.total_cmp(&b.lr)).then(a.seed.cmp(&b.seed))
    });
    crate::ranks::write_csv(Some(Path::new(TUNED)), &runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_rate_of_a_row_is_its_own() {
        let run = |row: &str, lr: f64, test_accuracy: f64| Tuning {
            model: "resnet8".into(),
            row: row.into(),
            lr,
            seed: SEEDS[0],
            test_accuracy,
        };
        let runs = [run("dense", 0.1, 0.5), run("dense", 0.2, 0.6), run("dense", 0.2, 0.3), run("sign", 0.2, 0.4)];
        assert_eq!(best(&runs[..2], Model::ResNet8, "dense"), Some(0.2));
        assert_eq!(best(&runs, Model::ResNet8, "dense"), Some(0.1), "by the mean");
        assert_eq!(best(&runs, Model::ResNet8, "sign"), Some(0.2));
        assert_eq!(best(&runs, Model::BiLstm, "dense"), None);
    }
}
