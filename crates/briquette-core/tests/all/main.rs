//! Integration tests of core, in one binary, since each binary links all of core. `laws` and `allocations` have binaries of their own.

mod absurd;
mod artemis;
mod bad_input;
mod combinations;
mod commit;
mod config;
mod controllers;
mod convergence;
mod decisions;
mod defaults;
mod dq_sgd;
mod excluded;
mod gravac;
mod hierarchical;
mod identities;
mod last_step;
mod long_messages;
mod overflow;
mod probing;
mod ratios;
mod seconds;
mod server;
mod sharing;
mod staging;
mod statistics;
mod stopping;
mod telemetry;
mod threads;
mod timeline;
mod too_many_ranks;
mod transports;
mod wire_format;

use briquette_testkit::wire::asked::Counting;

/// Counts the memory that each thread requests, for `wire_format`.
#[global_allocator]
static COUNTING: Counting = Counting;
