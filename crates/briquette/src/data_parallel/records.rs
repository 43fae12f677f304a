//! Extraction and restoration of the state of Burn's `Learner`.
//!
//! A learner's optimizer and schedule are private, but a `LearningCheckpointer` may read them. A second
//! `LearningCheckpointer`, with in-memory checkpointers, extracts them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::OptimizerRecord;
use burn::store::ModuleRecord;
use burn::tensor::Bytes;
use burn::train::checkpoint::{
    AsyncCheckpointer, Checkpoint as Record, Checkpointer, CheckpointerError, CheckpointingAction,
    CheckpointingStrategy, ComposedCheckpointingStrategy, KeepLastNCheckpoints, MetricCheckpointingStrategy,
};
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::{Learner, LearnerModel, LearningCheckpointer};

use crate::checkpoint::{Blobs, Series, WorldChange, by_the_default_device, fail, local_blobs};
use crate::error::Error;
use crate::synchronizer::{LocalValues, Synchronizer};

/// The key of the epoch in a checkpoint.
const EPOCH: &str = "epoch";

/// Checkpoint settings: directory, schedule and retention.
pub(super) struct Saving {
    pub(super) directory: Option<PathBuf>,
    /// Set if the directory was given by the program.
    pub(super) is_given: bool,
    /// The default directory, if Burn's checkpointers are set and no other directory was given.
    pub(super) default_directory: Option<PathBuf>,
    pub(super) strategy: Box<dyn CheckpointingStrategy>,
    pub(super) change: WorldChange,
}

impl Default for Saving {
    fn default() -> Self {
        // Burn's own default, so that its files and those of this crate are from the same epochs.
        let best =
            MetricCheckpointingStrategy::new(&LossMetric::new(), Aggregate::Mean, Direction::Lowest, Split::Valid);
        let strategy = ComposedCheckpointingStrategy::builder().add(KeepLastNCheckpoints::new(2)).add(best).build();
        Saving {
            directory: None,
            is_given: false,
            default_directory: None,
            strategy: Box::new(strategy),
            change: WorldChange::Refuse,
        }
    }
}

impl Saving {
    /// Rank 0's checkpoint actions after `epoch`.
    pub(super) fn actions(&mut self, epoch: usize, store: &EventStoreClient) -> Vec<CheckpointingAction> {
        if self.directory.is_some() { self.strategy.checkpointing(epoch, store) } else { Vec::new() }
    }

    fn series(&self) -> Option<Series<'_>> {
        self.directory.as_deref().map(Series::epochs)
    }

    fn path(&self, epoch: usize) -> Option<PathBuf> {
        self.series().map(|series| series.path(epoch as u64))
    }

    /// Saves this rank's file; every rank calls it.
    pub(super) fn save(
        &self,
        sync: &mut Synchronizer,
        blobs: Result<Blobs, String>,
        epoch: usize,
    ) -> Result<(), Error> {
        let Some(path) = self.path(epoch) else { return Ok(()) };
        let notes = BTreeMap::from([(EPOCH.to_owned(), epoch.to_string())]);
        let clock = sync.session().hold_clock();
        sync.write_checkpoint(&path, blobs, &notes)?;
        sync.end_saving(clock)
    }

    /// Removes an epoch that is no longer kept; only rank 0 calls it.
    pub(super) fn delete(&self, epoch: usize) {
        let Some(path) = self.path(epoch).filter(|path| path.exists()) else { return };
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::warn!("cannot remove the old checkpoint {}: {error}", path.display());
        }
    }

    /// Resumes after `epoch`, or after the newest earlier epoch that every rank can load. Returns the epoch used.
    pub(super) fn resume<M: LearnerModel>(
        &self,
        sync: &mut Synchronizer,
        learner: &mut Learner<M>,
        epoch: usize,
    ) -> Result<usize, Error> {
        let series = self.series().ok_or_else(|| {
            let problem = "to resume, every rank needs its own state: give the directory it was saved in by \
                           `DataParallel::with_checkpoints`";
            fail(format!("of epoch {epoch}").as_ref(), problem)
        })?;
        let (found, _, (model, optimizer, schedule, state)) =
            sync.newest_usable(series, epoch as u64, |sync, checkpoint| {
                let epoch = checkpoint.note(EPOCH).and_then(|epoch| epoch.parse().ok());
                if epoch.map(|epoch| series.path(epoch)).as_deref() != Some(checkpoint.path()) {
                    return Err(fail(
                        checkpoint.path(),
                        "manifest.json is of another epoch: the directory was renamed",
                    ));
                }
                let mut saved = sync.read_checkpoint(checkpoint, self.change)?;
                let (model, optimizer) = saved.load(learner.model())?;
                let schedule = saved.record("schedule", LrSchedulerRecord::from_bytes)?;
                let state = sync.prepare(&saved, &model)?;
                Ok((model, optimizer, schedule, state))
            })?;
        if found != epoch as u64 && sync.rank() == 0 {
            tracing::warn!("no checkpoint of epoch {epoch} can be used; resuming after epoch {found}");
        }
        learner.load_model(model.into_record());
        by_the_default_device(|| learner.load_optim(optimizer))?;
        learner.load_scheduler(schedule);
        sync.apply(state);
        sync.keep_buffers(&learner.model())?;
        Ok(found as usize)
    }
}

