//! One group: its slots, its reducer, and the packed values of the last exchange.

use std::ops::Range;

use super::packed::Packed;
use super::part;
use crate::error::ReduceError;
use crate::math::SentStatistics;
use crate::seam::{
    Arriving, DeviceInput, DeviceVector, Exchanged, OnDevice, Reducer, Round, Selection, Selections, SentInput,
    SentVelocity,
};
use crate::wrapper::feed::Delivery;
use crate::{Key, Layout, Session, Slot, Traffic, stateful};

/// Slots that are exchanged together.
pub(super) struct Group {
    /// Numbers of the slots in the whole layout.
    pub(super) members: Vec<usize>,
    /// Their ranges in the whole vector.
    places: Vec<Range<usize>>,
    layout: Layout,
    pub(super) reducer: Box<dyn Reducer>,
    /// Set if the group has all slots. Its reducer then uses the whole vector.
    is_whole: bool,
    input: Vec<f32>,
    average: Vec<f32>,
    /// The contribution if the round requests it, or the velocity while it is masked.
    sent: Vec<f32>,
    /// Input of the last exchange, if it was packed on a device.
    packed: Option<Box<dyn DeviceVector>>,
    /// Set if the last exchange selected coordinates.
    is_selected: bool,
}

impl Group {
    pub(super) fn new(whole: &Layout, members: Vec<usize>, reducer: Box<dyn Reducer>) -> Self {
        let layout = part(whole, &members);
        let places = members.iter().map(|&member| whole.slots()[member].range()).collect();
        let is_whole = members.iter().copied().eq(0..whole.slots().len());
        let ([input, average, sent], packed, is_selected) = Default::default();
        Group { members, places, layout, reducer, is_whole, input, average, sent, packed, is_selected }
    }

    /// Reduces one group's part of `round`, with the values of `whole`.
    pub(super) fn reduce(
        &mut self,
        round: &mut Round<'_>,
        (key, whole, delivery): (Key, &mut dyn Arriving, Delivery),
        comm: &mut Session,
        selections: &mut Selections,
    ) -> Result<Traffic, ReduceError> {
        if self.members.is_empty() {
            return Ok(Traffic::default());
        }
        self.packed = None;
        let exchanged = if self.is_whole {
            self.reduce_whole(round, (key, whole, delivery), comm)?
        } else if delivery == Delivery::InParts && whole.on_device().is_some() {
            self.reduce_on_device(round, (key, whole), comm)?
        } else {
            self.reduce_on_host(round, (key, whole, delivery), comm)?
        };
        self.is_selected = exchanged.selection != Selection::All;
        selections.put(self.members.iter().copied(), &exchanged.selection);
        Ok(exchanged.traffic)
    }

    /// Reduces all slots, which need no packing.
    fn reduce_whole(
        &mut self,
        round: &mut Round<'_>,
        (key, whole, delivery): (Key, &mut dyn Arriving, Delivery),
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let share = Round {
            key,
            slots: self.layout.slots(),
            agreed_step: round.agreed_step,
            input: round.input,
            average: &mut *round.average,
            sent: round.sent.as_deref_mut(),
        };
        delivery.reduce(&mut self.reducer, share, whole, comm)
    }

    fn reduce_on_host(
        &mut self,
        round: &mut Round<'_>,
        (key, whole, delivery): (Key, &mut dyn Arriving, Delivery),
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let order = self.order(whole.order());
        let Group { layout, places, input, average, sent, reducer, .. } = self;
        let share = share(round, key, layout, [average, sent]);
        input.resize(layout.len(), 0.0);
        let mut part =
            Part { order, whole, places, slots: layout.slots(), values: input, is_there: vec![false; places.len()] };
        let exchanged = match delivery {
            Delivery::InParts => reducer.reduce_arriving(share, &mut part, comm)?,
            Delivery::Complete => {
                let all = 0..layout.len();
                reducer.reduce(Round { input: part.wait(all, comm), ..share }, comm)?
            }
        };
        self.copy_back(round);
        Ok(exchanged)
    }

