//! How much memory there is, to refuse what needs more: the system kills a program that takes too much, and a program whose
//! allocation fails aborts, both without a word of what was too large.

use std::fs;

/// Something needs more memory than there is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {} of memory, and {} are available", bytes(*needed), bytes(*available))]
pub struct TooLarge {
    /// What it is, with a verb.
    pub what: String,
    /// Bytes that it takes.
    pub needed: u64,
    /// Bytes that there are.
    pub available: u64,
}

/// That `needed` bytes are available; `what` takes them.
///
/// # Errors
/// Says how many there are. Where the system does not, nothing is refused.
pub fn check(what: &str, needed: u64) -> Result<(), TooLarge> {
    match available() {
        Some(available) if needed > available => Err(TooLarge { what: what.to_owned(), needed, available }),
        _ => Ok(()),
    }
}

/// Bytes that this process can still take: of the machine's memory and swap, of its container's, and of its address space.
fn available() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let memory =
        read("/proc/meminfo").and_then(|text| Some(field(&text, "MemAvailable:")? + field(&text, "SwapFree:")?));
    let container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let container = container.iter().find_map(|path| read(path)?.trim().parse::<u64>().ok());
    let limit = read("/proc/self/limits").and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    let taken = read("/proc/self/status").and_then(|text| field(&text, "VmSize:")).unwrap_or(0);
    [memory, container, limit.map(|limit| limit.saturating_sub(taken))].into_iter().flatten().min()
}

/// The bytes in the line of `text` that begins with `name`, which has them in kB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes for people.
fn bytes(count: u64) -> String {
    let units = ["bytes", "kB", "MB", "GB", "TB", "PB", "EB"];
    let (mut value, mut unit) = (count as f64, 0);
    while value >= 1000.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1000.0, unit + 1);
    }
    if unit == 0 { format!("{count} bytes") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_says_how_much_there_is() {
        check("nothing takes", 0).unwrap();
        if available().is_some() {
            let error = check("a universe takes", u64::MAX).unwrap_err().to_string();
            assert!(error.starts_with("a universe takes 18.4 EB of memory, and "), "{error}");
            assert!(error.ends_with("B are available"), "{error}");
        }
    }

    #[test]
    fn lines_of_the_system_are_read() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(field(text, "SwapFree:"), None);
        assert_eq!([999, 1000, 2_500_000].map(bytes), ["999 bytes", "1.0 kB", "2.5 MB"]);
    }
}
