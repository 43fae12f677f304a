//! Gradients that arrive on their device.
//!
//! The exchange has a queue of its own, for which the kernels of the backward pass never wait. The thread that computes a gradient queues its
//! copy as soon as the gradient is complete: the copy waits for the kernels that are queued by then, and for none that the pass queues later.
//!
//! CubeCL lets a queue wait for another one if memory was *allocated* there since the last wait; a write in place is not enough. Each copy therefore
//! also reads a few values from memory that was just allocated and written behind the gradient.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use briquette_core::error::DeviceError;
use briquette_core::reduce::{DeviceCopies, DevicePart, DevicePlace, DeviceVector};
use briquette_core::{Session, Slot};
use briquette_device::{Arrivals, Run, Vector, copy_to};
use burn::tensor::{DType, StreamId, Tensor};

use super::storage::{Checked, Decay};
use crate::error::Error;
use crate::flat;

/// The queue of the exchanges of a rank.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    run: Run,
    stream: StreamId,
}

impl Queue {
    pub(crate) fn new(run: Run) -> Self {
        Queue { run, stream: StreamId::allocate() }
    }

    /// Runs what `work` launches in the order of this queue.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        self.stream.executes(work)
    }
}

/// Copies tensors to their places as they arrive, until the step's gradients are given. Clones share their state.
#[derive(Clone)]
pub(crate) struct Placing(Arc<Mutex<Option<Open>>>);

struct Open {
    queue: Queue,
    arrivals: Arrivals,
    starts: Vec<usize>,
    decay: Decay,
    is_placed: Vec<bool>,
}

/// The gradients of a step on the device.
#[derive(Default)]
pub(crate) struct Given {
    /// Set for each slot with a gradient that did not arrive before.
    pub(crate) late: Vec<bool>,
    /// Samples of those in the slots that arrived before.
    pub(crate) samples: Vec<Option<Vector>>,
    /// Set if the step has gradients.
    pub(crate) is_given: bool,
}

impl Placing {
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues the copy of a slot's gradient, with local weight decay. Does nothing if it has arrived already, or the step's gradients were given.
    pub(crate) fn place(&self, slot: usize, gradient: Tensor<1>) -> Result<(), Error> {
        self.lock().as_mut().map_or(Ok(()), |open| open.place(slot, gradient))
    }

    /// Queues the copies of the gradients that have not arrived, and ends the arrivals.
    pub(crate) fn give(&self, gradients: Vec<Option<Tensor<1>>>) -> Result<Given, Error> {
        let Some(mut open) = self.lock().take() else { return Ok(Given::default()) };
        let is_given = gradients.iter().any(Option::is_some);
        let (mut late, mut samples) = (vec![false; open.starts.len()], vec![None; open.starts.len()]);
        for (slot, gradient) in gradients.into_iter().enumerate() {
            match gradient {
                Some(gradient) if open.is_placed[slot] => samples[slot] = Some(open.sample(&memory(gradient)?)),
                Some(gradient) => {
                    open.place(slot, gradient)?;
                    late[slot] = true;
                }
                None => {}
            }
        }
        Ok(Given { late, samples, is_given })
    }

    /// Ends the arrivals: a gradient that comes later is not of this step.
    pub(crate) fn end(&self) {
        drop(self.lock().take());
    }
}

impl Open {
    fn place(&mut self, slot: usize, gradient: Tensor<1>) -> Result<(), Error> {
        if std::mem::replace(&mut self.is_placed[slot], true) || gradient.dims() == [0] {
            return Ok(());
        }
        // Burn's operations, and the samples, stay on the queue of this thread.
        let raw = memory(gradient.clone())?;
        let decayed = self.decay.of(slot).map_or_else(|| Ok(raw.clone()), |decay| memory(gradient + decay))?;
        let samples = self.sample(&raw);
        self.queue.run(|| self.arrivals.put(slot, self.starts[slot], &decayed, &samples));
        Ok(())
    }

    fn sample(&self, gradient: &Vector) -> Vector {
        Arrivals::sample(&self.queue.run, gradient)
    }
}

/// Returns the memory of a tensor, as f32 values.
fn memory(tensor: Tensor<1>) -> Result<Vector, Error> {
    flat::memory_on_device(if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(DType::F32) })
}

/// A gradient on its device, with the state of its exchange.
pub(crate) struct DeviceGradient {
    queue: Queue,
    placing: Placing,
    arrivals: Arrivals,
    vector: briquette_device::Gradient,
    copies: DeviceCopies,
}

impl DeviceGradient {
    pub(crate) fn new(queue: &Queue, slots: &[Slot], decay: Decay) -> Self {
        let len = slots.last().map_or(0, |slot| slot.range().end);
        let (arrivals, vector) = queue.run(|| Arrivals::new(&queue.run, len, slots.len()));
        let starts = slots.iter().map(|slot| slot.range().start).collect();
        let is_placed = vec![false; slots.len()];
        let open = Open { queue: queue.clone(), arrivals: arrivals.clone(), starts, decay, is_placed };
        let placing = Placing(Arc::new(Mutex::new(Some(open))));
        DeviceGradient { queue: queue.clone(), placing, arrivals, vector, copies: DeviceCopies::default() }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(crate) fn placing(&self) -> &Placing {
        &self.placing
    }

    pub(crate) fn scale(&self, weight: f32, range: Range<usize>) {
        self.vector.scale_range(weight, range);
    }

    /// Waits for all tensors, and reads the samples.
    pub(super) fn check(&self, Given { samples: given, .. }: Given) -> Result<Checked, Error> {
        let vectors: Vec<&Vector> = given.iter().flatten().collect();
        let (bad, samples, values) = self.arrivals.read(&vectors).map_err(Error::device)?;
        let mut values = values.into_iter();
        let given = given.iter().map(|given| given.as_ref().and_then(|_| values.next())).collect();
        Ok(Checked { bad_slot: bad.map(|slot| slot as u32), samples, given })
    }

    pub(crate) fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        self.copies.wait(&mut self.vector, range, comm)
    }

    pub(crate) fn on_device(&self) -> DevicePlace {
        DevicePlace { len: self.vector.len(), is_complete: false }
    }

    pub(crate) fn part(&mut self, range: Range<usize>) -> DevicePart<'_> {
        self.copies.part(&mut self.vector, range)
    }

    pub(crate) fn finish(&mut self, average: &[f32]) -> Result<(), DeviceError> {
        self.copies.finish(&mut self.vector, average)
    }

    pub(crate) fn vector(&mut self) -> &mut briquette_device::Gradient {
        &mut self.vector
    }

    /// Returns the device, and a copy of the average on the queue of this thread: the kernels of an optimizer need not wait for another queue, one
    /// by one.
    pub(crate) fn into_average(self) -> (Run, Vector) {
        let (run, average) = (self.queue.run, self.vector.into_average());
        let copy = run.empty(average.len());
        copy_to(&run, &average, 0..average.len(), &copy, 0);
        (run, copy)
    }
}
