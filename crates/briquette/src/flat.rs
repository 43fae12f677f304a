//! Conversion between a Burn module and the flat vector.
//!
//! A walk over the module finds the parameters: a float parameter that requires a gradient is a trainable slot, one that does not
//! is frozen, and any other float tensor (BatchNorm's running statistics) is a buffer. All are identified by their path, never by
//! [`ParamId`], which is random in every process.

pub(crate) mod alone;
mod clip;
#[cfg(feature = "device")]
mod device;
mod digest;
pub(crate) mod discrete;
mod inventory;
mod known;
mod parts;
mod saved_buffers;
#[cfg(all(test, feature = "flex"))]
mod tests;
mod transfer;
mod values;

use std::collections::BTreeSet;

use briquette_core::{Layout, Slot};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};

pub(crate) use self::clip::clip;
#[cfg(feature = "device")]
pub(crate) use self::device::{memory_on_device, run_on};
pub(crate) use self::digest::{digest, digest_of_bytes, digests};
pub(crate) use self::inventory::Inventory;
pub(crate) use self::known::{Changed, Known};
pub(crate) use self::parts::Part;
pub(crate) use self::saved_buffers::{SavedBuffers, buffer_ids};
use self::transfer::{Pieces, as_f32};
pub(crate) use self::values::{
    flat_gradients, flat_parameters, forget_leaves, like, read_bytes, read_gradients, read_values, write_bytes,
    write_values,
};
use crate::backend::in_host_memory;
use crate::error::Error;

/// Gradients on the host, with the data needed to restore an average to the device.
#[derive(Debug, Default)]
pub(crate) struct Gradients {
    /// The vector in layout order; slots without a gradient are zero.
    pub(crate) flat: Vec<f32>,
    /// Set for each slot with a gradient.
    pub(crate) present: Vec<bool>,
    /// The first slot with a value that is not finite.
    pub(crate) bad_slot: Option<u32>,
    /// The number of values read at a time; the device's default if absent.
    bucket: Option<usize>,
    targets: Vec<Target>,
    /// The memory that gradients were read to. An average is returned in it: a fresh block of a model's size costs more in page
    /// faults than filling it does.
    blocks: Vec<TensorData>,
}

/// The destination of one slot's gradient.
#[derive(Debug, Clone)]
struct Target {
    id: ParamId,
    device: Device,
    dtype: DType,
    /// The block that it was read to, and the offset in it; `None` for a slot without a gradient on this rank.
    place: Option<(usize, usize)>,
}

struct Collect<'a> {
    grads: GradientsParams,
    out: &'a mut Gradients,
    pieces: Pieces,
    weight_decay: f64,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let grad = self.grads.remove::<D>(param.id);
        self.out.present.push(grad.is_some());
        let value = value.inner();
        let target = grad.as_ref().unwrap_or(&value);
        self.out.targets.push(Target { id: param.id, device: target.device(), dtype: target.dtype(), place: None });
        if let Some(grad) = grad {
            self.pieces.push(decayed(grad, value, self.weight_decay));
        }
    }
}

fn decayed<const D: usize>(grad: Tensor<D>, value: Tensor<D>, weight_decay: f64) -> Tensor<D> {
    if weight_decay == 0.0 { grad } else { grad + value.mul_scalar(weight_decay) }
}

/// Returns a copy of the gradients of a module.
#[cfg(feature = "train")]
pub(crate) fn copy<M: Module>(module: &M, grads: &GradientsParams) -> GradientsParams {
    struct Copy<'a> {
        from: &'a GradientsParams,
        to: GradientsParams,
    }
    impl ModuleVisitor for Copy<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.from.get::<D>(param.id) {
                self.to.register(param.id, grad);
            }
        }
    }
    let mut walk = Copy { from: grads, to: GradientsParams::new() };
    module.visit(&mut walk);
    walk.to
}

/// Adds `weight_decay · parameter` to every gradient, in place.
pub(crate) fn decay<M: Module>(module: &M, grads: GradientsParams, weight_decay: f64) -> GradientsParams {
    struct Decay {
        grads: GradientsParams,
        weight_decay: f64,
    }
    impl ModuleVisitor for Decay {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(grad) = self.grads.remove::<D>(param.id) {
                self.grads.register(param.id, decayed(grad, param.val().inner(), self.weight_decay));
            }
        }
    }
    if weight_decay == 0.0 {
        return grads;
    }
    let mut walk = Decay { grads, weight_decay };
    module.visit(&mut walk);
    walk.grads
}

