//! Digests of a module's values, with which ranks compare their replicas.

use burn::module::Module;
use twox_hash::XxHash3_64;

use super::Inventory;
use super::parts::Part;
use super::values::for_each_block;
use crate::error::Error;

/// Returns 64 bits for each of the part's tensors, in the module's order. They are computed from the values as f32, and are
/// therefore the same on every device.
pub(crate) fn digests<M: Module>(module: &M, part: Part, inventory: &Inventory) -> Result<Vec<u64>, Error> {
    let mut slots = inventory.part(part).slots().iter().peekable();
    let mut out = Vec::with_capacity(slots.len());
    for_each_block(module, part, |block| {
        let mut bytes = block.as_bytes();
        // Until the end of the block, which consists of whole tensors; an empty tensor is in no block.
        while let Some(slot) =
            slots.next_if(|slot| slot.len() == 0 || !bytes.is_empty() && 4 * slot.len() <= bytes.len())
        {
            let (own, others) = bytes.split_at(4 * slot.len());
            out.push(digest_of_bytes(own));
            bytes = others;
        }
        Ok(())
    })?;
    Ok(out)
}

/// Combines all digests into one.
pub(crate) fn digest(digests: &[u64]) -> u64 {
    let bytes: Vec<u8> = digests.iter().flat_map(|digest| digest.to_le_bytes()).collect();
    digest_of_bytes(&bytes)
}

/// A 64-bit digest of any bytes.
pub(crate) fn digest_of_bytes(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}
