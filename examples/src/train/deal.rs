//! Samples of the steps of a world, which may change its size within an epoch.

use briquette::core::Key;
use briquette::core::error::ConfigError;
use briquette_datasets::{EpochPlan, Shards};

use crate::settings::{ResizeSpec, Settings};

/// Samples of a step.
#[derive(Debug, Clone, Copy)]
pub(super) enum StepSize {
    /// This many of each rank.
    OfARank(usize),
    /// This many of all ranks together.
    OfAll(usize),
}

impl StepSize {
    pub(super) fn of(settings: &Settings) -> StepSize {
        match settings.resize {
            Some(ResizeSpec::Step) => StepSize::OfAll(settings.ranks.saturating_mul(settings.batch)),
            _ => StepSize::OfARank(settings.batch),
        }
    }
}

/// Deal of the samples of an epoch to the ranks of the current world.
///
/// The *position* of a run counts the steps of its current world's size since its beginning. The steps of an epoch that began in a larger
/// or smaller world are the last ones of that epoch.
#[derive(Debug, Clone)]
pub(super) struct Deal {
    shards: Shards,
    /// This rank in that world.
    pub(super) rank: usize,
    world: usize,
    size: StepSize,
    pub(super) steps_per_epoch: u64,
    /// An epoch that began in a world of another size, and the number of its samples that had been seen when this world began.
    pub(super) began: Option<(u64, usize)>,
}

impl Deal {
    /// Deals to a world in which an epoch has `steps_per_epoch` steps (updates, if there is a server).
    pub(super) fn new(shards: Shards, size: StepSize, steps_per_epoch: u64, rank: usize) -> Deal {
        Deal { rank, world: shards.world(), shards, size, steps_per_epoch, began: None }
    }

    /// Returns how a running world deals its samples, for a member with this rank and world.
    pub(super) fn of_running(
        samples: usize,
        (rank, world): (usize, usize),
        size: StepSize,
        began: Option<(u64, usize)>,
        key: Key,
    ) -> Result<Deal, ConfigError> {
        let shards = match size {
            StepSize::OfARank(batch) => Shards::new(samples, world, batch)?,
            StepSize::OfAll(step) => Shards::new(samples, world, step.div_ceil(world))?.with_step(step)?,
        };
        let steps_per_epoch = shards.epoch(key, 0).steps() as u64;
        Ok(Deal { began, ..Deal::new(shards, size, steps_per_epoch, rank) })
    }

    /// Returns the samples of a step, over all ranks.
    pub(super) fn samples_of_a_step(&self) -> u64 {
        match self.size {
            StepSize::OfARank(batch) => (self.world as u64).saturating_mul(batch as u64),
            StepSize::OfAll(step) => step as u64,
        }
    }

    /// Returns the number of ranks to which samples are dealt.
    pub(super) fn world(&self) -> usize {
        self.world
    }

    /// Returns the steps of an epoch that are made by this world.
    pub(super) fn plan(&self, key: Key, epoch: u64) -> Result<EpochPlan, ConfigError> {
        Ok(match self.began.filter(|(began, _)| *began == epoch) {
            Some((_, seen)) => self.shards.rest_of_epoch(key, epoch, seen)?,
            None => self.shards.epoch(key, epoch),
        })
    }

    /// Returns the number of the step at `position` in its epoch's plan.
    pub(super) fn step(&self, plan: &EpochPlan, position: u64) -> usize {
        let left = self.steps_per_epoch - position % self.steps_per_epoch;
        plan.steps().saturating_sub(left as usize)
    }

    /// Returns whether a multiple of `every` epochs ends at `position`.
    pub(super) fn is_between_epochs(&self, position: u64, every: u64) -> bool {
        // An epoch that began in a smaller world may have as many steps left as a whole one.
        let epoch = position / self.steps_per_epoch;
        let is_within = self.began.is_some_and(|(began, seen)| began == epoch && seen > 0);
        position.is_multiple_of(self.steps_per_epoch.saturating_mul(every)) && !is_within
    }

