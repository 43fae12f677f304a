//! Mean around the coordinate-wise median, without a known number of Byzantine ranks. Written from the abstract of LICM; the published rule
//! may differ, because its text was not available.
//!
//! **Why, and when not.** The [median](crate::aggregate::median::Median) resists fewer than half of the ranks, and uses one value. This rule takes the median
//! as a pivot and averages the values near it, which has less variance. Not with sparsifiers that select different coordinates on each
//! rank.
//!
//! **Method.** Let `m` be the median of the `n` values of a coordinate, and `s` the distance from `m` of the `(⌊n/2⌋ + 1)`-th nearest
//! value. The result is the mean of all values within `ρ·s` of `m`, summed in ascending order in 64 bits.
//!
//! **Properties.** Not linear, and ranks are not weighted by samples. With fewer than half of the ranks Byzantine, the median lies in the
//! range of the honest values and `s` is at most the length of that range. So no coordinate lies outside the range by more than `ρ` times
//! its length. Equivariant under permutation, translation and scaling. Time `O(d·W log W)`.
//!
//! **Knobs.** `reach` is `ρ`, default 3 (twice the standard deviation of normal values), at least 1.
//!
//! **Deviations.** The text of the published selection rule was not available, only its abstract. The abstract promises four things: a
//! coordinate-wise median as a pivot; a screening criterion based on the possible spread of honest values (from Lipschitz continuity)
//! that needs neither that constant nor the number of attackers; resistance to fewer than half of the ranks; and time proportional to
//! `W·d`. This rule keeps these promises, with the spread of the nearest majority in place of the constant. With `ρ = 1` it is the *mean
//! around the median* of the smallest majority, whose variance is larger than the median's.
//!
//! **Reference.** H. Yang, X. Zhang, M. Fang, J. Liu, *Byzantine-Resilient Stochastic Gradient Descent for Distributed Learning: A Lipschitz-Inspired
//! Coordinate-wise Median Approach*, CDC 2019 (arXiv 1909.04532), abstract. For the mean around the median: C. Xie, O. Koyejo, I. Gupta,
//! *Generalized Byzantine-tolerant SGD*, 2018 (arXiv 1802.10116).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::aggregate::Aggregator;
//! use briquette_zoo::aggregate::licm::Licm;
//! use briquette_core::compress::{Compressor, dense::Dense};
//! let messages = [[1.0], [2.0], [4.0], [5.0], [900.0]].map(|x| {
//!     let mut message = Message::default();
//!     Dense.compress_into(&x, Key::new(0), &mut message);
//!     message
//! });
//! let mut out = [0.0];
//! // The median is 4, and three values lie within 2 of it: all within 6 count.
//! Licm::default().combine(&[], &messages.each_ref(), &mut out)?;
//! assert_eq!(out, [3.0]);
//! # Ok::<(), briquette_core::error::AggregateError>(())
//! ```

use super::median::median;
use super::{check_lengths, for_columns, of_majority};
use briquette_core::Message;
use briquette_core::aggregate::{Aggregator, check_ranks};
use briquette_core::config::Described;
use briquette_core::error::AggregateError;

/// The mean around the median; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "licm",
    help = "in every coordinate the mean of what is no further from the median than REACH (3) times the majority; after LICM's abstract, not the published rule",
    representatives("licm:3", "licm:1")
)]
pub struct Licm {
    /// Largest distance of a value from the median, in distances of the nearest majority: `ρ`.
    #[setting(default = 3.0, range = "[1, inf)")]
    pub reach: f64,
}

impl Licm {
    /// Returns the mean around the median of one coordinate's values; `distances` is scratch storage.
    fn around_the_median(self, values: &mut [f32], distances: &mut Vec<f64>) -> f32 {
        let pivot = f64::from(median(values));
        values.sort_unstable_by(f32::total_cmp);
        let off = |value: f32| (f64::from(value) - pivot).abs();
        distances.clear();
        distances.extend(values.iter().map(|value| off(*value)));
        let (_, spread, _) = distances.select_nth_unstable_by(values.len() / 2, f64::total_cmp);
        let near = values.iter().filter(|value| off(**value) <= self.reach * *spread);
        let (sum, count) = near.fold((0.0, 0), |(sum, count), value| (sum + f64::from(*value), count + 1));
        (sum / f64::from(count)) as f32
    }
}

impl Aggregator for Licm {
    fn combine(&mut self, _weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        check_ranks(self, parts.len())?;
        check_lengths(parts, out.len())?;
        let mut distances = Vec::new();
        for_columns(parts, |index, column| out[index] = self.around_the_median(column, &mut distances))
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
    use crate::aggregate::{
        median::Median,
        testkit::{combined, near},
    };
    use briquette_core::math::distance2;

    #[test]
    fn by_hand() {
        let vectors = [[1.0, 0.0], [2.0, 0.0], [4.0, 6.0], [5.0, f32::NAN]].map(|x| x.to_vec());
        assert_eq!(combined(&mut Licm::default(), &vectors), [3.0, 2.0]);
        // Around 4 the nearest three of five are within 2, whatever the others are.
        let line = [1.0, 2.0, 4.0, 5.0, 900.0].map(|x| vec![x]);
        assert_eq!(combined(&mut Licm { reach: 1.0 }, &line), [11.0 / 3.0]);
    }

    /// Threat R5.
    #[test]
    fn of_fewer_than_half_anything_no_coordinate_is_further_off_than_thrice_what_honest_values_are_apart() {
        for (ranks, byzantine) in [(3, 1), (5, 2), (10, 4)] {
            for lie in [-1.0, 1e6, f32::NAN, f32::INFINITY] {
                let (vectors, _) = near(ranks, byzantine, |t| lie * t);
                for (i, got) in combined(&mut Licm::default(), &vectors).iter().enumerate() {
                    let honest = vectors[byzantine..].iter().map(|x| x[i]);
                    let (low, high) = (honest.clone().fold(f32::MAX, f32::min), honest.fold(f32::MIN, f32::max));
                    let range = 3.0 * (high - low);
                    assert!((low - range..=high + range).contains(got), "{lie}, {byzantine} of {ranks}, {i}: {got}");
                }
            }
        }
    }

    /// The advantage over the median: less variance.
    #[test]
    fn it_has_less_variance_than_the_median() {
        let (vectors, truth) = near(10, 0, |t| t);
        let off = |ours: Vec<f32>| distance2(&ours, &truth);
        let [ours, median] = [off(combined(&mut Licm::default(), &vectors)), off(combined(&mut Median, &vectors))];
        assert!(ours < 0.95 * median, "{ours} {median}");
    }
}
