//! Gradients that are read to the host as they arrive.

use std::ops::Range;

use briquette_core::Slot;
use briquette_core::trace::TARGET;
use burn::tensor::{DType, Tensor, s};
use tracing::trace_span;

use super::storage::Decay;
use crate::error::Error;
use crate::flat::copy_finite;

/// The number of values of a slot that are compared.
pub(super) const SAMPLES: usize = 16;
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

/// Reads samples of some gradients at once.
pub(super) fn read_samples(gradients: &[Option<Tensor<1>>], slots: &[Slot]) -> Result<Vec<Option<Vec<f32>>>, Error> {
    let of_values = |(gradient, slot): (&Option<Tensor<1>>, &Slot)| gradient.clone().filter(|_| slot.len() > 0);
    let gradients: Vec<Option<Tensor<1>>> = gradients.iter().zip(slots).map(of_values).collect();
    let samples: Vec<Tensor<1>> = gradients.iter().flatten().map(sample).collect();
    if samples.is_empty() {
        return Ok(vec![None; slots.len()]);
    }
    let lengths: Vec<usize> = samples.iter().map(|sample| sample.dims()[0]).collect();
    let data = Tensor::cat(samples, 0).try_into_data().map_err(Error::device)?;
    let (mut rest, mut lengths) = (data.as_slice::<f32>().map_err(Error::device)?, lengths.into_iter());
    let mut next = || {
        let (samples, others) = rest.split_at(lengths.next()?);
        rest = others;
        Some(samples.to_vec())
    };
    Ok(gradients.iter().map(|gradient| gradient.as_ref().and_then(|_| next())).collect())
}

/// The flat vector on the host.
pub(crate) struct HostGradient {
    flat: Vec<f32>,
    /// Samples of each slot that has arrived.
    samples: Vec<f32>,
    decay: Decay,
}

impl HostGradient {
    pub(crate) fn new(mut flat: Vec<f32>, slots: &[Slot], decay: Decay) -> Self {
        flat.resize(slots.last().map_or(0, |slot| slot.range().end), 0.0);
        HostGradient { flat, samples: vec![0.0; SAMPLES * slots.len()], decay }
    }

    /// Reads a slot's gradient to its place, multiplied by `weight`, and returns whether it is finite. If it is not, or cannot be read, all
    /// values are zeros.
    pub(super) fn put(
        &mut self,
        slot: usize,
        place: Range<usize>,
        gradient: Tensor<1>,
        weight: f32,
    ) -> Result<bool, Error> {
        let read = self.read(slot, place.clone(), gradient);
        match &read {
            Ok(true) if weight == 1.0 => {}
            Ok(true) => self.flat[place].iter_mut().for_each(|value| *value *= weight),
            Ok(false) | Err(_) => self.clear(place),
        }
        read
    }

    fn read(&mut self, slot: usize, place: Range<usize>, gradient: Tensor<1>) -> Result<bool, Error> {
        let _read = trace_span!(target: TARGET, "read", slot).entered();
        let (decay, samples) = (self.decay.of(slot), &mut self.samples[SAMPLES * slot..][..SAMPLES]);
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
        Ok(copy_finite(values, &mut self.flat[place]))
    }

    pub(super) fn clear(&mut self, place: Range<usize>) {
        self.flat[place].fill(0.0);
    }

    pub(super) fn values(&self, range: Range<usize>) -> &[f32] {
        &self.flat[range]
    }

    pub(super) fn samples(&self) -> Vec<f32> {
        self.samples.clone()
    }

    pub(crate) fn into_flat(self) -> Vec<f32> {
        self.flat
    }
}
