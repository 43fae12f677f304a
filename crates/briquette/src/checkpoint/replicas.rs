//! Checks that replicas are equal when a checkpoint is saved.

use std::collections::BTreeMap;

use briquette_core::error::SyncError;
use briquette_core::sync::{Unequal, unequal};
use burn_pack::Reader;

use super::Blobs;
use crate::error::Error;
use crate::flat::digest_of_bytes;
use crate::synchronizer::Synchronizer;

/// Digests of tensors and numbers, each with its name in errors.
type Digests = Vec<(String, u64)>;

/// Returns the first entry that differs between ranks, or that only some of them have.
fn first_difference(all: &[Digests]) -> Option<(String, Unequal)> {
    let by_name: Vec<BTreeMap<&String, u64>> =
        all.iter().map(|digests| digests.iter().map(|(name, digest)| (name, *digest)).collect()).collect();
    let mut names = all.iter().flatten().map(|(name, _)| name);
    names.find_map(|name| {
        let values: Vec<_> = by_name.iter().map(|digests| digests.get(name)).collect();
        Some((name.clone(), unequal(&values)?))
    })
}

impl Synchronizer {
    /// Checks that ranks have equal parameters and optimizer state where these must be equal. `model` and `optimizer` say whether the
    /// fingerprints of the two parts differ, and are the same on every rank. State of the model other than its parameters may differ;
    /// each rank then saves its own.
    ///
    /// # Errors
    /// [`SyncError::Replicas`] names the first tensor and the ranks.
    pub(super) fn check_replicas(&mut self, blobs: &Blobs, [model, optimizer]: [bool; 2]) -> Result<(), Error> {
        let compared = [model && self.replicas_are_equal(), optimizer && self.optimizers_are_equal()];
        if compared == [false; 2] {
            return Ok(());
        }
        let mine = self.digests_of(blobs, compared).ok();
        let all = self.gather_bytes("checkpoint save", &serde_json::to_vec(&mine).unwrap_or_default())?;
        let all = all.iter().map(|text| serde_json::from_slice(text).unwrap_or_default());
        // A rank without records reports its own error later.
        let Some(all) = all.collect::<Option<Vec<Digests>>>() else { return Ok(()) };
        let Some((slot, Unequal { rank, others })) = first_difference(&all) else { return Ok(()) };
        Err(SyncError::Replicas { step: self.step(), slot: Some(slot), rank, others }.into())
    }

    /// Digests of the parameters in the model's record, and of the optimizer's record, each only if it is compared.
    fn digests_of(&self, blobs: &Blobs, [model, optimizer]: [bool; 2]) -> Result<Digests, burn_pack::Error> {
        let record = |name: &str| blobs.iter().find(|(known, _)| *known == name).map(|(_, bytes)| bytes.clone());
        let (mut out, mut paths) = (Digests::new(), BTreeMap::new());
        for tensor in record("model")
            .map(Reader::from_bytes)
            .transpose()?
            .map(Reader::into_tensors)
            .transpose()?
            .into_iter()
            .flatten()
        {
            paths.extend(tensor.param_id.map(|id| (id, tensor.name.clone())));
            if model && self.is_parameter(&tensor.name) {
                out.push((tensor.name.clone(), digest_of_bytes(&tensor.to_bytes()?)));
            }
        }
        let Some(state) = record("optimizer").filter(|_| optimizer).map(Reader::from_bytes).transpose()? else {
            return Ok(out);
        };
        // Every name begins with the number of its parameter.
        let called = |name: &str| {
            let (id, rest) = name.split_at(name.find('.').unwrap_or(name.len()));
            let path = id.parse().ok().and_then(|id: u64| paths.get(&id)).map_or(id, String::as_str);
            format!("{path} (optimizer state{})", rest.replace('.', " "))
        };
        out.extend(
            state
                .scalars()
                .iter()
                .map(|(name, value)| (called(name), digest_of_bytes(format!("{value:?}").as_bytes()))),
        );
        for tensor in state.into_tensors()? {
            out.push((called(&tensor.name), digest_of_bytes(&tensor.to_bytes()?)));
        }
        Ok(out)
    }

    fn is_parameter(&self, path: &str) -> bool {
        let inventory = self.joined.as_ref().map(|joined| &joined.inventory);
        inventory.is_some_and(|inventory| inventory.parameters().any(|slot| slot.path() == path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_some_ranks_have_differs() {
        let digests = |names: &[&str]| -> Digests { names.iter().map(|name| ((*name).to_owned(), 7)).collect() };
        let first = |all: &[&[&str]]| {
            let all: Vec<_> = all.iter().map(|names| digests(names)).collect();
            first_difference(&all).map(|(name, Unequal { others, .. })| (name, others))
        };
        assert_eq!(first(&[&["a", "b"], &["a", "b"]]), None);
        assert_eq!(first(&[&["a", "b"], &["a"], &["a", "b"]]), Some(("b".to_owned(), vec![1])));
        assert_eq!(first(&[&["a"], &["a"], &[]]), Some(("a".to_owned(), vec![2])));
        assert_eq!(first(&[&["a"], &["a", "b"], &["a"]]), Some(("b".to_owned(), vec![1])), "rank 0 lacks it too");
    }
}
