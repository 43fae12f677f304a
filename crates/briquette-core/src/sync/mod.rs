//! When ranks exchange, and what: gradients or parameters.

pub mod every_step;
pub mod header;
pub mod periodic;

pub use every_step::EveryStep;
pub use header::{Agreement, Header, StopFlags, agree};
pub use periodic::Periodic;

use crate::error::SyncError;
use crate::reduce::Facts;
use crate::report::Report;
use crate::state::Stateful;
use crate::{Key, Session, Slot, Traffic};

/// What a strategy wants at a step; the same answer on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Exchange gradients before the inner optimizer's step.
    Gradients,
    /// Exchange parameters after it.
    Parameters,
    /// Nothing, the step header included: wishes to stop and values that are not finite are noticed when something is due.
    Nothing,
}

/// Everything around the vector.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The run's root key.
    pub key: Key,
    /// The tensors inside the vector.
    pub slots: &'a [Slot],
    /// What all ranks agree on.
    pub facts: &'a Facts,
}

/// When to exchange, and how.
pub trait SyncStrategy: Stateful + Send {
    /// What is due at `step`.
    fn due(&self, step: u64) -> Due;

    /// Replaces `local` (gradients or parameters, as [`due`](SyncStrategy::due) says) by what all ranks agree on.
    ///
    /// # Errors
    /// [`SyncError`]; `local` and this strategy's state are then as before.
    fn sync(&mut self, local: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<Traffic, SyncError>;

    /// What the last exchange did.
    fn report(&self, report: &mut Report);
}
