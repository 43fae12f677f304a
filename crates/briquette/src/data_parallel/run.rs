//! Training run of one rank: joining, epochs, and the validation and checkpoints between epochs.

use std::sync::Arc;

use burn::data::dataloader::Progress;
use burn::data::dataset::DatasetError;
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel, TrainLoader, TrainStep,
    TrainingComponents, TrainingError, TrainingItem, ValidLoader,
};

use super::RunState;
use super::elastic::Entry;
use super::metrics::ExchangeMetrics;
use super::progress::{split_end, split_start};
use super::records::records;
use super::signal::Decision;
use crate::error::Error;
use crate::flat::{self, Part};

/// The training run of one rank.
pub(super) struct Run<M: LearnerModel> {
    pub(super) own: RunState<M>,
    pub(super) learner: Learner<M>,
    pub(super) components: TrainingComponents<M>,
    pub(super) train: TrainLoader<M>,
    pub(super) valid: ValidLoader<M>,
    pub(super) metrics: ExchangeMetrics,
    /// The first epoch of the run, and that of the loaders in it.
    pub(super) first_epoch: usize,
    pub(super) first_data_epoch: u64,
    /// Number of the generation in whose world this rank has its place, if the world is elastic.
    pub(super) generation: Option<u64>,
    /// Set if the learning rate's schedule has made the current step.
    pub(super) is_scheduled: bool,
}

/// Reasons for a run to end early.
pub(super) enum Failure {
    Exchange(Error),
    Loader(DatasetError),
    /// An error that has already been reported to the interrupter.
    Known(Arc<TrainingError>),
}

impl Failure {
    /// Returns whether every rank detects the same error by itself, so that an abort is not needed.
    fn is_on_all_ranks(&self) -> bool {
        match self {
            Failure::Exchange(Error::Mismatch { .. } | Error::NoMean { .. }) => true,
            Failure::Exchange(Error::Sync(error)) => error.is_on_all_ranks(),
            _ => false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Failure::Exchange(error)
    }
}

impl From<DatasetError> for Failure {
    fn from(error: DatasetError) -> Self {
        Failure::Loader(error)
    }
}

/// Converts an error to Burn's. Burn has no error variant for strategies; this one displays
/// `training worker on device {rank} failed: …`.
pub(super) fn training_error(rank: usize, message: impl ToString) -> TrainingError {
    let failure = burn::train::train::WorkerFailure { device_id: rank, message: message.to_string() };
    TrainingError::Workers(vec![failure])
}

impl<M: LearnerModel> Run<M> {
    /// Trains all epochs. A failure is reported to the interrupter, stops the other ranks and is returned.
    pub(super) fn train_all(&mut self, starting_epoch: usize) -> Result<(), Error> {
        let Err(failure) = self.join(starting_epoch).and_then(|from| self.epochs(from)) else { return Ok(()) };
        let reason = match &failure {
            Failure::Exchange(error) => error.to_string(),
            Failure::Loader(error) => format!("its loader failed: {error}"),
            Failure::Known(error) => error.to_string(),
        };
        if !failure.is_on_all_ranks() {
            self.own.sync.session().abort(&reason);
        }
        let rank = self.own.sync.rank();
        let interrupter = &self.components.interrupter;
        Err(match failure {
            Failure::Exchange(error) => {
                interrupter.fail(training_error(rank, reason));
                error
            }
            Failure::Loader(error) => {
                interrupter.fail(error);
                let source = interrupter.error().unwrap_or_else(|| Arc::new(training_error(rank, reason)));
                Error::Training { rank, source }
            }
            Failure::Known(source) => Error::Training { rank, source },
        })
    }

    /// Checks for a failure, such as that of a metric: the other ranks must receive an error, not a stop request.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.components.interrupter.error().map_or(Ok(()), |error| Err(Failure::Known(error)))
    }

    /// Joins the world and returns the first epoch, which is earlier than Burn's if the requested checkpoint cannot be
    /// used, and later on a new member of a running world.
    fn join(&mut self, starting_epoch: usize) -> Result<Entry, Failure> {
        if self.own.sync.is_entering() {
            return self.enter();
        }
        self.join_ranks(Some(starting_epoch))?;
        let Run { own: RunState { sync, saving, .. }, learner, components, .. } = self;
        let epoch = match components.checkpoint {
            Some(epoch) => saving.resume(sync, learner, epoch)? + 1,
            None => starting_epoch,
        };
        self.first_epoch = epoch;
        Ok(Entry { epoch, next: None })
    }

    fn epochs(&mut self, Entry { epoch: starting_epoch, next: mut entered }: Entry) -> Result<(), Failure> {
        for epoch in starting_epoch..=self.components.num_epochs {
            self.own.shard.begin_epoch(self.first_data_epoch + (epoch - self.first_epoch) as u64);
            if let Some(rank) = self.train_epoch(epoch, entered.take())? {
                self.stopped_by(rank);
                break;
            }
            // The time between epochs is not part of the next step's compute time.
            let clock = self.own.sync.session().hold_clock();
            self.validate(epoch)?;
            self.check()?;
            let decision = self.decide(epoch)?;
            match decision.stopped {
                Some(rank) => self.stopped_by(rank),
                None => self.save(epoch, &decision)?,
            }
            self.own.sync.set_clock(clock);
            if decision.early || decision.stopped.is_some() {
                break;
            }
        }
        // Joins the threads that write Burn's files, before another rank reads its directory. Write errors are then
        // known.
        self.components.checkpointer = None;
        self.check()?;
        self.average()?;
        let model = self.learner.model();
        // The next rank 0 has the result too: the lost one may not have returned it.
        while !self.own.sync.leave(&model)? {
            self.follow_world();
        }
        if self.own.sync.rank() == 0 {
            tracing::info!("{}", self.own.sync.summary());
        }
        Ok(())
    }

