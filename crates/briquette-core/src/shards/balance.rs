//! Shares of a step's samples for ranks of unequal speed.

use crate::error::ConfigError;

/// Steps before the first look, and between two later ones.
const FIRST: u64 = 3;
const LATER: u64 = 8;
/// Gain in seconds of a step for which shares change.
const GAIN: f64 = 0.05;
/// Share of the run that trials of ranks without samples may cost.
const TRIALS: f64 = 0.02;

/// Shares of a step's samples.
///
/// **Why.** A synchronous step takes as long as its slowest rank. With equal batches and speeds 1, 1, 1 and 0.1, four ranks train at the
/// speed of 0.4 ranks; with shares, at that of 3.1. The samples of a step, and so the mean gradient, stay the same.
///
/// **Method.** A rank's seconds per sample `c_i` are the median over the last steps, from the compute seconds and samples that ranks agree on in
/// the step header. Shares are computed after 3 steps, and then after every 8; with local steps, after the first 3 and then at the next exchange. They minimize the
/// seconds of the slowest rank:
///
/// ```text
/// minimize  max_i n_i·c_i   over integers n_i ≥ 0 with Σ n_i = N
/// ```
///
/// One by one, each sample goes to the rank that would end first with it, which is optimal. The first `⌊T/c_i⌋` samples of rank `i`, with
/// `T = N / Σ 1/c_j`, need no comparison. Shares change if this shortens the step by more than 5 %. Seconds that a rank spends in every step,
/// whatever its samples, are part of its `c_i`; the next shares are corrected for them.
///
/// A rank may get no samples. Because it may have become faster, it gets one again after a pause that bounds the cost to 2 % of the run.
///
/// **Source.** This project's. The shares are the optimal schedule of equal jobs on machines of different speeds (M. Dessouky et al.,
/// *Scheduling Identical Jobs on Uniform Parallel Machines*, Statistica Neerlandica 44, 1990).
///
/// ```
/// use briquette_core::shards::Balance;
///
/// let mut balance = Balance::new(128, 4)?;
/// for step in 0..3 {
///     // The last rank needs ten times as long for its 32 samples.
///     balance.observe(step, [(32, 0.032), (32, 0.032), (32, 0.032), (32, 0.32)]);
/// }
/// assert_eq!(balance.shares(), [42, 41, 41, 4]); // 42 ms instead of 320
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Balance {
    shares: Vec<usize>,
    /// Seconds per sample of each rank; 0 if unknown.
    seconds: Vec<f64>,
    /// Seconds per sample in the steps since the last look; 0 for a rank without samples.
    steps: Vec<Vec<f64>>,
    /// Looks until a rank without samples gets one.
    rests: Vec<u64>,
    /// The step after the last look, or the first one; `None` for that of the next observation.
    since: Option<u64>,
    has_looked: bool,
}

impl Balance {
    /// Creates equal shares of `samples` samples for `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for no samples or no ranks.
    pub fn new(samples: usize, world: usize) -> Result<Self, ConfigError> {
        ConfigError::unless(world > 0, "number of ranks", "at least 1", world)?;
        ConfigError::unless(samples > 0, "samples of a step", "at least 1", samples)?;
        let shares = apportion(samples, &vec![1.0; world]);
        let (seconds, rests) = (vec![0.0; world], vec![0; world]);
        Ok(Balance { shares, seconds, steps: Vec::new(), rests, since: Some(0), has_looked: false })
    }

    /// Counts steps from the next observed one, for shares that begin during a run: not all ranks may be at the same step.
    #[must_use]
    pub fn during_a_run(self) -> Self {
        Balance { since: None, ..self }
    }

    /// Returns whether speeds have been estimated yet.
    pub fn has_looked(&self) -> bool {
        self.has_looked
    }

    /// Returns the samples of each rank in the next step, in rank order.
    pub fn shares(&self) -> &[usize] {
        &self.shares
    }

