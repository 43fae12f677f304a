//! What may fail in a step of a strategy.

use super::ReduceError;

/// A synchronisation failed; see [`ReduceError`].
#[derive(Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// The exchange itself failed.
    #[error("step {step}: {source}")]
    Reduce {
        /// The optimizer step.
        step: u64,
        /// What failed.
        source: ReduceError,
    },
    /// A gradient that is not finite was refused on every rank, before it reached anyone's state.
    #[error(
        "step {step}: rank {rank} has a non-finite value in `{slot}`; no rank exchanged anything. \
         Lower the learning rate, or skip the step on every rank"
    )]
    NonFinite {
        /// The optimizer step.
        step: u64,
        /// Whose vector.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// A rank had begun to exchange gradients during its backward pass, and does not step with them.
    #[error(
        "step {step}: rank {rank} gave its gradients up when some were on the way already: its forward model was armed again, or \
         something was saved or evaluated, before the step; no rank has used them"
    )]
    GaveUp {
        /// The optimizer step.
        step: u64,
        /// Which rank.
        rank: usize,
    },
    /// Gradients were weighed by other numbers of samples than were recorded in the end.
    #[error(
        "step {step}: rank {rank} recorded samples after its backward pass, when its gradients were on the way: call \
         `record_samples` before `forward_model`"
    )]
    LateSamples {
        /// The optimizer step.
        step: u64,
        /// The first such rank.
        rank: usize,
    },
    /// What a strategy made of this rank's own parameters is not finite, where those of other ranks may be: they learn of it
    /// when the session is aborted.
    #[error(
        "step {step}: rank {rank}: the exchange leaves a value that is not finite in `{slot}`: parameters, or a momentum over them, \
         exceed the largest number. Lower the learning rate, or clip gradients"
    )]
    Diverged {
        /// The optimizer step.
        step: u64,
        /// This rank.
        rank: usize,
        /// The slot's path.
        slot: String,
    },
    /// A strategy keeps something for each machine, and ranks are on others than when it was saved.
    #[error(
        "step {step}: rank {rank} was on the machine of rank {saved} when this run was saved, and is on that of rank {here} now: start \
         ranks on the machines that they had, or a new run from the saved model"
    )]
    OtherMachines {
        /// The optimizer step.
        step: u64,
        /// The first such rank.
        rank: usize,
        /// The first rank of its machine then.
        saved: usize,
        /// The first rank of its machine now.
        here: usize,
    },
    /// A step where there are none: a server's updates take their place.
    #[error(
        "step {step}: this optimizer trains by a server and its workers, which take no steps together: call `ServerTraining::train`"
    )]
    Served {
        /// The optimizer step.
        step: u64,
    },
    /// Ranks disagree about where they are.
    #[error("rank {rank} is at step {got}, this rank at step {expected}: every rank must take every step")]
    OutOfStep {
        /// The other rank.
        rank: usize,
        /// This rank's step.
        expected: u64,
        /// Its step.
        got: u64,
    },
    /// Ranks step with different optimizers of several that share a transport.
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
        /// Its optimizer.
        got: u8,
    },
    /// A learning rate that is no number would end every replica.
    #[error("step {step}: rank {rank} steps with learning rate {got}, which is not finite; no rank exchanged anything")]
    Rate {
        /// The optimizer step.
        step: u64,
        /// Whose rate.
        rank: usize,
        /// The rate; infinite where another rank's is not a number.
        got: f64,
    },
    /// A count of samples that would leave the other ranks no weight.
    #[error(
        "step {step}: rank {rank} recorded {got} samples behind its gradient, at most {most} are sensible; no rank exchanged \
         anything"
    )]
    Samples {
        /// The optimizer step.
        step: u64,
        /// Whose gradient.
        rank: usize,
        /// Samples it recorded.
        got: u64,
        /// How many it may.
        most: u64,
    },
    /// Samples that only some ranks recorded would weigh ranks by numbers of different kinds.
    #[error(
        "step {step}: rank {rank} recorded its samples and rank {other} did not; no rank exchanged anything. Call `record_samples` on every \
         rank before the step (with 0 where a rank has none), or on none"
    )]
    SomeRecorded {
        /// The optimizer step.
        step: u64,
        /// The first rank that did.
        rank: usize,
        /// The first rank that did not.
        other: usize,
    },
    /// Replicas that are to be equal are not; no rank exchanged anything.
    #[error(
        "step {step}: {} of {} not those of rank {rank}, and replicas are to be equal. Change parameters and optimizers identically \
         on every rank; `join` again gives every rank rank 0's; where ranks' devices round differently, set re-broadcasting",
        values_of(slot),
        ranks(others)
    )]
    Replicas {
        /// The optimizer step.
        step: u64,
        /// The first tensor that differs, where it was looked for.
        slot: Option<String>,
        /// The first rank that has what most have.
        rank: usize,
        /// The ranks that have other values.
        others: Vec<usize>,
    },
    /// The ranks' finite gradients have no finite average; every rank found the same, and nothing has changed.
    #[error(
        "step {step}: the average over ranks is not finite in `{slot}`: the sum exceeds the largest number; no rank has used it. Lower \
         the learning rate, clip gradients, or skip the step on every rank"
    )]
    Overflow {
        /// The optimizer step.
        step: u64,
        /// The slot's path.
        slot: String,
    },
    /// Replicas that step with different learning rates do not stay equal.
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
        /// Its rate.
        got: Option<f64>,
    },
}

impl SyncError {
    /// Whether every rank finds it by itself, in the step header and before anything has changed: no rank need stop another.
    pub fn is_everyones(&self) -> bool {
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
