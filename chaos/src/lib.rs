//! Fault injection into training runs, with checks that nothing of them is lost.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | a run of a trainer as processes, started by `briquette launch` |
//! | [`plan`] | plan of an episode of the soak: the run, the faults and their times, all from one seed |
//! | [`episode`] | execution of a plan |
//! | [`inflict`] | effect of each fault |
//! | [`check`] | equality with an undisturbed run, and absence of leftovers |
//! | [`watch`] | memory and descriptors of the ranks while they run |
//! | [`record`] | event log: one line per event, on the terminal and as CSV |
//! | `trace` | every system call on a run's files, one of which is disturbed |
//! | `kill_io` | `trace` for each call of beginning, resuming and overwriting |
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