    /// Reduces slots of a vector on a device, packed into a separate vector there. The reducer uses it as any vector on a device.
    fn reduce_on_device(
        &mut self,
        round: &mut Round<'_>,
        (key, whole): (Key, &mut dyn Arriving),
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let rank = comm.rank();
        let order = self.order(whole.order());
        let Group { layout, places, input, average, sent, reducer, .. } = self;
        let mut packed = Packed::vector(whole, places, comm)?;
        let mut values = Packed::new(whole, (places, layout.slots()), &mut *packed, order);
        let exchanged = reducer.reduce_arriving(share(round, key, layout, [average, sent]), &mut values, comm)?;
        let is_subtracted = round.sent.is_none();
        if is_subtracted && !reducer.subtracts_on_device() {
            input.clear();
            input.extend_from_slice(values.wait(0..layout.len(), comm));
        }
        values.finish(average, comm).map_err(|source| ReduceError::Device { rank, source })?;
        self.packed = is_subtracted.then_some(packed);
        // The average is on the device; only the contribution is read.
        if !is_subtracted {
            self.copy_back(round);
        }
        Ok(exchanged)
    }

    /// Copies the average and the contribution to their places.
    fn copy_back(&self, round: &mut Round<'_>) {
        for (place, slot) in self.places.iter().zip(self.layout.slots()) {
            round.average[place.clone()].copy_from_slice(&self.average[slot.range()]);
            if let Some(sent) = round.sent.as_deref_mut() {
                sent[place.clone()].copy_from_slice(&self.sent[slot.range()]);
            }
        }
    }

    /// Returns the arrival order of this group's slots, if the order of all slots is known.
    fn order(&self, whole: &[usize]) -> Vec<usize> {
        whole.iter().filter_map(|slot| self.members.iter().position(|member| member == slot)).collect()
    }

    pub(super) fn hold(&mut self, absent: &[Range<usize>]) {
        let slots = self.places.iter().zip(self.layout.slots());
        let absent = slots.filter(|(place, _)| absent.contains(place)).map(|(_, slot)| slot.range());
        self.reducer.hold(&absent.collect::<Vec<_>>());
    }

    /// Returns whether the contribution of the last exchange can be subtracted on the device. A packed group can always do so: if its
    /// reducer cannot, the remainder is computed on the host and copied to the device.
    pub(super) fn subtracts_on_device(&self) -> bool {
        let is_possible = if self.is_whole { self.reducer.subtracts_on_device() } else { self.packed.is_some() };
        is_possible || self.members.is_empty()
    }

