//! Between a Burn module and the flat vector.
//!
//! Parameters are found by walking the module: a float parameter that requires a gradient is a trainable slot, any other
//! float tensor (BatchNorm's running statistics, frozen layers) a buffer. Both are known by their path, never by
//! [`ParamId`], which is random in every process.

use briquette_core::{Layout, Slot};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Device, Tensor, TensorData};

use crate::error::Error;

/// What a module holds.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inventory {
    /// The trainable slots.
    pub(crate) layout: Layout,
    /// Everything else that is a float tensor.
    pub(crate) buffers: Layout,
}

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Trainable,
    Buffers,
}

impl Inventory {
    pub(crate) fn of<M: Module>(module: &M) -> Inventory {
        let mut walk = Survey::default();
        module.visit(&mut walk);
        Inventory { layout: Layout::new(walk.trainable), buffers: Layout::new(walk.buffers) }
    }

    fn part(&self, part: Part) -> &Layout {
        match part {
            Part::Trainable => &self.layout,
            Part::Buffers => &self.buffers,
        }
    }
}

/// Every module path is the walk's stack joined by dots, as Burn's own parameter groups spell it.
#[derive(Default)]
struct Survey {
    path: Vec<String>,
    trainable: Vec<(String, Vec<usize>)>,
    buffers: Vec<(String, Vec<usize>)>,
}

impl ModuleVisitor for Survey {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.to_owned());
    }
    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let entry = (self.path.join("."), value.dims().to_vec());
        if value.is_require_grad() { self.trainable.push(entry) } else { self.buffers.push(entry) }
    }
}

/// Collects what a walk finds into one device-side vector, then reads it once.
#[derive(Default)]
struct Pieces {
    tensors: Vec<Tensor<1>>,
}

impl Pieces {
    fn push<const D: usize>(&mut self, tensor: Tensor<D>) {
        let len = tensor.shape().num_elements();
        let flat = tensor.reshape([len]);
        // `cat` refuses mixed types.
        let flat = if flat.dtype() == DType::F32 { flat } else { flat.cast(DType::F32) };
        self.tensors.push(flat);
    }

    fn read(self) -> Result<TensorData, Error> {
        if self.tensors.is_empty() {
            return Ok(TensorData::new(Vec::<f32>::new(), [0]));
        }
        Tensor::cat(self.tensors, 0).try_into_data().map_err(|e| Error::Device(format!("{e:?}")))
    }
}

fn as_f32(data: &TensorData) -> Result<&[f32], Error> {
    data.as_slice::<f32>().map_err(|e| Error::Device(format!("{e:?}")))
}

/// Gradients on the host, and what is needed to put an average back.
#[derive(Debug, Default)]
pub(crate) struct Gradients {
    /// In layout order; slots without a gradient are zero.
    pub(crate) flat: Vec<f32>,
    /// Which slots had one.
    pub(crate) present: Vec<bool>,
    targets: Vec<Target>,
}

/// Where one slot's gradient belongs.
#[derive(Debug, Clone)]
struct Target {
    id: ParamId,
    device: Device,
    dtype: DType,
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
        self.out.targets.push(Target { id: param.id, device: target.device(), dtype: target.dtype() });
        if let Some(mut grad) = grad {
            if self.weight_decay != 0.0 {
                grad = grad + value.mul_scalar(self.weight_decay);
            }
            self.pieces.push(grad);
        }
    }
}

impl Gradients {
    /// Reads this rank's gradients: one concatenation on the device, one transfer.
    pub(crate) fn collect<M: Module>(
        &mut self,
        module: &M,
        grads: GradientsParams,
        layout: &Layout,
        weight_decay: f64,
    ) -> Result<(), Error> {
        self.present.clear();
        self.targets.clear();
        let mut walk = Collect { grads, out: self, pieces: Pieces::default(), weight_decay };
        module.visit(&mut walk);
        let pieces = walk.pieces;
        if self.present.len() != layout.slots().len() {
            return Err(Error::Layout { expected: layout.slots().len(), got: self.present.len() });
        }
        let data = pieces.read()?;
        let mut values = as_f32(&data)?;
        self.flat.resize(layout.len(), 0.0);
        for (slot, present) in layout.slots().iter().zip(&self.present) {
            let out = &mut self.flat[slot.range()];
            if *present {
                let (here, rest) = values.split_at(slot.len());
                out.copy_from_slice(here);
                values = rest;
            } else {
                out.fill(0.0);
            }
        }
        Ok(())
    }

