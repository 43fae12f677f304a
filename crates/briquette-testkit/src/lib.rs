//! Test kit for transports and programs.
//!
//! - [`suite`]: one list of facts about a [`Transport`](briquette_core::comm::Transport), for ranks that are threads
//!   and for ranks that are processes.
//! - [`mod@held`]: the rows of the table *What held* in `docs/faults.md`, written by the tests that prove them.
//! - [`golden`]: comparison of program messages with the texts in a file.
//! - [`proxy`]: a relay for TCP connections that slows, cuts, corrupts and withholds data.

pub mod golden;
pub mod held;
pub mod proxy;
pub mod suite;
