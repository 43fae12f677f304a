//! Errors raised by aggregators.

use super::WireError;

/// The contributions could not be aggregated.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// The message of one rank could not be decoded.
    #[error("contribution of rank {rank}: {source}")]
    Message {
        /// The rank that sent it.
        rank: usize,
        /// The decoding error.
        source: WireError,
    },
    /// The number of unusable contributions exceeds what the aggregator tolerates.
    #[error(
        "the contributions of ranks {ranks:?}, of {world} ranks, are not finite or not readable: more than the aggregator tolerates"
    )]
    Excluded {
        /// The ranks with unusable contributions.
        ranks: Vec<usize>,
        /// The number of ranks.
        world: usize,
    },
    /// The aggregator needs more contributions.
    #[error("this aggregation needs at least {needed} ranks, got {got}")]
    Ranks {
        /// The minimum number of ranks.
        needed: usize,
        /// The actual number of ranks.
        got: usize,
    },
}
