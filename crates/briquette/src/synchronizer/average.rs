//! Exchanges outside of steps: averages for evaluation and saving, which do not affect training; averages at the end of a run;
//! and short messages.

use burn::module::Module;

use super::Synchronizer;
use crate::error::Error;
use crate::flat::{self, Part};

/// This rank's own values, kept while the module has the means over ranks for evaluating or saving. They are bytes of
/// [`flat::read_bytes`].
pub(crate) struct LocalValues {
    pub(crate) buffers: Vec<u8>,
    /// Set if parameters are rank-local (Local SGD, between averages).
    pub(crate) parameters: Option<Vec<u8>>,
}

impl Synchronizer {
    /// Returns the module to evaluate, in Burn's inference form and the same on every rank. It has the means over ranks of
    /// buffers (BatchNorm's running statistics) and, under Local SGD, of parameters. All ranks must call it. `module` itself
    /// does not change, so evaluation does not affect training.
    ///
    /// # Errors
    /// [`Error::NoMean`] on every rank if a rank has a value that is not finite, and training may continue; [`Error::Comm`] when
    /// the transport fails, [`Error::NotJoined`].
    pub fn evaluation_copy<M: Module>(&mut self, module: &M) -> Result<M, Error> {
        self.with_averages("evaluation_copy", module, |averaged, _| averaged.valid())
    }

    /// Calls `body` with a module that contains means over ranks, and with this rank's own values. Afterwards `module` is
    /// unchanged, bit for bit. Errors name `call`, which every rank must make.
    pub(crate) fn with_averages<M: Module, T>(
        &mut self,
        call: &'static str,
        module: &M,
        body: impl FnOnce(&M, LocalValues) -> T,
    ) -> Result<T, Error> {
        self.settle()?;
        let alone = self.alone()?;
        // A pending update of BatchNorm would replace the written values.
        flat::drain(module);
        let read = flat::read_bytes(module, Part::Buffers).and_then(|buffers| {
            let parameters = alone.then(|| flat::read_bytes(module, Part::Trainable)).transpose()?;
            Ok(LocalValues { buffers, parameters })
        });
        // The other ranks are about to wait for this one.
        let own = read.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        let buffers = own.buffers.clone();
        self.on_behalf = Some(call);
        let averaged = self.average_parameters(module.clone());
        let averaged = averaged.and_then(|module| self.average(module, Part::Buffers).map_err(|(_, error)| error));
        self.on_behalf = None;
        let result = averaged.map(|averaged| body(&averaged, own));
        // Clones share running statistics: those of `module` were written as well.
        flat::write_bytes(module.clone(), Part::Buffers, &buffers).map_or_else(
            |_| Err(self.mismatch(self.rank(), "bytes of buffers", buffers.len(), "another number")),
            |_| result,
        )
    }

    /// Completes the strategy's background exchange, so that its state can be saved.
    fn settle(&mut self) -> Result<(), Error> {
        self.give_up()?;
        self.plan()?;
        let settled = self.driver.strategy_mut().settle(&mut self.comm);
        // The other ranks are about to wait for this one.
        settled.inspect_err(|error| self.comm.abort(&error.to_string())).map_err(Error::from)
    }

    /// Returns whether replicas have trained independently since the last average.
    fn alone(&self) -> Result<bool, Error> {
        self.plan()?;
        Ok(self.step().checked_sub(1).is_some_and(|before| !self.driver.strategy().plan(before).replicas_equal))
    }

    /// Averages buffers (BatchNorm's running statistics) over ranks, and continues training with the averages. Call it at the
    /// end of a run, on all ranks. To evaluate, use an [`evaluation_copy`](Self::evaluation_copy) instead; saving makes such a
    /// copy itself.
    ///
    /// # Errors
    /// As for [`evaluation_copy`](Self::evaluation_copy).
    pub fn average_buffers<M: Module>(&mut self, module: M) -> Result<M, Error> {
        let module = self.average(module, Part::Buffers).map_err(|(_, error)| error)?;
        self.keep_buffers(&module)?;
        Ok(module)
    }

    /// Averages replicas that have trained independently since the last average (Local SGD), and continues training from the
    /// average. Call it at the end of a run, on all ranks. Does nothing if replicas are equal already.
    ///
    /// # Errors
    /// As for [`evaluation_copy`](Self::evaluation_copy).
    pub fn average_parameters<M: Module>(&mut self, module: M) -> Result<M, Error> {
        self.give_up()?;
        if self.alone()? { self.average(module, Part::Trainable).map_err(|(_, error)| error) } else { Ok(module) }
    }

    /// Returns the unweighted mean over ranks of buffers, or of parameters as the strategy exposes them. Its time does
    /// not count as the run's.
    pub(crate) fn average<M: Module>(&mut self, module: M, part: Part) -> Result<M, (M, Error)> {
        // A pending update of BatchNorm would replace the written values.
        flat::drain(&module);
        match (self.mean(&module, part, None), &self.joined) {
            (Ok(values), Some(joined)) => Ok(flat::write_values(module, part, &values, &joined.inventory)),
            (Ok(_), None) => Err((module, Error::NotJoined { rank: self.rank() })),
            (Err(error), _) => Err((module, error)),
        }
    }