    /// Hands the vector back as Burn's gradients: one transfer to the device. Slots that no rank had a gradient for stay
    /// absent, unless a residual spoke for them.
    pub(crate) fn restore<M: Module>(&self, module: &M, layout: &Layout) -> GradientsParams {
        let mut walk =
            Restore { gradients: self, slots: layout.slots(), next: 0, whole: None, out: GradientsParams::new() };
        module.visit(&mut walk);
        walk.out
    }
}

struct Restore<'a> {
    gradients: &'a Gradients,
    slots: &'a [Slot],
    next: usize,
    whole: Option<(Device, Tensor<1>)>,
    out: GradientsParams,
}

impl Restore<'_> {
    /// The whole vector on `device`, sent there once; a model spread over devices sends it to each.
    fn on(&mut self, device: &Device) -> Tensor<1> {
        match &self.whole {
            Some((d, tensor)) if d == device => tensor.clone(),
            _ => {
                let tensor = upload(&self.gradients.flat, device);
                self.whole = Some((device.clone(), tensor.clone()));
                tensor
            }
        }
    }
}

impl ModuleVisitor for Restore<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !value.is_require_grad() {
            return;
        }
        let index = self.next;
        self.next += 1;
        let range = self.slots[index].range();
        let absent = !self.gradients.present[index];
        if absent && self.gradients.flat[range.clone()].iter().all(|v| *v == 0.0) {
            return;
        }
        let target = self.gradients.targets[index].clone();
        let flat = self.on(&target.device).slice([range]);
        let grad = flat.reshape(value.shape());
        let grad: Tensor<D> = if grad.dtype() == target.dtype { grad } else { grad.cast(target.dtype) };
        self.out.register(target.id, grad);
    }
}

fn upload(values: &[f32], device: &Device) -> Tensor<1> {
    Tensor::from_data(TensorData::new(values.to_vec(), [values.len()]), (device, DType::F32))
}

/// Reads parameters or buffers into `out`.
pub(crate) fn read_values<M: Module>(module: &M, part: Part, out: &mut Vec<f32>) -> Result<(), Error> {
    struct Read {
        part: Part,
        pieces: Pieces,
    }
    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() == (self.part == Part::Trainable) {
                self.pieces.push(value.inner());
            }
        }
    }
    let mut walk = Read { part, pieces: Pieces::default() };
    module.visit(&mut walk);
    let data = walk.pieces.read()?;
    out.clear();
    out.extend_from_slice(as_f32(&data)?);
    Ok(())
}

/// Writes parameters or buffers by path; ids, gradient tracking and types stay as they are.
pub(crate) fn write_values<M: Module>(module: M, part: Part, values: &[f32], inventory: &Inventory) -> M {
    let mut walk = Write { part, values, slots: inventory.part(part).slots(), next: 0 };
    module.map(&mut walk)
}

struct Write<'a> {
    part: Part,
    values: &'a [f32],
    slots: &'a [Slot],
    next: usize,
}

impl ModuleMapper for Write<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|old| {
            if old.is_require_grad() != (self.part == Part::Trainable) {
                return old;
            }
            let values = &self.values[self.slots[self.next].range()];
            self.next += 1;
            let data = TensorData::new(values.to_vec(), old.shape());
            let device = old.device().inner();
            let new = Tensor::<D>::from_data(data, (&device, DType::F32)).cast(old.dtype());
            like(&old, new)
        })
    }
}

/// `new` with the autodiff state of `old`.
fn like<const D: usize>(old: &Tensor<D>, new: Tensor<D>) -> Tensor<D> {
    if !old.is_autodiff() {
        return new;
    }
    let mut new = new.autodiff();
    if let Some(strategy) = old.gradient_checkpointing_strategy() {
        new = new.with_gradient_checkpointing_strategy(strategy);
    }
    new.set_require_grad(old.is_require_grad())
}

/// Applies pending BatchNorm updates of this thread, so that running statistics can be read and written.
pub(crate) fn drain<M: Module>(module: &M) {
    let _ = module.valid();
}

/// The first slot with a value that is not finite.
pub(crate) fn first_bad_slot(flat: &[f32], layout: &Layout) -> Option<u32> {
    let finite = |x: &[f32]| x.iter().fold(0, |worst, v| (v.to_bits() & 0x7fff_ffff).max(worst)) < 0x7f80_0000;
    if finite(flat) {
        return None;
    }
    layout.slots().iter().position(|s| !finite(&flat[s.range()])).map(|i| i as u32)
}
