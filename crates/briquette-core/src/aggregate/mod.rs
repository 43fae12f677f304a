//! Contributions in rank order to one vector. Pure: no communication, the same bits on every rank.
//!
//! An aggregator combines contributions part by part, so that no rank holds more than one part of each. One that rates whole
//! contributions ([`Krum`]) declares it ([`rates`](Aggregator::rates)), is given all parts first, and weighs the ranks.

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
    /// Writes the combination of one part's messages, in rank order, to `out`; `weights` has what [`rate`](Aggregator::rate)
    /// gave each rank, and is empty where the aggregator does not [rate](Aggregator::rates).
    ///
    /// # Errors
    /// [`AggregateError`] names the rank whose message does not fit `out`; `out` is then unspecified.
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError>;

    /// Whether the result is the mean of the contributions. If not, it lies between the smallest and the largest contribution
    /// in every coordinate, and ranks are not weighted by their samples: no rank chooses what it counts. Settings see to that,
    /// and refuse what averages some slots or steps by itself; around a gather that you put together yourself, leave out
    /// [`Adaptive`](crate::wrapper::Adaptive), [`Grouped`](crate::wrapper::Grouped) and, where it [rates](Aggregator::rates),
    /// [`Bucketed`](crate::wrapper::Bucketed).
    fn is_mean(&self) -> bool;

    /// The fewest ranks it works with.
    fn fewest_ranks(&self) -> usize {
        1
    }

    /// Whether contributions are rated as wholes before any part is combined. All are then held, compressed, until the last has
    /// arrived.
    fn rates(&self) -> bool {
        false
    }

    /// Writes each rank's weight, from its whole contribution: `contributions[rank][part]`. Only called where it
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
    fn fewest_ranks(&self) -> usize {
        (**self).fewest_ranks()
    }
    fn rates(&self) -> bool {
        (**self).rates()
    }
    fn rate(&mut self, contributions: &[&[Message]], weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        (**self).rate(contributions, weights)
    }
}

/// Calls `each` with every rank's values of one part, some coordinates at a time, and where they begin.
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

/// Calls `each` with every rank's value of one coordinate, in rank order, and its index.
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

/// Squared distances of whole contributions to each other.
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

/// The sum of one part's messages, each by its rank's weight; those of no weight are not looked at.
fn weighed(weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
    assert_eq!(weights.len(), parts.len(), "contributions are rated before they are combined");
    out.fill(0.0);
    for (rank, (part, weight)) in parts.iter().zip(weights).enumerate().filter(|(_, (_, weight))| **weight != 0.0) {
        part.add_to(*weight, out).map_err(|source| AggregateError::Message { rank, source })?;
    }
    Ok(())
}

/// That an aggregator has the ranks it needs.
fn check_ranks(aggregator: &dyn Aggregator, got: usize) -> Result<(), AggregateError> {
    let needed = aggregator.fewest_ranks();
    if got < needed { Err(AggregateError::Ranks { needed, got }) } else { Ok(()) }
}

/// That every part has the length of what it is written to.
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

#[cfg(test)]
mod tests {
    use crate::aggregate::{Krum, Mean};
    use crate::comm::{Local, run_ranks};
    use crate::compress::TopK;
    use crate::config::AggregatorConfig;
    use crate::error::ReduceError;
    use crate::reduce::{AgreedStep, Gather, Grain, Reducer, Round};
    use crate::report::Report;
    use crate::{Key, Layout};

    /// What every rank gets of five, of which one sends what is not finite, and which ranks its report names.
    fn exchanged(
        aggregator: AggregatorConfig,
        lie: f32,
        grain: Grain,
    ) -> Vec<Result<(Vec<f32>, Vec<usize>), ReduceError>> {
        run_ranks(Local::world(5), |mut comm| {
            let (layout, mut average) = (Layout::new([("a", vec![3]), ("b", vec![2])]), vec![0.0; 5]);
            let mut input = vec![1.0, 0.5 * comm.rank() as f32, 3.0, -1.0, 2.0];
            if comm.rank() == 3 {
                input[1] = lie;
            }
            let (key, slots) = (Key::new(0), layout.slots());
            let agreed_step = &AgreedStep::default();
            let round = Round { key, slots, agreed_step, input: &input, average: &mut average, sent: None };
            let mut gather = Gather::new(TopK::fraction(1.0).unwrap(), aggregator.get().build()).grain(grain);
            gather.reduce(round, &mut comm)?;
            let mut report = Report::default();
            gather.report(&mut report);
            Ok((average, report.excluded))
        })
    }

    /// Threat R5.
    #[test]
    fn what_is_not_finite_does_not_count_and_is_named() {
        for aggregator in
            AggregatorConfig::all().into_iter().filter(|one| *one != Mean.into() && one.get().fewest_ranks() <= 5)
        {
            for lie in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for grain in [Grain::Whole, Grain::PerSlot] {
                    let all = exchanged(aggregator, lie, grain);
                    for one in &all {
                        let (average, excluded) = one.as_ref().unwrap_or_else(|error| panic!("{aggregator}: {error}"));
                        assert!((0.0..=2.0).contains(&average[1]), "{aggregator}: {average:?}");
                        assert_eq!(
                            (excluded, Ok((average.clone(), vec![3]))),
                            (&vec![3], all[0].clone()),
                            "{aggregator}"
                        );
                    }
                }
            }
        }
        assert_eq!(exchanged(Krum::default().into(), 1.5, Grain::Whole)[0].as_ref().unwrap().1, Vec::<usize>::new());
        assert!(exchanged(Mean.into(), f32::NAN, Grain::Whole)[0].is_err());
    }
}
