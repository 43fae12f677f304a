//! Available memory, and checks that refuse requests that exceed it. Without them, the system kills a program that
//! takes too much, and a program whose allocation fails aborts, neither reporting the object that was too large.

use std::fs;

use crate::terminal::bytes;

briquette_core::debug_by_display!(TooLarge);

/// A request exceeds the available memory.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {} of memory, and {} are {}", bytes(*needed), bytes(*available), if *may_pass { "free now" } else { "available" })]
pub struct TooLarge {
    /// The object, with a verb.
    pub what: String,
    /// Bytes it needs.
    pub needed: u64,
    /// Bytes available.
    pub available: u64,
    /// Set if they would suffice if nothing else ran here; otherwise another attempt is useless.
    pub may_pass: bool,
}

/// Checks that `needed` bytes are available for `what`.
///
/// # Errors
/// [`TooLarge`] with the bytes available. If the system does not report them, nothing is refused.
pub fn check(what: &str, needed: u64) -> Result<(), TooLarge> {
    Memory::read().check(what, needed)
}

/// Bytes that a process can take; `None` if the system does not report them.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    /// Limit set by the machine's memory and swap, its container, and its address space, regardless of other processes.
    limit: Option<u64>,
    /// Free memory and swap of the machine now.
    free: Option<u64>,
}

impl Memory {
    fn read() -> Memory {
        let read = |path: &str| fs::read_to_string(path).ok();
        let memory = read("/proc/meminfo").unwrap_or_default();
        let sum = |names: [&str; 2]| Some(field(&memory, names[0])? + field(&memory, names[1])?);
        let container = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
        let container = container.iter().find_map(|path| read(path)?.trim().parse::<u64>().ok());
        let space = read("/proc/self/limits").and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
            line.split_whitespace().next()?.parse::<u64>().ok()
        });
        let taken = read("/proc/self/status").and_then(|text| field(&text, "VmSize:")).unwrap_or(0);
        let limits = [sum(["MemTotal:", "SwapTotal:"]), container, space.map(|space| space.saturating_sub(taken))];
        Memory { limit: limits.into_iter().flatten().min(), free: sum(["MemAvailable:", "SwapFree:"]) }
    }

    fn check(self, what: &str, needed: u64) -> Result<(), TooLarge> {
        let too_large = |available, may_pass| Err(TooLarge { what: what.to_owned(), needed, available, may_pass });
        match (self.limit, self.free) {
            (Some(limit), _) if needed > limit => too_large(limit, false),
            (_, Some(free)) if needed > free => too_large(free, true),
            _ => Ok(()),
        }
    }
}

/// Returns the bytes in the line of `text` that begins with `name`, which gives them in kB.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_says_how_much_there_is() {
        check("nothing takes", 0).unwrap();
        if Memory::read().limit.is_some() {
            let error = check("a universe takes", u64::MAX).unwrap_err();
            assert!(!error.may_pass);
            let error = error.to_string();
            assert!(error.starts_with("a universe takes 18.4 EB of memory, and "), "{error}");
            assert!(error.ends_with("B are available"), "{error}");
        }
    }

    #[test]
    fn what_does_not_fit_now_may_fit_later() {
        let memory = Memory { limit: Some(1000), free: Some(100) };
        assert_eq!(memory.check("it takes", 100), Ok(()));
        let now = memory.check("it takes", 101).unwrap_err();
        assert!(now.may_pass && now.to_string().ends_with("100 bytes are free now"), "{now}");
        assert!(!memory.check("it takes", 1001).unwrap_err().may_pass);
        assert_eq!(Memory::default().check("it takes", u64::MAX), Ok(()));
    }

    #[test]
    fn lines_of_the_system_are_read() {
        let text = "MemTotal:       16384 kB\nMemAvailable:    2048 kB\n";
        assert_eq!(field(text, "MemAvailable:"), Some(2 << 20));
        assert_eq!(field(text, "SwapFree:"), None);
    }
}