    /// Records the samples and compute seconds of every rank in step `step`, as agreed by the ranks. Without a clock (0 seconds), shares stay as they
    /// are. Returns whether the shares have changed.
    pub fn observe(&mut self, step: u64, ranks: impl IntoIterator<Item = (u64, f64)>) -> bool {
        let per_sample = |(samples, seconds): (u64, f64)| match samples {
            0 => 0.0,
            _ if !seconds.is_finite() => 0.0,
            _ => seconds.max(0.0) / samples as f64,
        };
        let seconds: Vec<f64> = ranks.into_iter().map(per_sample).collect();
        if seconds.len() != self.shares.len() {
            return false;
        }
        self.steps.push(seconds);
        let passed = (step + 1).saturating_sub(*self.since.get_or_insert(step));
        if passed < if self.has_looked { LATER } else { FIRST } {
            return false;
        }
        self.since = Some(step + 1);
        self.look()
    }

    /// Returns the state as numbers, for a checkpoint.
    pub fn to_numbers(&self) -> Vec<f64> {
        let mut numbers = vec![
            self.shares.len() as f64,
            self.since.map_or(-1.0, |since| since as f64),
            f64::from(u8::from(self.has_looked)),
        ];
        numbers.extend(self.shares.iter().map(|share| *share as f64));
        numbers.extend(&self.seconds);
        numbers.extend(self.rests.iter().map(|rest| *rest as f64));
        numbers.extend(self.steps.iter().flatten());
        numbers
    }

    /// Returns the state that these [numbers](Self::to_numbers) describe; `None` if they describe none for this number of samples and ranks.
    #[must_use]
    pub fn from_numbers(&self, numbers: &[f64]) -> Option<Balance> {
        let world = self.shares.len();
        let (&[ranks, since, has_looked], rest) = numbers.split_first_chunk()?;
        if ranks != world as f64 || rest.len() < 3 * world || !rest.len().is_multiple_of(world) {
            return None;
        }
        if !rest.iter().all(|number| number.is_finite() && *number >= 0.0) {
            return None;
        }
        let [shares, seconds, rests] = [0, 1, 2].map(|part| &rest[part * world..(part + 1) * world]);
        let shares: Vec<usize> = shares.iter().map(|share| *share as usize).collect();
        let of_same = shares.iter().try_fold(0_usize, |sum, share| sum.checked_add(*share));
        (of_same == Some(self.samples())).then(|| Balance {
            shares,
            seconds: seconds.to_vec(),
            steps: rest[3 * world..].chunks(world).map(<[f64]>::to_vec).collect(),
            rests: rests.iter().map(|rest| *rest as u64).collect(),
            since: (since >= 0.0).then_some(since as u64),
            has_looked: has_looked != 0.0,
        })
    }

    fn samples(&self) -> usize {
        self.shares.iter().sum()
    }

    /// Returns the seconds per sample of each rank. One without a measurement counts as the mean of the others.
    fn known(&self) -> Vec<f64> {
        let measured = || self.seconds.iter().filter(|seconds| **seconds > 0.0);
        let count = measured().count();
        let mean = if count == 0 { 1.0 } else { measured().sum::<f64>() / count as f64 };
        self.seconds.iter().map(|seconds| if *seconds > 0.0 { *seconds } else { mean }).collect()
    }

    /// Estimates the seconds per sample from the steps since the last look, and takes other shares if they pay.
    fn look(&mut self) -> bool {
        let steps = std::mem::take(&mut self.steps);
        self.has_looked = true;
        for (rank, seconds) in self.seconds.iter_mut().enumerate() {
            let mut measured: Vec<f64> = steps.iter().map(|step| step[rank]).filter(|c| *c > 0.0).collect();
            measured.sort_by(f64::total_cmp);
            if let Some(median) = measured.get(measured.len() / 2) {
                *seconds = *median;
            }
        }
        if self.seconds.iter().all(|seconds| *seconds == 0.0) {
            return false;
        }
        let (seconds, before) = (self.known(), self.shares.clone());
        let longest = |shares: &[usize]| shares.iter().zip(&seconds).map(|(n, c)| *n as f64 * c).fold(0.0, f64::max);
        let best = apportion(self.samples(), &seconds);
        if longest(&best) < (1.0 - GAIN) * longest(&before) {
            self.shares = best;
        }
        let step = longest(&self.shares);
        for (rank, seconds) in seconds.iter().enumerate() {
            match self.rests[rank] {
                _ if self.shares[rank] > 0 => self.rests[rank] = 0,
                0 => self.rests[rank] = (seconds / step / TRIALS).ceil() as u64,
                1 => {
                    let most = (0..before.len()).max_by_key(|other| self.shares[*other]).expect("a world has ranks");
                    self.shares[most] -= 1;
                    (self.shares[rank], self.rests[rank]) = (1, 0);
                }
                rest => self.rests[rank] = rest - 1,
            }
        }
        self.shares != before
    }
}

