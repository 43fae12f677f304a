//! Coordinate-wise trimmed mean: the mean without the largest and the smallest values, so that some ranks may be Byzantine.
//!
//! **Why, and when not.** Like [`Krum`](crate::aggregate::krum::Krum), but coordinate by coordinate: it uses the values of all honest ranks, but an
//! attacker can still move every coordinate within the range of the others. Not with sparsifiers that select different coordinates on each rank: a
//! coordinate that only one rank sends is trimmed away.
//!
//! **Method.** Of the `n` values of a coordinate the `b` smallest and the `b` largest are dropped, `2b < n`. The result is the mean of the
//! others, summed in ascending order in 64 bits. `b = 0` is the mean, up to rounding; the largest `b` is the median.
//!
//! **Properties.** Not linear, and ranks are not weighted by samples. Every coordinate lies in the range of the honest ranks' values while
//! no more than `b` ranks are Byzantine. Equivariant under permutation, translation and scaling. Time `O(d·W log W)`.
//!
//! **Knobs.** `trim` is `b`, default 1.
//!
//! **Deviations.** The paper states a fraction `β = b/n`; here it is a number of ranks.
//!
//! **Reference.** D. Yin, Y. Chen, K. Ramchandran, P. Bartlett, *Byzantine-Robust Distributed Learning: Towards Optimal
//! Statistical Rates*, ICML 2018 (arXiv 1803.01498), definition 2.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::trimmed_mean::TrimmedMean;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let messages = [[1.0, 5.0], [2.0, 6.0], [-900.0, 7.0]].map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(&x, Key::new(0), &mut message);
//!     message
//! });
//! let mut out = [0.0; 2];
//! TrimmedMean { trim: 1 }.combine(&[], &messages.each_ref(), &mut out)?;
//! assert_eq!(out, [1.0, 6.0]);
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::{check_lengths, for_columns, still_tolerated};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;

/// The mean of the middle values; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "trimmed-mean",
    help = "in every coordinate the mean without the TRIM largest and smallest (2·TRIM + 1 ranks)",
    representatives("trimmed-mean:1", "trimmed-mean:2")
)]
pub struct TrimmedMean {
    /// Number of values dropped at each end: `b`.
    #[setting(default = 1)]
    pub trim: usize,
}

impl Aggregator for TrimmedMean {
    fn combine(&mut self, _weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        check_ranks(self, parts.len())?;
        check_lengths(parts, out.len())?;
        let kept = parts.len() - 2 * self.trim;
        for_columns(parts, |index, column| {
            column.sort_unstable_by(f32::total_cmp);
            let middle = &column[self.trim..self.trim + kept];
            out[index] = (middle.iter().map(|v| f64::from(*v)).sum::<f64>() / kept as f64) as f32;
        })
    }

    fn is_mean(&self) -> bool {
        false
    }

    fn min_ranks(&self) -> usize {
        self.trim.saturating_mul(2).saturating_add(1)
    }

    fn without(&self, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
        let most = world.checked_sub(excluded + 1)? / 2;
        Some(Box::new(TrimmedMean { trim: still_tolerated(self.trim, excluded, most)? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::Key;
    use briquette_core::compress::{Compressor, dense::Dense, top_k::TopK};

    fn trimmed(trim: usize, vectors: &[Vec<f32>], compressor: &mut dyn Compressor) -> Vec<f32> {
        let message = |x: &Vec<f32>| {
            let mut message = Message::default();
            compressor.compress_into(x, Key::new(0), &mut message);
            message
        };
        let messages: Vec<Message> = vectors.iter().map(message).collect();
        let mut out = vec![3.0; vectors[0].len()];
        TrimmedMean { trim }.combine(&[], &messages.iter().collect::<Vec<_>>(), &mut out).unwrap();
        out
    }

    #[test]
    fn by_hand() {
        let vectors = [[1.0, -4.0], [3.0, -1.0], [2.0, 0.0], [100.0, 9.0], [-50.0, -2.0]].map(|x| x.to_vec());
        assert_eq!(trimmed(0, &vectors, &mut Dense), [56.0 / 5.0, 2.0 / 5.0]);
        assert_eq!(trimmed(1, &vectors, &mut Dense), [2.0, -1.0]);
        // The median.
        assert_eq!(trimmed(2, &vectors, &mut Dense), [2.0, -1.0]);
        // Kept: 3; 9; the rest is 0 and decides: values that only one rank sends are trimmed.
        let some = [[1.0, 0.0], [0.0, 9.0], [0.0, 0.5]].map(|x| x.to_vec());
        assert_eq!(trimmed(1, &some, &mut TopK::fraction(0.5).unwrap()), [0.0, 0.5]);
    }

    /// Threat R5.
    #[test]
    fn long_vectors_equal_the_naive_twin_and_stay_in_the_range_of_the_honest() {
        let value = |rank: usize, i: usize| ((i * 7919 + rank * 104_729) % 1000) as f32 / 500.0 - 1.0;
        let mut vectors: Vec<Vec<f32>> = (0..7).map(|rank| (0..2500).map(|i| value(rank, i)).collect()).collect();
        vectors[2] = vec![f32::MAX; 2500];
        vectors[5] = vec![-1e20; 2500];
        let out = trimmed(2, &vectors, &mut Dense);
        for (i, got) in out.iter().enumerate() {
            let mut column: Vec<f32> = vectors.iter().map(|x| x[i]).collect();
            column.sort_by(f32::total_cmp);
            assert_eq!(*got, ((f64::from(column[2]) + f64::from(column[3]) + f64::from(column[4])) / 3.0) as f32);
            assert!((-1.0..=1.0).contains(got));
        }
        vectors.reverse();
        assert_eq!(trimmed(2, &vectors, &mut Dense), out, "ranks in another order");
    }

    #[test]
    fn a_message_of_another_length_is_named() {
        let [short, long] = [2, 3].map(|len| {
            let mut message = Message::default();
            Dense.compress_into(&vec![1.0; len], Key::new(0), &mut message);
            message
        });
        let error = TrimmedMean { trim: 1 }.combine(&[], &[&long, &short, &long], &mut [0.0; 3]).unwrap_err();
        assert!(error.to_string().contains("rank 1"), "{error}");
        let error = TrimmedMean { trim: 1 }.combine(&[], &[&long, &long], &mut [0.0; 3]).unwrap_err();
        assert_eq!(error, AggregateError::Ranks { needed: 3, got: 2 });
    }
}
