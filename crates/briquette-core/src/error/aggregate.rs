//! What is wrong with the contributions of ranks.

use super::WireError;

/// Contributions could not be aggregated.
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregateError {
    /// The message of one rank does not fit.
    #[error("contribution of rank {rank}: {source}")]
    Message {
        /// Whose.
        rank: usize,
        /// What is wrong with it.
        source: WireError,
    },
    /// More contributions than the aggregator tolerates cannot be used.
    #[error(
        "of the contributions of {world} ranks those of {ranks:?} are not finite or not readable, more than this aggregation tolerates"
    )]
    Excluded {
        /// Whose.
        ranks: Vec<usize>,
        /// How many ranks there are.
        world: usize,
    },
    /// Too few contributions for this aggregator.
    #[error("this aggregation needs at least {needed} ranks, got {got}")]
    Ranks {
        /// Ranks that it works with.
        needed: usize,
        /// Ranks that there are.
        got: usize,
    },
}
