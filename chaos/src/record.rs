//! Event log: one line per event, on the terminal and as CSV.

use std::fs::File;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context, Result};

/// Columns of the CSV file.
pub const COLUMNS: [&str; 9] = ["time", "revision", "episode", "seed", "event", "target", "step", "outcome", "seconds"];

/// One event.
#[derive(Debug, Clone, Default)]
pub struct Line {
    /// Name of the fault, or `episode`.
    pub event: String,
    /// Target of the fault.
    pub target: String,
    /// Steps on record when it was injected.
    pub step: u64,
    /// Outcome.
    pub outcome: String,
    /// Seconds until the outcome.
    pub seconds: f64,
}

/// Destination of the lines.
#[derive(Debug)]
pub struct Record {
    csv: csv::Writer<File>,
    revision: String,
    /// Number and seed of the episode.
    pub episode: (usize, u64),
}

impl Record {
    /// Appends to a file, or creates it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn open(path: &Path, revision: String) -> Result<Record> {
        let fresh = !path.exists();
        let file = File::options().create(true).append(true).open(path);
        let mut csv = csv::Writer::from_writer(file.with_context(|| path.display().to_string())?);
        if fresh {
            csv.write_record(COLUMNS)?;
        }
        Ok(Record { csv, revision, episode: (0, 0) })
    }

    /// Writes a line.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, line: &Line) -> Result<()> {
        let Line { event, target, step, outcome, seconds } = line;
        let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let (episode, seed) = self.episode;
        println!(
            "{time}  episode {episode:>3}  seed {seed}  step {step:>4}  {event:<17} {target:<34} {outcome}  ({seconds:.1} s)"
        );
        let (episode, seed, step) = (episode.to_string(), seed.to_string(), step.to_string());
        let seconds = format!("{seconds:.1}");
        let fields: [&str; COLUMNS.len()] =
            [&time, &self.revision, &episode, &seed, event, target, &step, outcome, &seconds];
        self.csv.write_record(fields)?;
        Ok(self.csv.flush()?)
    }
}
