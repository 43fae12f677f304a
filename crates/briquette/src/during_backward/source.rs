//! Source of a rank's gradient during the backward pass.

use std::ops::Range;
use std::sync::mpsc::Receiver;
use std::time::Instant;

use briquette_core::error::DeviceError;
use briquette_core::reduce::{Arriving, DevicePart, DevicePlace};
use briquette_core::sync::Header;
use briquette_core::trace::TARGET;
use briquette_core::{Session, Slot};
use burn::tensor::{DType, Tensor, s};
use tracing::trace_span;

#[cfg(feature = "device")]
use super::on_device::{DeviceGradient, Given, Placing};
use crate::error::Error;
use crate::flat::copy_finite;

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

/// A gradient that is complete.
#[cfg_attr(not(feature = "overlap-backward"), allow(dead_code))]
pub(crate) enum Arrived {
    Tensor(Tensor<1>),
    /// It is in its place in the flat vector, on the device.
    #[cfg(feature = "device")]
    InPlace(Result<(), Error>),
}

/// Local weight decay: its factor, and the parameters.
#[derive(Clone, Default)]
pub(crate) struct Decay {
    pub(crate) factor: f64,
    pub(crate) parameters: Vec<Tensor<1>>,
}

impl Decay {
    /// Returns what is added to a slot's gradient, if anything is.
    pub(super) fn of(&self, slot: usize) -> Option<Tensor<1>> {
        let parameter = self.parameters.get(slot).filter(|_| self.factor != 0.0)?;
        Some(parameter.clone().mul_scalar(self.factor))
    }
}

/// Makes a message of a slot's gradient.
pub(crate) type Deliver = Box<dyn Fn(usize, Tensor<1>) -> Arrived + Send + Sync>;

/// The memory of the flat vector.
pub(crate) enum Storage {
    Host(Vec<f32>),
    #[cfg(feature = "device")]
    Device(Box<DeviceGradient>),
}

impl Storage {
    #[cfg(feature = "device")]
    pub(crate) fn placing(&self) -> Option<Placing> {
        match self {
            Storage::Host(_) => None,
            Storage::Device(gradient) => Some(gradient.placing().clone()),
        }
    }

    /// Returns the function that is called by the thread that computes a gradient.
    pub(crate) fn deliver(&self) -> Deliver {
        match self {
            Storage::Host(_) => Box::new(|_, gradient| Arrived::Tensor(gradient)),
            #[cfg(feature = "device")]
            Storage::Device(gradient) => {
                let placing = gradient.placing().clone();
                Box::new(move |slot, gradient| Arrived::InPlace(placing.place(slot, gradient)))
            }
        }
    }
}

/// The gradients of the step, by slot.
pub(crate) enum Gradients {
    Tensors(Vec<Option<Tensor<1>>>),
    #[cfg(feature = "device")]
    OnDevice(Result<Given, Error>),
}

/// Values known at the end of the backward pass.
pub(crate) struct End {
    pub(crate) gradients: Gradients,
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
    decay: Decay,
    /// If the step has gradients: those in the slots that arrived before, to be compared.
    given: Option<Vec<Option<Tensor<1>>>>,
    #[cfg(feature = "device")]
    given_on_device: Option<Vec<Option<briquette_device::Vector>>>,
}

