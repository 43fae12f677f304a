//! Arithmetic mean of the contributions.

use crate::seam::Aggregator;
use crate::settings::Described;
use crate::{Message, error::AggregateError};

/// The mean over ranks: `add(1/W)` of each message in rank order. No rank holds more than one dense vector.
///
/// Linear, so that law 2 (the mean of `sent` is the average) holds. Rank weights are applied before compression, by
/// scaling each rank's vector with `n_i · W / Σ n`.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "mean", help = "the mean over ranks, weighted by samples")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;
    use crate::compress::dense::Dense;
    use crate::seam::Compressor;

    /// (1 + 3 + 8 + 4)/4, (0 + 5 − 2 + 1)/4.
    #[test]
    fn the_mean_by_hand() {
        let parts = [[1.0, 0.0], [3.0, 5.0], [8.0, -2.0], [4.0, 1.0]].map(|x| {
            let mut message = Message::default();
            Dense.compress_into(&x, Key::new(0), &mut message);
            message
        });
        let mut mean = [5.0; 2];
        Mean.combine(&[], &parts.each_ref(), &mut mean).unwrap();
        assert_eq!(mean, [4.0, 1.0]);
    }
}