    /// Deals the rest of the run to another world, in which this rank has another rank. Returns the position that corresponds to `position`
    /// before.
    pub(super) fn change(&mut self, place: (usize, usize), position: u64, key: Key) -> Result<u64, ConfigError> {
        // At the end of an epoch, the next one has not begun.
        let is_within = !self.is_between_epochs(position, 1);
        let epoch = if is_within { position } else { position.saturating_sub(1) } / self.steps_per_epoch;
        let done = position - epoch * self.steps_per_epoch;
        let samples = self.shards.samples();
        let before = self.began.filter(|(began, _)| *began == epoch).map_or(0, |(_, seen)| seen);
        let skipped = self.steps_per_epoch - self.plan(key, epoch)?.steps() as u64;
        let seen = (done - skipped).saturating_mul(self.samples_of_a_step()) as usize;
        let seen = before.saturating_add(seen).min(samples);
        *self = Deal::of_running(samples, place, self.size, Some((epoch, seen)), key)?;
        let left = self.plan(key, epoch)?.steps() as u64;
        Ok((epoch + 1) * self.steps_per_epoch - left)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn deal(samples: usize, world: usize, key: Key) -> Deal {
        Deal::of_running(samples, (0, world), StepSize::OfARank(8), None, key).unwrap()
    }

    /// 100 samples: 4 ranks make one step of 32, 3 ranks one of 24, and 2 ranks deal the other 44 in three.
    #[test]
    fn every_sample_of_an_epoch_is_dealt_once_whatever_the_world() {
        let key = Key::new(7);
        let mut deal = deal(100, 4, key);
        let mut seen = Vec::new();
        let mut position = 4;
        for world in [4, 3, 2, 2, 2] {
            if world != deal.world {
                position = deal.change((0, world), position, key).unwrap();
            }
            let plan = deal.plan(key, 1).unwrap();
            let step = deal.step(&plan, position);
            (0..world).for_each(|rank| seen.extend_from_slice(plan.indices(step, rank)));
            position += 1;
        }
        assert_eq!(position, 2 * deal.steps_per_epoch);
        assert_eq!((seen.len(), seen.iter().collect::<BTreeSet<_>>().len()), (100, 100));
        // The next epoch is whole.
        assert_eq!(deal.plan(key, 2).unwrap().steps() as u64, deal.steps_per_epoch);
    }

    /// The steps of an epoch are those of the first world: 32 samples each, in 3 ranks as 11, 11 and 10.
    #[test]
    fn steps_of_constant_size_are_divided_among_the_ranks() {
        let key = Key::new(7);
        let mut deal = Deal::of_running(100, (0, 4), StepSize::OfAll(32), None, key).unwrap();
        let whole = deal.plan(key, 0).unwrap();
        let position = deal.change((0, 3), 1, key).unwrap();
        let plan = deal.plan(key, 0).unwrap();
        assert_eq!((position, deal.steps_per_epoch, deal.samples_of_a_step()), (1, 4, 32));
        let sizes = |plan: &EpochPlan, step: usize, world| {
            (0..world).map(|rank| plan.indices(step, rank).len()).collect::<Vec<_>>()
        };
        let first = deal.step(&plan, 1);
        assert_eq!([sizes(&whole, 1, 4), sizes(&plan, first, 3)], [vec![8; 4], vec![11, 11, 10]]);
        let samples = |plan: &EpochPlan, step: usize, world| {
            (0..world).flat_map(|rank| plan.indices(step, rank).to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(samples(&whole, 1, 4), samples(&plan, first, 3));
    }

    /// A world that grows and shrinks again without a step is where it was: 16 of 120 samples are seen.
    #[test]
    fn a_change_and_back_deals_the_same_samples() {
        let key = Key::new(7);
        let (mut back, mut direct) = (deal(120, 2, key), deal(120, 2, key));
        let position = back.change((0, 4), 9, key).unwrap();
        assert!(!back.is_between_epochs(position, 1));
        let ends = [back.change((0, 2), position, key).unwrap(), direct.change((0, 2), 9, key).unwrap()];
        assert_eq!(ends[0], ends[1]);
        assert_eq!((back.began, direct.began), (Some((1, 16)), Some((1, 16))));
    }

    #[test]
    fn a_change_between_two_epochs_leaves_nothing_of_the_first() {
        let key = Key::new(7);
        assert_eq!(deal(100, 4, key).change((0, 2), 8, key).unwrap(), 14);
        assert_eq!(deal(100, 4, key).change((0, 2), 0, key).unwrap(), 0);
    }
}
