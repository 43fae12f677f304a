//! Check that a module still has the trainable tensors that joined.
//!
//! The slots of the flat vector follow the order of the module's traversal. If one layer is frozen and another one is
//! trained instead, as fine-tuning does between phases, the new layer would use the old layer's slots.

use briquette_core::{Layout, Slot};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

use super::Inventory;
use crate::error::Error;

/// Ids of the trainable tensors whose paths were last compared. While the ids are unchanged, the paths are too.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Vec<ParamId>);

/// The first trainable tensor that has changed since join, with its path and shape then and now.
#[derive(Debug, PartialEq)]
pub(crate) struct Changed {
    pub(crate) place: usize,
    pub(crate) joined: Option<(String, Vec<usize>)>,
    pub(crate) now: Option<(String, Vec<usize>)>,
}

impl Known {
    /// Compares the module with the `layout` that joined.
    ///
    /// # Errors
    /// [`Error::DType`] for a tensor of a type that its device does not support.
    pub(crate) fn compare<M: Module>(&mut self, module: &M, layout: &Layout) -> Result<Option<Changed>, Error> {
        let mut walk = Walk { ids: Vec::with_capacity(self.0.len()), slots: layout.slots(), same_shapes: true };
        module.visit(&mut walk);
        if walk.same_shapes && walk.ids.len() == layout.slots().len() && walk.ids == self.0 {
            return Ok(None);
        }
        let now = Inventory::of(module)?.layout;
        let tensor = |layout: &Layout, place| {
            let slot: &Slot = layout.slots().get(place)?;
            Some((slot.path().to_owned(), slot.shape().to_vec()))
        };
        let places = 0..layout.slots().len().max(now.slots().len());
        let mut pairs = places.map(|place| (place, tensor(layout, place), tensor(&now, place)));
        let changed = pairs.find(|(_, joined, now)| joined != now);
        if changed.is_none() {
            self.0 = walk.ids;
        }
        Ok(changed.map(|(place, joined, now)| Changed { place, joined, now }))
    }
}

struct Walk<'a> {
    ids: Vec<ParamId>,
    slots: &'a [Slot],
    same_shapes: bool,
}

impl ModuleVisitor for Walk<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        if value.is_require_grad() {
            self.same_shapes &= self.slots.get(self.ids.len()).is_some_and(|slot| slot.shape() == value.dims());
            self.ids.push(param.id);
        }
    }
}
