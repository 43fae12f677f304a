//! Tensors of a gradient that arrive one by one during the backward pass.
//!
//! No value is read while the pass runs: a tensor with a value that is not finite is set to 0, and the host learns of it at the end. A few values of
//! each tensor are kept, to be compared with those of the optimizer's step.

use cubecl::prelude::*;

use crate::bits::magnitude;
use crate::error::DeviceError;
use crate::gradient::Gradient;
use crate::run::{Run, Vector};

/// Copies a tensor and its samples, and counts its values that are not finite.
#[cube(launch)]
pub(crate) fn gathered(
    x: &[f32],
    samples: &[u32],
    out: &mut [f32],
    kept: &mut [u32],
    bad: &[Atomic<u32>],
    slot: usize,
    start: usize,
) {
    let at = ABSOLUTE_POS;
    if at < samples.len() {
        kept[slot * samples.len() + at] = samples[at];
    }
    if at < x.len() {
        out[start + at] = x[at];
        if magnitude(x[at]) >= 0x7f80_0000u32 {
            bad[slot].fetch_add(1u32);
        }
    }
}

#[cube(launch)]
pub(crate) fn refused(out: &mut [u32], bad: &[u32], slot: usize, start: usize, count: usize) {
    if ABSOLUTE_POS < count {
        if bad[slot] != 0u32 {
            out[start + ABSOLUTE_POS] = 0u32;
        }
    }
}

#[cube(launch)]
pub(crate) fn sampled(x: &[u32], out: &mut [u32], stride: usize) {
    if ABSOLUTE_POS < out.len() {
        let at = ABSOLUTE_POS * stride;
        out[ABSOLUTE_POS] = 0u32;
        if at < x.len() {
            out[ABSOLUTE_POS] = x[at];
        }
    }
}

/// The first slot with a value that is not finite, the samples of all slots, and the values of other vectors.
pub type Arrived = (Option<usize>, Vec<f32>, Vec<Vec<f32>>);

/// Tensors that have arrived. Clones share the memory.
#[derive(Debug, Clone)]
pub struct Arrivals {
    run: Run,
    values: Vector,
    /// The number of values of each slot that are not finite.
    bad: Vector,
    samples: Vector,
}

impl Arrivals {
    /// The number of values of a slot that are kept.
    pub const SAMPLES: usize = 16;

    /// Returns the distance of the values that are kept of a tensor.
    pub fn stride(len: usize) -> usize {
        len.div_ceil(Self::SAMPLES).max(1)
    }

    /// Creates a gradient of `len` zeros, to which the tensors of this many slots arrive.
    pub fn new(run: &Run, len: usize, slots: usize) -> (Arrivals, Gradient) {
        let values = run.zeros(len);
        let [bad, samples] = [slots, Self::SAMPLES * slots].map(|words| run.zeros(words));
        (Arrivals { run: run.clone(), values: values.clone(), bad, samples }, Gradient::of(run, values))
    }

    /// Queues the copy of every [`stride`](Self::stride)-th value of a tensor to [`SAMPLES`](Self::SAMPLES) places, of which the last may be 0.
    pub fn sample(run: &Run, tensor: &Vector) -> Vector {
        let samples = run.empty(Self::SAMPLES);
        if tensor.is_empty() {
            crate::feed::clear(run, &samples);
        } else {
            let (cubes, stride) = (run.cubes_for(Self::SAMPLES), Self::stride(tensor.len()));
            sampled::launch(run.launch(), cubes, run.dim(), tensor.arg(), samples.arg(), stride);
        }
        samples
    }

    /// Queues the copy of a slot's tensor to its place, from value `start` on, and of its [samples](Self::sample). If a value is not finite, all are set
    /// to 0.
    ///
    /// # Panics
    /// If the tensor ends behind the vector, there is no such slot, or the number of samples is not [`SAMPLES`](Self::SAMPLES).
    pub fn put(&self, slot: usize, start: usize, tensor: &Vector, samples: &Vector) {
        let Arrivals { run, values, bad, samples: kept } = self;
        assert!(start + tensor.len() <= values.len() && slot < bad.len(), "a tensor lies in its gradient");
        assert_eq!(samples.len(), Self::SAMPLES, "samples of a tensor");
        if !tensor.is_empty() {
            let (cubes, dim, len) = (|values| run.cubes_for(values), run.dim(), tensor.len());
            let most = cubes(len.max(Self::SAMPLES));
            let [x, read, out, kept, count] = [tensor, samples, values, kept, bad].map(Vector::arg);
            gathered::launch(run.launch(), most, dim, x, read, out, kept, count, slot, start);
            refused::launch(run.launch(), cubes(len), dim, values.arg(), bad.arg(), slot, start, len);
        }
    }

    /// Waits for the tensors that have arrived. Returns the first slot with a value that is not finite, the samples of all slots, and the values
    /// of `others`.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn read(&self, others: &[&Vector]) -> Result<Arrived, DeviceError> {
        let vectors: Vec<&Vector> = [&self.bad, &self.samples].into_iter().chain(others.iter().copied()).collect();
        let mut read = self.run.read_words(&vectors)?.into_iter();
        let bad = read.next().and_then(|counts| counts.iter().position(|count| *count != 0));
        let mut read = read.map(|words| words.into_iter().map(f32::from_bits).collect());
        Ok((bad, read.next().unwrap_or_default(), read.collect()))
    }
}
