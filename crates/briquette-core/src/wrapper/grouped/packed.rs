//! A group's slots in a vector of their own, on the device of the whole vector.

use std::ops::Range;

use crate::error::ReduceError;
use crate::seam::{Arriving, DeviceCopies, DevicePart, DevicePlace, DeviceVector, OnDevice, or_abort};
use crate::{Session, Slot};

/// Slots of `whole`, copied to `vector` as they arrive.
pub(super) struct Packed<'a> {
    whole: &'a mut dyn Arriving,
    /// The range of each slot in the whole vector.
    places: &'a [Range<usize>],
    slots: &'a [Slot],
    vector: &'a mut dyn DeviceVector,
    copies: DeviceCopies,
    place: DevicePlace,
    is_there: Vec<bool>,
    order: Vec<usize>,
}

impl<'a> Packed<'a> {
    /// Packs slots into a new vector. Values that have not arrived are packed later.
    pub(super) fn vector(
        whole: &mut dyn Arriving,
        places: &[Range<usize>],
        comm: &mut Session,
    ) -> Result<Box<dyn DeviceVector>, ReduceError> {
        let rank = comm.rank();
        if whole.on_device().is_some_and(|place| place.is_complete) {
            for place in places {
                whole.device(place.clone(), comm);
            }
        }
        start(whole, comm).pack(places).map_err(|source| ReduceError::Device { rank, source })
    }

    pub(super) fn new(
        whole: &'a mut dyn Arriving,
        (places, slots): (&'a [Range<usize>], &'a [Slot]),
        vector: &'a mut dyn DeviceVector,
        order: Vec<usize>,
    ) -> Self {
        let is_complete = whole.on_device().is_some_and(|place| place.is_complete);
        let place = DevicePlace { len: vector.len(), is_complete };
        let is_there = vec![is_complete; places.len()];
        Packed { whole, places, slots, vector, copies: DeviceCopies::default(), place, is_there, order }
    }

    /// Copies the average to the places of the slots in the whole vector. `average` is the host's part of it.
    pub(super) fn finish(&mut self, average: &[f32], comm: &mut Session) -> OnDevice<()> {
        self.copies.finish(self.vector, average)?;
        let average = self.vector.take_average()?;
        start(self.whole, comm).unpack_average(self.places, &*average)
    }

    fn arrive(&mut self, range: &Range<usize>, comm: &mut Session) {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        let last = self.slots.partition_point(|slot| slot.range().end <= range.end);
        let (mut from, mut to) = (Vec::new(), Vec::new());
        for index in first..last {
            if !std::mem::replace(&mut self.is_there[index], true) {
                self.whole.device(self.places[index].clone(), comm);
                from.push(self.places[index].clone());
                to.push(self.slots[index].range());
            }
        }
        if from.is_empty() {
            return;
        }
        let values = start(self.whole, comm).pack(&from).and_then(|mut values| values.take());
        let copied = values.and_then(|values| self.vector.unpack(&to, Some(&*values)));
        or_abort(copied, &mut self.copies.failed, comm);
    }
}

/// Returns the start of a vector on a device, to which places are relative.
fn start<'a>(whole: &'a mut dyn Arriving, comm: &mut Session) -> DevicePart<'a> {
    whole.device(0..0, comm).expect("a vector on a device")
}

impl Arriving for Packed<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.arrive(&range, comm);
        self.copies.wait(self.vector, range, comm)
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn on_device(&self) -> Option<DevicePlace> {
        Some(self.place)
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.arrive(&range, comm);
        Some(self.copies.part(self.vector, range))
    }
}
