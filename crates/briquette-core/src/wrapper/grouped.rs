//! Slot groups: each group of slots is exchanged by a separate reducer.
//!
//! **Why, and when not.** Layers differ: an embedding's gradient is mostly zeros, a norm's few values matter and cost nothing, a
//! convolution has low rank. One setting for all of them is a compromise. However, every group is a separate exchange with its own latency:
//! use three groups, not thirty.
//!
//! **Method.** The slots of a group are copied into one contiguous vector, in order, reduced by the group's reducer, and copied back. Slots
//! in no other group belong to the main group. A group that has all slots needs no copy.
//!
//! **On a device.** The slots of a vector on a [device](crate::seam::DeviceVector) are packed into a vector on the same device. A group's
//! reducer encodes and averages it there, or reads it: a dense group reads its few values, and no others. The packed vector is kept until the
//! contribution is subtracted.
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

mod group;
mod packed;

use std::fmt;
use std::ops::Range;

use self::group::Group;
use super::feed::Delivery;
use crate::error::ReduceError;
use crate::report::Report;
use crate::seam::{Arriving, CompleteVector, Exchanged, Reducer, Round, Selections, SentInput};
use crate::{Layout, Session, stateful};

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

    fn subtracts_on_device(&self) -> bool {
        [&self.main].into_iter().chain(&self.others).all(Group::subtracts_on_device)
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        let groups = [&mut self.main].into_iter().chain(&mut self.others);
        groups.fold(true, |finite, group| group.subtract_sent(input) & finite)
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
mod tests;
