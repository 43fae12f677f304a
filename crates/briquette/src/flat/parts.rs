//! Parts of a module: trainable parameters, frozen parameters, and buffers.

use std::collections::{HashMap, HashSet};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::Tensor;

/// A part of a module's float tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// Parameters that require a gradient.
    Trainable,
    /// Parameters that do not: replicated after joining, and never sent again.
    Frozen,
    /// Tensors that are not parameters (BatchNorm's running statistics): rank-local.
    Buffers,
    /// All tensors that are not trainable, in the module's order.
    Rest,
}

/// The set of a module's tensors that are parameters.
///
/// Visitors receive every tensor as a parameter. Mappers can distinguish them: a parameter accepts a new id, any other tensor
/// keeps its own.
pub(crate) struct Parts {
    parameters: HashSet<ParamId>,
}

impl Parts {
    /// Collects the parameter ids, if they are needed to find this part of the module.
    pub(crate) fn for_part<M: Module>(part: Part, module: &M) -> Parts {
        match part {
            Part::Trainable | Part::Rest => Parts { parameters: HashSet::new() },
            Part::Frozen | Part::Buffers => Parts::of(module),
        }
    }

    pub(crate) fn of<M: Module>(module: &M) -> Parts {
        struct Rename(HashMap<ParamId, ParamId>);
        impl ModuleMapper for Rename {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let (id, value, mapper) = param.consume();
                let renamed = ParamId::new();
                self.0.insert(renamed, id);
                Param::from_mapped_value(renamed, value, mapper)
            }
        }
        struct Renamed(HashMap<ParamId, ParamId>, HashSet<ParamId>);
        impl ModuleVisitor for Renamed {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.1.extend(self.0.remove(&param.id));
            }
        }
        let mut rename = Rename(HashMap::new());
        let renamed = module.clone().map(&mut rename);
        let mut walk = Renamed(rename.0, HashSet::new());
        renamed.visit(&mut walk);
        Parts { parameters: walk.1 }
    }

    pub(crate) fn has<const D: usize>(&self, part: Part, id: ParamId, value: &Tensor<D>) -> bool {
        let is_trainable = value.is_require_grad();
        match part {
            Part::Trainable => is_trainable,
            Part::Frozen => !is_trainable && self.parameters.contains(&id),
            Part::Buffers => !is_trainable && !self.parameters.contains(&id),
            Part::Rest => !is_trainable,
        }
    }
}
