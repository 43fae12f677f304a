//! Memory of the flat vector while gradients arrive: on the host, or on their device.

use std::ops::Range;

use briquette_core::error::DeviceError;
use briquette_core::reduce::{DevicePart, DevicePlace};
use briquette_core::{Session, Slot};
use burn::tensor::Tensor;

#[cfg(feature = "device")]
use super::on_device::{DeviceGradient, Given, Placing};
use super::on_host::{HostGradient, read_samples};
use crate::error::Error;

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

/// A gradient that is complete.
pub(crate) enum Arrived {
    Tensor(Tensor<1>),
    /// It is in its place in the flat vector, on the device.
    #[cfg(feature = "device")]
    InPlace(Result<(), Error>),
}

/// Makes a message of a slot's gradient.
pub(crate) type Deliver = Box<dyn Fn(usize, Tensor<1>) -> Arrived + Send + Sync>;

/// The gradients of the step, by slot.
pub(crate) enum Gradients {
    Tensors(Vec<Option<Tensor<1>>>),
    #[cfg(feature = "device")]
    OnDevice(Given),
}

impl Gradients {
    /// Returns whether the step has any gradient.
    pub(super) fn is_given(&self) -> bool {
        match self {
            Gradients::Tensors(gradients) => gradients.iter().any(Option::is_some),
            #[cfg(feature = "device")]
            Gradients::OnDevice(given) => given.is_given,
        }
    }

    /// Takes the gradient of a slot that did not arrive before.
    pub(super) fn take_late(&mut self, slot: usize) -> Option<Arrived> {
        match self {
            Gradients::Tensors(gradients) => gradients.get_mut(slot)?.take().map(Arrived::Tensor),
            #[cfg(feature = "device")]
            Gradients::OnDevice(given) => given.late.get(slot)?.then_some(Arrived::InPlace(Ok(()))),
        }
    }
}

/// State of a gradient at the end of the backward pass.
pub(super) struct Checked {
    /// The first slot with a value that is not finite, if that was not known before.
    pub(super) bad_slot: Option<u32>,
    /// Samples of each slot that arrived.
    pub(super) samples: Vec<f32>,
    /// Samples of the step's gradients.
    pub(super) given: Vec<Option<Vec<f32>>>,
}

/// The memory of the flat vector.
pub(crate) enum Storage {
    Host(HostGradient),
    #[cfg(feature = "device")]
    Device(Box<DeviceGradient>),
}

impl Storage {
    #[cfg(feature = "device")]
    pub(super) fn placing(&self) -> Option<Placing> {
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

    /// Takes a slot's gradient, multiplied by `weight`. Returns false if it is known to have a value that is not finite.
    pub(super) fn put(
        &mut self,
        slot: usize,
        place: Range<usize>,
        gradient: Arrived,
        weight: f32,
    ) -> Result<bool, Error> {
        match (self, gradient) {
            (Storage::Host(host), Arrived::Tensor(gradient)) => host.put(slot, place, gradient, weight),
            #[cfg(feature = "device")]
            (Storage::Device(device), Arrived::InPlace(placed)) => {
                if weight != 1.0 {
                    device.scale(weight, place);
                }
                placed.map(|()| true)
            }
            #[cfg(feature = "device")]
            (Storage::Device(_), Arrived::Tensor(_)) | (Storage::Host(_), Arrived::InPlace(_)) => {
                unreachable!("a gradient arrives where it is kept")
            }
        }
    }

    /// Sets the values of a slot without a gradient to 0.
    pub(super) fn leave_out(&mut self, place: Range<usize>) {
        match self {
            Storage::Host(host) => host.clear(place),
            // They are zeros from the beginning.
            #[cfg(feature = "device")]
            Storage::Device(_) => drop(place),
        }
    }

    pub(super) fn wait(&mut self, range: Range<usize>, comm: &mut Session) -> &[f32] {
        match self {
            Storage::Host(host) => {
                let _ = comm;
                host.values(range)
            }
            #[cfg(feature = "device")]
            Storage::Device(gradient) => gradient.wait(range, comm),
        }
    }

    pub(super) fn on_device(&self) -> Option<DevicePlace> {
        match self {
            Storage::Host(_) => None,
            #[cfg(feature = "device")]
            Storage::Device(gradient) => Some(gradient.on_device()),
        }
    }

    pub(super) fn part(&mut self, range: Range<usize>) -> Option<DevicePart<'_>> {
        match (self, range) {
            (Storage::Host(_), _) => None,
            #[cfg(feature = "device")]
            (Storage::Device(gradient), range) => Some(gradient.part(range)),
        }
    }

    /// Reads the samples, and whether values on a device are finite. `given` are the step's gradients in the slots that arrived before.
    pub(super) fn check(&self, given: Gradients, slots: &[Slot]) -> Result<Checked, Error> {
        match (self, given) {
            (Storage::Host(host), Gradients::Tensors(given)) => {
                Ok(Checked { bad_slot: None, samples: host.samples(), given: read_samples(&given, slots)? })
            }
            #[cfg(feature = "device")]
            (Storage::Device(device), Gradients::OnDevice(given)) => device.check(given),
            #[cfg(feature = "device")]
            _ => unreachable!("gradients are given where they are kept"),
        }
    }

    /// Finishes the average on the device, of which the host's part is `average`.
    pub(super) fn finish(&mut self, average: &[f32]) -> Result<(), DeviceError> {
        match self {
            Storage::Host(_) => {
                let _ = average;
                Ok(())
            }
            #[cfg(feature = "device")]
            Storage::Device(gradient) => gradient.finish(average),
        }
    }
}
