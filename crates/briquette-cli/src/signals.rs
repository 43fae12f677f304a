//! What programs that train must know of signals.

use signal_hook::consts::SIGHUP;

/// Whether `nohup` or its like started this process: then it, and what it starts, outlives the terminal. Where the system
/// does not say, it is taken to be so, and `nohup` works everywhere.
pub fn hangup_is_ignored() -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return true };
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_none_or(|mask| mask & 1 << (SIGHUP - 1) != 0)
}
