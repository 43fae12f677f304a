//! Feedback on the device: what is added to a gradient, range by range, and its energies.

use std::ops::Range;

use briquette_core::Slot;
use briquette_core::reduce::DeviceMemory;

use super::Gradient;
use crate::error::DeviceError;
use crate::feed;
use crate::finite::clear_not_finite;
use crate::memory::values;
use crate::run::Vector;
use crate::sums::{Groups, Sums, Terms, sums};

/// Energies of slots, on the device.
#[derive(Debug)]
pub(super) struct Fed {
    start: usize,
    sums: [Sums; 2],
    absent: Vec<bool>,
}

impl Gradient {
    pub(super) fn groups(&self, slots: &[Slot]) -> Groups {
        Groups::new(&self.run, slots.iter().map(Slot::len))
    }

    /// Queues the energies of the slots in a range of a vector.
    pub(super) fn queue_energies(&self, x: &Vector, range: &Range<usize>, slots: &Groups) -> Sums {
        sums(&self.run, &self.run.part(x, range.clone()), slots, Terms::Squares)
    }

    /// Returns the memory of a vector that was kept, or zeros.
    pub(super) fn kept(&mut self, memory: Option<&dyn DeviceMemory>) -> Vector {
        let zeros = || self.zeros.get_or_insert_with(|| self.run.zeros(self.len)).clone();
        memory.map_or_else(zeros, |memory| values(memory).clone())
    }

    /// Ends an update of values: clears absent slots, measures energies, and clears slots whose first energy is not finite.
    pub(super) fn fed(
        &mut self,
        range: Range<usize>,
        slots: &[Slot],
        measure: impl FnOnce(&Self, &Range<usize>) -> [Sums; 2],
    ) {
        let start = range.start;
        for slot in slots.iter().filter(|slot| slot.is_absent()) {
            feed::clear_range(&self.run, &self.values, start + slot.range().start..start + slot.range().end);
        }
        self.started.clear();
        self.own.retain(|(own, _)| own.end <= start || range.end <= own.start);
        let sums = measure(self, &range);
        clear_not_finite(&self.run, &self.values, start, &sums[0]);
        self.fed.push(Fed { start, sums, absent: slots.iter().map(Slot::is_absent).collect() });
    }

    /// Waits for the energies that were queued, in the order of the slots.
    pub(super) fn read_energies(&mut self) -> Result<Vec<[f64; 2]>, DeviceError> {
        let mut fed = std::mem::take(&mut self.fed);
        fed.sort_by_key(|fed| fed.start);
        let sums: Vec<&Sums> = fed.iter().flat_map(|fed| &fed.sums).collect();
        let read = Sums::read_all(&self.run, &sums)?;
        let pairs = fed.iter().zip(read.as_chunks().0).flat_map(|(fed, [first, second])| {
            let pair = |((first, second), absent): ((&f64, &f64), &bool)| {
                if *absent { [0.0, 0.0] } else { [*first, *second] }
            };
            first.iter().zip(second).zip(&fed.absent).map(pair)
        });
        Ok(pairs.collect())
    }
}
