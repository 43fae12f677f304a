//! Launch of Burn's training on all ranks, with dashboard, metric files and result on rank 0 only.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::OptimizerRecord;
use burn::train::checkpoint::{Checkpoint as Record, Checkpointer, CheckpointerError, FileCheckpointer};
use burn::train::{
    Learner, LearnerModel, LearningResult, SupervisedTraining, TrainLoader, TrainingStrategy, ValidLoader,
};

use super::screen::Screen;
use super::world::Ledger;
use super::{DataParallel, Outlets};
use crate::data::CurrentShard;
use crate::error::Error;

impl<M: LearnerModel + 'static> DataParallel<M> {
    /// Returns `SupervisedTraining::new(directory, train, valid)` for this rank. Configure metrics, epochs, early stopping and
    /// checkpointers as in a single process, the same on every rank. Then [`launch`](Self::launch) it.
    ///
    /// - **Loaders** yield this rank's share of the training data and, to speed up validation, of the validation data:
    ///   [`ShardedDataLoaderBuilder`](crate::data::ShardedDataLoaderBuilder).
    /// - **Renderer, log and metric files** exist on rank 0 only. The other ranks are silent and write nothing into `directory`.
    /// - **Metrics are global**: at the end of a split (training or validation) each numeric metric is averaged over ranks,
    ///   weighted by the number of samples that each rank has counted. This is exact for means over samples, such as loss and
    ///   accuracy. For others, such as AUROC, it is the mean of the ranks' values. Metric files, the summary, early stopping and
    ///   the best checkpoint use the global values. Values within an epoch are rank 0's.
    /// - **Checkpointers** (`with_default_checkpointers`) write Burn's files on rank 0. If they are set, each rank also saves its
    ///   rank-local state in `directory/ranks`, with which `.checkpoint(epoch)` resumes the run; see
    ///   [`with_checkpoints`](Self::with_checkpoints).
    pub fn training(
        &self,
        directory: impl AsRef<Path>,
        train: TrainLoader<M>,
        valid: ValidLoader<M>,
    ) -> SupervisedTraining<M> {
        let directory = directory.as_ref();
        let rank = self.rank();
        let outlets = Outlets { ledger: Ledger::new(rank, directory), screen: Screen::new(rank) };
        let training = SupervisedTraining::new(directory, train, valid)
            .with_metric_logger(outlets.ledger.clone())
            .renderer(Box::new(outlets.screen.clone()));
        self.with_own(|own| {
            own.saving.default_directory = Some(directory.join("ranks"));
            own.outlets = Some(outlets);
        });
        if rank == 0 { training } else { training.with_application_logger(None) }
    }

    /// Trains on every rank. `training` is the result of [`training`](Self::training), and `learner` is the same as in a single
    /// process.
    ///
    /// Only rank 0 gets a result: if it is `Some`, the program saves the model and prints the outcome, once. (The model is the
    /// same on all ranks. A program that needs it on each of them uses `with_training_strategy` instead of `launch`.)
    ///
    /// # Errors
    /// The error that ended training before its last epoch, on every rank, with the number of the rank that failed. A requested
    /// stop is not an error: it is in [`LearningResult::interrupted`].
    pub fn launch(
        self,
        training: SupervisedTraining<M>,
        learner: Learner<M>,
    ) -> Result<Option<LearningResult<M>>, Error> {
        let rank = self.rank();
        if let Some(Some(screen)) = self.with_own(|own| own.outlets.as_ref().map(|outlets| outlets.screen.clone())) {
            screen.stops(training.interrupter());
        }
        let stands_by = self.with_own(|own| {
            let outlets = own.outlets.as_ref().filter(|_| own.sync.generation().is_some())?;
            Some((outlets.ledger.directory().join("checkpoint"), self.shard.clone()))
        });
        let training = if rank == 0 { training } else { standing_by(training, &learner, &stands_by.flatten()) };
        let strategy = Arc::new(self);
        let result =
            training.with_training_strategy(TrainingStrategy::Custom(Arc::clone(&strategy) as Arc<_>)).launch(learner);
        match strategy.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok((strategy.shard.get().rank == 0).then_some(result)),
        }
    }
}

/// Disables Burn's own files on ranks other than 0, or in an elastic world until the rank becomes rank 0, which then writes those of Burn's
/// `with_default_checkpointers`. To resume, each rank reads its own files instead.
fn standing_by<M: LearnerModel>(
    training: SupervisedTraining<M>,
    learner: &Learner<M>,
    files: &Option<(PathBuf, CurrentShard)>,
) -> SupervisedTraining<M> {
    training.with_custom_checkpointers(
        Standby::new(learner.model().into_record(), "model", files),
        Standby::new(OptimizerRecord::default(), "optim", files),
        Standby::new(LrSchedulerRecord::new(), "scheduler", files),
    )
}

/// Saves nothing unless the rank is rank 0, and returns the learner's initial record.
struct Standby<R> {
    initial: Mutex<Option<R>>,
    name: &'static str,
    files: Option<(PathBuf, CurrentShard)>,
}

impl<R> Standby<R> {
    fn new(record: R, name: &'static str, files: &Option<(PathBuf, CurrentShard)>) -> Self {
        Standby { initial: Mutex::new(Some(record)), name, files: files.clone() }
    }

    /// Burn's files, on rank 0.
    fn files(&self) -> Option<FileCheckpointer> {
        let (directory, _) = self.files.as_ref().filter(|(_, shard)| shard.get().rank == 0)?;
        Some(FileCheckpointer::new(directory, self.name))
    }
}

impl<R: Record> Checkpointer<R> for Standby<R> {
    fn save(&self, epoch: usize, record: R) -> Result<(), CheckpointerError> {
        self.files().map_or(Ok(()), |files| files.save(epoch, record))
    }

    fn delete(&self, epoch: usize) -> Result<(), CheckpointerError> {
        self.files().map_or(Ok(()), |files| Checkpointer::<R>::delete(&files, epoch))
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        let record = self.initial.lock().unwrap_or_else(PoisonError::into_inner).take();
        record.ok_or_else(|| CheckpointerError::Unknown("a run is resumed once".into()))
    }
}
