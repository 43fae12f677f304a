//! Mapping of saved parameter ids to local ones.
//!
//! Ids are random in every process, and Burn's records contain those of the process that saved. If a module took them over,
//! parameter groups selected by ids (for optimizers or learning rates) would silently no longer match. Therefore the module
//! keeps its ids, and the ids in the optimizer's state are renamed.

use std::collections::BTreeMap;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{Bytes, Tensor};
use burn_pack::{Reader, Writer};

/// Ids of the float tensors, in traversal order.
pub(crate) fn ids<M: Module>(module: &M) -> Vec<ParamId> {
    struct Ids(Vec<ParamId>);
    impl ModuleVisitor for Ids {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.push(param.id);
        }
    }
    let mut walk = Ids(Vec::new());
    module.visit(&mut walk);
    walk.0
}

/// Map from saved ids to local ones.
pub(crate) type Renamed = BTreeMap<u64, u64>;

/// Restores the ids that `module` had before loading.
pub(super) fn keep<M: Module>(module: M, local: &[ParamId]) -> (M, Renamed) {
    struct Keep<'a> {
        local: std::slice::Iter<'a, ParamId>,
        renamed: Renamed,
    }
    impl ModuleMapper for Keep<'_> {
        fn map_float<const D: usize>(&mut self, mut param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if let Some(&local) = self.local.next() {
                self.renamed.insert(param.id.val(), local.val());
                param.id = local;
            }
            param
        }
    }
    let mut walk = Keep { local: local.iter(), renamed: Renamed::new() };
    let module = module.map(&mut walk);
    (module, walk.renamed)
}

/// Returns numbers for the ids in a model's record, in the order of its paths. Unlike ids, they are the same in every
/// process.
pub(super) fn numbers(model: Bytes) -> Result<Renamed, burn_pack::Error> {
    let mut tensors = Reader::from_bytes(model)?.into_tensors()?;
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut numbers = Renamed::new();
    for id in tensors.iter().filter_map(|tensor| tensor.param_id) {
        let next = numbers.len() as u64 + 1;
        numbers.entry(id).or_insert(next);
    }
    Ok(numbers)
}

/// Returns the bytes of a model's record with its ids renamed.
pub(super) fn rename_model(bytes: Bytes, renamed: &Renamed) -> Result<Bytes, burn_pack::Error> {
    rewrite(bytes, renamed, str::to_owned)
}

/// Returns the bytes of an optimizer's record with its ids renamed. In Burn's format every name begins with the id of
/// its parameter.
pub(crate) fn rename(bytes: Bytes, renamed: &Renamed) -> Result<Bytes, burn_pack::Error> {
    rewrite(bytes, renamed, |name| {
        let (id, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
        let id = id.parse().ok().and_then(|id| renamed.get(&id));
        id.map_or_else(|| name.to_owned(), |id| format!("{id}{rest}"))
    })
}

fn rewrite(bytes: Bytes, renamed: &Renamed, name: impl Fn(&str) -> String) -> Result<Bytes, burn_pack::Error> {
    let reader = Reader::from_bytes(bytes)?;
    let (scalars, metadata) = (reader.scalars().clone(), reader.metadata().clone());
    let mut tensors = reader.into_tensors()?;
    for tensor in &mut tensors {
        tensor.name = name(&tensor.name);
        tensor.param_id = tensor.param_id.map(|id| renamed.get(&id).copied().unwrap_or(id));
    }
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let mut writer = Writer::new(tensors);
    for (key, value) in scalars {
        writer = writer.with_scalar(&name(&key), value);
    }
    for (key, value) in metadata {
        writer = writer.with_metadata(&name(&key), &value);
    }
    writer.into_bytes()
}
