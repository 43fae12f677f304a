//! The glue between Burn and the core, driven as a user drives it: real modules, real optimizers, ranks as threads.

mod auto;
mod averages;
mod both;
mod buffers;
mod candidates;
mod checkpoint_errors;
mod common;
mod compressed;
mod failures;
mod forward_state;
mod frozen;
mod hidden;
mod hidden_mistakes;
mod iterate_average;
mod joining;
mod messages;
mod mixed;
mod once;
mod only_some;
mod optimizers;
mod periodic;
mod replicas;
mod resume;
mod saving;
#[path = "../seeded/mod.rs"]
mod seeded;
mod server;
mod sharded;
mod skipped;
mod starting;
mod strategies;
mod telemetry;
mod timing;
mod unagreed;
mod unequal;
mod worlds;
