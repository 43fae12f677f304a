//! Elastic worlds: the training loop continues when a rank is lost, and new ranks enter it.

use burn::lr_scheduler::LrSchedulerRecord;
use burn::tensor::Bytes;
use burn::train::LearnerModel;
use serde::{Deserialize, Serialize};

use super::records;
use super::run::{Failure, Run};
use super::signal::{Next, compare};
use crate::checkpoint::by_the_default_device;
use crate::data::Shard;
use crate::error::Error;
use crate::synchronizer::Synchronizer;

/// Position of the run, which new members receive from rank 0.
#[derive(Debug, Serialize, Deserialize)]
struct Handover {
    first_epoch: usize,
    /// The epoch of the loaders in `first_epoch`.
    first_data_epoch: u64,
    epoch: usize,
    next: Next,
    schedule: Vec<u8>,
}

/// Position at which a rank begins.
pub(super) struct Entry {
    pub(super) epoch: usize,
    /// On a new member, the next action of all ranks after the step at whose end it was admitted.
    pub(super) next: Option<Next>,
}

impl<M: LearnerModel> Run<M> {
    /// Makes a call of all ranks outside of a step, again in the next world if a rank is lost.
    pub(super) fn together<T>(&mut self, mut call: impl FnMut(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        loop {
            let result = call(self);
            let concluded = self.own.sync.conclude(&self.learner.model(), result)?;
            self.follow_world();
            if let Some(value) = concluded {
                return Ok(value);
            }
        }
    }

    /// Continues in the next world after `error`, if a rank was lost.
    pub(super) fn recover(&mut self, error: Error) -> Result<(), Error> {
        self.own.sync.recover(&self.learner.model(), error)?;
        self.follow_world();
        Ok(())
    }

    /// Returns whether the world is elastic.
    pub(super) fn is_elastic(&self) -> bool {
        self.own.sync.generation().is_some()
    }

    /// Updates what depends on the rank after a change of the generation: shard, random numbers, rank 0's outputs.
    pub(super) fn follow_world(&mut self) {
        let sync = &self.own.sync;
        let number = sync.generation().map(|generation| generation.number);
        if number == self.generation {
            return;
        }
        self.generation = number;
        let shard = Shard { rank: sync.rank(), world: sync.world() };
        self.own.shard.set(shard);
        self.own.random.iter_mut().for_each(|random| random.set_rank(shard.rank));
        if let (0, Some(outlets)) = (shard.rank, &self.own.outlets) {
            outlets.ledger.take_over();
            outlets.screen.take_over();
        }
    }

    /// Admits candidates at the end of a step, if ranks have agreed so. A rank that is lost meanwhile is left behind: the step is complete.
    pub(super) fn admit(&mut self, epoch: usize, next: Next) -> Result<(), Failure> {
        let admitted = self.try_admit(epoch, next);
        Ok(admitted.or_else(|error| self.recover(error))?)
    }

    fn try_admit(&mut self, epoch: usize, next: Next) -> Result<(), Error> {
        let is_admitted = self.own.sync.admit(&self.learner.model())?;
        self.follow_world();
        if !is_admitted {
            return Ok(());
        }
        self.join_ranks(None)?;
        let mut bytes = Vec::new();
        let unusable = |problem| Error::OptimizerState { rank: 0, problem };
        if self.own.sync.rank() == 0 {
            let schedule = records::schedule(&self.learner, &self.components.event_store).map_err(unusable)?;
            let (first_epoch, first_data_epoch) = (self.first_epoch, self.first_data_epoch);
            let handover = Handover { first_epoch, first_data_epoch, epoch, next, schedule: schedule.to_vec() };
            bytes = serde_json::to_vec(&handover).unwrap_or_default();
        }
        self.own.sync.send_to_new_members(&mut bytes)
    }

    /// Enters a running world as a new member.
    pub(super) fn enter(&mut self) -> Result<Entry, Failure> {
        self.join_ranks(None)?;
        let mut bytes = Vec::new();
        self.own.sync.send_to_new_members(&mut bytes)?;
        let rank = self.own.sync.rank();
        let unusable = |problem: String| Error::OptimizerState { rank, problem };
        let handover: Handover = serde_json::from_slice(&bytes).map_err(|error| unusable(error.to_string()))?;
        let schedule = LrSchedulerRecord::from_bytes(Bytes::from_bytes_vec(handover.schedule));
        self.learner.load_scheduler(schedule.map_err(|error| unusable(error.to_string()))?);
        (self.first_epoch, self.first_data_epoch) = (handover.first_epoch, handover.first_data_epoch);
        Ok(Entry { epoch: handover.epoch, next: Some(handover.next) })
    }

    /// Joins model, optimizer and settings of all ranks, at the start of a run or, without its first epoch, in a running world: new members
    /// receive rank 0's.
    pub(super) fn join_ranks(&mut self, first_epoch: Option<usize>) -> Result<(), Error> {
        let Run { own, learner, components, .. } = self;
        let (saving, optimizer, is_launched) = (&own.saving, &own.optimizer, own.outlets.is_some());
        let has_own = saving.is_given;
        let mut settings = vec![
            ("number of epochs", components.num_epochs as u64),
            ("gradient accumulation", components.grad_accumulation.unwrap_or(1) as u64),
            ("use of checkpoints", u64::from(has_own)),
            ("launching by one call", u64::from(is_launched)),
            (
                "place for checkpoints",
                u64::from(saving.default_directory.is_some() || saving.directory.is_some() && !has_own),
            ),
        ];
        if let Some(epoch) = first_epoch {
            let resumes = components.checkpoint.map_or(0, |epoch| epoch as u64 + 1);
            settings.extend([("first epoch", epoch as u64), ("checkpoint to resume from", resumes)]);
        }
        let (is_new, sync) = (own.sync.is_entering(), &mut own.sync);
        let (mut record, mut has_files) = (None, false);
        let mut join = |sync: &mut Synchronizer, model: M| {
            let model = sync.join_with(model, optimizer.as_ref())?;
            sync.check_averages_gradients("Burn's training loop")?;
            if first_epoch.is_none() {
                // New members do not know the step yet.
                sync.session().scope().step = 0;
            }
            record = sync.first_optimizer(&model, || records::optimizer(learner, &components.event_store))?;
            has_files = compare(sync, &settings, components.checkpointer.is_some())?;
            Ok(model)
        };
        let model = match first_epoch {
            Some(_) => join(sync, learner.model())?,
            None => sync.hand_over(is_new, &learner.model(), join)?,
        };
        if first_epoch.is_some() || is_new {
            learner.load_model(model.into_record());
            if let Some(record) = record {
                by_the_default_device(|| learner.load_optim(record))?;
            }
            // Stores the buffers as loaded, because the learner may have replaced them.
            own.sync.keep_buffers(&learner.model())?;
        }
        // After a launch, only rank 0 has Burn's own checkpointers, and in an elastic world the others stand by.
        let stands_by = self.is_elastic() && has_files;
        let Run { own, components, .. } = self;
        if has_files && own.saving.directory.is_none() {
            own.saving.directory = own.saving.default_directory.take();
        }
        if own.outlets.is_some() && own.sync.rank() > 0 && !stands_by {
            components.checkpointer = None;
        }
        Ok(())
    }
}
