//! Slot groups: each group of slots is exchanged by a separate reducer.
//!
//! **Why, and when not.** Layers differ: an embedding's gradient is mostly zeros, a norm's few values matter and cost nothing, a
//! convolution has low rank. One setting for all of them is a compromise. However, every group is a separate exchange with its own latency:
//! use three groups, not thirty.
//!
//! **Method.** The slots of a group are copied into one contiguous vector, in order, reduced by the group's reducer, and copied back. Slots
//! in no other group belong to the main group.
//!
//! **Placement.** Inside the wrappers that keep residuals, so that there is one residual for all slots. Inner reducers may be stateful too
//! ([`PowerSgd`](crate::reduce::power_sgd::PowerSgd), [`Adaptive`](crate::wrapper::adaptive::Adaptive)).
//!
//! **Random bits.** The main group draws the same bits as without groups; group `g` of the others uses `key.purpose("group").bucket(g)`.
//!
//! **On the wire.** The groups' exchanges one after another, the main group's first. If the vector
//! [arrives](Reducer::reduce_arriving) in parts, the other groups are exchanged last: the slots that rules select (norms, biases,
//! an embedding) are spread over the vector or at its front, where values arrive late.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::comm::Local;
//! use briquette_core::compress::top_k::TopK;
//! use briquette_core::wrapper::grouped::Grouped;
//! use briquette_core::reduce::{dense::Dense, AgreedStep, gather::Gather, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::new([("fc.weight", vec![2, 2]), ("fc.bias", vec![2])]);
//! // The largest of the weights, and all of the bias.
//! let top_k = Gather::new(TopK::fraction(0.25)?, Mean);
//! let mut reducer = Grouped::new(&layout, Box::new(top_k), vec![(vec![1], Box::new(Dense))]);
//! let mut average = [0.0; 6];
//! reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[4.0, 1.0, 2.0, 3.0, 0.1, 0.2], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [4.0, 0.0, 0.0, 0.0, 0.1, 0.2]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::ops::Range;

use super::feed::Delivery;
use crate::error::ReduceError;
use crate::math::SentStatistics;
use crate::report::Report;
use crate::seam::{Arriving, CompleteVector, Exchanged, Reducer, Round, Selections, SentInput, SentVelocity};
use crate::{Key, Layout, Session, Slot, Traffic, stateful};

/// Slots that are exchanged together, and their packed values.
struct Group {
    /// Numbers of the slots in the whole layout.
    members: Vec<usize>,
    /// Their ranges in the whole vector.
    places: Vec<Range<usize>>,
    layout: Layout,
    input: Vec<f32>,
    average: Vec<f32>,
    /// The contribution if the round requests it, or the velocity while it is masked.
    sent: Vec<f32>,
    reducer: Box<dyn Reducer>,
}

/// One reducer per group; see the [module](self).
pub struct Grouped {
    main: Group,
    others: Vec<Group>,
    len: usize,
}

impl fmt::Debug for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others: Vec<_> = self.others.iter().map(|group| &group.members).collect();
        f.debug_struct("Grouped").field("main", &self.main.members).field("others", &others).finish_non_exhaustive()
    }
}

impl Group {
    fn new(whole: &Layout, members: Vec<usize>, reducer: Box<dyn Reducer>) -> Self {
        let layout = part(whole, &members);
        let places = members.iter().map(|&member| whole.slots()[member].range()).collect();
        Group { members, places, layout, input: Vec::new(), average: Vec::new(), sent: Vec::new(), reducer }
    }

