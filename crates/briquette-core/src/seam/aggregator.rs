//! Aggregator: combines the contributions of the ranks.

use crate::Message;
use crate::error::AggregateError;

/// Combines the messages of all ranks.
pub trait Aggregator: Send {
    /// Combines the messages for one part of the vector, one per rank in rank order, and writes the result to `out`. `weights` holds the
    /// weights from [`rate`](Aggregator::rate), one per rank; it is empty if the aggregator does not [rate](Aggregator::rates).
    ///
    /// # Errors
    /// [`AggregateError`] names the rank whose message does not fit `out`; `out` is then unspecified.
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError>;

    /// Returns whether the result is the mean of the contributions.
    ///
    /// If not, every coordinate of the result must lie between the smallest and the largest contribution. Ranks are then not weighted by
    /// their sample counts, so that no rank chooses its own weight. The settings turn this weighting off, and refuse wrappers that average
    /// some slots or some steps instead of aggregating them. If you build the reducer yourself, do not wrap it in
    /// [`Adaptive`](crate::wrapper::adaptive::Adaptive), [`Grouped`](crate::wrapper::grouped::Grouped) or, if the aggregator
    /// [rates](Aggregator::rates), [`Bucketed`](crate::wrapper::bucketed::Bucketed).
    fn is_mean(&self) -> bool;

    /// Returns the smallest number of ranks that this aggregator works with.
    fn min_ranks(&self) -> usize {
        1
    }

    /// Returns the aggregator for the remaining contributions when those of `excluded` of `world` ranks cannot be used. The excluded
    /// ranks count as Byzantine (arbitrarily faulty). Among the others, the returned aggregator tolerates as many Byzantine ranks as
    /// this one, or as many as their number permits. Returns `None` if too many are excluded; the exchange then ends with an error that
    /// names them. Not called for a mean.
    fn without(&self, _excluded: usize, _world: usize) -> Option<Box<dyn Aggregator>> {
        None
    }

    /// Returns whether ranks are weighted by their whole contributions before any part is combined. All messages are then kept,
    /// compressed, until the last one has arrived.
    fn rates(&self) -> bool {
        false
    }

    /// Writes one weight per rank, computed from the whole contributions: `contributions[rank][part]`. Called only if the aggregator
    /// [rates](Aggregator::rates).
    ///
    /// # Errors
    /// [`AggregateError`] names the rank whose message does not fit the others.
    fn rate(&mut self, _contributions: &[&[Message]], _weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        Ok(())
    }
}

impl<A: Aggregator + ?Sized> Aggregator for Box<A> {
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        (**self).combine(weights, parts, out)
    }
    fn is_mean(&self) -> bool {
        (**self).is_mean()
    }
    fn min_ranks(&self) -> usize {
        (**self).min_ranks()
    }
    fn without(&self, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
        (**self).without(excluded, world)
    }
    fn rates(&self) -> bool {
        (**self).rates()
    }
    fn rate(&mut self, contributions: &[&[Message]], weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        (**self).rate(contributions, weights)
    }
}

/// Checks that an aggregator has the ranks it needs.
///
/// # Errors
/// [`AggregateError::Ranks`] otherwise.
pub fn check_ranks(aggregator: &dyn Aggregator, got: usize) -> Result<(), AggregateError> {
    let needed = aggregator.min_ranks();
    if got < needed { Err(AggregateError::Ranks { needed, got }) } else { Ok(()) }
}
