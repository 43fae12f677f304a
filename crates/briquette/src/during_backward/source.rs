//! Source of a rank's gradient during the backward pass.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use briquette_core::reduce::Arriving;
use briquette_core::sync::Header;
use briquette_core::trace::TARGET;
use briquette_core::{Session, Slot};
use burn::tensor::{DType, Tensor, s};
use tracing::trace_span;

use crate::error::Error;
use crate::flat::copy_finite;

/// Messages from the rank's thread to its exchange.
#[cfg_attr(not(feature = "overlap-backward"), allow(dead_code))]
pub(crate) enum Message {
    /// A slot's gradient is complete, at this time.
    Gradient(usize, Tensor<1>, Instant),
    /// The backward pass has ended.
    End(End),
    /// The step was abandoned.
    GivenUp,
}

/// Values known at the end of the backward pass.
pub(crate) struct End {
    /// The gradient of each slot that did not arrive during the pass, if it has one.
    pub(crate) gradients: Vec<Option<Tensor<1>>>,
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
    flat: Vec<f32>,
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
    /// Sampled values of each slot that arrived, to be compared with the gradients of the step.
    samples: Vec<f32>,
    /// A slot whose gradient was changed after its arrival.
    pub(crate) replaced: Option<usize>,
    /// Set if no more messages follow.
    is_over: bool,
    pub(crate) header: Option<Header>,
    weight: f32,
    /// The start of the computation; `None` if the computation ended before the exchange began.
    began: Option<Instant>,
    /// The local weight decay, and the parameters.
    decay: (f64, Vec<Tensor<1>>),
}

impl GradientSource {
    pub(crate) fn new(
        messages: Receiver<Message>,
        slots: &[Slot],
        order: Vec<usize>,
        decay: (f64, Vec<Tensor<1>>),
        mut flat: Vec<f32>,
    ) -> Self {
        flat.resize(slots.last().map_or(0, |slot| slot.range().end), 0.0);
        let (there, present) = (vec![false; slots.len()], vec![false; slots.len()]);
        GradientSource {
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
            samples: vec![0.0; SAMPLES * slots.len()],
            replaced: None,
            is_over: false,
            header: None,
            weight: 1.0,
            began: Some(Instant::now()),
            decay,
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
        let all = 0..self.flat.len();
        self.wait(all, comm);
        // All slots may have arrived before the end message.
        while self.header.is_none() && self.receive(comm) {}
        self.header
    }

    /// A slot's path.
    pub(crate) fn path(&self, slot: usize) -> String {
        self.slots[slot].path().to_owned()
    }

    pub(crate) fn into_storage(self) -> Vec<f32> {
        self.flat
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
                if let Err(error) = self.compare(&end.gradients) {
                    self.problem.get_or_insert(error);
                }
                let mut gradients = end.gradients;
                gradients.resize(self.slots.len(), None);
                for (slot, gradient) in gradients.into_iter().enumerate() {
                    match gradient {
                        _ if self.there[slot] => {}
                        Some(gradient) => self.put(slot, gradient),
                        None => self.leave_out(slot),
                    }
                }
                true
            }
            Some(Message::GivenUp) | None => {
                self.is_over = true;
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

    /// Stores a gradient. Values that are not finite become zeros, so that no rank waits for this one; at its end the step is
    /// refused.
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
        // If the gradient is read unchanged, the samples are taken from the values on the host.
        let sampled = gradient.dtype() == DType::F32 && self.decay.0 == 0.0;
        if !sampled {
            self.sample(slot, &sample(&gradient))?;
        }
        let (weight_decay, parameters) = &self.decay;
        let gradient = match parameters.get(slot) {
            Some(parameter) if *weight_decay != 0.0 => gradient + parameter.clone().mul_scalar(*weight_decay),
            _ => gradient,
        };
        let gradient = if gradient.dtype() == DType::F32 { gradient } else { gradient.cast(DType::F32) };
        let data = gradient.try_into_data().map_err(Error::device)?;
        let values = data.as_slice().map_err(Error::device)?;
        if sampled {
            let samples = self.samples[SAMPLES * slot..].iter_mut();
            values.iter().step_by(stride(values.len())).take(SAMPLES).zip(samples).for_each(|(from, to)| *to = *from);
        }
        Ok(copy_finite(values, &mut self.flat[place]))
    }

    fn sample(&mut self, slot: usize, values: &Tensor<1>) -> Result<(), Error> {
        let data = values.clone().try_into_data().map_err(Error::device)?;
        let values = data.as_slice::<f32>().map_err(Error::device)?;
        self.samples[SAMPLES * slot..][..values.len()].copy_from_slice(values);
        Ok(())
    }

    /// Finds the first slot whose gradient at the step differs from the one that arrived, because it was clipped, scaled,
    /// accumulated or left out. If gradients were taken with the clone of the forward pass, they are empty, because Burn returns
    /// gradients of leaves only. Empty gradients are not compared.
    fn compare(&mut self, gradients: &[Option<Tensor<1>>]) -> Result<(), Error> {
        if gradients.iter().all(Option::is_none) {
            return Ok(());
        }
        let came: Vec<usize> =
            (0..self.slots.len()).filter(|slot| self.there[*slot] && self.slots[*slot].len() > 0).collect();
        let given = |slot: &usize| gradients.get(*slot).and_then(Option::as_ref);
        self.replaced = came.iter().copied().find(|slot| given(slot).is_none());
        let samples: Vec<Tensor<1>> = came.iter().filter_map(given).map(sample).collect();
        if self.replaced.is_some() || samples.is_empty() {
            return Ok(());
        }
        let data = Tensor::cat(samples, 0).try_into_data().map_err(Error::device)?;
        let mut rest = data.as_slice::<f32>().map_err(Error::device)?;
        for slot in came {
            let (given, others) = rest.split_at(self.slots[slot].len().div_ceil(stride(self.slots[slot].len())));
            rest = others;
            let came = &self.samples[SAMPLES * slot..][..given.len()];
            let scale = came.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            let near = |(a, b): (&f32, &f32)| {
                (a - b).abs() <= 1e-5 * scale || a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
            };
            if !came.iter().zip(given).all(near) {
                self.replaced = Some(slot);
                break;
            }
        }
        Ok(())
    }
}

/// The number of values of a slot that are compared.
const SAMPLES: usize = 16;

fn stride(len: usize) -> usize {
    len.div_ceil(SAMPLES).max(1)
}

/// Evenly spaced values of the vector, as `f32`.
fn sample(vector: &Tensor<1>) -> Tensor<1> {
    let len = vector.dims()[0];
    let sample = vector.clone().slice(s![..;stride(len) as isize]);
    if sample.dtype() == DType::F32 { sample } else { sample.cast(DType::F32) }
}

impl Arriving for GradientSource {
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
