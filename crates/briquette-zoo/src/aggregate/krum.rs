//! Krum and Multi-Krum: select the contributions nearest to their neighbors, so that some ranks may be Byzantine.
//!
//! **Why, and when not.** A single rank that sends a large or reversed vector can determine a mean. Krum selects whole contributions by
//! their distances to each other, so a selected vector is close to those of a majority of ranks. The price is variance: the average
//! consists of one contribution instead of `W` ([`keep`](Krum::keep) selects several). Krum assumes that honest ranks have similar data.
//! Not with sparsifiers that select different coordinates on each rank: their contributions are far apart, honest or not.
//!
//! **Method.** With `n` ranks of which `f` may be Byzantine, `2f + 2 < n`:
//!
//! | paper | here |
//! |---|---|
//! | `s(i) = Σ_{i→j} ‖V_i − V_j‖²` over the `n − f − 2` nearest `j` | `scores` |
//! | Krum: the `V_i` of the lowest score | `keep = 1` |
//! | Multi-Krum: the mean of the `m` lowest | `keep = m` |
//!
//! Distances are those of the whole vectors, so contributions are rated before any part is combined. Buckets, rules and a dense threshold,
//! which exchange parts separately, are therefore refused. Controllers are refused too, because their dense steps are averaged. In the
//! case of a tie the lower rank is selected.
//!
//! Under error feedback, the content of a message that is not selected leaves the residual but does not reach the average. A rank
//! without samples sends zeros, which count as a contribution: give every rank data.
//!
//! **Properties.** Not linear: the mean of `sent` is not the average, and ranks are not weighted by samples. Every coordinate of the
//! result is that of one contribution, or a mean of several. Equivariant under permutation and translation. Time `O(W²·d)`.
//!
//! **Knobs.** `byzantine` is `f`, default 1; `keep` is `m`, from 1 to `n − f − 2`.
//!
//! **Deviations.** `m ≤ n − f − 2` is required, the commonly used range; the paper leaves `m` open. All ranks compute all
//! scores: there is no server.
//!
//! **Reference.** P. Blanchard, E. M. El Mhamdi, R. Guerraoui, J. Stainer, *Machine Learning with Adversaries: Byzantine
//! Tolerant Gradient Descent*, NIPS 2017 (arXiv 1703.02757), §4 (Krum) and §6 (Multi-Krum).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::krum::Krum;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let contributions: Vec<[Message; 1]> = [[1.0, 0.0], [1.5, 0.0], [1.0, 0.25], [90.0, -90.0], [1.25, 0.0]].iter().map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(x, Key::new(0), &mut message);
//!     [message]
//! }).collect();
//! let all: Vec<&[Message]> = contributions.iter().map(|parts| &parts[..]).collect();
//! let (mut krum, mut weights) = (Krum { byzantine: 1, keep: 1 }, vec![]);
//! krum.rate(&all, &mut weights)?;
//! // 1/16 + 1/16 to its two nearest; the last rank has as much, and the lower one is taken.
//! assert_eq!(weights, [1.0, 0.0, 0.0, 0.0, 0.0]);
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::{distances, still_tolerated, weighed};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;

/// The contributions nearest to their neighbors; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "krum",
    help = "the M contributions nearest to their neighbors (2·BYZANTINE + 3 ranks)",
    representatives("krum:1", "krum:1,keep=2")
)]
pub struct Krum {
    /// Number of ranks that may be Byzantine: `f`.
    #[setting(default = 1)]
    pub byzantine: usize,
    /// Number of contributions that are averaged: `m`.
    #[setting(default = 1, range = "[1, inf)")]
    pub keep: usize,
}

impl Krum {
    /// Returns the number of neighbors in a score, which is also the largest number of contributions to keep: `n − f − 2`.
    fn neighbours(self, world: usize) -> usize {
        world.saturating_sub(self.byzantine + 2)
    }

    /// Returns the sum of squared distances to the nearest neighbors, for each rank.
    fn scores(self, distances: &[Vec<f64>]) -> Vec<f64> {
        let score = |rank: usize| {
            let others = (0..distances.len()).filter(|other| *other != rank);
            let mut others: Vec<f64> = others.map(|other| distances[rank][other]).collect();
            others.sort_unstable_by(f64::total_cmp);
            others.iter().take(self.neighbours(distances.len())).sum()
        };
        (0..distances.len()).map(score).collect()
    }
}

