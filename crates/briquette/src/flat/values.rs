//! Reads and writes values of a module's tensors on the host.

use std::collections::HashSet;

use briquette_core::Slot;
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{Bytes, DType, Device, Shape, Tensor, TensorData};

use super::Inventory;
use super::parts::{Part, Parts};
use super::transfer::{Pieces, as_f32};
use crate::error::Error;

/// Reads parameters or buffers into `out`.
pub(crate) fn read_values<M: Module>(module: &M, part: Part, out: &mut Vec<f32>) -> Result<(), Error> {
    Read { part, parts: Parts::for_part(part, module), grads: None, pieces: Pieces::default() }.walk(module, out)
}

/// Passes the values of a part to `each`, a block of whole tensors at a time.
pub(super) fn for_each_block<M: Module>(
    module: &M,
    part: Part,
    each: impl FnMut(TensorData) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut read = Read { part, parts: Parts::for_part(part, module), grads: None, pieces: Pieces::default() };
    module.visit(&mut read);
    read.pieces.read(each)
}

/// Reads gradients into `out` in layout order, with zeros for missing ones, and leaves them in place.
pub(crate) fn read_gradients<M: Module>(module: &M, grads: &GradientsParams, out: &mut Vec<f32>) -> Result<(), Error> {
    let parts = Parts::for_part(Part::Trainable, module);
    Read { part: Part::Trainable, parts, grads: Some(grads), pieces: Pieces::default() }.walk(module, out)
}

/// Each slot's gradient as a vector, if there is one.
pub(crate) fn flat_gradients<M: Module>(module: &M, grads: &GradientsParams) -> Vec<Option<Tensor<1>>> {
    struct Walk<'a>(&'a GradientsParams, HashSet<ParamId>, Vec<Option<Tensor<1>>>);
    impl ModuleVisitor for Walk<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.val().is_require_grad() {
                // A parameter that is shared by several places has its gradient at the first.
                let is_first = self.1.insert(param.id);
                let gradient = self.0.get::<D>(param.id).filter(|_| is_first);
                self.2.push(gradient.map(flat));
            }
        }
    }
    let mut walk = Walk(grads, HashSet::new(), Vec::new());
    module.visit(&mut walk);
    walk.2
}

/// Each slot's parameter as a vector.
pub(crate) fn flat_parameters<M: Module>(module: &M) -> Vec<Tensor<1>> {
    struct Walk(Vec<Tensor<1>>);
    impl ModuleVisitor for Walk {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if value.is_require_grad() {
                self.0.push(flat(value.inner()));
            }
        }
    }
    let mut walk = Walk(Vec::new());
    module.visit(&mut walk);
    walk.0
}

fn flat<const D: usize>(tensor: Tensor<D>) -> Tensor<1> {
    let len = tensor.shape().num_elements();
    tensor.reshape([len])
}

/// Reads the values of parameters, or their gradients.
struct Read<'a> {
    part: Part,
    parts: Parts,
    grads: Option<&'a GradientsParams>,
    pieces: Pieces,
}

impl Read<'_> {
    fn walk<M: Module>(mut self, module: &M, out: &mut Vec<f32>) -> Result<(), Error> {
        module.visit(&mut self);
        out.clear();
        self.pieces.read(|block| {
            out.extend_from_slice(as_f32(&block)?);
            Ok(())
        })
    }
}

impl ModuleVisitor for Read<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if !self.parts.has(self.part, param.id, &value) {
            return;
        }
        let value = value.inner();
        self.pieces.push(match self.grads {
            None => value,
            Some(grads) => grads.get::<D>(param.id).unwrap_or_else(|| value.zeros_like()),
        });
    }
}

/// Writes parameters or buffers by path; ids, gradient tracking and types stay unchanged.
pub(crate) fn write_values<M: Module>(module: M, part: Part, values: &[f32], inventory: &Inventory) -> M {
    let mut slots = inventory.part(part).slots().iter().map(Slot::range);
    let next = |shape, _| TensorData::new(slots.next().map_or_else(Vec::new, |range| values[range].to_vec()), shape);
    let parts = Parts::for_part(part, &module);
    module.map(&mut Write { part, parts, next })
}

