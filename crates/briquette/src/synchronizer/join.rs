//! How a rank becomes one of the world.

use briquette_core::Communicator;
use burn::module::Module;

use super::{Joined, REBROADCAST_STEPS, Synchronizer, mixed};
use crate::error::Error;
use crate::flat::{self, Inventory, Part};
use crate::hello;

impl Synchronizer {
    /// Makes this rank one of the world: compares version, configuration, seed, local weight decay and layout with every
    /// rank, then gives the module rank 0's parameters and buffers, by path. Local parameter ids stay, so parameter groups
    /// keep matching.
    ///
    /// # Errors
    /// [`Error::Mismatch`] names field, rank and both values; [`Error::Config`] when the configuration cannot work here.
    pub fn join<M: Module>(&mut self, module: M) -> Result<M, Error> {
        flat::drain(&module);
        let built = Inventory::of(&module).and_then(|inventory| {
            let strategy = self.config.build(&inventory.layout, self.world())?;
            Ok((inventory, strategy, mixed::rounding(&module)?))
        });
        // The other ranks may have built theirs, and would wait for this one.
        let (inventory, strategy, rounding) = built.inspect_err(|error| self.comm.abort(&error.to_string()))?;
        let identity = hello::identity(&inventory, &self.config, self.seed, self.weight_decay, self.rebroadcast);
        let mixed = hello::compare(&mut *self.comm, &identity, &rounding)?;
        let mut module = module;
        for part in [Part::Trainable, Part::Buffers] {
            let mut values = Vec::new();
            flat::read_values(&module, part, &mut values)?;
            self.broadcast(&mut values)?;
            module = flat::write_values(module, part, &values, &inventory);
        }
        let rebroadcast = self.rebroadcast.unwrap_or(if mixed { REBROADCAST_STEPS } else { 0 });
        self.joined = Some(Joined { inventory, strategy, identity, rebroadcast });
        self.last_end = self.comm.now();
        self.computing();
        Ok(module)
    }

    /// Makes the values rank 0's.
    pub(super) fn broadcast(&mut self, values: &mut [f32]) -> Result<(), Error> {
        let mut bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.comm.broadcast(0, &mut bytes)?;
        let expected = values.len() * 4;
        if bytes.len() != expected {
            return Err(self.mismatch(0, "bytes of parameters", expected, bytes.len()));
        }
        values.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, b)| *v = f32::from_le_bytes(*b));
        Ok(())
    }
}
