//! Sharded sampling: assigns samples to ranks and steps.
//!
//! ```
//! use briquette_core::Key;
//! use briquette_core::shards::Shards;
//!
//! let plan = Shards::new(100, 3, 8)?.epoch(Key::new(42), 0); // 3 ranks, 8 samples each in a step
//! assert_eq!(plan.steps(), 5);                               // four of 24, and a last one of 4
//! assert_eq!(plan.counts(4), [2, 1, 1]);                     // for weighting the means
//! # Ok::<_, briquette_core::error::ConfigError>(())
//! ```

mod balance;

pub use balance::Balance;

use std::ops::Range;

use rand::RngCore;

use crate::Key;
use crate::error::{ConfigError, world_of};

/// Assignment of samples to ranks.
///
/// With [`Shards::new`], every epoch is one shuffled list of all samples. Step `s` uses the next `world * batch`
/// samples, and rank `r` the `r`-th part of these. In every step, three ranks with batch size `B` therefore process
/// exactly the samples that one process with batch size `3 B` would. A last step with fewer samples is divided as
/// evenly as possible. A rank may get no samples in it, and still takes part in the step.
///
/// With [`Shards::with_own`], each rank keeps its own samples for the whole run instead.
#[derive(Debug, Clone, PartialEq)]
pub struct Shards {
    samples: usize,
    world: usize,
    batch: usize,
    /// The samples of a step, if they do not follow from batch and ranks.
    step: Option<usize>,
    /// The samples of each rank, if ranks keep their own samples.
    own: Option<Vec<Vec<usize>>>,
}

impl Shards {
    /// Divides `samples` among `world` ranks, `batch` samples per rank and step.
    ///
    /// # Errors
    /// [`ConfigError`] for zero ranks, a zero batch, or fewer samples than ranks.
    pub fn new(samples: usize, world: usize, batch: usize) -> Result<Self, ConfigError> {
        ConfigError::unless(world > 0, "number of ranks", "at least 1", world)?;
        ConfigError::unless(batch > 0, "batch of a rank", "at least 1", batch)?;
        if world > samples {
            let (why, instead) = ("every rank needs a sample", format!("use at most {samples} ranks or more data"));
            return Err(ConfigError::conflict(world_of(world), format!("{samples} samples"), why, instead));
        }
        Ok(Self { samples, world, batch, step: None, own: None })
    }

