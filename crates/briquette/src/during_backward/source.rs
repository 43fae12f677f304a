//! Source of a rank's gradient during the backward pass.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use briquette_core::error::DeviceError;
use briquette_core::reduce::{Arriving, DevicePart, DevicePlace};
use briquette_core::sync::Header;
use briquette_core::{Session, Slot};

use super::on_host::SAMPLES;
use super::storage::{Arrived, Checked, Gradients, Storage};
use crate::error::Error;

/// Messages from the rank's thread to its exchange.
#[cfg_attr(not(feature = "overlap-backward"), allow(dead_code))]
pub(crate) enum Message {
    /// A slot's gradient is complete, at this time.
    Gradient(usize, Arrived, Instant),
    /// The backward pass has ended.
    End(End),
    /// The step was abandoned.
    GivenUp,
}

/// Values known at the end of the backward pass.
pub(crate) struct End {
    pub(crate) gradients: Result<Gradients, Error>,
    /// The step header with all recorded values.
    pub(crate) header: Header,
    pub(crate) at: Instant,
}

/// The flat vector, filled as gradients arrive.
pub(crate) struct GradientSource {
    messages: Receiver<Message>,
    /// A message that was received but not processed.
    first: Option<Message>,
    slots: Vec<Slot>,
    storage: Storage,
    /// Set for each slot that is in the vector, or known to be absent.
    there: Vec<bool>,
    /// Set for each slot with a gradient.
    pub(crate) present: Vec<bool>,
    /// Slots in the order of arrival, with their times.
    pub(crate) arrived: Vec<(usize, Instant)>,
    /// The expected order of arrival.
    order: Vec<usize>,
    /// The first slot with a value that is not finite.
    pub(crate) bad_slot: Option<u32>,
    /// An error that ends the run.
    pub(crate) problem: Option<Error>,
    /// A slot whose gradient was changed after its arrival.
    pub(crate) replaced: Option<usize>,
    /// Set if no more messages follow.
    is_over: bool,
    pub(crate) header: Option<Header>,
    weight: f32,
    /// The start of the computation; `None` if the computation ended before the exchange began.
    began: Option<Instant>,
    /// The gradients of the step, to be compared with those that arrived, and whether it has any.
    given: Option<Gradients>,
    is_given: bool,
}

impl GradientSource {
    pub(crate) fn new(messages: Receiver<Message>, slots: &[Slot], order: Vec<usize>, storage: Storage) -> Self {
        let (there, present) = (vec![false; slots.len()], vec![false; slots.len()]);
        GradientSource {
            messages,
            first: None,
            slots: slots.to_vec(),
            storage,
            there,
            present,
            arrived: Vec::new(),
            order,
            bad_slot: None,
            problem: None,
            replaced: None,
            is_over: false,
            header: None,
            weight: 1.0,
            began: Some(Instant::now()),
            given: None,
            is_given: false,
        }
    }

    /// Waits until the backward pass has begun; returns false if the step was abandoned before.
    pub(crate) fn begins(&mut self, comm: &mut Session) -> bool {
        self.first = comm.idle(|| self.messages.recv().ok());
        matches!(self.first, Some(Message::Gradient(..) | Message::End(_)))
    }

    /// Marks the step as computed before the exchange began.
    #[must_use]
    pub(crate) fn after_computing(mut self) -> Self {
        self.began = None;
        self
    }

    /// Reports the share of the step, from 0 to 1, that was computed at this time.
    fn computed(&self, share: f64, at: Instant, comm: &mut Session) {
        if let Some(began) = self.began {
            comm.computed(share, at.saturating_duration_since(began));
        }
    }

    /// Sets the factor by which gradients are multiplied.
    pub(crate) fn weigh(&mut self, weight: f32) {
        self.weight = weight;
    }

    /// Waits for the end of the backward pass. Returns the header with all values known then, or `None` if the step was
    /// abandoned.
    pub(crate) fn end(&mut self, comm: &mut Session) -> Option<Header> {
        self.arrive(0..self.slots.len(), comm);
        // All slots may have arrived before the end message.
        while self.header.is_none() && self.receive(comm) {}
        if self.header.is_some()
            && let Err(error) = self.check()
        {
            self.problem.get_or_insert(error);
        }
        self.header
    }

    /// Finds values that are not finite on a device, and the first slot whose gradient at the step differs from the one that arrived, because it
    /// was clipped, scaled, accumulated or left out. If gradients were taken with the clone of the forward pass, they are empty, because Burn
    /// returns gradients of leaves only. Empty gradients are not compared.
    fn check(&mut self) -> Result<(), Error> {
        let Some(given) = self.given.take() else { return Ok(()) };
        let checked = self.storage.check(given, &self.slots)?;
        self.bad_slot = self.bad_slot.into_iter().chain(checked.bad_slot).min();
        if self.is_given {
            let came = self.arrived.iter().map(|(slot, _)| *slot).filter(|slot| self.slots[*slot].len() > 0);
            let mut came: Vec<usize> = came.collect();
            came.sort_unstable();
            self.replaced = replaced(&came, &checked);
        }
        Ok(())
    }

