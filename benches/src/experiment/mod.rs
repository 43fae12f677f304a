//! Experiments: the settings of a file, trained with several seeds, each at its best learning rate.
//!
//! A run is one trainer on one thread, in a separate directory. A run that finished with its flags and the file's version, there or in the
//! CSVs, is not repeated; one that was interrupted resumes from its checkpoint. Rates are searched with a [seed](Experiment::search_seed) that is
//! in no table: starting from a row's rates, by factors of two, until the best lies between two others.

mod outcome;
mod picture;
mod run;
mod tuning;
mod write;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use tuning::Tuning;

pub use outcome::{Kept, Measure};
pub use run::{Run, train};
pub use write::{write, write_rates};

/// A file in `benches/experiments`.
///
/// ```
/// use briquette_benches::experiment::Experiment;
/// let text = r#"
///     trainer = "cifar"
///     data = "cifar10"
///     flags = "--model resnet8 --epochs 3"
///     axes.network = ["100mbit,1ms", "1gbit,1ms"]
///     [[row]]
///     name = "dense"
///     flags = "--reducer dense"
///     [[row]]
///     name = "two epochs"
///     flags = "--epochs 2"
/// "#;
/// let experiment = Experiment::parse("example", text)?;
/// let flags: Vec<String> = experiment.rows.iter().map(|row| experiment.flags_of(&row.flags)).collect();
/// assert_eq!(flags[0], "--model resnet8 --epochs 3 --reducer dense --network 100mbit,1ms");
/// assert_eq!(flags[3], "--model resnet8 --epochs 2 --network 1gbit,1ms");
/// # Ok::<(), anyhow::Error>(())
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: the file's.
    #[serde(skip)]
    pub name: String,
    /// Program that trains: `cifar`, `ag-news` or `char-lm`.
    trainer: String,
    /// Directory below `--data`; without one the trainer's own data is used.
    data: Option<String>,
    /// Flags of all runs. A row that has one of them replaces it.
    flags: String,
    /// Seeds, the same in every row.
    #[serde(default = "first_seeds")]
    pub seeds: Vec<u64>,
    /// Seed of the search for learning rates.
    #[serde(default = "search_seed")]
    pub search_seed: u64,
    /// Experiment in the same directory that supplies the rates of rows without rates.
    rates_of: Option<String>,
    #[serde(skip)]
    namesakes: Option<Box<Experiment>>,
    /// Version of the results: raise it if a change of the code invalidates finished runs.
    #[serde(default = "first_version")]
    pub version: u32,
    /// The result that rates and rows are compared by.
    #[serde(default)]
    pub measure: Measure,
    /// Memory of a run in GB, which limits the number of runs at a time.
    #[serde(default = "one")]
    pub memory: f64,
    /// Flags whose values multiply the rows: `axes.network = ["100mbit,1ms", "1gbit,1ms"]` runs every row on both.
    #[serde(default)]
    axes: BTreeMap<String, Vec<String>>,
    /// Its rows, the baseline first.
    #[serde(rename = "row")]
    pub rows: Vec<Row>,
}

fn first_seeds() -> Vec<u64> {
    vec![1, 2, 3]
}

fn search_seed() -> u64 {
    11
}

fn first_version() -> u32 {
    1
}

fn one() -> f64 {
    1.0
}

/// A compared setting with its flags.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its flags.
    pub flags: String,
    /// Learning rates to try first. A single rate is used without a search. An empty list means the rate of the row's namesake in
    /// `rates_of`, or the trainer's default.
    #[serde(default)]
    pub rates: Vec<f64>,
    /// Alternative flags, tried at the best rate of the row's own flags, and at other rates if they are better.
    #[serde(default)]
    pub instead: Vec<String>,
    /// Values of the axes, as flags; they are part of `flags`.
    #[serde(skip)]
    pub setting: Option<String>,
}

