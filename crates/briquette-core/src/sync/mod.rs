//! Synchronization strategies: which vectors the ranks exchange at a step, when, and with which ranks.
//!
//! A [`SyncStrategy`] acts on a whole training step. Its [`plan`](SyncStrategy::plan) for a step states which ranks must
//! agree before sending, which vectors the strategy receives, and whether replicas are equal afterwards. The strategy then
//! acts in two hooks:
//! ```text
//! forward, backward ──► after_backward(gradient) ──► optimizer ──► after_step(parameters) ──► commit ──► after_commit
//! ```
//!
//! [`after_step`](SyncStrategy::after_step) leaves in the parameters the values that the next forward pass computes with. A
//! strategy that trains a different vector, such as stochastic gradient push, keeps that vector in its own state.

pub mod diloco;
pub mod every_step;
pub mod header;
pub mod in_background;
pub mod outer;
pub mod pace;
pub mod periodic;
mod placeholder;
pub mod rounds;
mod unequal;

pub use crate::seam::{Agrees, Context, HEADER_STEPS, Momenta, Plan, RankStep, SyncStrategy, check_own};
pub use header::{Agreement, Header, StopFlags, agree};
pub(crate) use placeholder::Placeholder;
pub use unequal::{Unequal, unequal};