    /// Finishes the average on the device, of which the host's part is `average`.
    pub(crate) fn finish(&mut self, average: &[f32]) -> Result<(), DeviceError> {
        self.storage.finish(average)
    }

    /// A slot's path.
    pub(crate) fn path(&self, slot: usize) -> String {
        self.slots[slot].path().to_owned()
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.storage
    }

    pub(crate) fn into_storage(self) -> Storage {
        self.storage
    }

    /// Waits until these slots have arrived.
    fn arrive(&mut self, slots: Range<usize>, comm: &mut Session) {
        while self.there[slots.clone()].iter().any(|there| !there) {
            self.receive(comm);
        }
    }

    /// Waits until the slots in this range of values have arrived.
    fn arrive_in(&mut self, range: &Range<usize>, comm: &mut Session) {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        let last = self.slots.partition_point(|slot| slot.range().end <= range.end).max(first);
        self.arrive(first..last, comm);
    }

    /// Processes the next message; returns whether there was one.
    fn receive(&mut self, comm: &mut Session) -> bool {
        let mut next = || if self.is_over { None } else { comm.idle(|| self.messages.recv().ok()) };
        let message = self.first.take().or_else(&mut next);
        match message {
            Some(Message::Gradient(slot, gradient, at)) => {
                self.arrived.push((slot, at));
                // The forward pass takes a third of a step; each slot has an equal part of the rest.
                let share = (1.0 + 2.0 * self.arrived.len() as f64 / self.slots.len() as f64) / 3.0;
                self.computed(share, at, comm);
                self.put(slot, gradient);
                true
            }
            Some(Message::End(end)) => {
                self.computed(1.0, end.at, comm);
                self.header = Some(end.header);
                self.take(end.gradients);
                true
            }
            Some(Message::GivenUp) | None => {
                self.is_over = true;
                self.missing().into_iter().for_each(|slot| self.leave_out(slot));
                false
            }
        }
    }

    fn missing(&self) -> Vec<usize> {
        (0..self.slots.len()).filter(|slot| !self.there[*slot]).collect()
    }

    /// Takes the gradients of the step in the slots that did not arrive before.
    fn take(&mut self, gradients: Result<Gradients, Error>) {
        let mut gradients = match gradients {
            Ok(gradients) => Some(gradients),
            Err(error) => {
                self.problem.get_or_insert(error);
                None
            }
        };
        self.is_given = gradients.as_ref().is_some_and(Gradients::is_given);
        for slot in self.missing() {
            match gradients.as_mut().and_then(|gradients| gradients.take_late(slot)) {
                Some(gradient) => self.put(slot, gradient),
                None => self.leave_out(slot),
            }
        }
        self.given = gradients;
    }

    fn leave_out(&mut self, slot: usize) {
        self.there[slot] = true;
        self.storage.leave_out(self.slots[slot].range());
    }

    /// Stores a gradient. Values that are not finite become zeros, so that no rank waits for this one; at its end the step is
    /// refused.
    fn put(&mut self, slot: usize, gradient: Arrived) {
        (self.there[slot], self.present[slot]) = (true, true);
        match self.storage.put(slot, self.slots[slot].range(), gradient, self.weight) {
            Ok(true) => {}
            Ok(false) => {
                let slot = slot as u32;
                self.bad_slot = Some(self.bad_slot.map_or(slot, |bad| bad.min(slot)));
            }
            Err(error) => {
                self.problem.get_or_insert(error);
            }
        }
    }
}

/// Returns the first of the slots that arrived whose gradient was left out of the step or, if there is none, that has another one there.
fn replaced(came: &[usize], Checked { samples, given, .. }: &Checked) -> Option<usize> {
    let of = |slot: usize| given.get(slot).and_then(Option::as_ref);
    let differs = |slot: &usize| {
        let given = of(*slot)?;
        let came = &samples[SAMPLES * slot..][..given.len()];
        let scale = came.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let near = |(a, b): (&f32, &f32)| {
            (a - b).abs() <= 1e-5 * scale || a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
        };
        (!came.iter().zip(given).all(near)).then_some(*slot)
    };
    came.iter().copied().find(|slot| of(*slot).is_none()).or_else(|| came.iter().find_map(differs))
}

impl Arriving for GradientSource {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.arrive_in(&range, comm);
        self.storage.wait(range, comm)
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn on_device(&self) -> Option<DevicePlace> {
        self.storage.on_device()
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.arrive_in(&range, comm);
        self.storage.part(range)
    }
}