/// Returns the learner's records as Burn's bytes. The model is the replicated one; `own` is this rank's rank-local
/// state.
pub(super) fn records<M: LearnerModel>(
    learner: &Learner<M>,
    own: LocalValues,
    store: &EventStoreClient,
) -> Result<Blobs, String> {
    let (model, optimizer, schedule) = kept(learner, store);
    let records = [("model", model.bytes()?), ("optimizer", optimizer.bytes()?), ("schedule", schedule.bytes()?)];
    Ok(records.into_iter().chain(local_blobs(own)).collect())
}

/// Returns the state of the learner's optimizer as Burn's bytes.
pub(super) fn optimizer<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient) -> Result<Bytes, String> {
    kept(learner, store).1.bytes()
}

/// Returns the state of the learner's schedule as Burn's bytes.
pub(super) fn schedule<M: LearnerModel>(learner: &Learner<M>, store: &EventStoreClient) -> Result<Bytes, String> {
    kept(learner, store).2.bytes()
}

/// Model, optimizer and schedule, as the learner passes them to its checkpointers.
fn kept<M: LearnerModel>(
    learner: &Learner<M>,
    store: &EventStoreClient,
) -> (SharedRecord<ModuleRecord>, SharedRecord<OptimizerRecord>, SharedRecord<LrSchedulerRecord>) {
    let (model, optimizer, schedule) = (SharedRecord::new(), SharedRecord::new(), SharedRecord::new());
    let mut checkpointer = LearningCheckpointer::new(
        AsyncCheckpointer::new(model.clone()),
        AsyncCheckpointer::new(optimizer.clone()),
        AsyncCheckpointer::new(schedule.clone()),
        Box::new(Always),
    );
    checkpointer.checkpoint(learner, 0, store);
    // Joins the threads that pass on the records.
    drop(checkpointer);
    (model, optimizer, schedule)
}

struct Always;

impl CheckpointingStrategy for Always {
    fn checkpointing(&mut self, _epoch: usize, _store: &EventStoreClient) -> Vec<CheckpointingAction> {
        vec![CheckpointingAction::Save]
    }
}

/// A checkpointer that keeps its record in memory.
struct SharedRecord<R>(Arc<Mutex<Option<R>>>);

impl<R> Clone for SharedRecord<R> {
    fn clone(&self) -> Self {
        SharedRecord(Arc::clone(&self.0))
    }
}

impl<R: Record> SharedRecord<R> {
    fn new() -> Self {
        SharedRecord(Arc::new(Mutex::new(None)))
    }

    fn bytes(self) -> Result<Bytes, String> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let record = record.ok_or("Burn gave no record")?;
        record.checkpoint_into_bytes().map_err(|e| e.to_string())
    }
}

impl<R: Record> Checkpointer<R> for SharedRecord<R> {
    fn save(&self, _epoch: usize, record: R) -> Result<(), CheckpointerError> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        Err(CheckpointerError::Unknown("nothing is restored from here".into()))
    }
}