impl Experiment {
    /// Reads a file, and the one that supplies its rates.
    ///
    /// # Errors
    /// If a file cannot be read or is not an experiment, or a row without rates has no namesake with rates.
    pub fn read(path: &Path) -> Result<Experiment> {
        let mut experiment = Experiment::read_alone(path)?;
        if let Some(of) = &experiment.rates_of {
            let namesakes = Experiment::read_alone(&path.with_file_name(format!("{of}.toml")))?;
            for row in experiment.rows.iter().filter(|row| row.rates.is_empty()) {
                let namesake = namesakes.row(row).map(|(_, row)| row);
                let has_rate = namesake.is_some_and(|row| !row.rates.is_empty() && row.instead.is_empty());
                ensure!(has_rate && namesakes.axes.is_empty(), "{of}.toml supplies no rate for {}", row.name);
            }
            experiment.namesakes = Some(Box::new(namesakes));
        }
        Ok(experiment)
    }

    fn read_alone(path: &Path) -> Result<Experiment> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Experiment::parse(&name, &text).with_context(|| format!("{} is not an experiment", path.display()))
    }

    /// Replaces the seeds of the file.
    ///
    /// # Errors
    /// If there are none, or the search has one of them.
    pub fn with_seeds(mut self, seeds: &[u64]) -> Result<Experiment> {
        seeds.clone_into(&mut self.seeds);
        self.check_seeds()?;
        Ok(self)
    }

    fn check_seeds(&self) -> Result<()> {
        let Experiment { search_seed: seed, seeds, .. } = self;
        ensure!(!seeds.is_empty(), "it has no seeds");
        ensure!(!seeds.contains(seed), "seed {seed} searches for rates: it can be in no table");
        Ok(())
    }

    /// Reads the text of a file, with a row for each combination of the axes' values.
    ///
    /// # Errors
    /// If a key is unknown or missing, or rows are missing, share a folder, or have a rate that is not above 0.
    pub fn parse(name: &str, text: &str) -> Result<Experiment> {
        let mut experiment: Experiment = toml::from_str(text)?;
        name.clone_into(&mut experiment.name);
        ensure!(!experiment.rows.is_empty(), "it has no rows");
        experiment.check_seeds()?;
        for (number, row) in experiment.rows.iter().enumerate() {
            let folder = run::folder(&row.name);
            let is_new = experiment.rows[..number].iter().all(|other| run::folder(&other.name) != folder);
            ensure!(is_new, "two rows have the folder {folder}");
            let is_searched = row.rates.len() > 1 || row.instead.is_empty();
            ensure!(is_searched, "row {}: `instead` is tried in a search, which two rates begin", row.name);
            let bad = row.rates.iter().find(|rate| !rate.is_finite() || **rate <= 0.0);
            ensure!(bad.is_none(), "row {}: rates are above 0, got {}", row.name, bad.unwrap_or(&0.0));
        }
        for (axis, values) in &experiment.axes {
            ensure!(!values.is_empty(), "the axis {axis} has no values");
            experiment.rows = values.iter().flat_map(|value| along(&experiment.rows, axis, value)).collect();
        }
        Ok(experiment)
    }

    /// Returns the number of runs at a time: one for each core, limited by the free memory.
    pub fn jobs(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        free_memory().map_or(cores, |free| cores.min((free / self.memory) as usize)).max(1)
    }

    /// Returns the flags of a run: those that all runs share, apart from those that a row replaces, and the row's.
    pub fn flags_of(&self, row: &str) -> String {
        let mut shared: Vec<&str> = Vec::new();
        let mut is_open = true;
        for word in self.flags.split_whitespace() {
            if word.starts_with("--") {
                is_open = !row.split_whitespace().any(|own| own == word);
            }
            if is_open {
                shared.push(word);
            }
        }
        format!("{} {row}", shared.join(" "))
    }

    fn named(&self, only: &str) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.name.contains(only))
    }

    /// Returns the next runs to try for rows whose name contains a text, with the seed for searches; empty if all searches are complete.
    pub fn tuning(&self, only: &str, kept: &Kept) -> Vec<Run> {
        let rated = self.named(only).map(|row| self.with_rates(row)).filter(|(_, row)| row.rates.len() > 1);
        rated.flat_map(|(experiment, row)| experiment.search(row, kept).next).collect()
    }

    /// Returns a run of each row whose name contains a text, with the settings found by the search.
    ///
    /// # Errors
    /// If a row's search is not complete.
    pub fn runs(&self, seed: u64, only: &str, kept: &Kept) -> Result<Vec<Run>> {
        self.named(only).map(|row| self.tuned(row, seed, kept)).collect()
    }

    /// As [`runs`](Self::runs), of the rows whose rate is known.
    pub fn known_runs(&self, seed: u64, only: &str, kept: &Kept) -> Vec<Run> {
        self.named(only).filter_map(|row| self.tuned(row, seed, kept).ok()).collect()
    }

    fn search(&self, row: &Row, kept: &Kept) -> Tuning {
        let run = |rate, instead: Option<&str>| {
            Run::new(self, row, instead.unwrap_or(&row.flags), (Some(rate), self.search_seed), &kept.directory)
        };
        tuning::search(&row.rates, &row.instead, run, |run| Some(kept.outcome(run)?.score()))
    }

    /// Returns this experiment and its row of a name, if there is one.
    fn row(&self, namesake: &Row) -> Option<(&Experiment, &Row)> {
        let row = self.rows.iter().find(|row| row.name == namesake.name)?;
        Some((self, row))
    }

    /// Returns the row whose rate a row uses, and its experiment.
    fn with_rates<'a>(&'a self, row: &'a Row) -> (&'a Experiment, &'a Row) {
        let of = self.namesakes.as_ref().filter(|_| row.rates.is_empty());
        of.and_then(|of| of.row(row)).unwrap_or((self, row))
    }

    /// Returns whether a row's search is complete.
    fn is_searched(&self, row: &Row, kept: &Kept) -> bool {
        let (experiment, row) = self.with_rates(row);
        row.rates.len() > 1 && experiment.search(row, kept).best.is_some()
    }

    fn tuned(&self, row: &Row, seed: u64, kept: &Kept) -> Result<Run> {
        let (experiment, first) = self.with_rates(row);
        let (flags, rate) = match first.rates[..] {
            [] => (row.flags.clone(), None),
            [rate] => (row.flags.clone(), Some(rate)),
            _ => {
                let tuning = experiment.search(first, kept);
                let best = tuning.best.clone().or(tuning.so_far.clone().filter(|_| kept.so_far));
                let searched = match tuning.so_far.as_ref().and_then(|so_far| so_far.rate) {
                    Some(rate) if tuning.next.is_empty() => {
                        format!("none lies between two others, {rate} is the best so far and --so-far takes it")
                    }
                    _ => "runs of its search are missing".into(),
                };
                let unknown = || format!("the rate of {} in {} is not known: {searched}", row.name, self.name);
                let best = best.with_context(unknown)?;
                (if std::ptr::eq(experiment, self) { best.flags } else { row.flags.clone() }, best.rate)
            }
        };
        Ok(Run::new(self, row, &flags, (rate, seed), &kept.directory))
    }
}

