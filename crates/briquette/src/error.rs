//! Errors of this crate.

use std::fmt;
use std::path::PathBuf;

use briquette_core::error::{CommError, ConfigError, ReduceError, StateError, SyncError};
use briquette_core::membership::MembershipError;

briquette_core::debug_by_display!(Error);

/// An error of this crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The exchange failed or was refused.
    #[error(transparent)]
    Sync(#[from] SyncError),
    /// A [server](crate::ServerTraining) or one of its workers received or produced invalid data.
    #[error(transparent)]
    Reduce(#[from] ReduceError),
    /// The transport failed outside an exchange.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Ranks differ in a setting that must be the same on all of them.
    #[error("rank {rank} cannot join: its {field} is {theirs}, rank {this}'s is {ours}")]
    Mismatch {
        /// This rank.
        this: usize,
        /// The rank that differs.
        rank: usize,
        /// The setting that differs.
        field: String,
        /// Its value on this rank.
        ours: String,
        /// Its value on the other rank.
        theirs: String,
    },
    /// A rank of an [elastic world](crate::DistributedOptimizer::with_membership) was lost during a step, and the others have formed a
    /// new world. Nothing has changed; compute the step again, with this rank's share of its samples in the new world.
    #[error(
        "step {step} is computed again: a rank was lost, and this is now rank {rank} of {world}, of {before} before, in generation {generation}"
    )]
    WorldChanged {
        /// The step.
        step: u64,
        /// The number of the new generation.
        generation: u64,
        /// This rank in the new world.
        rank: usize,
        /// The number of ranks in the new world.
        world: usize,
        /// The number of ranks before.
        before: usize,
    },
    /// A rank of an elastic world was lost, and this one cannot be part of the next world.
    #[error(transparent)]
    Membership(#[from] MembershipError),
    /// A step was taken before [`join`](crate::DistributedOptimizer::join).
    #[error("rank {rank} has not joined: call `join(model)` once before the first step")]
    NotJoined {
        /// This rank.
        rank: usize,
    },
    /// The two halves of a step were not called alternately.
    #[error(
        "rank {rank}, step {step}: `{called}` without `{first}` before it: a step is `sync_gradients`, the optimizer's \
         step, `sync_parameters`"
    )]
    Order {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// The method that was called.
        called: &'static str,
        /// The method that must be called before it.
        first: &'static str,
    },
    /// The module differs from the one that joined: a layer was frozen or unfrozen, or a tensor has another shape.
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
        /// The first tensor that differs, counted from 0 in the module's order.
        place: usize,
        /// Its path and shape at join.
        joined: String,
        /// Its path and shape now.
        now: String,
    },
    /// A step was given gradients other than those exchanged during the backward pass.
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
        /// The first parameter whose gradient differs.
        slot: String,
    },
    /// The learning rate changed after the exchange began.
    #[error(
        "rank {rank}, step {step}: the learning rate is {late}, and {early} was recorded before `forward_model`: record the \
         learning rate of the step"
    )]
    LateLearningRate {
        /// This rank.
        rank: usize,
        /// The step.
        step: u64,
        /// The learning rate recorded before the forward pass.
        early: f64,
        /// The learning rate of the step.
        late: f64,
    },
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(String),
    /// The state given to one of the optimizers of [`optim`](crate::optim) belongs to another optimizer.
    #[error("{0}")]
    OptimizerRecord(String),
    /// The device does not support a parameter's data type.
    #[error("{slot} is {dtype}, which {device} does not support: cast the module to f32")]
    DType {
        /// The tensor's path.
        slot: String,
        /// The tensor's data type.
        dtype: String,
        /// The device.
        device: String,
    },
    /// A checkpoint is missing or damaged.
    #[error("checkpoint {path}: {problem}")]
    Checkpoint {
        /// File or directory.
        path: PathBuf,
        /// The problem and the remedy.
        problem: String,
    },
    /// A checkpoint is intact, but belongs to another model, configuration or world.
    #[error("checkpoint {path}: {problem}")]
    OtherRun {
        /// File or directory.
        path: PathBuf,
        /// The difference and the remedy.
        problem: String,
    },
    /// Saved state does not fit this configuration.
    #[error(transparent)]
    State(#[from] StateError),
    /// The inner optimizer's momenta cannot be averaged.
    #[error("rank {rank}: the inner optimizer's momenta cannot be averaged: {problem}; use `momenta=keep` or `reset`")]
    Momenta {
        /// The rank of that optimizer.
        rank: usize,
        /// The defect in the optimizer's record.
        problem: String,
    },
    /// The optimizer state of a rank cannot be compared with that of the other ranks, or replaced by rank 0's.
    #[error("rank {rank}: the inner optimizer's state cannot be replaced by that of rank 0: {problem}")]
    OptimizerState {
        /// The rank of that optimizer.
        rank: usize,
        /// The defect in the optimizer's record.
        problem: String,
    },
    /// A mean over ranks, for evaluating or saving, would not be finite. Every rank detects this, and training may
    /// continue.
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
    /// Burn's training stopped because of an error in a loader, a metric or a checkpointer.
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
    /// Creates an [`Error::Device`] from a device's message. Only the innermost cause is kept, because devices also list
    /// everything that was not computed after it. If the device's memory ran out, a remedy is added.
    pub fn device(said: impl ToString) -> Error {
        let said = said.to_string();
        // Backtrace frames mention allocation in every failure.
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

/// A failed [`try_step`](crate::DistributedOptimizer::try_step), with the model. `?` converts it into an [`Error`] for any model
/// type.
#[derive(thiserror::Error)]
#[error("{source}")]
pub struct StepError<M> {
    /// The model. At a step that exchanges gradients it is unchanged: save a checkpoint of it, or continue with the next batch
    /// if the error permits. At a step that averages parameters (Local SGD), the inner optimizer has stepped and only the
    /// average is missing.
    pub model: Box<M>,
    /// The cause.
    #[source]
    pub source: Error,
}

/// Omits the model.
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
