//! Ranks as processes of the program itself, and their times.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use briquette::core::Session;
use briquette_cli::measure::median;
use briquette_tcp::Environment;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A child process that is killed on drop.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Returns the environment of rank `rank` of a world on this machine; rank 0 listens on `port`, where the others find it.
pub fn here(rank: usize, world: usize, port: u16) -> Environment {
    Environment {
        rank,
        world,
        local_rank: rank,
        local_world: 1,
        node: Some(0),
        master: "127.0.0.1".into(),
        port: Some(port),
        world_name: None,
        ports: None,
        join_deadline: None,
        deadline: None,
        token: None,
        token_file: None,
        tls: None,
        launch: None,
        elastic: None,
        restart: 0,
    }
}

/// Starts this program once per rank, with its own arguments, and reads the rows that the first rank prints as CSV.
///
/// # Errors
/// If a rank cannot be started, or fails.
pub fn run<T: DeserializeOwned>(environments: &[Environment]) -> Result<Vec<T>> {
    let start = |environment: &Environment| -> Result<Ended> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args_os().skip(1)).envs(environment.variables());
        let output = if environment.rank == 0 { Stdio::piped() } else { Stdio::null() };
        Ok(Ended(command.stdout(output).spawn()?))
    };
    let mut children = environments.iter().map(start).collect::<Result<Vec<_>>>()?;
    let output = children[0].0.stdout.take().context("rank 0's output")?;
    let rows: Result<Vec<T>, _> = csv::Reader::from_reader(output).into_deserialize().collect();
    for child in &mut children {
        ensure!(child.0.wait()?.success(), "a rank failed");
    }
    Ok(rows?)
}

/// Writes rows as CSV, if a path is given.
///
/// # Errors
/// If the file cannot be written.
pub fn write_csv<T: Serialize>(path: Option<&Path>, rows: &[T]) -> Result<()> {
    let Some(path) = path else { return Ok(()) };
    let mut csv = csv::Writer::from_path(path).with_context(|| format!("cannot write --csv {}", path.display()))?;
    rows.iter().try_for_each(|row| csv.serialize(row))?;
    Ok(csv.flush()?)
}

/// Pins to `count` cores reserved for rank `rank`, modulo those that this process may use; returns how many there are.
///
/// # Errors
/// If the system does not allow it.
pub fn pin(rank: usize, count: usize) -> Result<usize> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let cores: Vec<usize> = (0..CpuSet::count()).filter(|core| allowed.is_set(*core).unwrap_or(false)).collect();
    let mut own = CpuSet::new();
    (rank * count..(rank + 1) * count).try_for_each(|core| own.set(cores[core % cores.len()]))?;
    sched_setaffinity(this, &own)?;
    Ok(cores.len())
}

/// Returns the median over repeats of the slowest rank's time.
///
/// # Errors
/// If the ranks cannot exchange their times.
pub fn slowest(comm: &mut Session, mine: &[Duration]) -> Result<f64> {
    let bytes: Vec<u8> = mine.iter().flat_map(|d| d.as_secs_f64().to_le_bytes()).collect();
    let mut parts = Vec::new();
    comm.all_gather(&bytes, &mut parts)?;
    parts[comm.rank()] = bytes;
    let of_rank = |part: &Vec<u8>| -> Vec<f64> { part.as_chunks().0.iter().map(|b| f64::from_le_bytes(*b)).collect() };
    let ranks: Vec<Vec<f64>> = parts.iter().map(of_rank).collect();
    let each = (0..mine.len()).map(|i| ranks.iter().map(|times| times[i]).fold(0.0, f64::max));
    Ok(median(each.collect()))
}
