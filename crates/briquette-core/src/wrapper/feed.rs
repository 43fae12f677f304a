//! Input of stateful wrappers: passes a vector to them slot by slot, as its values arrive.

use std::ops::Range;

use super::unsent::FedEnergies;
use crate::error::{DeviceError, ReduceError};
use crate::seam::{Arriving, DevicePart, DevicePlace, Exchanged, OnDevice, Reducer, Round, or_abort};
use crate::{Session, Slot};

/// Source of the vector: complete in the round, or arriving in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Delivery {
    Complete,
    InParts,
}

impl Delivery {
    /// Exchanges a vector that a wrapper passes on unchanged.
    pub(super) fn reduce<R: Reducer>(
        self,
        inner: &mut R,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        match self {
            Delivery::Complete => inner.reduce(round, comm),
            Delivery::InParts => inner.reduce_arriving(round, input, comm),
        }
    }
}

/// Combines `input` with a wrapper's state. `feed` is called once per slot with its number and values, writes the vector to send, and
/// returns whether that is finite.
pub(super) struct FedVector<'a, F> {
    input: &'a mut dyn Arriving,
    slots: &'a [Slot],
    fed: &'a mut [f32],
    feed: F,
    is_fed: Vec<bool>,
    /// The first slot in layout order whose sum with the state is not finite.
    bad: Option<usize>,
}

impl<'a, F: FnMut(usize, &[f32], &mut [f32]) -> bool> FedVector<'a, F> {
    pub(super) fn new(input: &'a mut dyn Arriving, slots: &'a [Slot], fed: &'a mut [f32], feed: F) -> Self {
        FedVector { input, slots, fed, feed, is_fed: vec![false; slots.len()], bad: None }
    }

    /// Exchanges the fed vector. A complete vector with a non-finite sum is not sent at all. If the vector arrives in parts, that slot is
    /// sent as zeros, and the error is the same.
    pub(super) fn reduce<R: Reducer>(
        mut self,
        inner: &mut R,
        round: Round<'_>,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        if delivery == Delivery::InParts {
            let exchanged = inner.reduce_arriving(round, &mut self, comm)?;
            return self.check(comm).map(|()| exchanged);
        }
        self.wait(0..round.average.len(), comm);
        self.check(comm)?;
        inner.reduce(Round { input: self.fed, ..round }, comm)
    }

    fn check(&self, comm: &Session) -> Result<(), ReduceError> {
        let slot = |bad: usize| self.slots[bad].path().to_owned();
        self.bad.map_or(Ok(()), |bad| Err(ReduceError::NonFinite { rank: comm.rank(), slot: slot(bad) }))
    }
}

impl<F: FnMut(usize, &[f32], &mut [f32]) -> bool> Arriving for FedVector<'_, F> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        let inside = self.slots[first..].iter().zip(first..).take_while(|(slot, _)| slot.range().end <= range.end);
        for (slot, index) in inside {
            if std::mem::replace(&mut self.is_fed[index], true) {
                continue;
            }
            let fed = &mut self.fed[slot.range()];
            if !(self.feed)(index, self.input.wait(slot.range(), comm), fed) {
                fed.fill(0.0);
                self.bad = Some(self.bad.map_or(index, |bad| bad.min(index)));
            }
        }
        &self.fed[range]
    }

    fn order(&self) -> &[usize] {
        self.input.order()
    }
}

/// Combines `input`, which is on a device, with a wrapper's state there. `feed` is called for consecutive slots as they arrive, each slot once: with
/// their part of the vector, and the slots relative to its start.
pub(super) struct FedOnDevice<'a, F> {
    input: &'a mut dyn Arriving,
    place: DevicePlace,
    slots: &'a [Slot],
    feed: F,
    is_fed: Vec<bool>,
    /// The first failure, which has aborted the session.
    failed: Option<DeviceError>,
}

impl<'a, F: FnMut(DevicePart<'_>, &[Slot]) -> OnDevice<()>> FedOnDevice<'a, F> {
    pub(super) fn new(input: &'a mut dyn Arriving, place: DevicePlace, slots: &'a [Slot], feed: F) -> Self {
        FedOnDevice { input, place, slots, feed, is_fed: vec![false; slots.len()], failed: None }
    }

    /// Exchanges the fed vector, and returns the [energies](crate::seam::DeviceVector::fed_energies) of its slots. A complete vector with a sum that
    /// is not finite is not sent at all. If the vector arrives in parts, that slot is sent as zeros, and the error is the same.
    pub(super) fn reduce<R: Reducer>(
        mut self,
        (inner, energies): (&mut R, &mut FedEnergies),
        round: Round<'_>,
        comm: &mut Session,
    ) -> Result<(Exchanged, Vec<[f64; 2]>), ReduceError> {
        let early = self.place.is_complete.then(|| self.measure(energies, comm)).transpose()?;
        let exchanged = inner.reduce_arriving(round, &mut self, comm)?;
        let sums = early.map_or_else(|| self.measure(energies, comm), Ok)?;
        Ok((exchanged, sums))
    }

    /// Feeds all slots that are not fed yet, and reads the energies.
    fn measure(&mut self, energies: &mut FedEnergies, comm: &mut Session) -> Result<Vec<[f64; 2]>, ReduceError> {
        let (rank, all) = (comm.rank(), 0..self.place.len);
        self.feed(&all, comm);
        let mut device = self.input.device(all, comm).expect("a vector on a device");
        let sums = self.failed.take().map_or_else(|| device.fed_energies(), Err);
        let sums = sums.map_err(|source| ReduceError::Device { rank, source })?;
        energies.set_fed(&sums, self.slots, rank)?;
        Ok(sums)
    }

    fn feed(&mut self, range: &Range<usize>, comm: &mut Session) {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        let last = self.slots.partition_point(|slot| slot.range().end <= range.end);
        let mut next = first;
        while next < last {
            let start = next;
            while next < last && !std::mem::replace(&mut self.is_fed[next], true) {
                next += 1;
            }
            let Some((from, to)) = self.slots[start..next].first().zip(self.slots[start..next].last()) else {
                next += 1;
                continue;
            };
            let place = from.range().start..to.range().end;
            let slots: Vec<Slot> = self.slots[start..next].iter().map(|slot| slot.rebased(place.start)).collect();
            let part = self.input.device(place, comm).expect("a vector on a device");
            or_abort((self.feed)(part, &slots), &mut self.failed, comm);
        }
    }
}

impl<F: FnMut(DevicePart<'_>, &[Slot]) -> OnDevice<()>> Arriving for FedOnDevice<'_, F> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.feed(&range, comm);
        self.input.wait(range, comm)
    }

    fn order(&self) -> &[usize] {
        self.input.order()
    }

    fn on_device(&self) -> Option<DevicePlace> {
        Some(self.place)
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.feed(&range, comm);
        self.input.device(range, comm)
    }
}
