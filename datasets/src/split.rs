//! Non-IID partition of a data set over ranks.

use briquette_core::shards::{Shards, shuffle};
use briquette_core::{Key, KeyRng};
use rand::Rng;
use rand_distr::{Distribution, Gamma};

use crate::error::DataError;

/// Assigns samples to ranks with a different mixture of classes on each rank, as in federated learning.
///
/// For every class the shares of the ranks are drawn from a symmetric Dirichlet distribution: `alpha` of 100 is close
/// to IID, 0.1 leaves most ranks with few classes. Every sample belongs to exactly one rank. A rank that would have
/// none takes one from the rank with most. Ranks with fewer samples run out before the epoch ends and get empty slices
/// from then on; the number of steps is that of the rank with most.
///
/// `labels` has one entry per sample. Use the same key for all epochs and all ranks.
///
/// Reference: T. Hsu, H. Qi, M. Brown, *Measuring the Effects of Non-Identical Data Distribution for Federated
/// Visual Classification*, 2019, <https://arxiv.org/abs/1909.06335>. Deviation: the distribution is over ranks for
/// each class, not over classes for each rank, so that no sample is left over.
///
/// # Errors
/// [`DataError`] if labels are too few or too many, or `alpha` is not between 1e-6 and 1e6.
pub fn by_label(shards: Shards, labels: &[u8], alpha: f64, key: Key) -> Result<Shards, DataError> {
    if labels.len() != shards.samples() {
        return Err(DataError::LabelCount { labels: labels.len(), samples: shards.samples() });
    }
    if !(1e-6..=1e6).contains(&alpha) {
        return Err(DataError::setting("Dirichlet alpha", alpha, "between 1e-6 and 1e6"));
    }
    let own = dirichlet(labels, shards.world(), alpha, key.purpose("split"));
    Ok(shards.with_own(own).expect("a list of samples for every rank"))
}

/// For every class, draws shares of the ranks from Dirichlet(alpha, …, alpha); then every rank gets at least one sample.
fn dirichlet(labels: &[u8], world: usize, alpha: f64, key: Key) -> Vec<Vec<usize>> {
    let mut own = vec![Vec::new(); world];
    for class in 0..=u8::MAX {
        let mut samples: Vec<usize> = (0..labels.len()).filter(|&i| labels[i] == class).collect();
        if samples.is_empty() {
            continue;
        }
        let key = key.bucket(usize::from(class));
        shuffle(&mut samples, key);
        let shares = shares(world, alpha, &mut key.purpose("shares").block(0));
        let (mut sum, mut from) = (0.0, 0);
        for (rank, share) in shares.iter().enumerate() {
            sum += share;
            let to = match rank + 1 == world {
                true => samples.len(), // whatever the rounding of `sum`
                false => ((sum * samples.len() as f64).round() as usize).clamp(from, samples.len()),
            };
            own[rank].extend_from_slice(&samples[from..to]);
            from = to;
        }
    }
    feed_empty_ranks(&mut own);
    own.iter_mut().for_each(|samples| samples.sort_unstable());
    own
}

/// Draws once from the symmetric Dirichlet distribution, as normalized Gamma(alpha) variables.
///
/// Computed in logarithms, with Gamma(alpha) = Gamma(alpha + 1) * U^(1/alpha): for small alpha the plain variables all
/// underflow to 0 and their quotient would be undefined.
fn shares(world: usize, alpha: f64, rng: &mut KeyRng) -> Vec<f64> {
    let gamma = Gamma::new(alpha + 1.0, 1.0).expect("alpha is above 0");
    let logs: Vec<f64> = (0..world)
        .map(|_| {
            let uniform: f64 = 1.0 - rng.random::<f64>(); // in (0, 1]
            gamma.sample(rng).ln() + uniform.ln() / alpha
        })
        .collect();
    let top = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = logs.iter().map(|log| (log - top).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| weight / sum).collect()
}

fn feed_empty_ranks(own: &mut [Vec<usize>]) {
    while let Some(empty) = own.iter().position(Vec::is_empty) {
        let most = (0..own.len()).max_by_key(|&rank| (own[rank].len(), usize::MAX - rank));
        let sample = most.and_then(|rank| own[rank].pop()).expect("at least one sample per rank");
        own[empty].push(sample);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the mean over ranks of the largest class's share, for 4 ranks and 10 classes.
    fn concentration(alpha: f64) -> f64 {
        let labels: Vec<u8> = (0..4000).map(|i| (i % 10) as u8).collect();
        let own = dirichlet(&labels, 4, alpha, Key::new(1));
        let share = |samples: &Vec<usize>| {
            let mut counts = [0usize; 10];
            samples.iter().for_each(|&i| counts[usize::from(labels[i])] += 1);
            *counts.iter().max().unwrap() as f64 / samples.len() as f64
        };
        own.iter().map(share).sum::<f64>() / 4.0
    }

    #[test]
    fn small_alpha_concentrates_classes_and_large_alpha_does_not() {
        let (skewed, even) = (concentration(0.1), concentration(1000.0));
        assert!(skewed > 0.2, "{skewed}");
        assert!(even < 0.12, "{even}"); // 0.1 would be perfectly even
    }

    #[test]
    fn shares_stay_defined_where_plain_gamma_variables_underflow() {
        let shares = shares(5, 1e-6, &mut Key::new(3).block(0));
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12, "{shares:?}");
    }

    #[test]
    fn shares_have_mean_one_over_world() {
        let mut rng = Key::new(4).block(0);
        let first: f64 = (0..4000).map(|_| shares(4, 0.5, &mut rng)[0]).sum::<f64>() / 4000.0;
        assert!((first - 0.25).abs() < 0.02, "{first}"); // sd of the mean: 0.25 / sqrt(4000) = 0.004
    }
}
