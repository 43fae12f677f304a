//! Comparative gradient elimination (CGE): the mean without the contributions of largest norm.
//!
//! **Why, and when not.** It costs one norm per rank: no distances, no sorting of coordinates, whatever the compressor selected. A vector
//! of large norm is excluded, but a vector of small norm is not. A small reversed gradient therefore always passes, and costs progress in
//! proportion to its norm. Against Byzantine ranks that exploit this, use [`Krum`](crate::aggregate::krum::Krum) or a median.
//!
//! **Method.** Of `n` contributions the `f` of the largest Euclidean norms are dropped; the result is the mean of the others. Of equal
//! norms the lower rank counts. A contribution that is not finite has infinite norm.
//!
//! **Properties.** Not linear, and ranks are not weighted by samples. Not equivariant under translation. `f = 0` is the mean.
//! Every contribution that counts has at most the largest norm of the honest ones, and so has the result. Time `O(W·d)`.
//!
//! **Knobs.** `byzantine` is `f`, default 1, less than half of the ranks.
//!
//! **Deviations.** The authors' text sums the `n − f` gradients. Here, as in their code, it is the mean, so the learning rate is that of a
//! mean.
//!
//! **Reference.** N. Gupta, S. Liu, N. Vaidya, *Byzantine Fault-Tolerant Distributed Machine Learning using D-SGD with Norm-Based Comparative
//! Gradient Elimination (CGE)*, DSN-W 2021 (arXiv 2008.04699), section 3.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::cge::Cge;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let contributions = [[3.0, 4.0], [0.0, 2.0], [-9.0, 9.0]].map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(&x, Key::new(0), &mut message);
//!     [message]
//! });
//! let mut weights = vec![];
//! Cge { byzantine: 1 }.rate(&contributions.each_ref().map(|parts| &parts[..]), &mut weights)?;
//! assert_eq!(weights, [0.5, 0.5, 0.0]); // of norms 5, 2 and 12.7
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::{for_parts, still_tolerated, weighed};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;
use briquette_core::math::norm2;

/// The mean without the contributions of largest norm; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "cge",
    help = "the mean without the BYZANTINE contributions of largest norm (2·BYZANTINE + 1 ranks)",
    representatives("cge:1", "cge:2")
)]
pub struct Cge {
    /// Number of contributions dropped: `f`.
    #[setting(default = 1)]
    pub byzantine: usize,
}

impl Aggregator for Cge {
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        weighed(weights, parts, out)
    }

    fn is_mean(&self) -> bool {
        false
    }

    fn min_ranks(&self) -> usize {
        self.byzantine.saturating_mul(2).saturating_add(1)
    }

    fn without(&self, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
        let most = world.checked_sub(excluded + 1)? / 2;
        Some(Box::new(Cge { byzantine: still_tolerated(self.byzantine, excluded, most)? }))
    }

    fn rates(&self) -> bool {
        true
    }

    fn rate(&mut self, contributions: &[&[Message]], weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        let world = contributions.len();
        check_ranks(self, world)?;
        let mut norms = vec![0.0; world];
        for_parts(contributions, |block| {
            norms.iter_mut().zip(block).for_each(|(norm, values)| *norm += norm2(values))
        })?;
        let norm = |rank: usize| if norms[rank].is_nan() { f64::INFINITY } else { norms[rank] };
        let mut ranks: Vec<usize> = (0..world).collect();
        ranks.sort_by(|a, b| norm(*a).total_cmp(&norm(*b)).then(a.cmp(b)));
        let kept = world - self.byzantine;
        weights.clear();
        weights.resize(world, 0.0);
        ranks.iter().take(kept).for_each(|rank| weights[*rank] = 1.0 / kept as f32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::testkit::{combined, near, rated};
    use briquette_core::math::distance2;

    #[test]
    fn by_hand() {
        let vectors = [[3.0, 4.0], [0.0, 2.0], [-3.0, 4.0], [0.0, 0.0], [-f32::NAN, 0.0]].map(|x| x.to_vec());
        // Norms 5, 2, 5, 0 and infinite: of the equal ones the lower rank counts.
        assert_eq!(rated(&mut Cge { byzantine: 1 }, &vectors, 1), [0.25, 0.25, 0.25, 0.25, 0.0]);
        assert_eq!(combined(&mut Cge { byzantine: 2 }, &vectors), [1.0, 2.0]);
        assert_eq!(rated(&mut Cge { byzantine: 0 }, &vectors[..4], 1), [0.25; 4]);
    }

    /// Threat R5.
    #[test]
    fn a_large_norm_does_not_count_and_a_small_one_costs_in_proportion() {
        for (ranks, byzantine) in [(3, 1), (5, 2), (10, 4)] {
            for lie in [-10.0, 1e6, f32::INFINITY] {
                let (vectors, truth) = near(ranks, byzantine, |t| lie * t);
                let off = distance2(&combined(&mut Cge { byzantine }, &vectors), &truth).sqrt();
                assert!(off < 0.1 * f64::from(3000.0_f32).sqrt(), "{lie}: {off}");
            }
            // Reversed vectors of half the norm pass, and as many honest ones of largest norm do not.
            let (vectors, truth) = near(ranks, byzantine, |t| -0.5 * t);
            let ours = combined(&mut Cge { byzantine }, &vectors);
            let share = ours.iter().zip(&truth).map(|(a, t)| f64::from(a * t)).sum::<f64>()
                / briquette_core::math::norm2(&truth);
            let kept = (ranks - byzantine) as f64;
            let expected = (kept - byzantine as f64 - 0.5 * byzantine as f64) / kept;
            assert!((share - expected).abs() < 0.02, "{byzantine} of {ranks}: {share}, not {expected}");
        }
    }

    #[test]
    fn whole_contributions_are_rated_however_they_are_cut() {
        let (vectors, _) = near(7, 2, |t| 3.0 * t);
        let whole = rated(&mut Cge { byzantine: 2 }, &vectors, 1);
        assert!((2..9).all(|parts| rated(&mut Cge { byzantine: 2 }, &vectors, parts) == whole));
    }
}
