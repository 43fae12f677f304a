//! The parts of a checkpoint that do not need Burn, which would take minutes to build.

#[path = "../../crates/briquette/src/checkpoint/claims.rs"]
pub mod claims;
// Its encoder is not fuzzed.
#[allow(dead_code)]
#[path = "../../crates/briquette/src/checkpoint/state.rs"]
mod state;
