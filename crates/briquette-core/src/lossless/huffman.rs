//! Huffman codes of at most 11 bits.

use crate::error::WireError;

/// Bits of the longest code.
const LONGEST: usize = 11;
/// Entries of a table of codes: one for each 11 bits that may come next.
pub(super) const TABLE: usize = 1 << LONGEST;

/// Returns the length of each symbol's code, 0 for a symbol that does not occur. A single symbol has one bit; other codes are complete.
pub(super) fn lengths(counts: &[u32; 256]) -> [u8; 256] {
    let mut lengths = [0; 256];
    let mut leaves: Vec<(u32, u8)> = (0..=255).zip(counts).filter(|(_, n)| **n > 0).map(|(s, n)| (*n, s)).collect();
    leaves.sort_unstable();
    let mut depths = depths(leaves.iter().map(|(count, _)| *count).collect());
    limit(&mut depths);
    leaves.iter().zip(depths).for_each(|((_, symbol), depth)| lengths[usize::from(*symbol)] = depth as u8);
    lengths
}

/// Returns the depths of leaves with these weights, in ascending order: leaves and inner nodes are two queues.
fn depths(mut weights: Vec<u32>) -> Vec<usize> {
    let leaves = weights.len();
    if leaves <= 1 {
        return vec![1; leaves];
    }
    let nodes = 2 * leaves - 1;
    let (mut parents, mut leaf, mut inner) = (vec![0; nodes], 0, leaves);
    for next in leaves..nodes {
        let mut weight = 0;
        for _ in 0..2 {
            let from_leaves = leaf < leaves && (inner >= next || weights[leaf] <= weights[inner]);
            let least = if from_leaves { &mut leaf } else { &mut inner };
            parents[*least] = next;
            weight += weights[*least];
            *least += 1;
        }
        weights.push(weight);
    }
    let mut depths = vec![0; nodes];
    (0..nodes - 1).rev().for_each(|node| depths[node] = depths[parents[node]] + 1);
    depths.truncate(leaves);
    depths
}

/// Limits the depths of leaves, the rarest first, and keeps the code complete: rare leaves that are not at the limit become deeper, then
/// frequent ones take the room that is left.
fn limit(depths: &mut [usize]) {
    if depths.iter().all(|depth| *depth <= LONGEST) {
        return;
    }
    depths.iter_mut().for_each(|depth| *depth = (*depth).min(LONGEST));
    let mut room: usize = depths.iter().map(|depth| TABLE >> depth).sum();
    while room > TABLE {
        // Among the deepest below the limit, the rarest.
        let deepest = depths.iter().copied().filter(|depth| *depth < LONGEST).max();
        let Some(leaf) = depths.iter_mut().find(|depth| Some(**depth) == deepest) else { break };
        room -= TABLE >> (*leaf + 1);
        *leaf += 1;
    }
    for depth in depths.iter_mut().rev() {
        while *depth > 1 && room + (TABLE >> *depth) <= TABLE {
            room += TABLE >> *depth;
            *depth -= 1;
        }
    }
}

/// Returns code and length of each symbol. Codes ascend with length, then symbol; their first bit is the lowest.
pub(super) fn codes(lengths: &[u8; 256]) -> [(u16, u8); 256] {
    let mut next = [0_u16; LONGEST + 2];
    for length in lengths.iter().filter(|length| **length > 0) {
        next[usize::from(*length) + 1] += 1;
    }
    (1..=LONGEST).for_each(|length| next[length] = (next[length] + next[length - 1]) << 1);
    lengths.map(|length| match length {
        0 => (0, 0),
        _ => {
            let code = &mut next[usize::from(length)];
            *code += 1;
            ((*code - 1).reverse_bits() >> (16 - length), length)
        }
    })
}

/// Fills the table: the symbol in the high byte, the length of its code in the low one.
///
/// # Errors
/// [`WireError::Field`] for a code that is longer than 11 bits, or not complete.
pub(super) fn fill_table(lengths: &[u8; 256], table: &mut [u16; TABLE]) -> Result<(), WireError> {
    let longest = lengths.iter().copied().max().unwrap_or(0);
    super::check("length of a code", longest.into(), usize::from(longest) <= LONGEST)?;
    let room: usize = lengths.iter().filter(|length| **length > 0).map(|length| TABLE >> length).sum();
    super::check("sum of codes", room, room == TABLE)?;
    for (symbol, (code, length)) in codes(lengths).into_iter().enumerate().filter(|(_, (_, length))| *length > 0) {
        let entry = (symbol as u16) << 8 | u16::from(length);
        table[usize::from(code)..].iter_mut().step_by(1 << length).for_each(|place| *place = entry);
    }
    Ok(())
}