    /// Divides `samples` samples of every step among the ranks, as evenly as possible, whatever the batch: for elastic worlds in which a step
    /// does not change with the number of ranks.
    ///
    /// ```
    /// use briquette_core::{Key, shards::Shards};
    ///
    /// // A world of four ranks with batches of 8 has lost one.
    /// let plan = Shards::new(100, 3, 8)?.with_step(32)?.epoch(Key::new(42), 0);
    /// assert_eq!((plan.steps(), plan.counts(0)), (4, vec![11, 11, 10]));
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError`] for no samples, or if ranks keep their own samples.
    pub fn with_step(mut self, samples: usize) -> Result<Self, ConfigError> {
        ConfigError::unless(samples > 0, "samples of a step", "at least 1", samples)?;
        if self.own.is_some() {
            let (why, instead) = ("each rank takes its batch of its own samples", "share all samples");
            return Err(ConfigError::conflict("a number of samples per step", "samples that ranks keep", why, instead));
        }
        self.step = Some(samples);
        Ok(self)
    }

    /// Assigns fixed samples to each rank for the whole run: a list of sample numbers for every rank, in rank order.
    /// Ranks with fewer samples run out before the epoch ends and get empty slices from then on. The rank with the most
    /// samples determines the number of steps.
    ///
    /// # Errors
    /// [`ConfigError`] if there is not one list for every rank, or if a number is not below the number of samples.
    pub fn with_own(mut self, own: Vec<Vec<usize>>) -> Result<Self, ConfigError> {
        ConfigError::unless(own.len() == self.world, "lists of samples", "one for every rank", own.len())?;
        let largest = own.iter().flatten().copied().max().unwrap_or(0);
        ConfigError::unless(largest < self.samples, "number of a sample", "below the number of samples", largest)?;
        self.own = Some(own);
        Ok(self)
    }

    /// Returns the number of samples, over all ranks.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.world
    }

    /// Returns the shuffled plan of one epoch. The same call returns the same plan: to resume, skip to the step.
    pub fn epoch(&self, key: Key, epoch: u64) -> EpochPlan {
        let key = key.purpose("shuffle").step(epoch);
        match &self.own {
            None => {
                let mut order: Vec<usize> = (0..self.samples).collect();
                shuffle(&mut order, key);
                self.shared(order)
            }
            Some(own) => self.separate(own.iter().enumerate().map(|(rank, samples)| {
                let mut samples = samples.clone();
                shuffle(&mut samples, key.rank(rank));
                samples
            })),
        }
    }

    /// Returns the plan of what is left of an epoch after its first `seen` samples, for a world that has changed its size within it. Every
    /// sample still occurs at most once.
    ///
    /// ```
    /// use briquette_core::{Key, shards::Shards};
    ///
    /// let (key, before) = (Key::new(42), Shards::new(100, 3, 8)?);
    /// // After two steps of 24 samples, one of three ranks is lost.
    /// let left = Shards::new(100, 2, 8)?.rest_of_epoch(key, 0, 48)?;
    /// assert_eq!((left.samples(), left.steps()), (52, 4));
    /// // The first sample that the whole epoch would deal at its third step.
    /// assert_eq!(left.indices(0, 0)[0], before.epoch(key, 0).indices(2, 0)[0]);
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] if ranks keep their own samples: those of a lost rank cannot be dealt again.
    pub fn rest_of_epoch(&self, key: Key, epoch: u64, seen: usize) -> Result<EpochPlan, ConfigError> {
        if self.own.is_some() {
            let (why, instead) = ("the samples of a lost rank cannot be dealt to the others", "share all samples");
            return Err(ConfigError::conflict("an elastic world", "samples that ranks keep", why, instead));
        }
        let EpochPlan { order, .. } = self.epoch(key, epoch);
        Ok(self.shared(order[seen.min(order.len())..].to_vec()))
    }

    /// Returns a plan without shuffling, for a test set.
    pub fn in_order(&self) -> EpochPlan {
        match &self.own {
            None => self.shared((0..self.samples).collect()),
            Some(own) => self.separate(own.iter().cloned()),
        }
    }

    /// Returns the fixed samples of a rank, if [`with_own`](Shards::with_own) assigned them.
    ///
    /// # Panics
    /// If `rank` is not below the number of ranks.
    pub fn own(&self, rank: usize) -> Option<&[usize]> {
        self.own.as_ref().map(|own| own[rank].as_slice())
    }

    fn shared(&self, order: Vec<usize>) -> EpochPlan {
        let global = self.step.unwrap_or_else(|| self.world.saturating_mul(self.batch));
        let mut slices = Vec::new();
        for start in (0..order.len()).step_by(global) {
            let here = global.min(order.len() - start);
            slices.extend((0..self.world).map(|rank| {
                // Part `rank` of `here` in `world` parts whose sizes differ by at most one, larger ones first.
                let (size, longer) = (here / self.world, here % self.world);
                let from = start + rank * size + rank.min(longer);
                from..from + size + usize::from(rank < longer)
            }));
        }
        EpochPlan { order, slices, world: self.world }
    }

    fn separate(&self, ranks: impl Iterator<Item = Vec<usize>>) -> EpochPlan {
        let (mut order, mut ranges): (Vec<usize>, Vec<Range<usize>>) = (Vec::new(), Vec::new());
        for samples in ranks {
            ranges.push(order.len()..order.len() + samples.len());
            order.extend(samples);
        }
        let steps = ranges.iter().map(|r| r.len().div_ceil(self.batch)).max().unwrap_or(0);
        let slices = (0..steps)
            .flat_map(|step| ranges.iter().map(move |range| (step, range)))
            .map(|(step, range)| {
                // The batch may be far larger than the number of remaining samples.
                let from = range.start.saturating_add(step.saturating_mul(self.batch)).min(range.end);
                from..from.saturating_add(self.batch).min(range.end)
            })
            .collect();
        EpochPlan { order, slices, world: self.world }
    }
}

