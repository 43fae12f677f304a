//! Check of the open-file limit against the number of connections that a world needs.
//!
//! Without this check, a rank that cannot open a connection would wait for its timeout. The other ranks would wait too,
//! because they only observe that it does not call.

use std::fs;
use std::io;

use crate::error::JoinError;

/// Files that a program opens besides its connections: data and results.
const BESIDES: usize = 8;

/// Returns whether the process, or the whole system, has reached its limit of open files (`EMFILE`, `ENFILE`).
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    cfg!(unix) && matches!(error.raw_os_error(), Some(23 | 24))
}

/// Checks that rank `rank` of `world` can open its remaining connections. If the system does not report its limit, the
/// limit is detected when it is reached.
pub(crate) fn check(rank: usize, world: usize, channels: usize) -> Result<(), JoinError> {
    match usage() {
        Some((open, limit)) if open + missing(rank, world, channels) + BESIDES > limit => {
            Err(error(rank, world, channels, "too many open files".to_owned()))
        }
        _ => Ok(()),
    }
}

/// Creates the error of a rank that has reached a limit, with the system's message or another cause.
pub(crate) fn exhausted(rank: usize, world: usize, cause: String) -> JoinError {
    error(rank, world, 0, cause)
}

fn error(rank: usize, world: usize, channels: usize, cause: String) -> JoinError {
    let needed = missing(rank, world, channels) + BESIDES;
    let usage = usage().map_or(String::new(), |(open, limit)| format!("; {open} are open, and the limit is {limit}"));
    // A generous limit, rounded up to a power of two.
    let advice = (4 * (needed + 64)).next_power_of_two();
    JoinError::Descriptors { rank, world, cause, needed, usage, advice }
}

/// Returns the number of connections that a rank has yet to make when rendezvous begins: one to each other rank,
/// another for each background channel, and on rank 0 one more.
fn missing(rank: usize, world: usize, channels: usize) -> usize {
    world.saturating_sub(1) * (1 + channels + usize::from(rank == 0))
}

/// Returns the number of files this process has open, and its limit.
fn usage() -> Option<(usize, usize)> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    let limit = line.split_whitespace().next()?.parse().ok()?;
    Some((fs::read_dir("/proc/self/fd").ok()?.count(), limit))
}
