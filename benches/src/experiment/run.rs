//! One run of an experiment: its flags, its directory, and training it.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::{Experiment, Measure, Row};
use crate::trainer;

/// One run.
#[derive(Debug, Clone)]
pub struct Run {
    /// Name of its experiment.
    pub experiment: String,
    /// Its row.
    pub row: Row,
    /// The row's flags, or their alternative.
    pub flags: String,
    /// Its learning rate, if it is not the trainer's default.
    pub rate: Option<f64>,
    /// Its seed.
    pub seed: u64,
    /// Version of its results.
    pub version: u32,
    /// The result that it is compared by.
    pub measure: Measure,
    /// Directory of its files.
    pub directory: PathBuf,
    trainer: String,
    data: Option<String>,
    all_flags: String,
}

impl Run {
    pub(super) fn new(
        experiment: &Experiment,
        row: &Row,
        flags: &str,
        (rate, seed): (Option<f64>, u64),
        out: &Path,
    ) -> Run {
        let setting = row.setting.as_deref().filter(|_| flags == row.flags).unwrap_or_default();
        let name = [row.name.as_str(), setting, if flags == row.flags { "" } else { flags }].concat();
        let of_rate = rate.map(|rate| format!("lr-{rate}-")).unwrap_or_default();
        let directory = out.join(&experiment.name).join(folder(&name)).join(format!("{of_rate}seed-{seed}"));
        let of_rate = rate.map(|rate| format!(" --lr {rate}")).unwrap_or_default();
        Run {
            experiment: experiment.name.clone(),
            row: row.clone(),
            flags: flags.to_owned(),
            rate,
            seed,
            version: experiment.version,
            measure: experiment.measure,
            directory,
            trainer: experiment.trainer.clone(),
            data: experiment.data.clone(),
            all_flags: format!("{}{of_rate} --seed {seed}", experiment.flags_of(flags)),
        }
    }

    /// Identifies the finished run: its command, data and version.
    pub fn key(&self) -> String {
        let data = self.data.as_deref().unwrap_or_default();
        format!("{}\ndata {data}\nversion {}\n", self.command(), self.version)
    }

    /// Returns its command.
    pub fn command(&self) -> String {
        format!("{} {}", self.trainer, self.all_flags)
    }

    fn train(&self, data: &Path) -> Result<()> {
        let data = self.data.as_ref().map(|own| data.join(own));
        trainer::run_or_resume(&self.trainer, &self.all_flags, &self.key(), data.as_deref(), &self.directory)
    }

    fn name(&self) -> String {
        let rate = self.rate.map(|rate| format!(" at {rate}")).unwrap_or_default();
        let setting = self.row.setting.as_ref().map(|setting| format!(" {setting}")).unwrap_or_default();
        format!("{}: {}{setting}{rate}, seed {}", self.experiment, self.row.name, self.seed)
    }
}

/// Returns the folder of a name: other characters than letters and digits are hyphens.
pub(super) fn folder(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect()
}

/// Trains runs, several at a time, and reports each with an estimate of the time left.
///
/// # Errors
/// If a trainer cannot be run or does not succeed. Other workers finish the queue.
pub fn train(runs: &[Run], data: &Path, at_a_time: usize) -> Result<()> {
    let (all, at_a_time) = (runs.len(), at_a_time.clamp(1, runs.len().max(1)));
    let took = Mutex::new(Vec::new());
    trainer::each(runs.iter().enumerate().collect(), at_a_time, |(number, run)| {
        let mean = mean(&took.lock().expect("no run panics while it is added"));
        let left = mean.map(|mean| left(all - number, at_a_time, mean)).unwrap_or_default();
        eprintln!("[{} of {all}] {}{left}", number + 1, run.name());
        let start = Instant::now();
        run.train(data)?;
        took.lock().expect("no run panics while it is added").push(start.elapsed());
        Ok(())
    })
}

fn mean(took: &[Duration]) -> Option<Duration> {
    Some(took.iter().sum::<Duration>() / u32::try_from(took.len()).ok().filter(|count| *count > 0)?)
}

/// Formats the remaining time.
fn left(runs: usize, at_a_time: usize, mean: Duration) -> String {
    let minutes = (mean * runs.div_ceil(at_a_time) as u32).as_secs().div_ceil(60);
    let span = if minutes < 120 { format!("{minutes} min") } else { format!("{} h", minutes.div_ceil(60)) };
    format!(" ({span} left)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_counts_runs_side_by_side() {
        assert_eq!(left(5, 2, Duration::from_secs(61)), " (4 min left)");
        assert_eq!(left(100, 1, Duration::from_mins(3)), " (5 h left)");
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[Duration::from_secs(1), Duration::from_secs(3)]), Some(Duration::from_secs(2)));
    }

    #[test]
    fn a_version_identifies_a_run() {
        let experiment =
            super::super::tests::of("version = 2\n[[row]]\nname = 'dense'\nflags = '--reducer dense'").unwrap();
        let run = Run::new(&experiment, &experiment.rows[0], "--reducer dense", (None, 3), Path::new("o"));
        assert_eq!(run.key(), "cifar --ranks 4 --plain --reducer dense --seed 3\ndata cifar10\nversion 2\n");
        assert_eq!(run.command(), "cifar --ranks 4 --plain --reducer dense --seed 3");
        assert_eq!(run.directory, Path::new("o/example/dense/seed-3"));
    }
}