/// The plan of one epoch: the samples of every step and rank. Every sample occurs once.
#[derive(Debug, Clone, PartialEq)]
pub struct EpochPlan {
    order: Vec<usize>,
    /// Ranges of `order`, step by step, rank by rank.
    slices: Vec<Range<usize>>,
    world: usize,
}

impl EpochPlan {
    /// Returns the number of steps in the epoch, the same for every rank.
    pub fn steps(&self) -> usize {
        self.slices.len() / self.world
    }

    /// Returns the number of samples in the epoch, over all ranks.
    pub fn samples(&self) -> usize {
        self.order.len()
    }

    /// Returns the samples of one rank in one step; may be empty in the last steps.
    ///
    /// # Panics
    /// If the step or the rank is not in the plan.
    pub fn indices(&self, step: usize, rank: usize) -> &[usize] {
        assert!(
            step < self.steps() && rank < self.world,
            "step {step} of {}, rank {rank} of {} is not in the plan",
            self.steps(),
            self.world
        );
        &self.order[self.slices[step * self.world + rank].clone()]
    }

    /// Returns the samples of one rank in one step, if the step's samples are divided in these proportions, as by a [`Balance`]. Ranks that keep
    /// their own samples get them unchanged.
    ///
    /// ```
    /// use briquette_core::{Key, shards::Shards};
    ///
    /// let plan = Shards::new(100, 2, 16)?.epoch(Key::new(42), 0);
    /// let sizes = |step| [0, 1].map(|rank| plan.in_shares(step, rank, &[24, 8]).len());
    /// assert_eq!([sizes(0), sizes(3)], [[24, 8], [3, 1]]); // the last step has four samples
    /// # Ok::<_, briquette_core::error::ConfigError>(())
    /// ```
    ///
    /// # Panics
    /// If the step or the rank is not in the plan, or if there is not one share for every rank.
    pub fn in_shares(&self, step: usize, rank: usize, shares: &[usize]) -> &[usize] {
        let own = self.indices(step, rank);
        assert_eq!(shares.len(), self.world, "a share for every rank");
        let slices = &self.slices[step * self.world..(step + 1) * self.world];
        let is_shared = slices.windows(2).all(|pair| pair[0].end == pair[1].start);
        let total: u128 = shares.iter().map(|share| *share as u128).sum();
        if !is_shared || total == 0 {
            return own;
        }
        let (from, until) = (slices[0].start, slices[self.world - 1].end);
        let bound = |ranks: usize| {
            let dealt: u128 = shares[..ranks].iter().map(|share| *share as u128).sum();
            from + (((until - from) as u128 * dealt + total / 2) / total) as usize
        };
        &self.order[bound(rank)..bound(rank + 1)]
    }

    /// Returns the number of samples of each rank in a step, in rank order: the weights of a mean over ranks.
    ///
    /// # Panics
    /// If the step is not in the plan.
    pub fn counts(&self, step: usize) -> Vec<usize> {
        (0..self.world).map(|rank| self.indices(step, rank).len()).collect()
    }
}

/// Shuffles items in an order determined by the key: Fisher-Yates, implemented here because the bits of a library's
/// shuffle may change with its version.
pub fn shuffle(items: &mut [usize], key: Key) {
    let mut rng = key.block(0);
    for last in (1..items.len()).rev() {
        // Multiply and shift maps 64 bits to 0..=last; its bias is below 2^-40 for any data set that fits in memory.
        let other = (u128::from(rng.next_u64()) * (last as u128 + 1)) >> 64;
        items.swap(last, other as usize);
    }
}
