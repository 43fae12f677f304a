//! Coordinate-wise median: fewer than half of the ranks may be Byzantine.
//!
//! **Why, and when not.** It needs no number of attackers, and no coordinate leaves the range of the honest ranks' values. It uses one or
//! two values of a coordinate and pays for that in variance: if few ranks are suspect, [`TrimmedMean`](crate::aggregate::trimmed_mean::TrimmedMean) averages the
//! others. If honest ranks' values are skewed, the median is not their mean. Not with sparsifiers that select different coordinates on each
//! rank: a coordinate that only a minority sends is lost.
//!
//! **Method.** Sort the `n` values of a coordinate, `x₁ ≤ … ≤ x_n`. The result is `x_{(n+1)/2}` if `n` is odd, else the mean of the two
//! middle values.
//!
//! **Properties.** Not linear, and ranks are not weighted by samples. Every coordinate lies in the range of the honest ranks' values while
//! fewer than half of all ranks are Byzantine. Equivariant under permutation, translation and scaling. Time `O(W·d)` for a fixed world, by
//! selection.
//!
//! **Reference.** D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates*, ICML 2018
//! (arXiv 1803.01498), definition 1.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::median::Median;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let messages = [[1.0, 5.0], [2.0, 6.0], [-900.0, 8.0], [3.0, f32::MAX]].map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(&x, Key::new(0), &mut message);
//!     message
//! });
//! let mut out = [0.0; 2];
//! Median.combine(&[], &messages.each_ref(), &mut out)?;
//! assert_eq!(out, [1.5, 7.0]);
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::{check_lengths, for_columns, of_majority};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;

/// The middle value; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "median", help = "in every coordinate the value in the middle (3 ranks)")]
pub struct Median;

/// Returns the median of at least one value; reorders the values.
pub(super) fn median(values: &mut [f32]) -> f32 {
    let is_even = values.len().is_multiple_of(2);
    let (below, middle, _) = values.select_nth_unstable_by(values.len() / 2, f32::total_cmp);
    match below.iter().max_by(|a, b| a.total_cmp(b)) {
        Some(below) if is_even => ((f64::from(*below) + f64::from(*middle)) / 2.0) as f32,
        _ => *middle,
    }
}

impl Aggregator for Median {
    fn combine(&mut self, _weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        check_ranks(self, parts.len())?;
        check_lengths(parts, out.len())?;
        for_columns(parts, |index, column| out[index] = median(column))
    }

    fn is_mean(&self) -> bool {
        false
    }

    /// With fewer ranks it is the mean.
    fn min_ranks(&self) -> usize {
        3
    }

    fn without(&self, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
        of_majority(*self, excluded, world)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::testkit::combined;

    #[test]
    fn by_hand() {
        let vectors = [[1.0, -4.0], [3.0, -1.0], [2.0, 0.0], [100.0, 9.0], [-50.0, -2.0]].map(|x| x.to_vec());
        assert_eq!(combined(&mut Median, &vectors), [2.0, -1.0]);
        assert_eq!(combined(&mut Median, &vectors[..4]), [2.5, -0.5]);
        // The mean of the two middle values does not overflow.
        assert_eq!(combined(&mut Median, &vec![vec![f32::MAX]; 4]), [f32::MAX]);
    }

    /// Threat R5.
    #[test]
    fn of_fewer_than_half_anything_the_result_stays_in_the_range_of_the_honest() {
        let value = |rank: usize, i: usize| ((i * 7919 + rank * 104_729) % 1000) as f32 / 500.0 - 1.0;
        for (ranks, byzantine) in [(3, 1), (4, 1), (5, 2), (10, 4)] {
            let mut vectors: Vec<Vec<f32>> =
                (0..ranks).map(|rank| (0..2500).map(|i| value(rank, i)).collect()).collect();
            for (at, lie) in [f32::MAX, f32::NAN, -1e20, f32::NEG_INFINITY].iter().enumerate().take(byzantine) {
                vectors[2 * at] = vec![*lie; 2500];
            }
            let honest = |rank: &usize| !(rank.is_multiple_of(2) && rank / 2 < byzantine);
            let out = combined(&mut Median, &vectors);
            for (i, got) in out.iter().enumerate() {
                let column = (0..ranks).filter(honest).map(|rank| vectors[rank][i]);
                let (low, high) = (column.clone().fold(f32::MAX, f32::min), column.fold(f32::MIN, f32::max));
                assert!((low..=high).contains(got), "{byzantine} of {ranks}, {i}: {got}");
            }
            vectors.reverse();
            assert_eq!(combined(&mut Median, &vectors), out, "ranks in another order");
        }
    }
}
