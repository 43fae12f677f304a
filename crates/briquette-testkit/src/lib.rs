//! What every transport is tested with.
//!
//! - [`suite`]: one list of facts about a [`Transport`](briquette_core::comm::Transport), for ranks that are threads
//!   and for ranks that are processes.
//! - [`mod@held`]: the rows of the table *What held* in `docs/faults.md`, written by the tests that show them.
//! - [`golden`]: what programs say to mistakes, held to the texts in a file.
//! - [`proxy`]: a relay for TCP connections that slows, cuts, damages and withholds what passes through it.

pub mod golden;
pub mod held;
pub mod proxy;
pub mod suite;
