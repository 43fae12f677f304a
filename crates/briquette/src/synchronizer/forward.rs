//! State written by the forward pass (BatchNorm's running statistics), restored if the step is refused.

use burn::module::Module;

use super::Synchronizer;
use crate::error::Error;
use crate::flat::SavedBuffers;

/// Buffers before the forward passes of a step, and after them.
#[derive(Debug, Default)]
pub(super) struct Written {
    before: SavedBuffers,
    after: Option<SavedBuffers>,
}

impl Written {
    /// Returns whether a buffer was finite before the forward passes. A buffer that was not is not their fault.
    pub(super) fn was_finite(&self, place: usize) -> bool {
        self.before.is_finite(place)
    }
}

impl Synchronizer {
    /// Stores the module's buffers as the initial state of the next step.
    pub(crate) fn keep_buffers<M: Module>(&mut self, module: &M) -> Result<(), Error> {
        self.written = Written { before: self.read_buffers(module)?, after: None };
        Ok(())
    }

    fn read_buffers<M: Module>(&mut self, module: &M) -> Result<SavedBuffers, Error> {
        let rank = self.comm.rank();
        let joined = self.joined.as_mut().ok_or(Error::NotJoined { rank })?;
        SavedBuffers::of(module, &mut joined.buffer_ids, joined.inventory.buffers.slots().len())
    }

    /// Reads the buffers that the forward passes since the previous step have written. Returns the first buffer that is no longer
    /// finite, counted from the last trainable slot on.
    pub(super) fn check_buffers<M: Module>(&mut self, module: &M) -> Result<Option<u32>, Error> {
        let after = self.read_buffers(module)?;
        let lost = after.first_lost(&self.written.before);
        self.written.after = Some(after);
        let trainable = self.layout()?.slots().len();
        Ok(lost.map(|place| (trainable + place) as u32))
    }

    /// Restores the buffers after a refused step.
    pub(super) fn undo_forward<M: Module>(&mut self, module: &M) {
        self.written.after = None;
        self.written.before.put_back(module);
    }

    /// Keeps the buffers after a successful step.
    pub(super) fn keep_forward(&mut self) {
        if let Some(after) = self.written.after.take() {
            self.written.before = after;
        }
    }
}
