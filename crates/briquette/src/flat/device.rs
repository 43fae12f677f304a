//! Gradients that stay on their device: gathered, exchanged and returned as tensors there.
//!
//! Memory of Burn's tensors is read and never written: what other streams write to it is not ordered with the exchange.

use briquette_core::{Layout, Slot};
use briquette_device::{Gradient, Run, Vector};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, Cube, Dispatch, DispatchDevice, backend_extension};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Shape, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;

use super::{Collect, Gradients, Pieces};
use crate::error::Error;

/// Device memory that becomes a tensor.
#[derive(Debug, Clone)]
struct Memory(Vector);

// Twice, because Burn's attribute must find that of the method as it is, not in a `cfg_attr`.
#[cfg(feature = "fusion")]
#[backend_extension(Cube, Fusion)]
trait Adopt: Backend {
    /// Returns the memory as a tensor on the device of `like`.
    #[fusion(dtype = like, shape = { let _ = like; Shape::new([memory.0.len()]) })]
    fn adopt(like: FloatTensor<Self>, memory: Memory) -> FloatTensor<Self>;
}

#[cfg(not(feature = "fusion"))]
#[backend_extension(Cube)]
trait Adopt: Backend {
    /// Returns the memory as a tensor on the device of `like`.
    fn adopt(like: FloatTensor<Self>, memory: Memory) -> FloatTensor<Self>;
}

impl Adopt for CubeBackend {
    fn adopt(like: CubeTensor, memory: Memory) -> CubeTensor {
        let Memory(vector) = memory;
        let shape = Shape::new([vector.len()]);
        CubeTensor::new_contiguous(like.client, like.device, shape, vector.handle().clone(), DType::F32)
    }
}

/// Returns the queue of a device that has kernels: one of CubeCL's.
pub(crate) fn run_on(device: &Device) -> Option<Run> {
    #[allow(unreachable_patterns)] // in a build with one backend
    match device.clone().inner().as_dispatch() {
        DispatchDevice::Cube(device) => Run::new(device.client()).ok(),
        _ => None,
    }
}

#[cfg(not(feature = "fusion"))]
fn computed(tensor: FloatTensor<Cube>) -> CubeTensor {
    tensor
}

#[cfg(feature = "fusion")]
fn computed(tensor: FloatTensor<Cube>) -> CubeTensor {
    tensor.client.clone().resolve_tensor_float::<CubeBackend>(tensor)
}

/// Returns the memory of a tensor of f32 values, or `None` if it is on no device with kernels.
fn memory(tensor: Tensor<1>) -> Result<Option<Vector>, Error> {
    let Ok(primitive) = tensor.try_into_primitive::<Cube>() else { return Ok(None) };
    let cube = burn_cubecl::kernel::into_contiguous(computed(primitive));
    let len = cube.meta.num_elements();
    Vector::new(cube.handle, len).map(Some).map_err(Error::device)
}

/// Returns the memory of a tensor of f32 values on its device.
///
/// # Errors
/// [`Error::Device`] if it is on a device without kernels, or the device fails.
pub(crate) fn memory_on_device(tensor: Tensor<1>) -> Result<Vector, Error> {
    memory(tensor)?.ok_or_else(|| Error::device("a gradient is on another device than the model"))
}

impl Gradients {
    /// Gathers this rank's gradients on their device.
    ///
    /// # Errors
    /// [`Error::Device`] if a gradient is on another device, or the device fails.
    pub(crate) fn gather<M: Module>(
        &mut self,
        run: &Run,
        module: &M,
        grads: GradientsParams,
        layout: &Layout,
        weight_decay: f64,
    ) -> Result<Gradient, Error> {
        self.present.clear();
        self.targets.clear();
        self.blocks.clear();
        let mut walk = Collect { grads, out: self, pieces: Pieces::default(), weight_decay };
        module.visit(&mut walk);
        let tensors = walk.pieces.into_tensors();
        let places = layout.slots().iter().zip(&self.present).filter(|(_, present)| **present);
        let mut parts = Vec::with_capacity(tensors.len());
        for ((slot, _), tensor) in places.zip(tensors) {
            if slot.len() > 0 {
                parts.push((slot.range().start, memory_on_device(tensor)?));
            }
        }
        let gradient = Gradient::new(run, layout.len(), parts);
        let bad = gradient.first_not_finite().map_err(Error::device)?;
        let slot = |at: usize| layout.slots().partition_point(|slot| slot.range().end <= at) as u32;
        self.bad_slot = bad.map(slot);
        Ok(gradient)
    }

    /// Converts an average on the device to Burn's gradients. Slots for which no rank had a gradient stay absent, unless the average
    /// has values for them.
    pub(crate) fn adopt<M: Module>(
        &self,
        run: &Run,
        module: &M,
        average: Vector,
        layout: &Layout,
    ) -> Result<GradientsParams, Error> {
        let mut absent = vec![false; layout.slots().len()];
        for (index, slot) in layout.slots().iter().enumerate().filter(|(index, _)| !self.present[*index]) {
            let values = run.read(&run.part(&average, slot.range())).map_err(Error::device)?;
            absent[index] = values.iter().all(|value| *value == 0.0);
        }
        let mut walk = Adopted {
            gradients: self,
            slots: layout.slots(),
            absent,
            average,
            whole: None,
            next: 0,
            out: GradientsParams::new(),
        };
        module.visit(&mut walk);
        Ok(walk.out)
    }
}

/// Gives each parameter its part of an average.
struct Adopted<'a> {
    gradients: &'a Gradients,
    slots: &'a [Slot],
    absent: Vec<bool>,
    average: Vector,
    whole: Option<Tensor<1>>,
    next: usize,
    out: GradientsParams,
}

impl ModuleVisitor for Adopted<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let index = self.next;
        self.next += 1;
        let (slot, target) = (&self.slots[index], &self.gradients.targets[index]);
        if self.absent[index] {
            return;
        }
        let value = value.inner();
        let whole = self.whole.get_or_insert_with(|| {
            let like = value.clone().reshape([value.shape().num_elements()]);
            // With fusion, the average gets the type of this tensor.
            let like = if like.dtype() == DType::F32 { like } else { like.cast(DType::F32) };
            Tensor::from_dispatch(Dispatch::adopt(like.into_dispatch(), Memory(self.average.clone())))
        });
        let grad = whole.clone().narrow(0, slot.range().start, slot.len()).reshape(value.shape());
        let grad: Tensor<D> = if grad.dtype() == target.dtype { grad } else { grad.cast(target.dtype) };
        self.out.register(target.id, grad);
    }
}
