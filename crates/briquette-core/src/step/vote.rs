//! Vote before a commit, for worlds that continue when a rank is lost.

use super::{Driver, Exchanged, HeaderCost, exchanged};
use crate::Session;
use crate::error::{ReduceError, SyncError};
use crate::seam::Momenta;
use crate::sync::Agreement;

/// The vote: its setting, and the exchange whose vote failed.
#[derive(Debug, Default)]
pub(super) struct Vote {
    votes: bool,
    doubt: Option<Exchanged>,
}

impl Vote {
    pub(super) fn cast(
        &mut self,
        agreement: &Agreement,
        (momenta, header): (Momenta, HeaderCost),
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        if !self.votes {
            return Ok(());
        }
        let operation = std::mem::replace(&mut comm.scope().operation, "vote");
        let passed = comm.barrier();
        comm.scope().operation = operation;
        passed.map_err(|error| {
            self.doubt = Some(exchanged(agreement.clone(), momenta, header));
            SyncError::Reduce { step: agreement.agreed_step.step, source: ReduceError::Comm(error) }
        })
    }
}

impl Driver {
    /// Sets whether ranks vote before they commit an average: a barrier that passes on a rank only after every rank
    /// has the average. It costs an empty frame to every other rank, and one latency. If it fails, the step is [in
    /// doubt](Self::in_doubt). Must be the same on every rank.
    pub fn set_votes(&mut self, votes: bool) {
        self.vote.votes = votes;
    }

    /// Returns whether the vote on this step failed, so that other ranks may have committed it. The strategy's state is staged until
    /// the step is [resolved](Self::resolve), and the gradient contains the average, or the parameters those after the exchange.
    pub fn in_doubt(&self) -> bool {
        self.vote.doubt.is_some()
    }

    /// Commits or discards a step in doubt. Returns the result of its exchange if it is committed.
    pub fn resolve(&mut self, commits: bool) -> Option<Exchanged> {
        let exchanged = self.vote.doubt.take()?;
        if !commits {
            self.strategy.discard();
            return None;
        }
        self.strategy.commit();
        self.record(exchanged.agreed_step, self.plan());
        Some(exchanged)
    }
}
