//! Arithmetic mean of the contributions.

use super::Aggregator;
use crate::config::Described;
use crate::{Message, error::AggregateError};

/// The mean over ranks: `add(1/W)` of each message in rank order. No rank holds more than one dense vector.
///
/// Linear, so that law 2 (the mean of `sent` is the average) holds. Rank weights are applied before compression, by
/// scaling each rank's vector with `n_i · W / Σ n`.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Mean;

impl Aggregator for Mean {
    fn combine(&mut self, _weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        out.fill(0.0);
        let weight = 1.0 / parts.len() as f32;
        for (rank, part) in parts.iter().enumerate() {
            part.add_to(weight, out).map_err(|source| AggregateError::Message { rank, source })?;
        }
        Ok(())
    }

    fn is_mean(&self) -> bool {
        true
    }
}

impl Described for Mean {
    const NAME: &'static str = "mean";
    const HELP: &'static str = "the mean over ranks, weighted by samples";
}

#[cfg(test)]
mod tests {
    use super::super::testkit::combined;
    use super::*;

    /// (1 + 3 + 8 + 4)/4, (0 + 5 − 2 + 1)/4.
    #[test]
    fn the_mean_by_hand() {
        assert_eq!(combined(&mut Mean, &[vec![1.0, 0.0], vec![3.0, 5.0], vec![8.0, -2.0], vec![4.0, 1.0]]), [4.0, 1.0]);
    }
}