    /// Subtracts the contribution from this group's slots. Their input is still packed, unless they are all slots.
    pub(super) fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        if self.members.is_empty() {
            return true;
        }
        if self.is_whole {
            let (slots, len) = (self.layout.slots(), self.layout.len());
            return self.reducer.subtract_sent(&mut input.part(slots, 0..slots.len(), 0..len));
        }
        let energies: Vec<f64> = self.members.iter().map(|&member| input.energies[member]).collect();
        let mut kept = vec![SentStatistics::default(); self.members.len()];
        let finite = match self.packed.take() {
            Some(packed) => {
                let finite = self.subtract_on_device(packed, input, (&energies, &mut kept));
                input.device.as_mut().expect("a vector on a device").or_fail(finite)
            }
            None => self.subtract_on_host(input, (&energies, &mut kept)),
        };
        self.members.iter().zip(kept).for_each(|(&member, kept)| input.kept[member] = kept);
        finite
    }

    fn subtract_on_host(
        &mut self,
        input: &mut SentInput<'_>,
        (energies, kept): (&[f64], &mut [SentStatistics]),
    ) -> bool {
        let slots = self.layout.slots();
        let mut packed = SentInput::new(slots, &mut self.input, None, energies, kept);
        if let SentVelocity::Host(velocity, mask) = &input.velocity {
            self.sent.clear();
            self.places.iter().for_each(|place| self.sent.extend_from_slice(&velocity[place.clone()]));
            packed.velocity = SentVelocity::Host(&mut self.sent, *mask);
        }
        let finite = self.reducer.subtract_sent(&mut packed);
        for (place, slot) in self.places.iter().zip(slots) {
            input.vector[place.clone()].copy_from_slice(&self.input[slot.range()]);
            if let SentVelocity::Host(velocity, _) = &mut input.velocity {
                velocity[place.clone()].copy_from_slice(&self.sent[slot.range()]);
            }
        }
        finite
    }

    /// Subtracts the contribution from the packed vector, and copies the remainder and the masked velocity to their places.
    fn subtract_on_device(
        &mut self,
        mut packed: Box<dyn DeviceVector>,
        input: &mut SentInput<'_>,
        (energies, kept): (&[f64], &mut [SentStatistics]),
    ) -> OnDevice<bool> {
        let (slots, places) = (self.layout.slots(), &self.places);
        let device = input.device.as_mut().expect("a vector on a device");
        let mut velocity = match &input.velocity {
            SentVelocity::Device(velocity, mask) if self.is_selected => {
                Some((device.pack_velocity(places, &**velocity), *mask))
            }
            _ => None,
        };
        let finite = if self.reducer.subtracts_on_device() {
            let mut vector = DeviceInput::new(&mut *packed, slots.len());
            let mut part = SentInput::new(slots, &mut [], Some(vector.whole()), energies, kept);
            if let Some((velocity, mask)) = &mut velocity {
                part.velocity = SentVelocity::Device(&mut **velocity, *mask);
            }
            let finite = self.reducer.subtract_sent(&mut part) & part.settle();
            vector.check()?;
            device.unpack(places, Some(&*packed.take()?))?;
            finite
        } else {
            let mut part = SentInput::new(slots, &mut self.input, None, energies, kept);
            let mut masked = velocity.take().map(|(velocity, mask)| (velocity.fetch(), mask));
            if let Some((masked, mask)) = &mut masked {
                part.velocity = SentVelocity::Host(masked, *mask);
            }
            let finite = self.reducer.subtract_sent(&mut part);
            velocity = masked.map(|(masked, mask)| Ok((device.upload(&masked)?, mask))).transpose()?;
            // A dense exchange leaves zeros.
            let remains = self.input.iter().any(|value| value.to_bits() != 0);
            let values = remains.then(|| device.upload(&self.input)).transpose()?;
            device.unpack(places, values.as_deref())?;
            finite
        };
        if let (SentVelocity::Device(whole, _), Some((velocity, _))) = (&mut input.velocity, &velocity) {
            device.unpack_velocity(places, &**velocity, &mut **whole);
        }
        Ok(finite)
    }
}

/// Returns a group's share of a round, without input. Both buffers get the length that it needs.
fn share<'a>(round: &Round<'a>, key: Key, layout: &'a Layout, [average, sent]: [&'a mut Vec<f32>; 2]) -> Round<'a> {
    average.resize(layout.len(), 0.0);
    sent.resize(if round.sent.is_some() { layout.len() } else { 0 }, 0.0);
    Round {
        key,
        slots: layout.slots(),
        agreed_step: round.agreed_step,
        input: &[],
        average,
        sent: round.sent.is_some().then_some(sent),
    }
}

stateful! {
    impl Stateful for Group { reducer: flatten() }
}

/// Values of a group's slots, as they arrive.
struct Part<'a> {
    whole: &'a mut dyn Arriving,
    /// The range of each slot in the whole vector.
    places: &'a [Range<usize>],
    slots: &'a [Slot],
    values: &'a mut [f32],
    is_there: Vec<bool>,
    order: Vec<usize>,
}

impl Arriving for Part<'_> {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        for (index, slot) in
            self.slots.iter().enumerate().skip(first).take_while(|(_, slot)| slot.range().end <= range.end)
        {
            if !std::mem::replace(&mut self.is_there[index], true) {
                self.values[slot.range()].copy_from_slice(self.whole.wait(self.places[index].clone(), comm));
            }
        }
        &self.values[range]
    }

    fn order(&self) -> &[usize] {
        &self.order
    }
}
