//! Gradients that arrive on their device.
//!
//! The exchange has a queue of its own, for which the kernels of the backward pass never wait. The thread that computes a gradient queues its
//! copy as soon as the gradient is complete: the copy waits for the kernels that are queued by then, and for none that the pass queues later.

use std::ops::Range;

use briquette_core::error::DeviceError;
use briquette_core::reduce::{DeviceCopies, DevicePart, DevicePlace, DeviceVector};
use briquette_core::{Session, Slot};
use briquette_device::{Arrivals, Run, Vector};
use burn::tensor::{DType, StreamId, Tensor};

use super::source::Decay;
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

/// Copies tensors to their places as they arrive.
#[derive(Clone)]
pub(crate) struct Placing {
    queue: Queue,
    arrivals: Arrivals,
    starts: Vec<usize>,
    decay: Decay,
}

impl Placing {
    /// Queues the copy of a slot's gradient, with local weight decay.
    pub(crate) fn place(&self, slot: usize, gradient: Tensor<1>) -> Result<(), Error> {
        if gradient.dims() == [0] {
            return Ok(());
        }
        // Burn's operations stay on the queue of this thread.
        let memory = |tensor: Tensor<1>| {
            flat::memory_on_device(if tensor.dtype() == DType::F32 { tensor } else { tensor.cast(DType::F32) })
        };
        let raw = memory(gradient.clone())?;
        let decayed = self.decay.of(slot).map_or_else(|| Ok(raw.clone()), |decay| memory(gradient + decay))?;
        self.queue.run(|| {
            self.arrivals.sample(slot, &raw);
            self.arrivals.put(slot, self.starts[slot], &decayed);
        });
        Ok(())
    }
}

/// A gradient on its device, with the state of its exchange.
pub(crate) struct DeviceGradient {
    placing: Placing,
    vector: briquette_device::Gradient,
    copies: DeviceCopies,
}

impl DeviceGradient {
    pub(crate) fn new(queue: &Queue, slots: &[Slot], decay: Decay) -> Self {
        let len = slots.last().map_or(0, |slot| slot.range().end);
        let (arrivals, vector) = queue.run(|| Arrivals::new(&queue.run, len, slots.len()));
        let starts = slots.iter().map(|slot| slot.range().start).collect();
        let placing = Placing { queue: queue.clone(), arrivals, starts, decay };
        DeviceGradient { placing, vector, copies: DeviceCopies::default() }
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.placing.queue
    }

    pub(crate) fn placing(&self) -> &Placing {
        &self.placing
    }

    pub(crate) fn scale(&self, weight: f32, range: Range<usize>) {
        self.vector.scale_range(weight, range);
    }

    /// Waits for all tensors. Returns the first slot with a value that is not finite, and the values of each slot that are compared.
    pub(crate) fn check(&self) -> Result<(Option<u32>, Vec<f32>), Error> {
        let (bad, samples) = self.placing.arrivals.read().map_err(Error::device)?;
        Ok((bad.map(|slot| slot as u32), samples))
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

    /// Returns the device and the average.
    pub(crate) fn into_average(self) -> (Run, Vector) {
        (self.placing.queue.run, self.vector.into_average())
    }
}
