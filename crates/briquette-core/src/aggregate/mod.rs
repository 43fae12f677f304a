//! Aggregators: combine the ranks' contributions, in rank order, into one vector. Pure: no communication, the same bits on every rank.
//!
//! An aggregator combines contributions part by part, so that under the mean no rank holds more than one part of each. An aggregator that
//! rates whole contributions ([`Krum`]) declares it ([`rates`](Aggregator::rates)); it is given all parts first and assigns a weight to
//! each rank.

pub mod cge;
pub mod geometric_median;
pub mod krum;
pub mod licm;
pub mod mean;
pub mod median;
#[cfg(test)]
mod testkit;
pub mod trimmed_mean;

pub use cge::Cge;
pub use geometric_median::GeometricMedian;
pub use krum::Krum;
pub use licm::Licm;
pub use mean::Mean;
pub use median::Median;
pub use trimmed_mean::TrimmedMean;

use crate::Message;
use crate::error::AggregateError;
use crate::math::distance2;
use crate::message::BLOCK;

/// Combines the messages of all ranks.
pub trait Aggregator: Send {
    /// Writes the combination of one part's messages, in rank order, to `out`. `weights` holds the weight that [`rate`](Aggregator::rate)
    /// gave each rank, and is empty if the aggregator does not [rate](Aggregator::rates).
    ///
    /// # Errors
    /// [`AggregateError`] names the rank whose message does not fit `out`; `out` is then unspecified.
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError>;

    /// Returns whether the result is the mean of the contributions. If not, it lies between the smallest and the largest contribution in
    /// every coordinate, and ranks are not weighted by their samples: no rank chooses its own weight. Settings enforce that, and refuse
    /// wrappers that average some slots or steps separately. Around a gather that you build yourself, leave out
    /// [`Adaptive`](crate::wrapper::Adaptive), [`Grouped`](crate::wrapper::Grouped) and, if it [rates](Aggregator::rates),
    /// [`Bucketed`](crate::wrapper::Bucketed).
    fn is_mean(&self) -> bool;

    /// Returns the smallest number of ranks that it works with.
    fn fewest_ranks(&self) -> usize {
        1
    }

    /// Returns the rule for the remaining contributions when those of `excluded` of `world` ranks cannot be used. Excluded ranks count
    /// among the Byzantine ranks that it tolerates. Of the others it tolerates as many as before, or as can be tolerated among the
    /// remaining number. `None` if too many are excluded, which ends the exchange with an error that names them. Not called for a mean.
    fn without(&self, _excluded: usize, _world: usize) -> Option<Box<dyn Aggregator>> {
        None
    }

    /// Returns whether whole contributions are rated before any part is combined. All are then held, compressed, until the last has
    /// arrived.
    fn rates(&self) -> bool {
        false
    }

    /// Writes each rank's weight, from its whole contribution: `contributions[rank][part]`. Only called if it [rates](Aggregator::rates).
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
    fn fewest_ranks(&self) -> usize {
        (**self).fewest_ranks()
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

/// Calls `each` with the index of the first coordinate and every rank's values of one part, some coordinates at a time.
///
/// # Errors
/// [`AggregateError`] names the rank whose message is shorter than the first.
fn for_blocks(parts: &[&Message], mut each: impl FnMut(usize, &[&[f32]])) -> Result<(), AggregateError> {
    let len = parts.first().map_or(0, |part| part.len());
    let mut values = vec![[0.0; BLOCK]; parts.len()];
    for start in (0..len).step_by(BLOCK) {
        let count = BLOCK.min(len - start);
        for (rank, (part, values)) in parts.iter().zip(&mut values).enumerate() {
            values[..count].fill(0.0);
            part.add_range(start, 1.0, &mut values[..count])
                .map_err(|source| AggregateError::Message { rank, source })?;
        }
        let block: Vec<&[f32]> = values.iter().map(|values| &values[..count]).collect();
        each(start, &block);
    }
    Ok(())
}

/// Calls `each` with a coordinate's index and every rank's value of it, in rank order.
fn for_columns(parts: &[&Message], mut each: impl FnMut(usize, &mut [f32])) -> Result<(), AggregateError> {
    let mut column = vec![0.0; parts.len()];
    for_blocks(parts, |start, block| {
        for index in 0..block.first().map_or(0, |values| values.len()) {
            column.iter_mut().zip(block).for_each(|(value, values)| *value = values[index]);
            each(start + index, &mut column);
        }
    })
}

/// Calls `each` with every rank's values of whole contributions, some coordinates at a time.
fn for_parts(contributions: &[&[Message]], mut each: impl FnMut(&[&[f32]])) -> Result<(), AggregateError> {
    for part in 0..contributions.first().map_or(0, |parts| parts.len()) {
        let column: Vec<&Message> = contributions.iter().map(|parts| &parts[part]).collect();
        check_lengths(&column, column[0].len())?;
        for_blocks(&column, |_, block| each(block))?;
    }
    Ok(())
}

/// Returns the squared distances between whole contributions.
fn distances(contributions: &[&[Message]]) -> Result<Vec<Vec<f64>>, AggregateError> {
    let world = contributions.len();
    let mut distances = vec![vec![0.0; world]; world];
    for_parts(contributions, |block| {
        for (a, row) in distances.iter_mut().enumerate() {
            for (b, distance) in row.iter_mut().enumerate().skip(a + 1) {
                *distance += distance2(block[a], block[b]);
            }
        }
    })?;
    let both = |a: usize| (0..world).map(|b| distances[a.min(b)][a.max(b)]).collect();
    Ok((0..world).map(both).collect())
}

/// Computes the sum of one part's messages, each times its rank's weight; messages of weight 0 are skipped.
fn weighed(weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
    assert_eq!(weights.len(), parts.len(), "contributions are rated before they are combined");
    out.fill(0.0);
    for (rank, (part, weight)) in parts.iter().zip(weights).enumerate().filter(|(_, (_, weight))| **weight != 0.0) {
        part.add_to(*weight, out).map_err(|source| AggregateError::Message { rank, source })?;
    }
    Ok(())
}

/// Returns the number of Byzantine ranks to tolerate once `excluded` ranks are known. The rule tolerates `byzantine`, and `most` can be
/// tolerated among the others.
fn still_tolerated(byzantine: usize, excluded: usize, most: usize) -> Option<usize> {
    (most >= byzantine || excluded <= byzantine).then_some(byzantine.min(most))
}

/// Returns the rule for the remaining ranks, for a rule that tolerates fewer than half of the ranks. With fewer ranks than the rule needs
/// it is the mean.
fn of_majority<A: Aggregator + 'static>(rule: A, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
    let is_minority = 2 * excluded < world;
    let has_enough = world.saturating_sub(excluded) >= rule.fewest_ranks();
    is_minority.then(|| if has_enough { Box::new(rule) as Box<dyn Aggregator> } else { Box::new(Mean) })
}

/// Checks that an aggregator has the ranks it needs.
pub(crate) fn check_ranks(aggregator: &dyn Aggregator, got: usize) -> Result<(), AggregateError> {
    let needed = aggregator.fewest_ranks();
    if got < needed { Err(AggregateError::Ranks { needed, got }) } else { Ok(()) }
}

/// Checks that every part has the length of the output.
fn check_lengths(parts: &[&Message], len: usize) -> Result<(), AggregateError> {
    let wrong = |part: &&Message| part.len() != len;
    match parts.iter().position(wrong) {
        None => Ok(()),
        Some(rank) => {
            let source = crate::error::WireError::Length { expected: len, got: parts[rank].len() };
            Err(AggregateError::Message { rank, source })
        }
    }
}