    /// Reduces one group's part of `round`, with the values of `whole`.
    fn reduce(
        &mut self,
        round: &mut Round<'_>,
        (key, whole, delivery): (Key, &mut dyn Arriving, Delivery),
        comm: &mut Session,
        selections: &mut Selections,
    ) -> Result<Traffic, ReduceError> {
        if self.members.is_empty() {
            return Ok(Traffic::default());
        }
        let places = self.members.iter().map(|&member| round.slots[member].range());
        let len = self.layout.len();
        self.input.resize(len, 0.0);
        self.average.resize(len, 0.0);
        self.sent.resize(if round.sent.is_some() { len } else { 0 }, 0.0);
        let mut part = Part {
            order: self.order(whole.order()),
            whole,
            places: places.clone().collect(),
            slots: self.layout.slots(),
            values: &mut self.input,
            is_there: vec![false; self.members.len()],
        };
        let share = Round {
            key,
            slots: self.layout.slots(),
            agreed_step: round.agreed_step,
            input: &[],
            average: &mut self.average,
            sent: round.sent.is_some().then_some(&mut self.sent),
        };
        let exchanged = match delivery {
            Delivery::InParts => self.reducer.reduce_arriving(share, &mut part, comm)?,
            Delivery::Complete => self.reducer.reduce(Round { input: part.wait(0..len, comm), ..share }, comm)?,
        };
        for (place, slot) in places.zip(self.layout.slots()) {
            round.average[place.clone()].copy_from_slice(&self.average[slot.range()]);
            if let Some(sent) = round.sent.as_deref_mut() {
                sent[place].copy_from_slice(&self.sent[slot.range()]);
            }
        }
        selections.put(self.members.iter().copied(), &exchanged.selection);
        Ok(exchanged.traffic)
    }

    /// Returns the arrival order of this group's slots, if the order of all slots is known.
    fn order(&self, whole: &[usize]) -> Vec<usize> {
        whole.iter().filter_map(|slot| self.members.iter().position(|member| member == slot)).collect()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        let slots = self.places.iter().zip(self.layout.slots());
        let absent = slots.filter(|(place, _)| absent.contains(place)).map(|(_, slot)| slot.range());
        self.reducer.hold(&absent.collect::<Vec<_>>());
    }

    /// Subtracts the contribution from this group's slots. Their input is still packed.
    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let energies: Vec<f64> = self.members.iter().map(|&member| input.energies[member]).collect();
        let mut kept = vec![SentStatistics::default(); self.members.len()];
        let slots = self.layout.slots();
        let mut packed = SentInput::new(slots, &mut self.input, None, &energies, &mut kept);
        if let SentVelocity::Host(velocity) = &input.velocity {
            self.sent.clear();
            self.places.iter().for_each(|place| self.sent.extend_from_slice(&velocity[place.clone()]));
            packed.velocity = SentVelocity::Host(&mut self.sent);
        }
        let finite = self.reducer.subtract_sent(&mut packed);
        for ((&member, slot), kept) in self.members.iter().zip(slots).zip(kept) {
            let place = input.slots[member].range();
            input.vector[place.clone()].copy_from_slice(&self.input[slot.range()]);
            if let SentVelocity::Host(velocity) = &mut input.velocity {
                velocity[place].copy_from_slice(&self.sent[slot.range()]);
            }
            input.kept[member] = kept;
        }
        finite
    }
}

/// Values of a group's slots, as they arrive.
struct Part<'a> {
    whole: &'a mut dyn Arriving,
    /// The range of each slot in the whole vector.
    places: Vec<Range<usize>>,
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

/// Returns the layout of some slots of a layout.
pub fn part(whole: &Layout, members: &[usize]) -> Layout {
    let slots = members.iter().map(|&member| &whole.slots()[member]);
    Layout::new(slots.map(|slot| (slot.path(), slot.shape().to_vec())))
}

impl Grouped {
    /// Groups the slots of `layout`: those of `others` by slot number, each slot at most once, and the rest under `main`.
    pub fn new(layout: &Layout, main: Box<dyn Reducer>, others: Vec<(Vec<usize>, Box<dyn Reducer>)>) -> Self {
        let taken = |slot: &usize| others.iter().any(|(members, _)| members.contains(slot));
        let rest = (0..layout.slots().len()).filter(|slot| !taken(slot)).collect();
        Grouped {
            main: Group::new(layout, rest, main),
            others: others.into_iter().map(|(members, reducer)| Group::new(layout, members, reducer)).collect(),
            len: layout.len(),
        }
    }
}

