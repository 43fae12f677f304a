//! Inventory of a module: its float tensors by part, path and shape.

use std::collections::HashMap;

use briquette_core::{Layout, Slot};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::parts::{Part, Parts};
use crate::backend::describe;
use crate::error::Error;

/// Float tensors of a module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inventory {
    /// The trainable slots.
    pub(crate) layout: Layout,
    /// Parameters that are not trained.
    pub(super) frozen: Layout,
    /// Float tensors that are not parameters.
    pub(crate) buffers: Layout,
    /// Frozen parameters and buffers, in the module's order.
    pub(crate) rest: Layout,
    /// The paths of the first two trainable slots with the same id.
    shared: Option<[String; 2]>,
}

impl Inventory {
    /// # Errors
    /// [`Error::DType`] if a device does not support a tensor's type: some would compute garbage.
    pub(crate) fn of<M: Module>(module: &M) -> Result<Inventory, Error> {
        let mut walk = Survey::of(Parts::of(module));
        module.visit(&mut walk);
        let Survey { found, refused, shared, .. } = walk;
        let layout = |part| {
            let of_part = found.iter().filter(|(parts, ..)| parts.contains(&part));
            Layout::new(of_part.map(|(_, path, shape)| (path.clone(), shape.clone())))
        };
        let [layout, frozen, buffers, rest] = [Part::Trainable, Part::Frozen, Part::Buffers, Part::Rest].map(layout);
        refused.map_or(Ok(Inventory { layout, frozen, buffers, rest, shared }), Err)
    }

    /// Returns a warning about the module, if there is one, for the user.
    pub(crate) fn caution(&self) -> Option<String> {
        let [first, second] = self.shared.as_ref()?;
        Some(format!(
            "`{first}` and `{second}` are parameters with one id (one is a clone of the other): Burn's optimizers give the gradient to one of \
             them, and they part at the first step; use one field in both places, or give the second an id of its own"
        ))
    }

    /// Trained and frozen parameters.
    pub(crate) fn parameters(&self) -> impl Iterator<Item = &Slot> {
        self.layout.slots().iter().chain(self.frozen.slots())
    }

    pub(crate) fn part(&self, part: Part) -> &Layout {
        match part {
            Part::Trainable => &self.layout,
            Part::Frozen => &self.frozen,
            Part::Buffers => &self.buffers,
            Part::Rest => &self.rest,
        }
    }
}

/// Visitor that records paths: the walk's stack joined by dots, as in Burn's own parameter groups.
struct Survey {
    parts: Parts,
    path: Vec<String>,
    /// Parts of the tensor, its path and its shape.
    found: Vec<(Vec<Part>, String, Vec<usize>)>,
    refused: Option<Error>,
    /// Trainable parameters by their ids.
    trained: HashMap<ParamId, String>,
    /// The first two trainable parameters with the same id.
    shared: Option<[String; 2]>,
}

impl Survey {
    fn of(parts: Parts) -> Survey {
        let (path, found, trained) = Default::default();
        Survey { parts, path, found, trained, refused: None, shared: None }
    }
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
        let path = self.path.join(".");
        let (dtype, device) = (value.dtype(), value.device());
        if !device.supports_dtype(dtype) {
            let (slot, device) = (path.clone(), describe(&device));
            self.refused.get_or_insert(Error::DType { slot, dtype: format!("{dtype:?}"), device });
        }
        let parts = [Part::Trainable, Part::Frozen, Part::Buffers, Part::Rest];
        let parts: Vec<Part> = parts.into_iter().filter(|part| self.parts.has(*part, param.id, &value)).collect();
        if parts.contains(&Part::Trainable)
            && let Some(first) = self.trained.insert(param.id, path.clone())
        {
            self.shared.get_or_insert([first, path.clone()]);
        }
        self.found.push((parts, path, value.dims().to_vec()));
    }
}
