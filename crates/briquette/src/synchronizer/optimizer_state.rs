//! Initial state of the inner optimizer, copied from rank 0.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;

use super::{Synchronizer, averages_gradients};
use crate::checkpoint::ids;
use crate::error::Error;
use crate::flat;

impl Synchronizer {
    /// Returns rank 0's record of the inner optimizer if ranks have different ones, for example because only one has loaded a
    /// state. Returns `None` if the records are equal, on rank 0 itself, and in a run in progress with rank-local momenta.
    /// `saved` returns this rank's record as bytes.
    pub(crate) fn first_optimizer<M: Module>(
        &mut self,
        module: &M,
        saved: impl FnOnce() -> Result<Bytes, String>,
    ) -> Result<Option<OptimizerRecord>, Error> {
        let in_progress = self.step() > 0 && !self.hands_over();
        if self.world() == 1 || in_progress && !averages_gradients(self.plan()?) {
            return Ok(None);
        }
        let shared = self.take_first_optimizer(module, saved);
        shared.inspect_err(|error| self.comm.abort(&error.to_string()))
    }

    fn take_first_optimizer<M: Module>(
        &mut self,
        module: &M,
        saved: impl FnOnce() -> Result<Bytes, String>,
    ) -> Result<Option<OptimizerRecord>, Error> {
        let rank = self.rank();
        if self.hands_over() && rank > 0 && !self.is_new_member() {
            return Ok(None);
        }
        let unusable = |problem: String| Error::OptimizerState { rank, problem };
        // Ids are random in each process; places in the module are the same in all.
        let places: BTreeMap<u64, u64> = ids::ids(module).iter().map(|id| id.val()).zip(1..).collect();
        let mine = saved().and_then(|bytes| ids::rename(bytes, &places).map_err(|e| e.to_string()));
        let mut bytes = mine.map_err(unusable)?.to_vec();
        // New members have none yet.
        if !self.hands_over() {
            let all = self.gather_bytes("join", &flat::digest_of_bytes(&bytes).to_le_bytes())?;
            if all.iter().all(|digest| *digest == all[0]) {
                return Ok(None);
            }
        }
        self.comm.scope().operation = "join";
        self.with_receivers(|comm| comm.broadcast(0, &mut bytes))?;
        if self.hands_over() {
            if !self.is_new_member() {
                return Ok(None);
            }
        } else if rank == 0 {
            tracing::warn!("ranks joined with different optimizer states: all use rank 0's");
            return Ok(None);
        }
        let local = places.into_iter().map(|(id, place)| (place, id)).collect();
        let bytes = ids::rename(Bytes::from_bytes_vec(bytes), &local).map_err(|e| unusable(e.to_string()))?;
        OptimizerRecord::from_bytes(bytes).map(Some).map_err(|e| unusable(e.to_string()))
    }
}
