//! One call for all ranks: what a world has once, and what each of its ranks has.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use burn::lr_scheduler::LrSchedulerRecord;
use burn::optim::OptimizerRecord;
use burn::train::checkpoint::{Checkpoint as Record, Checkpointer, CheckpointerError};
use burn::train::{
    Learner, LearnerModel, LearningResult, SupervisedTraining, TrainLoader, TrainingStrategy, ValidLoader,
};

use super::screen::Screen;
use super::world::Ledger;
use super::{DataParallel, Outlets};
use crate::error::Error;

impl<M: LearnerModel + 'static> DataParallel<M> {
    /// `SupervisedTraining::new(directory, train, valid)`, for this rank: give it metrics, epochs, early stopping and checkpointers as in
    /// one process, the same on every rank, and [`launch`](Self::launch) it.
    ///
    /// - **Loaders** are this rank's share, of training and, if it is to be faster, of validation:
    ///   [`ShardedDataLoaderBuilder`](crate::data::ShardedDataLoaderBuilder).
    /// - **Renderer, log and metric files** are rank 0's; the other ranks are silent and write nothing into `directory`.
    /// - **Metrics are of the world**: at the end of a split each numeric metric is the mean over ranks, weighted by what each has counted
    ///   (exact for what is a mean over samples, such as loss and accuracy; the mean of the ranks' values for what is not, such as AUROC).
    ///   Metric files, the summary, early stopping and the best checkpoint go by it. Values within an epoch are rank 0's.
    /// - **Checkpointers** (`with_default_checkpointers`) write Burn's files on rank 0. Where they are set, each rank also keeps what it
    ///   must remember of its own in `directory/ranks`, so that `.checkpoint(epoch)` resumes the run; see [`with_checkpoints`](Self::with_checkpoints).
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
            own.saving.beside = Some(directory.join("ranks"));
            own.outlets = Some(outlets);
        });
        if rank == 0 { training } else { training.with_application_logger(None) }
    }

    /// Trains, on every rank: `training` is [`training`](Self::training)'s, `learner` the one of a single process.
    ///
    /// The result is rank 0's: where it is `Some`, a program saves the model and prints what came of it, once. (The model is the same on all
    /// ranks; a program that needs it everywhere launches by itself, with `with_training_strategy`.)
    ///
    /// # Errors
    /// What ended training before its last epoch; on every rank, and with the rank that it began on. A stop that was asked for is none: it is
    /// in [`LearningResult::interrupted`].
    pub fn launch(
        self,
        training: SupervisedTraining<M>,
        learner: Learner<M>,
    ) -> Result<Option<LearningResult<M>>, Error> {
        let rank = self.rank();
        if let Some(Some(screen)) = self.with_own(|own| own.outlets.as_ref().map(|outlets| outlets.screen.clone())) {
            screen.stops(training.interrupter());
        }
        let training = if rank == 0 { training } else { unsaved(training, &learner) };
        let strategy = Arc::new(self);
        let result =
            training.with_training_strategy(TrainingStrategy::Custom(Arc::clone(&strategy) as Arc<_>)).launch(learner);
        match strategy.failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(error),
            None => Ok((rank == 0).then_some(result)),
        }
    }
}

/// Burn's files are rank 0's to write. What is resumed, each rank reads from its own.
fn unsaved<M: LearnerModel>(training: SupervisedTraining<M>, learner: &Learner<M>) -> SupervisedTraining<M> {
    training.with_custom_checkpointers(
        Nowhere::new(learner.model().into_record()),
        Nowhere::new(OptimizerRecord::default()),
        Nowhere::new(LrSchedulerRecord::new()),
    )
}

/// Saves nothing, and gives back what a learner begins with.
struct Nowhere<R>(Mutex<Option<R>>);

impl<R> Nowhere<R> {
    fn new(record: R) -> Self {
        Nowhere(Mutex::new(Some(record)))
    }
}

impl<R: Record> Checkpointer<R> for Nowhere<R> {
    fn save(&self, _epoch: usize, _record: R) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        let record = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        record.ok_or_else(|| CheckpointerError::Unknown("a run is resumed once".into()))
    }
}
