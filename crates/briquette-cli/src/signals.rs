//! Signals that training programs must handle, and those that they were started to ignore.

use signal_hook::consts::SIGHUP;

/// Returns whether `nohup` or a similar command started this process, in which case it and its children outlive the
/// terminal. If the system does not report it, true is assumed, so that `nohup` works everywhere.
pub fn hangup_is_ignored() -> bool {
    is_ignored_by("self", SIGHUP).unwrap_or(true)
}

/// Returns whether a process ignores a signal, if the system reports it. The system discards an ignored signal when it is sent.
pub(crate) fn is_ignored_by(process: &str, signal: i32) -> Option<bool> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"))?;
    let mask = u64::from_str_radix(ignored.trim(), 16).ok()?;
    Some(mask & (1 << (signal - 1)) != 0)
}
