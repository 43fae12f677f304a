//! Geometric median: minimizes the sum of distances to all contributions. Fewer than half of the ranks may be Byzantine.
//!
//! **Why, and when not.** Like the [median](crate::aggregate::median) in one dimension, but not coordinate by coordinate: it rotates with the
//! vectors, and if honest contributions lie around a point it is near that point. Every contribution counts, weighted by the inverse of its distance,
//! so the result has less variance than that of [`Krum`](crate::aggregate::krum::Krum). Not with sparsifiers that select different coordinates on
//! each rank: all contributions are then equally far from each other.
//!
//! **Method.** Smoothed Weiszfeld steps over contributions `w_i`:
//!
//! | paper | here |
//! |---|---|
//! | `β_i = α_i / max(ν, ‖z − w_i‖)` | the same, with equal `α_i` |
//! | `z ← Σ β_i·w_i / Σ β_i`, `R` rounds | on weights alone: `‖z − w_i‖² = Σ_j β_j·D_ij − ½ Σ_jk β_j·β_k·D_jk`, `D` the squared distances, `Σ β = 1` |
//! | from the mean | from weights by the inverse of each contribution's median distance to the others |
//!
//! Distances are therefore measured once, whatever the number of rounds, and the result is a weighted mean.
//!
//! **Properties.** Not linear, and ranks are not weighted by samples. In the convex hull of contributions; equivariant under permutation,
//! translation and rotation. Contributions that are not finite have no weight. Time `O(W²·d)`, plus `O(R·W²)` for the rounds.
//!
//! **Knobs.** `rounds` `R`, default 32, at least 1 and at most 1000; `smoothing` `ν`, default 1e-6, above 0: the lower limit of distances.
//!
//! **Deviations.** Three rounds from the mean (the paper's choice, because each costs an exchange there) leave a contribution with a
//! million times the others' norm more weight than all others together: a round divides its weight by `W − 1`. From the weights above, one
//! round suffices to remove it. A contribution ten million times as far as the nearest has no weight.
//!
//! **Reference.** K. Pillutla, S. M. Kakade, Z. Harchaoui, *Robust Aggregation for Federated Learning* (RFA), IEEE Transactions on Signal
//! Processing 70, 2022 (arXiv 1912.13445), algorithm 2.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::geometric_median::GeometricMedian;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! // Three corners of a triangle with equal sides, seen from their centre, and one far away.
//! let contributions = [[1.0, 0.0], [-0.5, 0.866_025_4], [-0.5, -0.866_025_4]].map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(&x, Key::new(0), &mut message);
//!     [message]
//! });
//! let mut weights = vec![];
//! GeometricMedian::default().rate(&contributions.each_ref().map(|parts| &parts[..]), &mut weights)?;
//! assert!(weights.iter().all(|weight| (weight - 1.0 / 3.0).abs() < 1e-6));
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::{distances, of_majority, weighed};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;

/// The point with the smallest sum of distances; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "geometric-median",
    help = "the point of the smallest sum of distances to all contributions, in ROUNDS steps (32; 3 ranks)",
    representatives("geometric-median:32", "geometric-median:3")
)]
pub struct GeometricMedian {
    /// Number of rounds: `R`.
    #[setting(default = 32, range = "[1, 1000]")]
    pub rounds: usize,
    /// Lower limit of distances: `ν`.
    #[setting(default = 1e-6, range = "(0, inf)")]
    pub smoothing: f64,
}

/// Largest accepted distance of a contribution to the nearest half of all, relative to the smallest such distance. Contributions beyond it
/// have no weight, because otherwise only rounding error would be left of the others.
const FAR: f64 = 1e7;

impl GeometricMedian {
    /// Returns weights with sum 1, proportional to the inverse of the distances. A distance that is not finite has weight 0; if none is
    /// finite, weights are equal.
    fn inverse(self, distances: impl Iterator<Item = f64>) -> Vec<f64> {
        let inverse = |distance: f64| if distance.is_finite() { 1.0 / distance.max(self.smoothing) } else { 0.0 };
        let inverses: Vec<f64> = distances.map(inverse).collect();
        let sum: f64 = inverses.iter().sum();
        let equal = 1.0 / inverses.len() as f64;
        inverses.iter().map(|inverse| if sum > 0.0 { inverse / sum } else { equal }).collect()
    }

    /// Returns the weights from squared distances.
    fn weights(self, squared: &[Vec<f64>]) -> Vec<f64> {
        let middle = |row: &Vec<f64>| {
            let mut row = row.clone();
            row.sort_by(f64::total_cmp);
            // Including the distance to itself: this is the distance to the nearest half of all contributions.
            row[row.len() / 2].sqrt()
        };
        let middles: Vec<f64> = squared.iter().map(middle).collect();
        let nearest = middles.iter().copied().fold(f64::INFINITY, f64::min).max(self.smoothing);
        let or_none = |(distance, middle): (f64, &f64)| if *middle <= FAR * nearest { distance } else { f64::NAN };
        let mut beta = self.inverse(middles.iter().copied().zip(&middles).map(or_none));
        for _ in 0..self.rounds {
            let mean = |row: &[f64]| row.iter().zip(&beta).filter(|(_, b)| **b > 0.0).map(|(d, b)| d * b).sum::<f64>();
            let to_all: Vec<f64> = squared.iter().map(|row| mean(row)).collect();
            let spread = 0.5 * mean(&to_all);
            let distances = to_all.iter().map(|d| (d - spread).max(0.0).sqrt());
            beta = self.inverse(distances.zip(&middles).map(or_none));
        }
        beta
    }
}