impl Aggregator for Krum {
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        weighed(weights, parts, out)
    }

    fn is_mean(&self) -> bool {
        false
    }

    fn min_ranks(&self) -> usize {
        let byzantine = self.byzantine;
        byzantine.saturating_mul(2).saturating_add(3).max(byzantine.saturating_add(2).saturating_add(self.keep))
    }

    fn without(&self, excluded: usize, world: usize) -> Option<Box<dyn Aggregator>> {
        let left = world.checked_sub(excluded)?;
        let most = (left.checked_sub(3)? / 2).min(left.checked_sub(self.keep + 2)?);
        Some(Box::new(Krum { byzantine: still_tolerated(self.byzantine, excluded, most)?, ..*self }))
    }

    fn rates(&self) -> bool {
        true
    }

    fn rate(&mut self, contributions: &[&[Message]], weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        let world = contributions.len();
        check_ranks(self, world)?;
        let scores = self.scores(&distances(contributions)?);
        let mut ranks: Vec<usize> = (0..world).collect();
        ranks.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]).then(a.cmp(b)));
        weights.clear();
        weights.resize(world, 0.0);
        ranks.iter().take(self.keep).for_each(|rank| weights[*rank] = 1.0 / self.keep as f32);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::testkit::{self, near as world};
    use briquette_core::math::{distance2, norm2};

    fn rated(krum: Krum, vectors: &[Vec<f32>], parts: usize) -> Vec<f32> {
        testkit::rated(&mut { krum }, vectors, parts)
    }

    fn combined(krum: Krum, vectors: &[Vec<f32>]) -> Vec<f32> {
        testkit::combined(&mut { krum }, vectors)
    }

    #[test]
    fn scores_by_hand() {
        // On a line at 0, 1, 3, 4, 100, with n − f − 2 = 2 neighbors: 1 + 9, 1 + 4, 4 + 1, 1 + 9, and far.
        let line: Vec<Vec<f32>> = [0.0, 1.0, 3.0, 4.0, 100.0].iter().map(|x| vec![*x]).collect();
        // 1 and 3 are equal at 5: the lower rank.
        assert_eq!(rated(Krum::default(), &line, 1), [0.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(rated(Krum { byzantine: 1, keep: 2 }, &line, 1), [0.0, 0.5, 0.5, 0.0, 0.0]);
        assert_eq!(combined(Krum { byzantine: 1, keep: 2 }, &line), [2.0]);
    }

    /// On a line at 0, 1, 1.9, 10 and 11, with two neighbors: 1 + 3.61, 1 + .81, .81 + 3.61, and far. With a third neighbor, 81 and 65.61
    /// away from 1 and 1.9, another rank would be selected.
    #[test]
    fn neighbours_are_counted_by_hand() {
        let line: Vec<Vec<f32>> = [0.0, 1.0, 1.9, 10.0, 11.0].iter().map(|x| vec![*x]).collect();
        assert_eq!(rated(Krum::default(), &line, 1), [0.0, 1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn whole_contributions_are_rated_however_they_are_cut() {
        let (vectors, _) = world(7, 2, |t| -t);
        let krum = Krum { byzantine: 2, keep: 3 };
        let whole = rated(krum, &vectors, 1);
        assert!((2..9).all(|parts| rated(krum, &vectors, parts) == whole));
    }

    /// Threat R5.
    #[test]
    fn what_a_minority_sends_is_not_selected() {
        type Attack = fn(f32) -> f32;
        let attacks: [(&str, Attack); 4] =
            [("large", |t| 1e6 * t), ("sign", |t| -t), ("inner product", |t| -0.5 * t), ("zero", |_| 0.0)];
        for (ranks, byzantine) in [(5, 1), (7, 2), (9, 3)] {
            for (name, attack) in attacks {
                let (vectors, truth) = world(ranks, byzantine, attack);
                for keep in [1, ranks - byzantine - 2] {
                    let krum = Krum { byzantine, keep };
                    assert!(
                        rated(krum, &vectors, 1)[..byzantine].iter().all(|w| *w == 0.0),
                        "{name}, {byzantine}, {keep}"
                    );
                    let off = distance2(&combined(krum, &vectors), &truth) / norm2(&truth);
                    assert!(off < 0.02, "{name}, {byzantine} of {ranks}: off by {off}");
                }
            }
        }
    }

    #[test]
    fn the_order_of_ranks_and_a_common_shift_make_no_difference() {
        let (mut vectors, _) = world(5, 1, |t| -3.0 * t);
        let expected = combined(Krum::default(), &vectors);
        vectors.reverse();
        assert_eq!(combined(Krum::default(), &vectors), expected);
        let shifted: Vec<Vec<f32>> = vectors.iter().map(|x| x.iter().map(|v| v + 4.0).collect()).collect();
        let chosen = rated(Krum::default(), &vectors, 1).iter().position(|w| *w == 1.0);
        assert_eq!(rated(Krum::default(), &shifted, 1).iter().position(|w| *w == 1.0), chosen);
    }

    #[test]
    fn equal_contributions_come_back_as_they_are() {
        let equal = vec![vec![0.3, -7.0, 1e30]; 5];
        assert_eq!(combined(Krum::default(), &equal), equal[0]);
    }
}