    /// Records in this rank's interrupter, for `LearningResult::interrupted`, that `rank` stopped the run.
    fn stopped_by(&self, rank: usize) {
        let interrupter = &self.components.interrupter;
        if !interrupter.should_stop() {
            interrupter.stop(Some(&format!("rank {rank} stopped the run")));
        }
        tracing::info!("training stopped by rank {rank}");
    }

    /// Averages the final model, so that it is the same on every rank.
    fn average(&mut self) -> Result<(), Error> {
        let own = self.learner.model();
        flat::drain(&own);
        let buffers = flat::read_bytes(&own, Part::Buffers)?;
        let model = self.together(|run| {
            // Clones share running statistics: an average that is repeated is of the ranks' own ones.
            let model = flat::write_bytes(run.learner.model(), Part::Buffers, &buffers).unwrap_or_else(|model| model);
            let sync = &mut run.own.sync;
            let model = sync.average_parameters(model)?;
            sync.average_buffers(model)
        })?;
        self.learner.load_model(model.into_record());
        Ok(())
    }

    fn validate(&mut self, epoch: usize) -> Result<(), Failure> {
        let model = self.together(|run| run.own.sync.evaluation_copy(&run.learner.model()))?;
        // Divided among the ranks that have the copy.
        let loader = self.valid.clone();
        let mut batches = loader.iter();
        self.emit_valid(split_start(epoch, loader.num_items(), batches.progress()));
        let mut iteration = 0;
        while let Some(batch) = batches.next() {
            iteration += 1;
            let output = InferenceStep::step(&model, batch?);
            self.emit_valid(item(output, batches.progress(), iteration));
            if self.components.interrupter.should_stop() {
                break;
            }
        }
        let is_complete = !self.components.interrupter.should_stop();
        self.emit_valid(split_end(epoch, batches.progress(), is_complete));
        self.end_split()?;
        self.emit(LearnerEvent::EndEpoch(epoch));
        Ok(())
    }

    /// Waits for this rank's metrics of a split, and replaces them by the global ones.
    pub(super) fn end_split(&mut self) -> Result<(), Failure> {
        let flushed = self.components.event_processor.flush();
        self.components.interrupter.fail_on_error(flushed);
        self.check()?;
        let Some(outlets) = &self.own.outlets else { return Ok(()) };
        let shares = outlets.ledger.shares(&self.components.event_store);
        let all = self.together(|run| run.own.sync.gather_bytes("metrics", &shares))?;
        self.own
            .outlets
            .iter()
            .try_for_each(|outlets| outlets.ledger.publish(&all, self.own.sync.rank(), &outlets.screen))?;
        Ok(())
    }

    fn decide(&mut self, epoch: usize) -> Result<Decision, Error> {
        let is_elastic = self.is_elastic();
        let Run { own: RunState { sync, saving, .. }, components, .. } = self;
        let stop = components.interrupter.should_stop();
        let (mut early, mut actions) = (false, Vec::new());
        // Any rank of an elastic world may be the next rank 0.
        if (sync.rank() == 0 || is_elastic) && !stop {
            actions = saving.actions(epoch, &components.event_store);
            let stopping = components.early_stopping.as_mut();
            early = stopping.is_some_and(|stopping| stopping.should_stop(epoch, &components.event_store));
        }
        self.together(|run| Decision::agree(&mut run.own.sync, stop, early, &actions))
    }

    fn save(&mut self, epoch: usize, decision: &Decision) -> Result<(), Error> {
        self.together(|run| run.try_save(epoch, decision.save))?;
        if self.own.sync.leads() {
            decision.delete.iter().for_each(|old| self.own.saving.delete(*old));
        }
        Ok(())
    }

    fn try_save(&mut self, epoch: usize, saves: bool) -> Result<(), Error> {
        let Run { own: RunState { sync, saving, .. }, learner, components, .. } = self;
        let blobs = sync.with_averages("checkpoint save", &learner.model(), |averaged, own| {
            let mut shown = learner.clone();
            shown.load_model(averaged.clone().into_record());
            if let Some(checkpointer) = &mut components.checkpointer {
                checkpointer.checkpoint(&shown, epoch, &components.event_store);
            }
            saves.then(|| records(&shown, own, &components.event_store))
        })?;
        blobs.map_or(Ok(()), |blobs| saving.save(sync, blobs, epoch))
    }

    pub(super) fn emit(&mut self, event: LearnerEvent<<M as TrainStep>::Output>) {
        let result = self.components.event_processor.process_train(event);
        self.components.interrupter.fail_on_error(result);
    }

    fn emit_valid(&mut self, event: LearnerEvent<<M as InferenceStep>::Output>) {
        let result = self.components.event_processor.process_valid(event);
        self.components.interrupter.fail_on_error(result);
    }
}

fn item<T>(output: T, progress: Progress, iteration: usize) -> LearnerEvent<T> {
    LearnerEvent::ProcessedItem(TrainingItem::new(output, progress, Some(iteration), None))
}
