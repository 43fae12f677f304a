//! Breaks runs on purpose and asserts that nothing of them is lost.
//!
//! | module | what |
//! |---|---|
//! | [`world`] | a run of a trainer as processes, started by `briquette launch` |
//! | [`plan`] | an episode of the soak: which run, which faults and when, all from one seed |
//! | [`episode`] | carries a plan out |
//! | [`inflict`] | what each fault does |
//! | [`check`] | what must be equal to an undisturbed run, and what must not be left over |
//! | [`watch`] | memory and descriptors of the ranks while they run |
//! | [`record`] | one line per event, on the terminal and as CSV |
//! | `trace` | every system call on a run's files, one of which is disturbed |
//! | `kill_io` | that for each call of beginning, resuming and overwriting |
//!
//! For Linux: it reads `/proc`, mounts small disks, and traces system calls.
#![cfg(target_os = "linux")]

pub mod check;
pub mod episode;
pub mod inflict;
#[cfg(target_arch = "x86_64")]
pub mod kill_io;
pub mod plan;
pub mod record;
#[cfg(target_arch = "x86_64")]
pub mod trace;
pub mod watch;
pub mod world;
