//! Exchanges outside of steps: averages before evaluating, before saving and at the end of a run; a few bytes at any time.

use briquette_core::Communicator;
use briquette_core::sync::Due;
use burn::module::Module;

use super::Synchronizer;
use crate::error::Error;
use crate::flat::{self, Part};

impl Synchronizer {
    /// Averages buffers (BatchNorm's running statistics) over ranks: before evaluating or saving. All ranks must call it.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails.
    pub fn average_buffers<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.average(module, Part::Buffers).map_err(|(_, error)| error)
    }

    /// Makes replicas equal that trained alone since the last average (Local SGD): before evaluating, or at the end of a
    /// run. All ranks must call it. Does nothing where replicas are equal already.
    ///
    /// # Errors
    /// [`Error::Comm`] when the transport fails, [`Error::NotJoined`].
    pub fn average_parameters<M: Module>(&mut self, module: M) -> Result<M, Error> {
        let rank = self.rank();
        let joined = self.joined.as_ref().ok_or(Error::NotJoined { rank })?;
        let alone = self.step > 0 && joined.strategy.due(self.step - 1) == Due::Nothing;
        if alone { self.average(module, Part::Trainable).map_err(|(_, error)| error) } else { Ok(module) }
    }

    /// The plain mean over ranks. The time it takes counts as nothing.
    pub(crate) fn average<M: Module>(&mut self, module: M, part: Part) -> Result<M, (M, Error)> {
        // An update of BatchNorm that is pending would replace what is written.
        flat::drain(&module);
        match (self.mean(&module, part), &self.joined) {
            (Ok(values), Some(joined)) => Ok(flat::write_values(module, part, &values, &joined.inventory)),
            (Ok(_), None) => Err((module, Error::NotJoined { rank: self.rank() })),
            (Err(error), _) => Err((module, error)),
        }
    }

    fn mean<M: Module>(&mut self, module: &M, part: Part) -> Result<Vec<f32>, Error> {
        let mut values = Vec::new();
        let read = flat::read_values(module, part, &mut values);
        // The others are about to wait for this rank.
        read.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        self.comm.scope().operation = match part {
            Part::Trainable => "average of parameters",
            Part::Buffers => "average of buffers",
        };
        self.comm.all_reduce_sum(&mut values)?;
        let weight = 1.0 / self.comm.world() as f32;
        values.iter_mut().for_each(|v| *v *= weight);
        self.last_end = self.comm.now();
        Ok(values)
    }

    /// Tells every rank a few bytes and hears theirs, in rank order. The time it takes counts as nothing.
    pub(crate) fn tell(&mut self, operation: &'static str, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (before, mut heard) = (self.comm.now(), Vec::new());
        self.comm.scope().operation = operation;
        self.comm.all_gather(mine, &mut heard)?;
        heard[self.comm.rank()].extend_from_slice(mine);
        self.last_end += self.comm.now() - before;
        Ok(heard)
    }
}
