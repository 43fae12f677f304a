//! Hand-over of the state to new members of an elastic world.

use briquette_core::Session;
use briquette_core::comm::Scope;
use briquette_core::error::CommError;
use briquette_core::membership::{MembershipError, Standing};
use briquette_core::state::State;
use burn::module::Module;

use super::{EXCHANGES, Occasion, STEP, STRATEGY, Synchronizer};
use crate::checkpoint::state;
use crate::error::Error;

impl Synchronizer {
    /// Forms the next world with candidates, if ranks have agreed so; returns whether there are new members, to whom the state is then
    /// [handed over](Self::hand_over).
    pub(crate) fn admit<M: Module>(&mut self, module: &M) -> Result<bool, Error> {
        if self.elastic.membership.is_none() || !std::mem::take(&mut self.elastic.admits) || self.agreed_stop.any() {
            return Ok(false);
        }
        Ok(self.next_world(module, Occasion::Admission)?.has_new_members)
    }

    /// Runs `join` in a world with new members, who receive the strategy's replicated state and the step from rank 0. `is_new` is set on
    /// new members. The others keep their own state.
    pub(crate) fn hand_over<M: Module>(
        &mut self,
        is_new: bool,
        module: &M,
        join: impl FnOnce(&mut Synchronizer, M) -> Result<M, Error>,
    ) -> Result<M, Error> {
        let mut own = State::default();
        own.put_part(STRATEGY, self.driver.strategy());
        // New members do not know the step yet.
        *self.comm.scope() = Scope { operation: "join", step: 0, bucket: None };
        self.elastic.hands_over = true;
        let joined = join(self, module.clone());
        *self.comm.scope() = Scope { operation: "hand-over", step: 0, bucket: None };
        let joined = joined.and_then(|module| self.hand_over_state(is_new, &own, &module).map(|()| module));
        self.elastic.hands_over = false;
        let joined =
            joined.map_err(|error| if is_new { self.give_up_entering(error) } else { self.without_new(error) });
        self.computing();
        self.last_end = self.comm.now();
        if is_new {
            return joined;
        }
        let loaded = self.load_strategy(module, &own).and(self.keep_buffers(module));
        joined.and_then(|module| loaded.map(|()| module))
    }

    /// Takes part in the next election without a state, if a rank was lost: the others need its vote. Returns the error.
    fn give_up_entering(&mut self, error: Error) -> Error {
        if self.is_survivable(&error)
            && let Some(membership) = &mut self.elastic.membership
        {
            // It cannot go on, whatever the others decide.
            let voted = membership.regroup(Standing { is_new: true, ..Standing::default() }, false);
            tracing::debug!("without a state, after its vote: {voted:?}");
        }
        error
    }

    /// Returns the loss of a new member in place of an error that is its own: the others go on without it.
    fn without_new(&self, error: Error) -> Error {
        let other = match &error {
            Error::Mismatch { rank, .. } | Error::Comm(CommError::Aborted { by: rank, .. }) => *rank,
            _ => return error,
        };
        if other < self.world() - self.elastic.new {
            return error;
        }
        if self.rank() == 0 {
            tracing::warn!("a new member is refused: {error}");
        }
        let during = Scope { operation: "join", step: self.step(), bucket: None };
        CommError::Lost { rank: self.rank(), other, address: None, during, cause: error.to_string() }.into()
    }

    fn hand_over_state<M: Module>(&mut self, is_new: bool, own: &State, module: &M) -> Result<(), Error> {
        let (rank, generation) = (self.rank(), self.generation().map_or(0, |generation| generation.number));
        let broken = |cause: String| Error::Membership(MembershipError::Failed { rank, generation, cause });
        let mut bytes = Vec::new();
        if self.rank() == 0 {
            let mut shared = own.shared();
            shared.put(STEP, self.step());
            shared.put(EXCHANGES, self.elastic.exchanges);
            bytes =
                state::to_bytes(&shared).map_err(broken).inspect_err(|error| self.comm.abort(&error.to_string()))?;
        }
        self.with_receivers(|comm| comm.broadcast(0, &mut bytes))?;
        if is_new {
            self.elastic.enters = false;
            let shared = state::from_bytes(&bytes).map_err(broken)?;
            let step = shared.u64(STEP)?;
            self.elastic.exchanges = shared.u64(EXCHANGES)?;
            self.elastic.exchanges_before = self.elastic.exchanges;
            self.forget_speeds();
            self.load_strategy(module, &shared)?;
            self.driver.resume(step, None, None);
        }
        self.elastic.began = Some(self.step());
        Ok(())
    }

    /// Returns whether this rank is a new member that has not received its state.
    pub(crate) fn is_entering(&self) -> bool {
        self.elastic.enters
    }

    /// Returns whether members hand their state over to new ones.
    pub(in crate::synchronizer) fn hands_over(&self) -> bool {
        self.elastic.hands_over
    }

    /// Returns whether this rank is a new member, which has its state from rank 0.
    pub(in crate::synchronizer) fn is_new_member(&self) -> bool {
        self.rank() >= self.world() - self.elastic.new
    }

    /// Runs a broadcast of rank 0's state: among all ranks, or among rank 0 and the new members while these receive it. The other ranks have
    /// the same state, and take no part.
    pub(in crate::synchronizer) fn with_receivers(
        &mut self,
        broadcast: impl FnOnce(&mut Session) -> Result<(), CommError>,
    ) -> Result<(), Error> {
        if !self.elastic.hands_over {
            return Ok(broadcast(&mut self.comm)?);
        }
        if self.rank() > 0 && !self.is_new_member() {
            return Ok(());
        }
        let new = self.world() - self.elastic.new..self.world();
        let receivers: Vec<usize> = std::iter::once(0).chain(new).collect();
        Ok(self.comm.within(&receivers, broadcast)?)
    }

    /// Sends rank 0's bytes to the new members of this generation; on other ranks it does nothing. Call it after they have
    /// [joined](crate::DistributedOptimizer::join), for what the training loop hands over.
    ///
    /// # Errors
    /// [`Error::Comm`].
    pub fn send_to_new_members(&mut self, bytes: &mut Vec<u8>) -> Result<(), Error> {
        self.elastic.hands_over = true;
        let sent = self.with_receivers(|comm| comm.broadcast(0, bytes));
        self.elastic.hands_over = false;
        sent.map_err(|error| if self.is_new_member() { self.give_up_entering(error) } else { error })
    }
}
