//! Gradient of a step, on the host or on a device.

use crate::Session;
use crate::Slot;
use crate::error::{DeviceError, ReduceError, SyncError};
use crate::seam::{Context, DeviceInput, DeviceVector, SyncStrategy};

/// A gradient to exchange, which the average replaces.
#[non_exhaustive]
pub enum Gradient<'a> {
    /// In host memory.
    Host(&'a mut Vec<f32>),
    /// In device memory. The average is the vector's [average](DeviceVector::average); its values are undefined afterwards.
    Device(&'a mut dyn DeviceVector),
}

impl<'a> From<&'a mut Vec<f32>> for Gradient<'a> {
    fn from(gradient: &'a mut Vec<f32>) -> Self {
        Gradient::Host(gradient)
    }
}

impl<'a> From<&'a mut dyn DeviceVector> for Gradient<'a> {
    fn from(gradient: &'a mut dyn DeviceVector) -> Self {
        Gradient::Device(gradient)
    }
}

impl Gradient<'_> {
    /// Multiplies all values by `weight`.
    pub(super) fn scale(&mut self, weight: f32, cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
        match self {
            Gradient::Host(gradient) => gradient.iter_mut().for_each(|value| *value *= weight),
            Gradient::Device(gradient) => gradient.scale(weight).map_err(|source| failed(source, cx, comm))?,
        }
        Ok(())
    }

    /// Exchanges the gradient. `scratch` keeps what the host computes of an average on a device.
    pub(super) fn exchange(
        &mut self,
        strategy: &mut dyn SyncStrategy,
        scratch: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        match self {
            Gradient::Host(gradient) => strategy.after_backward(gradient, cx, comm),
            Gradient::Device(gradient) => {
                let mut input = DeviceInput::new(&mut **gradient, cx.slots.len());
                strategy.during_backward(&mut input, scratch, cx, comm)?;
                input.finish(scratch).map_err(|source| failed(source, cx, comm))
            }
        }
    }

    /// Sets the average of absent slots to 0.
    pub(super) fn clear(
        &mut self,
        slots: &[Slot],
        present: &[bool],
        cx: &Context<'_>,
        comm: &Session,
    ) -> Result<(), SyncError> {
        match self {
            Gradient::Host(gradient) => clear(slots, present, gradient),
            Gradient::Device(gradient) => {
                for (slot, _) in slots.iter().zip(present).filter(|(_, present)| !**present) {
                    let cleared = gradient.put_average(slot.range().start, &vec![0.0; slot.len()]);
                    cleared.map_err(|source| failed(source, cx, comm))?;
                }
            }
        }
        Ok(())
    }
}

impl std::fmt::Debug for Gradient<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Gradient::Host(_) => "Gradient::Host",
            Gradient::Device(_) => "Gradient::Device",
        })
    }
}

fn failed(source: DeviceError, cx: &Context<'_>, comm: &Session) -> SyncError {
    SyncError::Reduce { step: cx.agreed_step.step, source: ReduceError::Device { rank: comm.rank(), source } }
}

/// Sets absent slots to 0. Sign compression cannot represent 0, so the average of a slot without gradients would not be 0
/// otherwise.
pub(super) fn clear(slots: &[Slot], present: &[bool], average: &mut [f32]) {
    let absent = slots.iter().zip(present).filter(|(_, present)| !**present);
    absent.for_each(|(slot, _)| average[slot.range()].fill(0.0));
}
