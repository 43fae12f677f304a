//! Test kit for transports, algorithms and programs.
//!
//! - [`alone`]: runs a test in its own process, for tests in a binary with others.
//! - [`suite`]: facts that every [`Transport`](briquette_core::comm::Transport) must satisfy, for ranks that are threads and
//!   for ranks that are processes.
//! - [`mod@held`]: the rows of the table *What held* in `docs/faults.md`, written by the fault-injection tests that prove them.
//! - [`golden`]: comparison of program messages with the texts in a file.
//! - [`proxy`]: a relay for TCP connections that delays, cuts, corrupts and withholds data.
//! - [`simulation`] and [`server`]: training of small problems on a simulated network, with a strategy or a server policy.
//! - [`wire`], `links` (feature `tcp`) and `vector_files` (feature `cli`): properties that decoders of untrusted bytes must
//!   have. Fuzz targets and integration tests assert them.

pub mod alone;
pub mod golden;
pub mod held;
#[cfg(feature = "tcp")]
pub mod links;
pub mod proxy;
pub mod server;
pub mod simulation;
pub mod suite;
#[cfg(feature = "cli")]
pub mod vector_files;
pub mod wire;