impl GradientSource {
    pub(crate) fn new(
        messages: Receiver<Message>,
        slots: &[Slot],
        order: Vec<usize>,
        decay: Decay,
        mut storage: Storage,
    ) -> Self {
        match &mut storage {
            Storage::Host(flat) => flat.resize(slots.last().map_or(0, |slot| slot.range().end), 0.0),
            #[cfg(feature = "device")]
            Storage::Device(_) => {}
        }
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
            samples: vec![0.0; SAMPLES * slots.len()],
            replaced: None,
            is_over: false,
            header: None,
            weight: 1.0,
            began: Some(Instant::now()),
            decay,
            given: None,
            #[cfg(feature = "device")]
            given_on_device: None,
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

    /// Finds values that are not finite on a device, and gradients that differ from those of the step.
    fn check(&mut self) -> Result<(), Error> {
        #[cfg(feature = "device")]
        if let Storage::Device(gradient) = &self.storage {
            let given = self.given_on_device.take();
            let vectors: Vec<_> = given.iter().flatten().flatten().collect();
            let (bad, samples, values) = gradient.check(&vectors)?;
            (self.bad_slot, self.samples) = (self.bad_slot.into_iter().chain(bad).min(), samples);
            let mut values = values.into_iter();
            if let Some(given) = given {
                let given: Vec<_> = given.into_iter().map(|given| given.and_then(|_| values.next())).collect();
                self.compare(&given);
            }
            return Ok(());
        }
        let Some(given) = self.given.take() else { return Ok(()) };
        let came = self.came();
        let samples: Vec<Tensor<1>> = came.iter().filter_map(|slot| given[*slot].as_ref()).map(sample).collect();
        let mut read = vec![None; self.slots.len()];
        if !samples.is_empty() {
            let data = Tensor::cat(samples, 0).try_into_data().map_err(Error::device)?;
            let mut rest = data.as_slice::<f32>().map_err(Error::device)?;
            for slot in came.into_iter().filter(|slot| given[*slot].is_some()) {
                let (samples, others) = rest.split_at(self.slots[slot].len().div_ceil(stride(self.slots[slot].len())));
                (read[slot], rest) = (Some(samples.to_vec()), others);
            }
        }
        self.compare(&read);
        Ok(())
    }

    /// Returns the slots that arrived during the pass and have values, in order.
    fn came(&self) -> Vec<usize> {
        let came = self.arrived.iter().map(|(slot, _)| *slot).filter(|slot| self.slots[*slot].len() > 0);
        let mut came: Vec<usize> = came.collect();
        came.sort_unstable();
        came
    }

    /// Finishes the average on the device, of which the host's part is `average`.
    pub(crate) fn finish(&mut self, average: &[f32]) -> Result<(), DeviceError> {
        match &mut self.storage {
            Storage::Host(_) => {
                let _ = average;
                Ok(())
            }
            #[cfg(feature = "device")]
            Storage::Device(gradient) => gradient.finish(average),
        }
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
                match end.gradients {
                    Gradients::Tensors(gradients) => self.take_tensors(gradients),
                    #[cfg(feature = "device")]
                    Gradients::OnDevice(given) => self.take_given(given),
                }
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

    fn take_tensors(&mut self, mut gradients: Vec<Option<Tensor<1>>>) {
        let is_given = gradients.iter().any(Option::is_some);
        gradients.resize(self.slots.len(), None);
        for slot in self.missing() {
            match gradients[slot].take() {
                Some(gradient) => self.put(slot, Arrived::Tensor(gradient)),
                None => self.leave_out(slot),
            }
        }
        self.given = is_given.then_some(gradients);
    }

    #[cfg(feature = "device")]
    fn take_given(&mut self, given: Result<Given, Error>) {
        let Given { late, samples } = given.unwrap_or_else(|error| {
            self.problem.get_or_insert(error);
            Given { late: Vec::new(), samples: None }
        });
        for slot in self.missing() {
            match late.get(slot) {
                Some(true) => self.put(slot, Arrived::InPlace(Ok(()))),
                _ => self.leave_out(slot),
            }
        }
        self.given_on_device = samples;
    }

    fn leave_out(&mut self, slot: usize) {
        self.there[slot] = true;
        match &mut self.storage {
            Storage::Host(flat) => flat[self.slots[slot].range()].fill(0.0),
            // Its values are zeros from the beginning.
            #[cfg(feature = "device")]
            Storage::Device(_) => {}
        }
    }

    /// Stores a gradient. Values that are not finite become zeros, so that no rank waits for this one; at its end the step is
    /// refused.
    fn put(&mut self, slot: usize, gradient: Arrived) {
        let (place, weight) = (self.slots[slot].range(), self.weight);
        (self.there[slot], self.present[slot]) = (true, true);
        let put = match (&mut self.storage, gradient) {
            (Storage::Host(flat), Arrived::Tensor(gradient)) => {
                let read = Read { slot, decay: &self.decay, samples: &mut self.samples[SAMPLES * slot..][..SAMPLES] };
                let flat = &mut flat[place];
                let finite = read.to(gradient, flat);
                match &finite {
                    Ok(true) if weight == 1.0 => {}
                    Ok(true) => flat.iter_mut().for_each(|value| *value *= weight),
                    Ok(false) | Err(_) => flat.fill(0.0),
                }
                finite
            }
            #[cfg(feature = "device")]
            (Storage::Device(device), gradient) => {
                let placed = match gradient {
                    Arrived::Tensor(_) => unreachable!("a gradient on a device is put in its place there"),
                    Arrived::InPlace(placed) => placed,
                };
                if weight != 1.0 {
                    device.scale(weight, place);
                }
                placed.map(|()| true)
            }
            #[cfg(feature = "device")]
            (Storage::Host(_), Arrived::InPlace(_)) => {
                unreachable!("only a gradient on a device is put in its place there")
            }
        };
        match put {
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

    /// Finds the first slot whose gradient at the step differs from the one that arrived, because it was clipped, scaled,
    /// accumulated or left out, given the samples of the step. If gradients were taken with the clone of the forward pass, they are empty, because
    /// Burn returns gradients of leaves only. Empty gradients are not compared.
    fn compare(&mut self, given: &[Option<Vec<f32>>]) {
        let is_replaced = |slot: &usize| {
            let Some(given) = &given[*slot] else { return true };
            let came = &self.samples[SAMPLES * slot..][..given.len()];
            let scale = came.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
            let near = |(a, b): (&f32, &f32)| {
                (a - b).abs() <= 1e-5 * scale || a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
            };
            !came.iter().zip(given).all(near)
        };
        let came = self.came();
        // A gradient that was left out comes first.
        let left_out = came.iter().copied().find(|slot| given[*slot].is_none());
        self.replaced = left_out.or_else(|| came.into_iter().find(is_replaced));
    }
}

/// Reading of a gradient to the host.
struct Read<'a> {
    slot: usize,
    decay: &'a Decay,
    samples: &'a mut [f32],
}

impl Read<'_> {
    /// Reads a gradient to its place, and returns whether it is finite.
    fn to(self, gradient: Tensor<1>, flat: &mut [f32]) -> Result<bool, Error> {
        let Read { slot, decay, samples } = self;
        let _read = trace_span!(target: TARGET, "read", slot).entered();
        let decay = decay.of(slot);
        // If the gradient is read unchanged, the samples are taken from the values on the host.
        let sampled = gradient.dtype() == DType::F32 && decay.is_none();
        if !sampled {
            let data = sample(&gradient).try_into_data().map_err(Error::device)?;
            let values = data.as_slice::<f32>().map_err(Error::device)?;
            samples[..values.len()].copy_from_slice(values);
        }
        let gradient = if let Some(decay) = decay { gradient + decay } else { gradient };
        let gradient = if gradient.dtype() == DType::F32 { gradient } else { gradient.cast(DType::F32) };
        let data = gradient.try_into_data().map_err(Error::device)?;
        let values = data.as_slice().map_err(Error::device)?;
        if sampled {
            values.iter().step_by(stride(values.len())).take(SAMPLES).zip(samples).for_each(|(from, to)| *to = *from);
        }
        Ok(copy_finite(values, flat))
    }
}

/// The number of values of a slot that are compared.
const SAMPLES: usize = 16;
#[cfg(feature = "device")]
const _: () = assert!(SAMPLES == briquette_device::Arrivals::SAMPLES);

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
        self.arrive_in(&range, comm);
        match &mut self.storage {
            Storage::Host(flat) => &flat[range],
            #[cfg(feature = "device")]
            Storage::Device(gradient) => gradient.wait(range, comm),
        }
    }

    fn order(&self) -> &[usize] {
        &self.order
    }

    fn on_device(&self) -> Option<DevicePlace> {
        match &self.storage {
            Storage::Host(_) => None,
            #[cfg(feature = "device")]
            Storage::Device(gradient) => Some(gradient.on_device()),
        }
    }

    fn device(&mut self, range: Range<usize>, comm: &mut Session) -> Option<DevicePart<'_>> {
        self.arrive_in(&range, comm);
        match &mut self.storage {
            Storage::Host(_) => None,
            #[cfg(feature = "device")]
            Storage::Device(gradient) => Some(gradient.part(range)),
        }
    }
}
