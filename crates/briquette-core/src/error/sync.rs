//! Errors of a synchronization step.

use super::ReduceError;

/// A synchronization failed; see [`ReduceError`].
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The exchange failed.
    #[error("step {step}: {source}")]
    Reduce {
        /// The optimizer step.
        step: u64,
        /// The error of the exchange.
        source: ReduceError,
    },
    /// A gradient is not finite. Every rank refused the step before any state changed.
    #[error(
        "step {step}: rank {rank} has a non-finite value in `{slot}`; no rank exchanged anything. \
         Lower the learning rate, or skip the step on every rank"
    )]
    NonFinite {
        /// The optimizer step.
        step: u64,
        /// The rank whose vector it is.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// A rank began to exchange gradients during its backward pass, and then discarded them.
    #[error(
        "step {step}: rank {rank} abandoned its gradients during their exchange: it called `forward_model` again, saved or evaluated \
         before the end of the step; no rank has used them"
    )]
    GaveUp {
        /// The optimizer step.
        step: u64,
        /// The rank.
        rank: usize,
    },
    /// The number of samples by which gradients were weighted differs from the number that was recorded at the end.
    #[error(
        "step {step}: rank {rank} recorded samples after its backward pass, during the exchange: call \
         `record_samples` before `forward_model`"
    )]
    LateSamples {
        /// The optimizer step.
        step: u64,
        /// The first such rank.
        rank: usize,
    },
    /// The parameters or momentum that the strategy computed on this rank are not finite. Other ranks may have finite values: they
    /// fail when this rank aborts the session.
    #[error(
        "step {step}: rank {rank}: the exchange produced a value that is not finite in `{slot}`: parameters or their momentum \
         overflowed. Lower the learning rate, or clip gradients"
    )]
    Diverged {
        /// The optimizer step.
        step: u64,
        /// This rank.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// The strategy keeps state per machine, and the placement of ranks on machines has changed since the state was saved.
    #[error(
        "step {step}: rank {rank} ran on the machine of rank {saved} when the checkpoint was saved and now runs on the machine of rank {here}: \
         start every rank on its previous machine, or start a new run from the saved model"
    )]
    OtherMachines {
        /// The optimizer step.
        step: u64,
        /// The first rank whose machine has changed.
        rank: usize,
        /// The first rank of its machine when the state was saved.
        saved: usize,
        /// The first rank of its machine now.
        here: usize,
    },
    /// The optimizer trains with a server and workers, and has no synchronous steps.
    #[error(
        "step {step}: this optimizer trains with a server and workers, without common steps: call `ServerTraining::train`"
    )]
    Served {
        /// The optimizer step.
        step: u64,
    },
    /// Ranks are at different steps.
    #[error("rank {rank} is at step {got}, this rank at step {expected}: every rank must take every step")]
    OutOfStep {
        /// The other rank.
        rank: usize,
        /// This rank's step.
        expected: u64,
        /// The other rank's step.
        got: u64,
    },
    /// Several optimizers share a transport, and ranks step with different ones.
    #[error(
        "step {step}: rank {rank} steps with optimizer {got} of this world, this rank with {expected} (counted from 0, as their sessions \
         were made): step, save and evaluate with all optimizers in the same order on every rank"
    )]
    OtherOptimizer {
        /// This rank's step.
        step: u64,
        /// The other rank.
        rank: usize,
        /// This rank's optimizer.
        expected: u8,
        /// The other rank's optimizer.
        got: u8,
    },
    /// The learning rate is not finite. A step with it would destroy every replica.
    #[error("step {step}: rank {rank} steps with learning rate {got}, which is not finite; no rank exchanged anything")]
    Rate {
        /// The optimizer step.
        step: u64,
        /// The rank whose learning rate it is.
        rank: usize,
        /// The learning rate. It is infinite if another rank's rate is not a number.
        got: f64,
    },
    /// The recorded number of samples is too large: the other ranks would have no weight.
    #[error(
        "step {step}: rank {rank} recorded {got} samples for its gradient, the maximum is {most}; no rank exchanged \
         anything"
    )]
    Samples {
        /// The optimizer step.
        step: u64,
        /// The rank whose gradient it is.
        rank: usize,
        /// Samples it recorded.
        got: u64,
        /// The maximum.
        most: u64,
    },
    /// Only some ranks recorded samples, so the weights of the ranks are not comparable.
    #[error(
        "step {step}: rank {rank} recorded its samples and rank {other} did not; no rank exchanged anything. Call `record_samples` on every \
         rank before the step (with 0 where a rank has none), or on none"
    )]
    SomeRecorded {
        /// The optimizer step.
        step: u64,
        /// The first rank that recorded samples.
        rank: usize,
        /// The first rank that did not.
        other: usize,
    },
    /// Replicas that must be equal differ. No rank exchanged anything.
    #[error(
        "step {step}: {} of {} not those of rank {rank}, and replicas are to be equal. Change parameters and optimizers identically \
         on every rank; `join` again gives every rank rank 0's; where ranks' devices round differently, set re-broadcasting",
        values_of(slot),
        ranks(others)
    )]
    Replicas {
        /// The optimizer step.
        step: u64,
        /// The first tensor that differs, if it was determined.
        slot: Option<String>,
        /// The first rank with the majority's values.
        rank: usize,
        /// The ranks with other values.
        others: Vec<usize>,
    },
    /// The average of the ranks' finite gradients is not finite. Every rank reports the same error, and no state has changed.
    #[error(
        "step {step}: the average over ranks is not finite in `{slot}`: the sum overflowed; no rank has used it. Lower \
         the learning rate, clip gradients, or skip the step on every rank"
    )]
    Overflow {
        /// The optimizer step.
        step: u64,
        /// The slot's path.
        slot: String,
    },
    /// Ranks step with different learning rates, so replicas would not stay equal.
    #[error(
        "step {step}: rank {rank} steps with learning rate {}, this rank with {}: give every rank the same",
        stated(*got), stated(*expected)
    )]
    LearningRate {
        /// The optimizer step.
        step: u64,
        /// The other rank.
        rank: usize,
        /// This rank's rate.
        expected: Option<f64>,
        /// The other rank's rate.
        got: Option<f64>,
    },
}

impl SyncError {
    /// Returns whether every rank detects the error by itself, in the step header and before any state has changed. No rank then
    /// needs to abort the others.
    pub fn is_on_all_ranks(&self) -> bool {
        !matches!(self, SyncError::Reduce { .. } | SyncError::Diverged { .. })
    }
}

fn values_of(slot: &Option<String>) -> String {
    slot.as_ref().map_or_else(|| "the parameters".into(), |slot| format!("the values of `{slot}`"))
}

fn ranks(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} are") } else { format!("ranks {list} are") }
}

fn stated(rate: Option<f64>) -> String {
    rate.map_or_else(|| "none stated".into(), |rate| rate.to_string())
}
