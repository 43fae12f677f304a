//! Compares what replicas that are to be equal save.

use std::collections::BTreeMap;

use briquette_core::error::SyncError;
use briquette_core::sync::{Unequal, unequal};
use burn_pack::Reader;

use super::Blobs;
use crate::error::Error;
use crate::flat::digest_of_bytes;
use crate::synchronizer::Synchronizer;

/// Digests of tensors and numbers, each with what it is called in errors.
type Digests = Vec<(String, u64)>;

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
        let mine = self.digests_of(blobs, compared).unwrap_or_default();
        let all = self.gather_bytes("checkpoint save", &serde_json::to_vec(&mine).unwrap_or_default())?;
        let all: Vec<Digests> = all.iter().map(|text| serde_json::from_slice(text).unwrap_or_default()).collect();
        // A rank that has nothing to save says so later.
        if all.iter().any(Vec::is_empty) {
            return Ok(());
        }
        let (step, slots) = (self.step, all[0].iter());
        let of = |digests: &Digests, slot: &String| digests.iter().find(|(name, _)| name == slot).map(|(_, own)| *own);
        let values = |slot| all.iter().map(|digests| of(digests, slot)).collect::<Vec<_>>();
        let different = slots.map(|(slot, _)| slot).find_map(|slot| Some((slot, unequal(&values(slot))?)));
        let Some((slot, Unequal { rank, others })) = different else { return Ok(()) };
        Err(SyncError::Replicas { step, slot: Some(slot.clone()), rank, others }.into())
    }

    /// Of the parameters in the model's record, and of the optimizer's record, as far as they are compared.
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
