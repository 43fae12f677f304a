//! Replica checks: detects replicas that must be equal and are not.
//!
//! Every rank applies the same bits of an average, so replicas stay equal without being sent. Only faults outside of the exchange
//! break that, such as failing memory, or a parameter that is changed on one rank alone. At some steps ranks therefore send a
//! digest of their parameters with the step header.

use briquette_core::error::SyncError;
use briquette_core::sync::{Agrees, Plan, Unequal, unequal};
use burn::module::Module;

use super::{Synchronizer, averages_gradients};
use crate::error::Error;
use crate::flat::{self, Changed, Part};

/// Default number of steps between two comparisons of replicas, unless [set](Synchronizer::with_replica_check). A digest of all
/// parameters takes about as long as reading them once.
pub const REPLICA_CHECK_STEPS: u64 = 100;

/// The number of past steps in which plans are checked for an equal optimizer state.
const LOOK_BACK: usize = 1000;

impl Synchronizer {
    /// Sets the steps at which ranks compare digests of their parameters: those whose number is a multiple of `steps`; 0 for
    /// never. Must be the same on every rank. The default is every [`REPLICA_CHECK_STEPS`] steps. A check adds no bytes to the
    /// traffic. Replicas are checked only if they must be equal. There is no check if ranks round differently or
    /// [re-broadcast](Self::with_rebroadcast), because replicas then differ by rounding.
    #[must_use]
    pub fn with_replica_check(mut self, steps: u64) -> Self {
        self.replica_check = Some(steps);
        self
    }

    /// Returns whether every rank has the same parameters when this step begins.
    pub(crate) fn replicas_are_equal(&self) -> bool {
        let Some(joined) = &self.joined else { return false };
        let is_exact = !joined.is_mixed && joined.rebroadcast == 0;
        is_exact && self.step().checked_sub(1).is_none_or(|before| self.driver.strategy().plan(before).replicas_equal)
    }

    /// Returns whether every rank's optimizer has always stepped with the same gradients.
    pub(crate) fn optimizers_are_equal(&self) -> bool {
        let mut before = (0..self.step()).rev().take(LOOK_BACK).map(|step| self.driver.strategy().plan(step));
        // If ranks do not step together, one may step for the others.
        self.replicas_are_equal() && before.all(|plan| plan.agrees == Agrees::World && averages_gradients(plan))
    }

    /// Returns a digest of this rank's parameters, at the steps in which ranks compare them.
    pub(super) fn digest_due<M: Module>(&self, module: &M, plan: Plan) -> Result<Option<u64>, Error> {
        let every = self.replica_check.unwrap_or(REPLICA_CHECK_STEPS);
        let is_new = self.elastic.began == Some(self.step());
        let is_due = every > 0 && (self.step().is_multiple_of(every) || is_new) && self.world() > 1;
        if !is_due || plan.agrees != Agrees::World || !averages_gradients(plan) || !self.replicas_are_equal() {
            return Ok(None);
        }
        Ok(Some(flat::digest(&self.digests(module)?)))
    }

    fn digests<M: Module>(&self, module: &M) -> Result<Vec<u64>, Error> {
        let joined = self.joined.as_ref().ok_or(Error::NotJoined { rank: self.rank() })?;
        flat::digests(module, Part::Trainable, &joined.inventory)
    }

    /// Adds the first tensor that differs to the error. All ranks have found that replicas differ, and search for it together.
    pub(super) fn with_tensor<M: Module>(&mut self, module: &M, error: Error) -> Error {
        let Error::Sync(SyncError::Replicas { step, slot: None, rank, others }) = error else { return error };
        let found = self.first_difference(module).inspect_err(|error| self.comm.abort(&error.to_string()));
        match found {
            Ok(Some((slot, Unequal { rank, others }))) => {
                SyncError::Replicas { step, slot: Some(slot), rank, others }.into()
            }
            Ok(None) => SyncError::Replicas { step, slot: None, rank, others }.into(),
            Err(error) => error,
        }
    }

    fn first_difference<M: Module>(&mut self, module: &M) -> Result<Option<(String, Unequal)>, Error> {
        let mine: Vec<u8> = self.digests(module)?.into_iter().flat_map(u64::to_le_bytes).collect();
        let all = self.gather_bytes("comparison of replicas", &mine)?;
        let of = |place: usize| all.iter().map(|digests| digests.get(8 * place..8 * place + 8)).collect::<Vec<_>>();
        let slots = self.layout()?.slots().iter().enumerate();
        let mut differences = slots.filter_map(|(place, slot)| Some((slot.path().to_owned(), unequal(&of(place))?)));
        Ok(differences.next())
    }

    /// Checks that the module still has the trainable tensors that joined.
    pub(super) fn check_layout<M: Module>(&mut self, module: &M) -> Result<(), Error> {
        let (rank, step) = (self.comm.rank(), self.step());
        let joined = self.joined.as_mut().ok_or(Error::NotJoined { rank })?;
        let Some(Changed { place, joined, now }) = joined.known.compare(module, &joined.inventory.layout)? else {
            return Ok(());
        };
        let text = |tensor: Option<(String, Vec<usize>)>| {
            tensor.map_or_else(|| "absent".to_owned(), |(path, shape)| format!("`{path}` of shape {shape:?}"))
        };
        Err(Error::Layout { rank, step, place, joined: text(joined), now: text(now) })
    }
}
