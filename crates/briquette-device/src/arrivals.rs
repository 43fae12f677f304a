//! Tensors of a gradient that arrive one by one during the backward pass.
//!
//! No value is read while the pass runs: a tensor with a value that is not finite is set to 0, and the host learns of it at the end. A few values of
//! each tensor are kept, to be compared with those of the optimizer's step.

use cubecl::prelude::*;

use crate::bits::magnitude;
use crate::error::DeviceError;
use crate::gradient::Gradient;
use crate::run::{Run, Vector};

/// Copies a tensor, and counts its values that are not finite.
#[cube(launch)]
pub(crate) fn gathered(x: &[f32], out: &mut [f32], bad: &[Atomic<u32>], slot: usize, start: usize) {
    let at = ABSOLUTE_POS;
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
pub(crate) fn sampled(x: &[u32], out: &mut [u32], start: usize, stride: usize, count: usize) {
    if ABSOLUTE_POS < count {
        out[start + ABSOLUTE_POS] = x[ABSOLUTE_POS * stride];
    }
}

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

    /// Queues the copy of a slot's tensor to its place, from value `start` on. If a value is not finite, all are set to 0.
    ///
    /// # Panics
    /// If the tensor ends behind the vector, or there is no such slot.
    pub fn put(&self, slot: usize, start: usize, tensor: &Vector) {
        let Arrivals { run, values, bad, .. } = self;
        assert!(start + tensor.len() <= values.len() && slot < bad.len(), "a tensor lies in its gradient");
        if !tensor.is_empty() {
            let (cubes, dim, len) = (|| run.cubes_for(tensor.len()), run.dim(), tensor.len());
            gathered::launch(run.launch(), cubes(), dim, tensor.arg(), values.arg(), bad.arg(), slot, start);
            refused::launch(run.launch(), cubes(), dim, values.arg(), bad.arg(), slot, start, len);
        }
    }

    /// Queues the copy of the values of a slot's tensor that are kept: every [`stride`](Self::stride)-th.
    ///
    /// # Panics
    /// If there is no such slot.
    pub fn sample(&self, slot: usize, tensor: &Vector) {
        let Arrivals { run, bad, samples, .. } = self;
        assert!(slot < bad.len(), "a slot of the gradient");
        let stride = Self::stride(tensor.len());
        let (start, count) = (Self::SAMPLES * slot, tensor.len().div_ceil(stride));
        if count > 0 {
            let (cubes, dim) = (run.cubes_for(count), run.dim());
            sampled::launch(run.launch(), cubes, dim, tensor.arg(), samples.arg(), start, stride, count);
        }
    }

    /// Waits for the tensors that have arrived. Returns the first slot with a value that is not finite, and the values that were kept:
    /// [`SAMPLES`](Self::SAMPLES) places for each slot.
    ///
    /// # Errors
    /// [`DeviceError::Failed`] if a kernel failed.
    pub fn read(&self) -> Result<(Option<usize>, Vec<f32>), DeviceError> {
        let read = self.run.read_words(&[&self.bad, &self.samples])?;
        let bad = read[0].iter().position(|count| *count != 0);
        Ok((bad, read[1].iter().map(|word| f32::from_bits(*word)).collect()))
    }
}