impl Gradients {
    /// Reads this rank's gradients.
    pub(crate) fn collect<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        layout: &Layout,
        weight_decay: f64,
    ) -> Result<(), Error> {
        self.present.clear();
        self.targets.clear();
        let pieces = Pieces::in_buckets_of(self.bucket);
        let mut walk = Collect { grads, out: self, pieces, weight_decay };
        module.visit(&mut walk);
        let pieces = walk.pieces;
        self.flat.resize(layout.len(), 0.0);
        self.blocks.clear();
        self.bad_slot = None;
        let Gradients { flat, present, bad_slot, targets, blocks, .. } = self;
        let mut rest = layout.slots().iter().zip(targets).zip(&*present).zip(0..);
        pieces.read(|block| {
            let (values, mut offset) = (as_f32(&block)?, 0);
            // To the end of the block: slots without a gradient are not in it.
            while offset < values.len()
                && let Some((((slot, target), present), index)) = rest.next()
            {
                let out = &mut flat[slot.range()];
                // A tensor without values has no memory, and is created again.
                if *present && slot.len() > 0 {
                    if !copy_finite(&values[offset..][..slot.len()], out) {
                        bad_slot.get_or_insert(index);
                    }
                    target.place = Some((blocks.len(), offset));
                    offset += slot.len();
                } else {
                    out.fill(0.0);
                }
            }
            blocks.push(block);
            Ok(())
        })?;
        rest.for_each(|(((slot, _), _), _)| flat[slot.range()].fill(0.0));
        Ok(())
    }

    /// Records the places and the memory of this rank's gradients, as [`collect`](Self::collect) does, without reading them.
    pub(crate) fn keep_places<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        layout: &Layout,
    ) -> Result<(), Error> {
        self.present.clear();
        self.targets.clear();
        self.blocks.clear();
        let mut walk = Collect { grads, out: self, pieces: Pieces::default(), weight_decay: 0.0 };
        module.visit(&mut walk);
        let pieces = walk.pieces;
        let Gradients { present, targets, blocks, .. } = self;
        let is_near = targets.first().is_some_and(|target| in_host_memory(&target.device));
        let mut rest = layout.slots().iter().zip(targets).zip(&*present);
        if !is_near {
            return Ok(());
        }
        pieces.read(|block| {
            let found = rest.find(|((slot, _), present)| **present && slot.len() > 0);
            if let Some(((_, target), _)) = found {
                target.place = Some((blocks.len(), 0));
            }
            blocks.push(block);
            Ok(())
        })
    }

    /// Converts the vector to Burn's gradients, in the memory they were read to. Slots for which no rank had a gradient stay
    /// absent, unless the average has values for them (an earlier step's).
    pub(crate) fn restore<M: Module>(&mut self, module: &M, layout: &Layout) -> Result<GradientsParams, Error> {
        for (slot, target) in layout.slots().iter().zip(&self.targets) {
            if let Some((block, offset)) = target.place {
                let values = self.blocks[block].as_mut_slice::<f32>().map_err(Error::device)?;
                values[offset..][..slot.len()].copy_from_slice(&self.flat[slot.range()]);
            }
        }
        let blocks = self.blocks.drain(..).map(Block::Host).collect();
        let mut walk = Restore { gradients: self, slots: layout.slots(), next: 0, blocks, out: GradientsParams::new() };
        module.visit(&mut walk);
        Ok(walk.out)
    }
}

/// A block that is returned to the device; it is sent at its first slot.
enum Block {
    Host(TensorData),
    Sent(Tensor<1>),
    Gone,
}

struct Restore<'a> {
    gradients: &'a Gradients,
    slots: &'a [Slot],
    next: usize,
    blocks: Vec<Block>,
    out: GradientsParams,
}

impl Restore<'_> {
    fn take(&mut self, target: &Target, (block, offset): (usize, usize), len: usize) -> Tensor<1> {
        let block = &mut self.blocks[block];
        let whole = match std::mem::replace(block, Block::Gone) {
            Block::Host(data) => Tensor::from_data(data, (&target.device, DType::F32)),
            Block::Sent(tensor) => tensor,
            Block::Gone => unreachable!("a block of one slot is asked for once"),
        };
        if whole.dims() == [len] {
            // The only owner: the optimizer may work in place.
            return whole;
        }
        *block = Block::Sent(whole.clone());
        whole.narrow(0, offset, len)
    }
}

impl ModuleVisitor for Restore<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let (gradients, index) = (self.gradients, self.next);
        self.next += 1;
        let (slot, target) = (&self.slots[index], &gradients.targets[index]);
        let values = &gradients.flat[slot.range()];
        let flat = match target.place {
            Some(place) => self.take(target, place, slot.len()),
            None if !gradients.present[index] && values.iter().all(|v| *v == 0.0) => return,
            None => {
                let data = TensorData::new(values.to_vec(), [values.len()]);
                Tensor::from_data(data, (&target.device, DType::F32))
            }
        };
        let grad = flat.reshape(value.shape());
        let grad: Tensor<D> = if grad.dtype() == target.dtype { grad } else { grad.cast(target.dtype) };
        self.out.register(target.id, grad);
    }
}

/// The distinct types of a module's float tensors, in order.
pub(crate) fn types<M: Module>(module: &M) -> String {
    struct Types(BTreeSet<String>);
    impl ModuleVisitor for Types {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.insert(format!("{:?}", param.val().dtype()));
        }
    }
    let mut walk = Types(BTreeSet::new());
    module.visit(&mut walk);
    walk.0.into_iter().collect::<Vec<_>>().join(" ")
}

/// Waits until a device has completed its queue, so that compute time is not counted as reading time.
pub(crate) fn settle<M: Module>(module: &M) -> Result<(), Error> {
    let devices = module.devices();
    let mut devices = devices.iter().filter(|device| !in_host_memory(device));
    devices.try_for_each(|device| device.sync()).map_err(Error::device)
}

/// Applies pending BatchNorm updates of this thread, so that running statistics can be read and written.
pub(crate) fn drain<M: Module>(module: &M) {
    let _ = module.valid();
}

/// Returns whether all values are finite. It has no branch and no early exit, to run at memory bandwidth.
pub(crate) fn finite(x: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    x.iter().fold(0, |bad, v| bad | u32::from(v.to_bits() & EXPONENT == EXPONENT)) == 0
}

/// Copies, and returns whether all values are finite. Each part is checked while it is in the cache.
pub(crate) fn copy_finite(from: &[f32], to: &mut [f32]) -> bool {
    const PART: usize = 4096;
    from.chunks(PART).zip(to.chunks_mut(PART)).fold(true, |all, (from, to)| {
        to.copy_from_slice(from);
        all & finite(to)
    })
}

/// The first slot with a value that is not finite.
pub(crate) fn first_bad_slot(flat: &[f32], layout: &Layout) -> Option<u32> {
    if finite(flat) {
        return None;
    }
    layout.slots().iter().position(|s| !finite(&flat[s.range()])).map(|i| i as u32)
}
