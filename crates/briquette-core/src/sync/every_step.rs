//! Exchanges gradients at every step: synchronous data parallelism.

use super::{Context, Due, SyncStrategy};
use crate::error::{StateError, SyncError};
use crate::reduce::{Reducer, Round};
use crate::report::Report;
use crate::state::{State, Stateful};
use crate::{Session, Traffic};

/// Gradients, every step. Holds one vector: the average.
#[derive(Debug)]
pub struct EveryStep<R> {
    reducer: R,
    average: Vec<f32>,
}

impl<R: Reducer> EveryStep<R> {
    /// Exchanges through `reducer`.
    pub fn new(reducer: R) -> Self {
        EveryStep { reducer, average: Vec::new() }
    }
}

impl<R: Reducer> Stateful for EveryStep<R> {
    fn save(&self, state: &mut State) {
        state.put_part("reducer", &self.reducer);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        state.load_part("reducer", &mut self.reducer)
    }
}

/// Reduces `local` in place, through a buffer, so that it is untouched when the exchange fails.
pub(super) fn reduce_in_place<R: Reducer>(
    reducer: &mut R,
    average: &mut Vec<f32>,
    local: &mut [f32],
    cx: &Context<'_>,
    comm: &mut Session,
) -> Result<Traffic, SyncError> {
    average.resize(local.len(), 0.0);
    let round =
        Round { key: cx.key.step(cx.facts.step), slots: cx.slots, facts: cx.facts, input: local, average, sent: None };
    let exchanged = reducer.reduce(round, comm).map_err(|source| SyncError::Reduce { step: cx.facts.step, source })?;
    local.copy_from_slice(average);
    Ok(exchanged.traffic)
}

impl<R: Reducer> SyncStrategy for EveryStep<R> {
    fn due(&self, _step: u64) -> Due {
        Due::Gradients
    }

    fn sync(&mut self, local: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<Traffic, SyncError> {
        reduce_in_place(&mut self.reducer, &mut self.average, local, cx, comm)
    }

    fn report(&self, report: &mut Report) {
        self.reducer.report(report);
    }
}
