//! Whether a rank can open as many connections as its world needs.
//!
//! A rank that cannot would wait for its deadline, and the others with it: they only see that it does not call.

use std::fs;
use std::io;

use crate::error::JoinError;

/// What a program opens besides its connections: its data, its results.
const BESIDES: usize = 8;

/// Whether the process, or the whole system, has as many open files as it may have (`EMFILE`, `ENFILE`).
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

/// That rank `rank` of `world` can open the connections it does not have yet. Where the system says nothing of its limit, it
/// is found when it is reached.
pub(crate) fn check(rank: usize, world: usize, channels: usize) -> Result<(), JoinError> {
    match usage() {
        Some((open, limit)) if open + missing(rank, world, channels) + BESIDES > limit => {
            Err(error(rank, world, channels, "too many open files".to_owned()))
        }
        _ => Ok(()),
    }
}

/// The error of a rank that has reached a limit, in the system's words or others.
pub(crate) fn exhausted(rank: usize, world: usize, cause: String) -> JoinError {
    error(rank, world, 0, cause)
}

fn error(rank: usize, world: usize, channels: usize, cause: String) -> JoinError {
    let needed = missing(rank, world, channels) + BESIDES;
    let usage = usage().map_or(String::new(), |(open, limit)| format!("; {open} are open, and the limit is {limit}"));
    // Generous, and a number that people set.
    let advice = (4 * (needed + 64)).next_power_of_two();
    JoinError::Descriptors { rank, world, cause, needed, usage, advice }
}

/// Connections that a rank has yet to make when its world begins to come together: one to each other rank, another for each
/// background channel, and on rank 0 one more.
fn missing(rank: usize, world: usize, channels: usize) -> usize {
    world.saturating_sub(1) * (1 + channels + usize::from(rank == 0))
}

/// How many files this process has open, and how many it may have.
fn usage() -> Option<(usize, usize)> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let limit = line.split_whitespace().next()?.parse().ok()?;
    Some((fs::read_dir("/proc/self/fd").ok()?.count(), limit))
}
