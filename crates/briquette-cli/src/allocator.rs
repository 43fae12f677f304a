//! Settings of the C library's allocator with which a rank keeps the memory of one step for the next.
//!
//! A training step on the CPU allocates and frees blocks of the model's size. By default glibc returns each to the
//! system, and every step faults new pages in: at 71 million parameters, this takes half of a step's time. In threads
//! other than the first it always does so for blocks above 64 MiB, whatever its thresholds are, since a thread's own
//! heap holds no larger blocks. With [these settings](KEEP) all threads use one heap, and freed memory stays in it: a
//! rank's memory stays at its peak.

use std::env;
use std::ffi::OsString;

/// Environment variables that [`briquette launch`](crate::launch) sets for its ranks: names and values. They configure glibc's
/// allocator; another C library does not read them.
pub const KEEP: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "1"),
    // No block has a separate mapping. Before 2.35, glibc refuses a MALLOC_MMAP_THRESHOLD_ above 32 MiB.
    ("MALLOC_MMAP_MAX_", "0"),
    // 1 TiB.
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
];

/// Variables that already select an allocator or its settings.
const CHOSEN: [&str; 3] = ["MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"];

/// Returns the variables to set for a rank: [`KEEP`], or none if the environment already configures the allocator.
pub fn settings() -> &'static [(&'static str, &'static str)] {
    settings_beside(env::vars_os().map(|(name, _)| name))
}

fn settings_beside(names: impl Iterator<Item = OsString>) -> &'static [(&'static str, &'static str)] {
    let is_chosen = |name: OsString| CHOSEN.iter().any(|chosen| name.to_string_lossy().starts_with(chosen));
    if names.into_iter().any(is_chosen) { &[] } else { &KEEP }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocator_that_was_chosen_is_left_alone() {
        let set = |names: &[&str]| settings_beside(names.iter().map(OsString::from)).len();
        assert_eq!(set(&["PATH", "HOME"]), KEEP.len());
        for chosen in ["MALLOC_ARENA_MAX", "MALLOC_CONF", "GLIBC_TUNABLES", "LD_PRELOAD"] {
            assert_eq!(set(&["PATH", chosen]), 0, "{chosen}");
        }
    }
}
