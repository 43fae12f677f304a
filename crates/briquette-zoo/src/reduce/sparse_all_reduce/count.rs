//! Traffic counts of a sparse all-reduce, computed from the selections alone: for worlds too large to run.

use super::{cut, keep_largest, points, selected, split};
use briquette_core::error::WireError;
use briquette_core::{CompressionRatio, Message};

/// Bytes of a sparse message that do not depend on what it holds.
pub const HEADER: usize = 17;

/// Bytes that one rank moves in an exchange, by phase. Payload is a message without its 17 bytes of header.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RankBytes {
    /// Quantiles sent.
    pub quantiles: usize,
    /// Payload of the pieces sent to their owners.
    pub scattered: usize,
    /// Payload of the pieces received as an owner.
    pub received: usize,
    /// Payload of this owner's result, sent to all others.
    pub gathered: usize,
    /// Headers of all messages sent.
    pub headers: usize,
}

impl RankBytes {
    /// Returns the bytes sent, without headers.
    pub fn payload(&self) -> usize {
        self.quantiles + self.scattered + self.gathered
    }
}

/// Returns the traffic of every rank at `ratio`, given the ranks' selections: [`TopK`](briquette_core::compress::top_k::TopK)'s messages with f32 values,
/// one per rank, all of equal length.
///
/// # Errors
/// [`WireError::Length`] if the messages have different lengths.
///
/// # Panics
/// If a message has another format.
pub fn count(selections: &[Message], ratio: CompressionRatio) -> Result<Vec<RankBytes>, WireError> {
    count_with(selections, ratio, |pool, len, bounds| split(pool, len, selections.len(), bounds))
}

pub(super) fn count_with(
    selections: &[Message],
    ratio: CompressionRatio,
    cut_at: impl Fn(&mut [u32], usize, &mut Vec<usize>),
) -> Result<Vec<RankBytes>, WireError> {
    let (world, len) = (selections.len(), selections.first().map_or(0, Message::len));
    if let Some(other) = selections.iter().find(|selection| selection.len() != len) {
        return Err(WireError::Length { expected: len, got: other.len() });
    }
    let k = ratio.keep(len);
    let (mut pool, mut bounds, mut ranks) = (Vec::new(), Vec::new(), vec![RankBytes::default(); world]);
    for (rank, selection) in selections.iter().enumerate() {
        let before = pool.len();
        points(selected(selection).0, k, (rank, world), &mut pool);
        ranks[rank].quantiles = 4 * (world - 1) * (pool.len() - before);
    }
    cut_at(&mut pool, len, &mut bounds);
    let (mut piece, mut result, mut sums) = (Message::default(), Message::default(), Vec::new());
    for (owner, bounds) in bounds.windows(2).enumerate() {
        let range = bounds[0]..bounds[1];
        sums.clear();
        sums.resize(range.len(), 0.0);
        for (rank, selection) in selections.iter().enumerate() {
            cut(selection, range.clone(), &mut piece);
            piece.add_to(1.0, &mut sums)?;
            if rank != owner {
                ranks[rank].scattered += piece.encoded_len() - HEADER;
                ranks[owner].received += piece.encoded_len() - HEADER;
                ranks[rank].headers += HEADER;
            }
        }
        keep_largest(&sums, k.div_ceil(world), &mut result);
        ranks[owner].gathered = (world - 1) * (result.encoded_len() - HEADER);
        ranks[owner].headers += (world - 1) * HEADER;
    }
    Ok(ranks)
}
