//! Contributions in rank order to one vector. Pure: no communication, no state, the same bits on every rank.

pub mod mean;
pub use mean::Mean;

use crate::{Message, error::AggregateError};

/// Combines the messages of all ranks.
pub trait Aggregator: Send {
    /// Writes the combination of `parts`, in rank order, to `out`.
    ///
    /// # Errors
    /// [`AggregateError`] names the rank whose message does not fit `out`; `out` is then unspecified.
    fn aggregate(&mut self, parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError>;
}
