//! Test kit for transports and programs.
//!
//! - [`alone`]: processes of their own for tests that share a binary with others.
//! - [`suite`]: one list of facts about a [`Transport`](briquette_core::comm::Transport), for ranks that are threads
//!   and for ranks that are processes.
//! - [`mod@held`]: the rows of the table *What held* in `docs/faults.md`, written by the tests that prove them.
//! - [`golden`]: comparison of program messages with the texts in a file.
//! - [`proxy`]: a relay for TCP connections that slows, cuts, corrupts and withholds data.
//! - [`wire`], `links` (feature `tcp`) and `vector_files` (feature `cli`): claims about untrusted bytes, which fuzz targets and
//!   integration tests assert.

pub mod alone;
pub mod golden;
pub mod held;
#[cfg(feature = "tcp")]
pub mod links;
pub mod proxy;
pub mod suite;
#[cfg(feature = "cli")]
pub mod vector_files;
pub mod wire;
