//! What can go wrong between Burn and the other ranks.

use std::fmt;
use std::path::PathBuf;

use briquette_core::error::{CommError, ConfigError, ReduceError, StateError, SyncError};

briquette_core::debug_by_display!(Error);

/// An error of this crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exchange failed, or was refused.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// What a [server](crate::ServerTraining) or a worker of its was sent, or made, cannot be used.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    /// The transport failed outside an exchange.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// A setting cannot work.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Ranks are not of one kind.
    #[error("rank {rank} cannot join: its {field} is {theirs}, rank {this}'s is {ours}")]
    Mismatch {
        /// This rank.
        this: usize,
        /// The rank that differs.
        rank: usize,
        /// In what.
        field: String,
        /// Here.
        ours: String,
        /// There.
        theirs: String,
    },
    /// A step before [`join`](crate::DistributedOptimizer::join).
    #[error("rank {rank} has not joined: call `join(model)` once before the first step")]
    NotJoined {
        /// This rank.
        rank: usize,
    },
    /// The two halves of a step were not called in turn.
    #[error(
        "rank {rank}, step {step}: `{called}` without `{first}` before it: a step is `sync_gradients`, the optimizer's \
         step, `sync_parameters`"
    )]
    Order {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// What was called.
        called: &'static str,
        /// What comes before it.
        first: &'static str,
    },
    /// The module is not the one that joined: a layer was frozen, another one is trained, or a tensor has another shape.
    #[error(
        "rank {rank}, step {step}: the module's trainable tensors are not those that joined: tensor {place}, the first that differs, was \
         {joined} and is {now}. Freeze and unfreeze layers before `join`, or call `join` again on every rank; give a step the module itself, \
         not what `forward_model` returned"
    )]
    Layout {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// The first such tensor, counted from 0 in the module's order.
        place: usize,
        /// Its path and shape at join.
        joined: String,
        /// Its path and shape now.
        now: String,
    },
    /// A step with other gradients than those that were exchanged while the backward pass computed them.
    #[error(
        "rank {rank}, step {step}: the gradient of `{slot}` is not the one that the backward pass computed, which was exchanged \
         meanwhile: with during_backward, change no gradient before the step (clip the average between `sync_gradients` and the \
         optimizer's step; to add up several passes, run the forward passes on the module itself)"
    )]
    Replaced {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// The first such parameter.
        slot: String,
    },
    /// Another learning rate than the one that the exchange began with.
    #[error(
        "rank {rank}, step {step}: the learning rate is {late}, and {early} was recorded before `forward_model`: record the \
         one that the step is taken with"
    )]
    LateLearningRate {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// Recorded before the forward pass.
        early: f64,
        /// The step's.
        late: f64,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// What one of [`optim`](crate::optim) was to load is another optimizer's state.
    #[error("{0}")]
    OptimizerRecord(String),
    /// A parameter's type is none that the device computes in.
    #[error("{slot} is {dtype}, which {device} cannot compute in: cast the module to f32")]
    DType {
        /// The tensor's path.
        slot: String,
        /// Its type.
        dtype: String,
        /// The device.
        device: String,
    },
    /// A checkpoint is not whole, or none is there.
    #[error("checkpoint {path}: {problem}")]
    Checkpoint {
        /// File or directory.
        path: PathBuf,
        /// What is wrong with it and what to do.
        problem: String,
    },
    /// A checkpoint is whole, but another model, configuration or world saved it.
    #[error("checkpoint {path}: {problem}")]
    OtherRun {
        /// File or directory.
        path: PathBuf,
        /// What differs and what to do.
        problem: String,
    },
    /// Saved state does not fit this configuration.
    #[error(transparent)]
    State(#[from] StateError),
    /// The inner optimizer's momenta cannot be averaged.
    #[error("rank {rank}: the inner optimizer's momenta cannot be averaged: {problem}; use `momenta=keep` or `reset`")]
    Momenta {
        /// The rank whose they are.
        rank: usize,
        /// What is wrong with its record.
        problem: String,
    },
    /// The state of a rank's optimizer cannot be compared with the others', or replaced by rank 0's.
    #[error("rank {rank}: the state of the inner optimizer cannot be made that of rank 0: {problem}")]
    OptimizerState {
        /// The rank whose it is.
        rank: usize,
        /// The defect in the optimizer's record.
        problem: String,
    },
    /// A mean over ranks to evaluate or to save would not be finite; every rank finds the same, and training may go on.
    #[error("{operation} at step {step}: {why}, so there is no mean over ranks. {advice}")]
    NoMean {
        /// The average, or the operation that needed it.
        operation: &'static str,
        /// The step.
        step: u64,
        /// The rank and the tensor's path.
        why: String,
        /// The suggested remedy.
        advice: &'static str,
    },
    /// Burn's training was stopped by an error of its own: a loader's, a metric's, a checkpointer's.
    #[cfg(feature = "train")]
    #[error("rank {rank}: {source}")]
    Training {
        /// This rank.
        rank: usize,
        /// Burn's error.
        source: std::sync::Arc<burn::train::TrainingError>,
    },
}

impl Error {
    /// Of what a device said: the innermost cause alone, as devices list everything that was not computed after it, and what
    /// to do where its memory ran out.
    pub fn device(said: impl ToString) -> Error {
        let said = said.to_string();
        // Frames of a backtrace speak of allocation whatever failed.
        let said =
            ["No backtrace", "Backtrace", "\nAsked at"].iter().fold(&said[..], |text, end| match text.find(end) {
                Some(at) if at > 0 => &text[..at],
                _ => text,
            });
        let cause =
            said.rsplit("Caused by:").next().and_then(|last| last.lines().map(str::trim).find(|l| !l.is_empty()));
        let cause = cause.unwrap_or(said);
        let short = ["allocate buffer", "out of memory", "out-of-memory", "out_of_memory", "outofmemory"];
        let memory = short.iter().any(|word| said.to_lowercase().contains(word));
        let advice =
            if memory { "; its memory ran out: take a smaller batch, or fewer ranks on one device" } else { "" };
        Error::Device(format!("{cause}{advice}"))
    }
}

/// A failed [`try_step`](crate::DistributedOptimizer::try_step), with the model. `?` turns it into an [`Error`], whatever the model is.
#[derive(thiserror::Error)]
#[error("{source}")]
pub struct StepError<M> {
    /// The model, unchanged where gradients were due: checkpoint it, or go on with the next batch where the error allows.
    /// Where parameters were due (Local SGD), the inner optimizer has stepped and only the averaging is missing.
    pub model: Box<M>,
    /// What failed.
    #[source]
    pub source: Error,
}

/// Without the model.
impl<M> fmt::Debug for StepError<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.source, f)
    }
}

impl<M> From<StepError<M>> for Error {
    fn from(error: StepError<M>) -> Error {
        error.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_devices_list_of_what_failed_becomes_its_cause() {
        let said = "An error happened\nCaused by:\n  Several failures\n  skipped `X`\nCaused by:\n  An IO error happened\n\
                    Caused by:\n  can't allocate buffer of size: 268435456\nNo backtrace available\n";
        let text = Error::device(said).to_string();
        assert_eq!(
            text,
            "the device failed: can't allocate buffer of size: 268435456; its memory ran out: take a smaller batch, or fewer \
             ranks on one device"
        );
        assert_eq!(Error::device("lost").to_string(), "the device failed: lost");
        let traced = "a kernel did not compile\nBacktrace\n  0: alloc::boxed::Box::new\n  1: allocate buffer";
        assert_eq!(Error::device(traced).to_string(), "the device failed: a kernel did not compile");
    }
}