/// Concatenates parameters or buffers, each in its own type. [`write_bytes`] restores the same bits.
pub(crate) fn read_bytes<M: Module>(module: &M, part: Part) -> Result<Vec<u8>, Error> {
    struct ReadBytes {
        part: Part,
        parts: Parts,
        out: Result<Vec<u8>, Error>,
    }
    impl ModuleVisitor for ReadBytes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if !self.parts.has(self.part, param.id, &value) {
                return;
            }
            let Ok(out) = &mut self.out else { return };
            match value.inner().try_into_data() {
                Ok(data) => out.extend_from_slice(data.as_bytes()),
                Err(error) => self.out = Err(Error::device(error)),
            }
        }
    }
    let mut walk = ReadBytes { part, parts: Parts::for_part(part, module), out: Ok(Vec::new()) };
    module.visit(&mut walk);
    walk.out
}

/// Reverses [`read_bytes`].
///
/// # Errors
/// Returns the module unchanged if `bytes` has the wrong length.
pub(crate) fn write_bytes<M: Module>(module: M, part: Part, bytes: &[u8]) -> Result<M, M> {
    if bytes.len() != len_in_bytes(&module, part) {
        return Err(module);
    }
    let mut rest = bytes;
    let next = |shape: Shape, dtype: DType| {
        let (mine, others) = rest.split_at(shape.num_elements() * dtype.size());
        rest = others;
        TensorData::from_bytes(Bytes::from_bytes_vec(mine.to_vec()), shape, dtype)
    };
    let parts = Parts::for_part(part, &module);
    Ok(module.map(&mut Write { part, parts, next }))
}

fn len_in_bytes<M: Module>(module: &M, part: Part) -> usize {
    struct Count(Part, Parts, usize);
    impl ModuleVisitor for Count {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            if self.1.has(self.0, param.id, &value) {
                self.2 += value.shape().num_elements() * value.dtype().size();
            }
        }
    }
    let mut walk = Count(part, Parts::for_part(part, module), 0);
    module.visit(&mut walk);
    walk.2
}

/// Mapper that gets each tensor's data from `next`, given its shape and type.
struct Write<F> {
    part: Part,
    parts: Parts,
    next: F,
}

impl<F: FnMut(Shape, DType) -> TensorData> ModuleMapper for Write<F> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let id = param.id;
        param.map(|old| {
            if !self.parts.has(self.part, id, &old) {
                return old;
            }
            let data = (self.next)(old.shape(), old.dtype());
            let (device, dtype) = (old.device().inner(), data.dtype());
            let new = Tensor::<D>::from_data(data, (&device, dtype)).cast(old.dtype());
            like(&old, new)
        })
    }
}

/// Returns `new` with the autodiff state of `old`.
pub(crate) fn like<const D: usize>(old: &Tensor<D>, new: Tensor<D>) -> Tensor<D> {
    if !old.is_autodiff() {
        return new;
    }
    let mut new = new.autodiff();
    if let Some(strategy) = old.gradient_checkpointing_strategy() {
        new = new.with_gradient_checkpointing_strategy(strategy);
    }
    new.set_require_grad(old.is_require_grad())
}

/// Removes parameters that no longer exist from Burn's autodiff, which otherwise keeps an entry for each tensor that requires
/// gradients until the next backward pass of the process. A rank without gradients runs no backward pass: a server, or a rank
/// whose data has ended.
pub(crate) fn forget_leaves<M: Module>(module: &M) {
    struct First(Option<Device>);
    impl ModuleVisitor for First {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.is_none() && param.val().is_require_grad() {
                self.0 = Some(param.val().device());
            }
        }
    }
    let mut walk = First(None);
    module.visit(&mut walk);
    if let Some(device) = walk.0 {
        drop(Tensor::<1>::ones([1], &device.inner()).autodiff().require_grad().backward());
    }
}
