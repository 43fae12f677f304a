//! Buffers saved before a forward pass, to be restored.
//!
//! The forward pass of training writes BatchNorm's running statistics. If the step is refused, these writes are undone.

use std::collections::HashSet;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::parts::{Part, Parts};
use super::transfer::{Pieces, as_f32};
use super::{drain, finite, like};
use crate::error::Error;

/// Handles of a module's buffers. A pass that changes a buffer creates a new tensor, so the saved ones do not change.
#[derive(Debug, Clone, Default)]
pub(crate) struct SavedBuffers {
    /// In the module's order.
    buffers: Vec<Buffer>,
}

#[derive(Debug, Clone)]
struct Buffer {
    id: ParamId,
    value: Tensor<1>,
    is_finite: bool,
}

impl SavedBuffers {
    /// Reads the buffers of `module` with their latest values. `ids` caches the ids of its buffers.
    pub(crate) fn of<M: Module>(module: &M, ids: &mut HashSet<ParamId>, count: usize) -> Result<SavedBuffers, Error> {
        if count == 0 {
            return Ok(SavedBuffers::default());
        }
        drain(module);
        let mut found = find(module, ids);
        if found.len() != count {
            // The module was loaded: its ids are the record's.
            *ids = buffer_ids(module);
            found = find(module, ids);
        }
        let lens: Vec<usize> = found.iter().map(|(_, value)| value.dims()[0]).collect();
        let mut pieces = Pieces::default();
        found.iter().for_each(|(_, value)| pieces.push(value.clone()));
        let (mut finites, mut rest) = (Vec::with_capacity(lens.len()), lens.into_iter());
        pieces.read(|block| {
            let mut values = as_f32(&block)?;
            // An empty buffer may lie between two blocks.
            while let Some(len) = rest.as_slice().first().copied().filter(|len| *len <= values.len()) {
                let (own, others) = values.split_at(len);
                finites.push(finite(own));
                values = others;
                rest.next();
                if values.is_empty() {
                    break;
                }
            }
            Ok(())
        })?;
        finites.resize(found.len(), true);
        let buffer = |((id, value), is_finite)| Buffer { id, value, is_finite };
        Ok(SavedBuffers { buffers: found.into_iter().zip(finites).map(buffer).collect() })
    }

    /// Returns the first buffer that is not finite but was finite `before`.
    pub(crate) fn first_lost(&self, before: &SavedBuffers) -> Option<usize> {
        let was_finite = |place: usize| before.buffers.get(place).is_none_or(|buffer| buffer.is_finite);
        self.buffers.iter().enumerate().position(|(place, buffer)| !buffer.is_finite && was_finite(place))
    }

    /// Returns whether a buffer was finite when it was saved; true for an index without a saved buffer.
    pub(crate) fn is_finite(&self, place: usize) -> bool {
        self.buffers.get(place).is_none_or(|buffer| buffer.is_finite)
    }

    /// Writes these values into the buffers that `module` shares with all its clones, which undoes its forward passes.
    pub(crate) fn put_back<M: Module>(&self, module: &M) {
        if self.buffers.is_empty() {
            return;
        }
        // A pending update would replace the written values.
        drain(module);
        let _ = module.clone().map(&mut PutBack(self.buffers.iter()));
    }
}

/// Ids of tensors that are not parameters.
pub(crate) fn buffer_ids<M: Module>(module: &M) -> HashSet<ParamId> {
    struct Ids(Parts, HashSet<ParamId>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.has(Part::Buffers, param.id, &param.val()) {
                self.1.insert(param.id);
            }
        }
    }
    let mut walk = Ids(Parts::of(module), HashSet::new());
    module.visit(&mut walk);
    walk.1
}

fn find<M: Module>(module: &M, ids: &HashSet<ParamId>) -> Vec<(ParamId, Tensor<1>)> {
    struct Find<'a>(&'a HashSet<ParamId>, Vec<(ParamId, Tensor<1>)>);
    impl ModuleVisitor for Find<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if self.0.contains(&param.id) {
                let value = param.val().inner();
                let len = value.shape().num_elements();
                self.1.push((param.id, value.reshape([len])));
            }
        }
    }
    let mut walk = Find(ids, Vec::new());
    module.visit(&mut walk);
    walk.1
}

struct PutBack<'a>(std::slice::Iter<'a, Buffer>);

impl ModuleMapper for PutBack<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let Some(buffer) = self.0.as_slice().first().filter(|buffer| buffer.id == param.id) else { return param };
        self.0.next();
        param.map(|old| like(&old, buffer.value.clone().reshape(old.shape())))
    }
}