    /// Runs [`average_buffers`](Self::average_buffers) over all ranks but one, which has processed no data.
    pub(crate) fn average_buffers_without<M: Module>(&mut self, rank: usize, module: M) -> Result<M, Error> {
        flat::drain(&module);
        let values = self.mean(&module, Part::Buffers, Some(rank))?;
        let joined = self.joined.as_ref().ok_or(Error::NotJoined { rank: self.rank() })?;
        Ok(flat::write_values(module, Part::Buffers, &values, &joined.inventory))
    }

    /// The mean over all ranks, or all but one.
    fn mean<M: Module>(&mut self, module: &M, part: Part, without: Option<usize>) -> Result<Vec<f32>, Error> {
        let mut values = Vec::new();
        let checked = if part == Part::Trainable { self.check_layout(module) } else { Ok(()) };
        let read = checked.and_then(|()| flat::read_values(module, part, &mut values));
        // The other ranks are about to wait for this one.
        read.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        if part == Part::Trainable {
            self.driver.strategy().view(&mut values);
        }
        let operation = self.on_behalf.unwrap_or(match part {
            Part::Trainable => "average of parameters",
            _ => "average of buffers",
        });
        self.comm.scope().operation = operation;
        if without == Some(self.rank()) {
            values.fill(0.0);
        }
        let mine = self.not_finite(&values, part);
        self.comm.all_reduce_sum(&mut values)?;
        self.check_sum(operation, (&mine, &values), part)?;
        let weight = 1.0 / (self.comm.world() - usize::from(without.is_some())) as f32;
        values.iter_mut().for_each(|v| *v *= weight);
        self.last_end = self.comm.now();
        Ok(values)
    }

    /// The tensors with a value that is not finite.
    fn not_finite(&self, values: &[f32], part: Part) -> Vec<usize> {
        let slots = self.joined.iter().flat_map(|joined| joined.inventory.part(part).slots()).enumerate();
        slots.filter(|(_, slot)| !flat::finite(&values[slot.range()])).map(|(place, _)| place).collect()
    }

    /// Checks that a sum over ranks, which has the same bits on all of them, is finite. If it is not, each rank sends the indices
    /// of its tensors that are not finite (`mine`), each with a flag for a fault. It is no fault if a buffer was not finite
    /// before the forward passes.
    fn check_sum(&mut self, operation: &'static str, (mine, sum): (&[usize], &[f32]), part: Part) -> Result<(), Error> {
        let bad = self.not_finite(sum, part);
        if bad.is_empty() {
            return Ok(());
        }
        let is_fault = |place: usize| part != Part::Buffers || self.written.was_finite(place);
        let mine: Vec<(usize, bool)> = mine.iter().map(|place| (*place, is_fault(*place))).collect();
        let all = self.gather_bytes(operation, &serde_json::to_vec(&mine).unwrap_or_default())?;
        let all = all.iter().map(|text| serde_json::from_slice::<Vec<(usize, bool)>>(text).unwrap_or_default());
        let Some((place, rank)) = first_fault(&bad, &all.collect::<Vec<_>>()) else { return Ok(()) };
        let slots = self.joined.iter().flat_map(|joined| joined.inventory.part(part).slots());
        let path = slots.map(|slot| slot.path()).nth(place).unwrap_or_default();
        let why = match rank {
            Some(rank) => format!("rank {rank} has a value that is not finite in `{path}`"),
            None => format!("the sum over ranks of `{path}` exceeds the largest number"),
        };
        let advice = match part {
            Part::Trainable => "Resume from a checkpoint with a lower learning rate, or clip gradients",
            _ => {
                "A training pass has written it that no step followed: the next step that exchanges gradients refuses it and puts back what was \
                 there before; or resume from a checkpoint"
            }
        };
        Err(Error::NoMean { operation, step: self.step(), why, advice })
    }

    /// Gathers a few bytes from every rank, in rank order. Its time does not count as the run's.
    pub(crate) fn gather_bytes(&mut self, operation: &'static str, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (before, mut heard) = (self.comm.now(), Vec::new());
        self.comm.scope().operation = operation;
        self.comm.all_gather(mine, &mut heard)?;
        heard[self.comm.rank()].extend_from_slice(mine);
        self.last_end += self.comm.now() - before;
        Ok(heard)
    }
}

/// Returns the first tensor whose sum is not finite because of a fault, with the rank that has the value, or without a rank if
/// only the sum is not finite. `all` has each rank's tensors that are not finite, each with a flag for a fault.
fn first_fault(bad: &[usize], all: &[Vec<(usize, bool)>]) -> Option<(usize, Option<usize>)> {
    bad.iter().find_map(|place| {
        let of_rank = |own: &Vec<(usize, bool)>| own.iter().find(|(slot, _)| slot == place).map(|(_, fault)| *fault);
        let found: Vec<Option<bool>> = all.iter().map(of_rank).collect();
        match found.iter().position(|fault| *fault == Some(true)) {
            Some(rank) => Some((*place, Some(rank))),
            None => found.iter().all(Option::is_none).then_some((*place, None)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_a_fault_of_the_rank_that_lost_it_or_of_the_sum() {
        let none = Vec::new;
        assert_eq!(first_fault(&[2], &[none(), vec![(2, true)]]), Some((2, Some(1))));
        assert_eq!(first_fault(&[2], &[none(), none()]), Some((2, None)), "each is finite, the sum is not");
        // Rank 1's own buffer was not finite before, which rank 0 cannot know.
        assert_eq!(first_fault(&[2], &[none(), vec![(2, false)]]), None);
        assert_eq!(first_fault(&[2, 5], &[none(), vec![(2, false), (5, true)]]), Some((5, Some(1))));
    }
}