impl Grouped {
    fn reduce_groups(
        &mut self,
        mut round: Round<'_>,
        values: &mut dyn Arriving,
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        let (mut selections, key) = (Selections::of(round.slots.len()), round.key);
        let mut traffic = self.main.reduce(&mut round, (key, values, delivery), comm, &mut selections)?;
        // Measurements belong to the main group.
        let of_a_part = round.agreed_step.of_a_part();
        let mut round = Round { agreed_step: &of_a_part, ..round };
        for (index, group) in self.others.iter_mut().enumerate() {
            let key = key.purpose("group").bucket(index);
            traffic += group.reduce(&mut round, (key, values, delivery), comm, &mut selections)?;
        }
        Ok(Exchanged { traffic, selection: selections.finish() })
    }
}

stateful! {
    impl Stateful for Grouped {
        others: parts("group"),
        main: part("main"),
    }
}

stateful! {
    impl Stateful for Group { reducer: flatten() }
}

impl Reducer for Grouped {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        if round.input.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: round.input.len() });
        }
        let mut values = CompleteVector(round.input);
        self.reduce_groups(round, &mut values, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        if round.average.len() != self.len {
            return Err(ReduceError::Length { expected: self.len, got: round.average.len() });
        }
        self.reduce_groups(round, input, Delivery::InParts, comm)
    }

    fn can_subtract_sent(&self) -> bool {
        [&self.main].into_iter().chain(&self.others).all(|group| group.reducer.can_subtract_sent())
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let groups = [&mut self.main].into_iter().chain(&mut self.others);
        groups.filter(|group| !group.members.is_empty()).fold(true, |finite, group| group.subtract_sent(input) & finite)
    }

    fn discards_residual(&self) -> bool {
        self.main.reducer.discards_residual()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        [&mut self.main].into_iter().chain(&mut self.others).for_each(|group| group.hold(absent));
    }

    /// Reports the main group's statistics, or nothing if it has no slots; of the other groups only those per slot.
    fn report(&self, report: &mut Report) {
        for group in &self.others {
            report.part(group.members.iter().copied(), |part| group.reducer.report(part));
        }
        if !self.main.members.is_empty() {
            report.narrowed(self.main.members.iter().copied(), |report| self.main.reducer.report(report));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::mean::Mean;
    use crate::comm::Local;
    use crate::compress::top_k::TopK;
    use crate::reduce::{dense::Dense, gather::Gather, power_sgd::PowerSgd};
    use crate::seam::{AgreedStep, Selection};
    use crate::state::{State, Stateful};
    use crate::wrapper::momentum_correction::{MomentumCorrection, MomentumCorrectionConfig};

    fn layout() -> Layout {
        Layout::new([("conv.weight", vec![2, 2]), ("conv.bias", vec![2]), ("fc.weight", vec![4]), ("fc.bias", vec![1])])
    }

    fn top_k(fraction: f64) -> Gather<TopK, Mean> {
        Gather::new(TopK::fraction(fraction).unwrap(), Mean)
    }

    type Reduced = (Vec<f32>, Vec<f32>, Selection);

    fn reduce(reducer: &mut dyn Reducer, layout: &Layout, input: &[f32]) -> Reduced {
        reduce_with(reducer, layout, input, true)
    }

    fn reduce_with(reducer: &mut dyn Reducer, layout: &Layout, input: &[f32], with_sent: bool) -> Reduced {
        let mut comm = Local::world(1).remove(0);
        let (mut average, mut sent, agreed_step) =
            (vec![9.0; input.len()], vec![9.0; input.len()], AgreedStep::default());
        let (slots, key) = (layout.slots(), Key::new(1));
        let wanted = with_sent.then_some(&mut sent[..]);
        let round = Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: wanted };
        let exchanged = reducer.exchange(round, &mut comm).unwrap();
        (average, sent, exchanged.selection)
    }

    #[test]
    fn a_group_is_one_vector_and_every_value_comes_back_to_its_place() {
        let layout = layout();
        let weights = || vec![(vec![0, 2], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
        let mut grouped = Grouped::new(&layout, Box::new(Dense), weights());
        let input = [1.0, 2.0, 8.0, 3.0, 0.1, 0.2, 4.0, 9.0, 5.0, 6.0, 0.3];
        let (average, sent, selection) = reduce(&mut grouped, &layout, &input);
        // The two largest values of both weights together, and the biases.
        assert_eq!(average, [0.0, 0.0, 8.0, 0.0, 0.1, 0.2, 0.0, 9.0, 0.0, 0.0, 0.3]);
        assert_eq!(sent, average);
        assert_eq!(selection, Selection::BySlot(vec![true, false, true, false]));
        // With all slots in one group, the result is that of the group's reducer alone.
        let all = vec![(vec![0, 1, 2, 3], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
        let (average, _, selection) = reduce(&mut Grouped::new(&layout, Box::new(Dense), all), &layout, &input);
        assert_eq!(average, reduce(&mut top_k(0.25), &layout, &input).0);
        assert_eq!(selection, Selection::Some);
    }

    #[test]
    fn only_slots_with_chosen_coordinates_lose_their_velocity() {
        let layout = layout();
        for with_sent in [true, false] {
            let weights = vec![(vec![0, 2], Box::new(top_k(0.25)) as Box<dyn Reducer>)];
            let grouped = Grouped::new(&layout, Box::new(Dense), weights);
            let mut corrected = MomentumCorrection::new(grouped, MomentumCorrectionConfig::default()).unwrap();
            let steps = [(); 3].map(|()| reduce_with(&mut corrected, &layout, &[1.0; 11], with_sent).0[10]);
            assert_eq!(steps, [1.0, 1.9, 2.71], "momentum SGD of the bias");
            let velocity = corrected.velocity();
            assert_eq!((velocity[10], velocity.iter().filter(|u| **u == 0.0).count()), (2.71, 2), "of weights sent");
        }
    }

    #[test]
    fn what_one_group_cannot_average_leaves_the_main_reducer_as_it_was() {
        let layout = Layout::new([("square", vec![5, 5]), ("few", vec![1])]);
        let outcomes = Local::run(2, |mut comm| {
            let dense: Box<dyn Reducer> = Box::new(Dense);
            let mut grouped = Grouped::new(&layout, Box::new(PowerSgd::new(1).unwrap()), vec![(vec![1], dense)]);
            let (mut input, mut average, agreed_step) = (vec![1.0; 26], vec![0.0; 26], AgreedStep::default());
            input[25] = f32::MAX;
            let (key, slots) = (Key::new(0), layout.slots());
            let round =
                Round { key, slots, agreed_step: &agreed_step, input: &input, average: &mut average, sent: None };
            let error = grouped.exchange(round, &mut comm).unwrap_err();
            let mut state = State::default();
            grouped.save(&mut state);
            Ok::<_, ReduceError>((error, state))
        });
        let mut fresh = State::default();
        Grouped::new(&layout, Box::new(PowerSgd::new(1).unwrap()), vec![]).save(&mut fresh);
        for (error, state) in outcomes.into_iter().map(Result::unwrap) {
            assert_eq!(error, ReduceError::Overflow { slot: "few".into() });
            assert_eq!(state, fresh);
        }
    }

    #[test]
    fn another_length_is_refused() {
        let mut grouped = Grouped::new(&layout(), Box::new(Dense), Vec::new());
        let (mut average, agreed_step) = ([0.0; 3], AgreedStep::default());
        let round = Round {
            key: Key::new(0),
            slots: &[],
            agreed_step: &agreed_step,
            input: &[0.0; 3],
            average: &mut average,
            sent: None,
        };
        let error = grouped.exchange(round, &mut Local::world(1).remove(0)).unwrap_err();
        assert_eq!(error, ReduceError::Length { expected: 11, got: 3 });
    }
}