impl Aggregator for GeometricMedian {
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        weighed(weights, parts, out)
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

    fn rates(&self) -> bool {
        true
    }

    fn rate(&mut self, contributions: &[&[Message]], weights: &mut Vec<f32>) -> Result<(), AggregateError> {
        check_ranks(self, contributions.len())?;
        let squared = distances(contributions)?;
        weights.clear();
        weights.extend(self.weights(&squared).iter().map(|weight| *weight as f32));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aggregate::testkit::{combined, near, rated};
    use briquette_core::math::{distance2, norm2};

    fn sum_of_distances(z: &[f32], vectors: &[Vec<f32>]) -> f64 {
        vectors.iter().map(|x| distance2(z, x).sqrt()).sum()
    }

    #[test]
    fn by_hand() {
        // On a line it is the median.
        let line = [0.0, 1.0, 2.0, 10.0, 1000.0].map(|x| vec![x]);
        assert!((combined(&mut GeometricMedian { rounds: 200, ..Default::default() }, &line)[0] - 2.0).abs() < 1e-2);
        // Two rounds from 1/(2, 1, 2, 9, 999): sums 41/18 and so on, in 64 bits.
        let weights = rated(&mut GeometricMedian { rounds: 1, ..Default::default() }, &line, 1);
        let start = [0.5, 1.0, 0.5, 1.0 / 9.0, 1.0 / 998.0];
        let z = start.iter().zip([0.0, 1.0, 2.0, 10.0, 1000.0]).map(|(b, x)| b * x).sum::<f64>()
            / start.iter().sum::<f64>();
        let expected = [0.0, 1.0, 2.0, 10.0, 1000.0].map(|x: f64| 1.0 / (x - z).abs());
        let sum: f64 = expected.iter().sum();
        for (weight, expected) in weights.iter().zip(expected) {
            assert!((f64::from(*weight) - expected / sum).abs() < 1e-6, "{weights:?}, {z}");
        }
    }

    #[test]
    fn a_smoothing_beyond_all_distances_makes_it_the_mean() {
        let (vectors, _) = near(5, 1, |t| 3.0 * t);
        let all = combined(&mut GeometricMedian { smoothing: 1e9, ..Default::default() }, &vectors);
        for (i, got) in all.iter().enumerate() {
            let mean = vectors.iter().map(|x| x[i]).sum::<f32>() / 5.0;
            assert!((got - mean).abs() < 1e-5, "{i}: {got}, mean {mean}");
        }
        let near = combined(&mut GeometricMedian::default(), &vectors);
        assert!(distance2(&near, &all) > 1.0, "with the default it is not");
    }

    #[test]
    fn rounds_lower_the_sum_of_distances() {
        let (vectors, _) = near(7, 3, |t| -2.0 * t);
        let at = |rounds| {
            sum_of_distances(&combined(&mut GeometricMedian { rounds, ..Default::default() }, &vectors), &vectors)
        };
        let sums = [1, 2, 4, 8, 32].map(at);
        assert!(sums.is_sorted_by(|a, b| *a >= *b - 1e-6), "{sums:?}");
        let mean: Vec<f32> = (0..3000).map(|i| vectors.iter().map(|x| x[i]).sum::<f32>() / 7.0).collect();
        assert!(sums[4] < sum_of_distances(&mean, &vectors));
    }

    /// Threat R5.
    #[test]
    fn what_a_minority_sends_moves_it_by_less_than_honest_ranks_differ() {
        for (ranks, byzantine) in [(3, 1), (5, 2), (10, 4)] {
            for lie in [-1.0, -10.0, 1e6, 1e30, f32::NAN, f32::INFINITY] {
                let (vectors, truth) = near(ranks, byzantine, |t| lie * t);
                let off =
                    (distance2(&combined(&mut GeometricMedian::default(), &vectors), &truth) / norm2(&truth)).sqrt();
                assert!(off < 0.25, "{lie}, {byzantine} of {ranks}: {off}");
            }
        }
    }

    #[test]
    fn equal_contributions_come_back_and_a_shift_moves_the_result() {
        let equal = vec![vec![0.3, -7.0, 1e20]; 5];
        for (ours, value) in combined(&mut GeometricMedian::default(), &equal).iter().zip(&equal[0]) {
            assert!((ours - value).abs() <= 1e-6 * value.abs());
        }
        let (vectors, _) = near(5, 1, |t| -3.0 * t);
        let shifted: Vec<Vec<f32>> = vectors.iter().map(|x| x.iter().map(|v| v + 4.0).collect()).collect();
        let [here, there] = [vectors, shifted].map(|vectors| combined(&mut GeometricMedian::default(), &vectors));
        assert!(here.iter().zip(&there).all(|(a, b)| (a + 4.0 - b).abs() < 1e-4));
    }
}
