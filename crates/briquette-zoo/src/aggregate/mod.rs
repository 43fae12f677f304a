//! Aggregators that combine contributions so that some ranks may be Byzantine (arbitrarily faulty). One file per
//! algorithm.

pub mod cge;
pub mod geometric_median;
pub mod krum;
pub mod licm;
pub mod median;
#[cfg(test)]
mod testkit;
pub mod trimmed_mean;

use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, mean::Mean};
use briquette_core::error::{AggregateError, WireError};
use briquette_core::math::distance2;
use briquette_core::message::BLOCK;

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

/// Computes the weighted sum of one part's messages. Messages of weight 0 are skipped.
fn weighed(weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
    assert_eq!(weights.len(), parts.len(), "contributions are rated before they are combined");
    out.fill(0.0);
    for (rank, (part, weight)) in parts.iter().zip(weights).enumerate().filter(|(_, (_, weight))| **weight != 0.0) {
        part.add_to(*weight, out).map_err(|source| AggregateError::Message { rank, source })?;
    }
    Ok(())
}

/// Returns the number of Byzantine ranks to tolerate after `excluded` ranks have been excluded. The aggregator tolerates `byzantine`
/// ranks, and at most `most` can be tolerated among the remaining ones.
fn still_tolerated(byzantine: usize, excluded: usize, most: usize) -> Option<usize> {
    (most >= byzantine || excluded <= byzantine).then_some(byzantine.min(most))
}

/// Returns the aggregator for the remaining ranks, for an aggregator that tolerates fewer than half of the ranks. If fewer ranks remain
/// than it needs, this is the mean.
fn of_majority<A: Aggregator + 'static>(rule: A, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
    let is_minority = 2 * excluded < world;
    let has_enough = world.saturating_sub(excluded) >= rule.min_ranks();
    is_minority.then(|| if has_enough { Box::new(rule) as Box<dyn Aggregator> } else { Box::new(Mean) })
}

/// Checks that every part has the length of the output.
fn check_lengths(parts: &[&Message], len: usize) -> Result<(), AggregateError> {
    let wrong = |part: &&Message| part.len() != len;
    match parts.iter().position(wrong) {
        None => Ok(()),
        Some(rank) => {
            let source = WireError::Length { expected: len, got: parts[rank].len() };
            Err(AggregateError::Message { rank, source })
        }
    }
}
