//! A rank's gradient while the backward pass computes it.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use briquette_core::reduce::Arriving;
use briquette_core::sync::Header;
use briquette_core::trace::TARGET;
use briquette_core::{Session, Slot};
use burn::tensor::{DType, Tensor};
use tracing::trace_span;

use crate::error::Error;
use crate::flat::copy_finite;

/// What the rank's thread tells its exchange.
#[cfg_attr(not(feature = "overlap-backward"), allow(dead_code))]
pub(crate) enum Message {
    /// A slot's gradient is complete, at this time.
    Gradient(usize, Tensor<1>, Instant),
    /// The backward pass has ended.
    End(End),
    /// The step will not be taken.
    GivenUp,
}

/// What is known when the backward pass has ended.
pub(crate) struct End {
    /// Each slot's gradient, where there is one: for those that did not come during the pass.
    pub(crate) gradients: Vec<Option<Tensor<1>>>,
    /// The step header with all that was recorded.
    pub(crate) header: Header,
    pub(crate) at: Instant,
}

/// The flat vector, as it fills.
pub(crate) struct Source {
    messages: Receiver<Message>,
    /// Received and not looked at.
    first: Option<Message>,
    slots: Vec<Slot>,
    flat: Vec<f32>,
    /// Slots that are in the vector, or known to be absent.
    there: Vec<bool>,
    /// Slots that had a gradient.
    pub(crate) present: Vec<bool>,
    /// In the order of arrival, and when.
    pub(crate) arrived: Vec<(usize, Instant)>,
    /// The order that is expected.
    order: Vec<usize>,
    /// The first slot with a value that is not finite.
    pub(crate) bad_slot: Option<u32>,
    /// What cannot be mended.
    pub(crate) problem: Option<Error>,
    pub(crate) header: Option<Header>,
    weight: f32,
    /// When computing began; nothing where it had ended before the exchange began.
    began: Option<Instant>,
    /// The local weight decay, and the parameters.
    decay: (f64, Vec<Tensor<1>>),
}

impl Source {
    pub(crate) fn new(
        messages: Receiver<Message>,
        slots: &[Slot],
        order: Vec<usize>,
        decay: (f64, Vec<Tensor<1>>),
        mut flat: Vec<f32>,
    ) -> Self {
        flat.resize(slots.last().map_or(0, |slot| slot.range().end), 0.0);
        let (there, present) = (vec![false; slots.len()], vec![false; slots.len()]);
        Source {
            messages,
            first: None,
            slots: slots.to_vec(),
            flat,
            there,
            present,
            arrived: Vec::new(),
            order,
            bad_slot: None,
            problem: None,
            header: None,
            weight: 1.0,
            began: Some(Instant::now()),
            decay,
        }
    }

    /// Waits until the backward pass has begun; not so where the step was given up before.
    pub(crate) fn begins(&mut self, comm: &mut Session) -> bool {
        self.first = comm.idle(|| self.messages.recv().ok());
        matches!(self.first, Some(Message::Gradient(..) | Message::End(_)))
    }

    /// The step was computed before the exchange began.
    #[must_use]
    pub(crate) fn after_computing(mut self) -> Self {
        self.began = None;
        self
    }

    /// So much of the step was computed by then, of 1.
    fn computed(&self, share: f64, at: Instant, comm: &mut Session) {
        if let Some(began) = self.began {
            comm.computed(share, at.saturating_duration_since(began));
        }
    }

    /// By what gradients are multiplied.
    pub(crate) fn weigh(&mut self, weight: f32) {
        self.weight = weight;
    }

    /// Waits for the end of the backward pass: the header with all that is known then, `None` where the step was given up.
    pub(crate) fn end(&mut self, comm: &mut Session) -> Option<Header> {
        let all = 0..self.flat.len();
        self.wait(all, comm);
        // Each slot may have come before the end did.
        while self.header.is_none() && self.receive(comm) {}
        self.header
    }

    pub(crate) fn into_storage(self) -> Vec<f32> {
        self.flat
    }

    /// The next message; whether there was one.
    fn receive(&mut self, comm: &mut Session) -> bool {
        let message = self.first.take().or_else(|| comm.idle(|| self.messages.recv().ok()));
        match message {
            Some(Message::Gradient(slot, gradient, at)) => {
                self.arrived.push((slot, at));
                // Of a step, a third is forward; each slot has an equal part of the rest.
                let share = (1.0 + 2.0 * self.arrived.len() as f64 / self.slots.len() as f64) / 3.0;
                self.computed(share, at, comm);
                self.put(slot, gradient);
                true
            }
            Some(Message::End(end)) => {
                self.computed(1.0, end.at, comm);
                self.header = Some(end.header);
                for (slot, gradient) in
                    end.gradients.into_iter().enumerate().filter(|(slot, _)| !self.there[*slot]).collect::<Vec<_>>()
                {
                    match gradient {
                        Some(gradient) => self.put(slot, gradient),
                        None => self.leave_out(slot),
                    }
                }
                true
            }
            Some(Message::GivenUp) | None => {
                let missing: Vec<usize> = (0..self.slots.len()).filter(|slot| !self.there[*slot]).collect();
                missing.into_iter().for_each(|slot| self.leave_out(slot));
                false
            }
        }
    }

    fn leave_out(&mut self, slot: usize) {
        self.flat[self.slots[slot].range()].fill(0.0);
        self.there[slot] = true;
    }

    /// Zeros take the place of what is not finite: the step is refused at its end, and no rank waits for this one until then.
    fn put(&mut self, slot: usize, gradient: Tensor<1>) {
        let place = self.slots[slot].range();
        (self.there[slot], self.present[slot]) = (true, true);
        match self.read(slot, gradient, place.clone()) {
            Ok(true) if self.weight == 1.0 => {}
            Ok(true) => self.flat[place].iter_mut().for_each(|value| *value *= self.weight),
            Ok(false) => {
                self.flat[place].fill(0.0);
                let slot = slot as u32;
                self.bad_slot = Some(self.bad_slot.map_or(slot, |bad| bad.min(slot)));
            }
            Err(error) => {
                self.flat[place].fill(0.0);
                self.problem.get_or_insert(error);
            }
        }
    }

    fn read(&mut self, slot: usize, gradient: Tensor<1>, place: Range<usize>) -> Result<bool, Error> {
        let _read = trace_span!(target: TARGET, "read", slot).entered();
        let (weight_decay, parameters) = &self.decay;
        let gradient = match parameters.get(slot) {
            Some(parameter) if *weight_decay != 0.0 => gradient + parameter.clone().mul_scalar(*weight_decay),
            _ => gradient,
        };
        let gradient = if gradient.dtype() == DType::F32 { gradient } else { gradient.cast(DType::F32) };
        let data = gradient.try_into_data().map_err(Error::device)?;
        Ok(copy_finite(data.as_slice().map_err(Error::device)?, &mut self.flat[place]))
    }
}

impl Arriving for Source {
    fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        let first = self.slots.partition_point(|slot| slot.range().start < range.start);
        let last = self.slots.partition_point(|slot| slot.range().end <= range.end).max(first);
        while self.there[first..last].iter().any(|there| !there) {
            self.receive(comm);
        }
        &self.flat[range]
    }

    fn order(&self) -> &[usize] {
        &self.order
    }
}