/// Divides `samples` samples among ranks such that the slowest ends as early as possible, given their seconds per sample.
fn apportion(samples: usize, seconds: &[f64]) -> Vec<usize> {
    let speed: f64 = seconds.iter().map(|c| 1.0 / c).sum();
    let end = samples as f64 / speed;
    let mut shares: Vec<usize> = seconds.iter().map(|c| (end / c) as usize).collect();
    let dealt = |shares: &[usize]| shares.iter().sum::<usize>();
    let end_with_another = |shares: &[usize], rank: usize| (shares[rank] + 1) as f64 * seconds[rank];
    while dealt(&shares) < samples {
        let first = (0..shares.len())
            .min_by(|a, b| end_with_another(&shares, *a).total_cmp(&end_with_another(&shares, *b)))
            .expect("a world has ranks");
        shares[first] += 1;
    }
    // Rounding of `end` may have given one too many.
    while dealt(&shares) > samples {
        let last = (0..shares.len())
            .max_by(|a, b| (shares[*a] as f64 * seconds[*a]).total_cmp(&(shares[*b] as f64 * seconds[*b])))
            .expect("a world has ranks");
        shares[last] -= 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Key;

    /// Observes steps of a world in which a sample takes these seconds, and every step `overhead` more.
    fn run(balance: &mut Balance, seconds: &[f64], overhead: f64, steps: usize) -> f64 {
        let (mut sum, first) = (0.0, balance.since.unwrap_or_default() + balance.steps.len() as u64);
        for step in (first..).take(steps) {
            let shares = balance.shares().to_vec();
            let took = |(n, c): (&usize, &f64)| if *n == 0 { 0.0 } else { overhead + *n as f64 * c };
            let ranks: Vec<(u64, f64)> = shares.iter().zip(seconds).map(|pair| (*pair.0 as u64, took(pair))).collect();
            sum += ranks.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max);
            balance.observe(step, ranks);
        }
        sum
    }

    /// Speeds 4, 2, 1, 1 of 128 samples: 64 + 32 + 16 + 16.
    #[test]
    fn shares_follow_the_speeds() {
        let mut balance = Balance::new(128, 4).unwrap();
        run(&mut balance, &[1.0, 2.0, 4.0, 4.0], 0.0, 3);
        assert_eq!(balance.shares(), [64, 32, 16, 16]);
        assert_eq!(Balance::new(7, 3).unwrap().shares(), [3, 2, 2]);
    }

    /// The least longest time of all ways to divide up to 9 samples among 3 ranks.
    #[test]
    fn no_other_shares_end_earlier() {
        for case in 0..200 {
            let key = Key::new(case);
            let seconds: Vec<f64> = (0..3).map(|rank| 0.1 + key.word(rank) as f64 / u64::MAX as f64).collect();
            let samples = 1 + case as usize % 9;
            let longest = |shares: [usize; 3]| (0..3).map(|r| shares[r] as f64 * seconds[r]).fold(0.0, f64::max);
            let all = (0..=samples).flat_map(|a| (0..=samples - a).map(move |b| [a, b, samples - a - b]));
            let least = all.map(longest).fold(f64::INFINITY, f64::min);
            let shares: [usize; 3] = apportion(samples, &seconds).try_into().unwrap();
            assert_eq!(shares.iter().sum::<usize>(), samples);
            assert!(longest(shares) <= least * (1.0 + 1e-12), "{samples} of {seconds:?}: {shares:?}");
        }
    }

    /// Every step takes 8 s, whatever its samples: the ranks still end together, after a few looks.
    #[test]
    fn a_constant_part_of_the_step_is_balanced_too() {
        let (mut balance, seconds) = (Balance::new(128, 2).unwrap(), [1.0, 3.0]);
        run(&mut balance, &seconds, 8.0, 100);
        // 8 + n = 8 + 3 (128 − n).
        assert_eq!(balance.shares(), [96, 32]);
    }

    #[test]
    fn a_rank_that_slows_down_gets_less_within_a_look() {
        let mut balance = Balance::new(64, 2).unwrap();
        run(&mut balance, &[1.0, 1.0], 0.0, 11);
        assert_eq!(balance.shares(), [32, 32]);
        run(&mut balance, &[1.0, 7.0], 0.0, 8);
        assert_eq!(balance.shares(), [56, 8]);
    }

    /// Sixteen samples of 0.03 s, and a rank that needs 3 s for one. It recovers during the run.
    #[test]
    fn a_rank_without_samples_is_tried_again_and_costs_little() {
        let mut balance = Balance::new(48, 3).unwrap();
        run(&mut balance, &[0.01, 0.01, 3.0], 0.0, 3);
        assert_eq!(balance.shares(), [24, 24, 0]);
        let steps = 20_000;
        let seconds = run(&mut balance, &[0.01, 0.01, 3.0], 0.0, steps);
        let ideal = steps as f64 * 0.24;
        assert!((1.0..1.03).contains(&(seconds / ideal)), "{}", seconds / ideal);
        // It is as fast as the others now, and a trial finds that.
        run(&mut balance, &[0.01, 0.01, 0.01], 0.0, steps);
        assert_eq!(balance.shares(), [16, 16, 16]);
    }

    /// With a period of eight local steps, the first exchange shows the speeds. A later look has at least one.
    #[test]
    fn one_exchange_after_local_steps_is_enough() {
        let mut balance = Balance::new(64, 2).unwrap();
        assert!(balance.observe(7, [(32, 32.0), (32, 96.0)]));
        assert_eq!(balance.shares(), [48, 16]);
        assert!(balance.observe(15, [(48, 48.0), (16, 16.0)]));
        assert_eq!(balance.shares(), [32, 32]);
        // During a run it is not known how many steps came before.
        let mut balance = Balance::new(64, 2).unwrap().during_a_run();
        assert!(!balance.observe(107, [(32, 32.0), (32, 96.0)]));
        assert_eq!(balance.from_numbers(&balance.to_numbers()).as_ref(), Some(&balance));
        assert!(balance.observe(115, [(32, 32.0), (32, 96.0)]));
    }

    #[test]
    fn small_differences_and_a_missing_clock_change_nothing() {
        let mut balance = Balance::new(64, 2).unwrap();
        run(&mut balance, &[1.0, 1.04], 0.0, 100);
        assert_eq!(balance.shares(), [32, 32]);
        for bad in [0.0, f64::NAN, f64::INFINITY, -1.0] {
            (100..120).for_each(|step| assert!(!balance.observe(step, [(32, bad), (32, bad)])));
        }
        assert!(!balance.observe(120, [(32, 1.0)]), "of another world");
        assert_eq!(balance.shares(), [32, 32]);
        for (samples, world) in [(0, 2), (4, 0)] {
            assert!(Balance::new(samples, world).is_err());
        }
    }

    /// A restored state goes on as the original, in the middle between two looks.
    #[test]
    fn numbers_restore_the_state() {
        let mut balance = Balance::new(48, 3).unwrap();
        run(&mut balance, &[0.01, 0.02, 3.0], 0.0, 15);
        let mut restored = Balance::new(48, 3).unwrap().from_numbers(&balance.to_numbers()).unwrap();
        assert_eq!(restored, balance);
        [&mut restored, &mut balance].into_iter().for_each(|balance| {
            run(balance, &[0.03, 0.02, 3.0], 0.0, 40);
        });
        assert_eq!(restored, balance);
        let numbers = balance.to_numbers();
        let other = Balance::new(47, 3).unwrap();
        assert!(other.from_numbers(&numbers).is_none() && other.from_numbers(&numbers[..4]).is_none());
        assert!(Balance::new(48, 4).unwrap().from_numbers(&numbers).is_none());
        let not_finite: Vec<f64> = numbers.iter().map(|_| f64::NAN).collect();
        assert!(balance.from_numbers(&not_finite).is_none());
    }
}