/// Returns the memory in GB that programs can have, if the system says so.
fn free_memory() -> Option<f64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let free = info.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB"))?;
    Some(free.trim().parse::<f64>().ok()? / 1e6)
}

/// Returns the rows at one value of an axis.
fn along(rows: &[Row], axis: &str, value: &str) -> Vec<Row> {
    let flag = format!("--{axis} {value}");
    let with = |text: &str| format!("{text} {flag}").trim().to_owned();
    let rows = rows.iter().map(|row| Row {
        flags: with(&row.flags),
        instead: row.instead.iter().map(|flags| with(flags)).collect(),
        setting: Some(with(row.setting.as_deref().unwrap_or_default())),
        ..row.clone()
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all files of `benches/experiments`.
    pub(super) fn all() -> Vec<Experiment> {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/experiments");
        let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        paths.sort();
        paths.iter().map(|path| Experiment::read(path).unwrap()).collect()
    }

    pub(super) fn of(rows: &str) -> Result<Experiment> {
        let head = "trainer = 'cifar'\ndata = 'cifar10'\nflags = '--ranks 4 --plain'\n";
        Experiment::parse("example", &[head, rows].concat())
    }

    #[test]
    fn rows_have_separate_directories_and_a_baseline() {
        for experiment in all() {
            let run = |row: &Row| Run::new(&experiment, row, &row.flags, (Some(0.1), 1), Path::new("o")).directory;
            let mut directories: Vec<_> = experiment.rows.iter().map(run).collect();
            directories.sort();
            directories.dedup();
            assert_eq!(directories.len(), experiment.rows.len(), "{}", experiment.name);
            assert!(experiment.rows[0].name.starts_with("dense"), "{}", experiment.name);
            for row in experiment.rows.iter().filter(|row| row.rates.is_empty() && experiment.rates_of.is_some()) {
                let (other, first) = experiment.with_rates(row);
                assert!(other.name != experiment.name && row.flags.starts_with(&first.flags), "{}", row.name);
            }
        }
    }

    /// All runs and rates of the committed CSVs are those that the files ask for, so that nothing is trained again.
    #[test]
    fn the_committed_results_are_of_the_files() {
        let results = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/results/experiments"));
        let kept = Kept::new("nowhere".into(), false).with_csv(results).unwrap();
        let has_results = |experiment: &Experiment| results.join(format!("{}-runs.csv", experiment.name)).exists();
        let with_results: Vec<Experiment> = all().into_iter().filter(has_results).collect();
        assert!(with_results.len() >= 6);
        for experiment in with_results {
            let name = &experiment.name;
            let missing: Vec<String> = experiment.tuning("", &kept).iter().map(Run::command).collect();
            assert!(missing.is_empty(), "{name} searches {missing:?}");
            for seed in &experiment.seeds {
                let runs = experiment.runs(*seed, "", &kept).unwrap();
                let missing: Vec<String> = runs.iter().filter(|run| !kept.has(run)).map(Run::command).collect();
                assert!(missing.is_empty(), "{name} trains {missing:?}");
            }
        }
    }

    #[test]
    fn rates_of_another_file_are_those_of_namesakes() {
        let folder = tempfile::tempdir().unwrap();
        let head = "trainer = 'cifar'\nflags = ''\n";
        let read = |name: &str, text: &str| {
            let path = folder.path().join(format!("{name}.toml"));
            fs::write(&path, [head, text].concat()).unwrap();
            Experiment::read(&path)
        };
        let first = "[[row]]\nname = 'dense'\nflags = ''\nrates = [0.3]\n[[row]]\nname = 'bare'\nflags = ''";
        assert!(read("first", first).is_ok());
        let of = |name: &str| format!("rates_of = 'first'\n[[row]]\nname = '{name}'\nflags = '--slow'");
        let second = read("second", &of("dense")).unwrap();
        let run = second.tuned(&second.rows[0], 1, &Kept::new("nowhere".into(), false)).unwrap();
        assert_eq!((run.rate, run.flags.as_str()), (Some(0.3), "--slow"));
        for name in ["bare", "unknown"] {
            let error = read("third", &of(name)).unwrap_err().to_string();
            assert_eq!(error, format!("first.toml supplies no rate for {name}"));
        }
    }

    #[test]
    fn mistakes_in_a_file_are_named() {
        let row = "[[row]]\nname = 'dense'\nflags = ''\n";
        let said = |text: &str| format!("{:#}", of(text).unwrap_err());
        assert!(said("row = []").contains("no rows"));
        assert!(said(&[row, row].concat()).contains("two rows have the folder dense"));
        assert!(said(&format!("{row}rates = [0.1, -1]")).contains("above 0, got -1"));
        let one_folder = "[[row]]\nname = 'a:2'\nflags = ''\n[[row]]\nname = 'a-2'\nflags = ''";
        assert!(said(&[row, one_folder].concat()).contains("folder a-2"));
        assert!(said(&format!("{row}rates = [1]\ninstead = ['--b']")).contains("`instead` is tried in a search"));
        assert!(said(&format!("{row}colour = 1")).contains("colour"));
        assert!(said(&format!("seeds = [11]\n{row}")).contains("seed 11"));
        assert!(said(&format!("axes.network = []\n{row}")).contains("the axis network has no values"));
    }
}
