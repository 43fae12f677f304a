//! Synchronization strategies: which vectors the ranks exchange at a step, when, and with which ranks.
//!
//! A [`SyncStrategy`] acts on a whole training step. Its [`plan`](SyncStrategy::plan) for a step states what the ranks must
//! agree on before sending, which vectors the strategy receives, and whether replicas are equal afterwards. The strategy then
//! acts in two hooks:
//! ```text
//! forward, backward ──► after_backward(gradient) ──► optimizer ──► after_step(parameters) ──► commit ──► after_commit
//! ```
//!
//! [`after_step`](SyncStrategy::after_step) leaves in the parameters the values that the next forward pass computes with. A
//! strategy that trains a different vector, such as stochastic gradient push, keeps that vector in its own state.

pub mod bmuf;
pub mod cocod;
pub mod delayed;
pub mod diloco;
pub mod easgd;
pub mod every_step;
mod graph;
pub mod header;
mod in_background;
pub mod lsgd;
pub mod minibatch;
pub mod outer;
pub mod overlap_local_sgd;
pub mod parle;
pub mod periodic;
mod placeholder;
mod rounds;
pub mod sgp;
pub mod slow_mo;
pub mod streaming_diloco;
#[cfg(test)]
mod testkit;
pub mod two_level;
mod unequal;

pub use bmuf::BmufConfig;
pub use cocod::{CoCoD, CoCoDConfig};
pub use delayed::{Delayed, DelayedConfig};
pub use diloco::DiLoCoConfig;
pub use easgd::{Easgd, EasgdConfig};
pub use every_step::{EveryStep, EveryStepConfig};
pub use graph::Graph;
pub use header::{Agreement, Header, RankStep, StopFlags, agree};
pub use lsgd::{Lsgd, LsgdConfig};
pub use minibatch::{Minibatch, MinibatchConfig};
pub use outer::{Outer, OuterRule, OuterStep};
pub use overlap_local_sgd::{OverlapConfig, OverlapLocalSgd};
pub use parle::{Parle, ParleConfig};
pub use periodic::{LocalSgdConfig, Periodic};
pub(crate) use placeholder::Placeholder;
pub(crate) use rounds::FEWEST_EXCHANGES;
pub use sgp::{Sgp, SgpConfig};
pub use slow_mo::{SlowMo, SlowMoConfig};
pub use streaming_diloco::{StreamingDiLoCo, StreamingDiLoCoConfig};
pub use two_level::{TwoLevel, TwoLevelConfig};
pub use unequal::{Unequal, unequal};

use std::ops::Range;

use crate::error::SyncError;
use crate::reduce::{AgreedStep, Arriving, not_finite};
use crate::report::Report;
use crate::state::Stateful;
use crate::{Key, Session, Slot};

/// A strategy's actions at a step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Ranks that agree on a [step header](header) before anything is sent.
    pub agrees: Agrees,
    /// Set if [`after_backward`](SyncStrategy::after_backward) receives the gradient.
    pub gradients: bool,
    /// Set if [`after_step`](SyncStrategy::after_step) receives the parameters.
    pub parameters: bool,
    /// Set if every rank has the same parameters at the end of the step, provided that all had the same at its start or
    /// parameters are exchanged. Where replicas differ, the model that is evaluated and saved is the mean over ranks of their
    /// [views](SyncStrategy::view).
    pub replicas_equal: bool,
    /// Set if all ranks must step with the same learning rate.
    pub same_rate: bool,
    /// Set if the inner optimizer steps. Otherwise it receives no gradients: parameters, momenta and step counters do not
    /// change.
    pub optimizes: bool,
}

/// Ranks that agree on a step header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Agrees {
    /// All ranks. No rank exchanges anything unless every rank can.
    World,
    /// The ranks of this rank's machine: a group of this size, or [as placed](crate::comm::Places). Stop requests wait for a
    /// header of all ranks; a non-finite value aborts the whole process group.
    Machine(Option<usize>),
    /// No ranks. A rank learns of another rank's failure when it waits for that rank. Stop requests, other ranks' losses and
    /// non-finite values are noticed at the next step with a header.
    NoRank,
}

impl Plan {
    /// Gradients are exchanged before the inner optimizer's step.
    pub const GRADIENTS: Plan = Plan {
        agrees: Agrees::World,
        gradients: true,
        parameters: false,
        replicas_equal: true,
        same_rate: true,
        optimizes: true,
    };
    /// Parameters are exchanged after the inner optimizer's step, and are then the same on every rank.
    pub const PARAMETERS: Plan =
        Plan { agrees: Agrees::World, gradients: false, parameters: true, same_rate: false, ..Plan::GRADIENTS };
    /// Every rank steps without communication.
    pub const ALONE: Plan =
        Plan { agrees: Agrees::NoRank, parameters: false, replicas_equal: false, ..Plan::PARAMETERS };

    /// Returns whether anything may be sent.
    pub fn exchanges(&self) -> bool {
        self.gradients || self.parameters || self.agrees == Agrees::World
    }
}

/// Checks that a rank-local result of an exchange is finite.
fn check_own(values: &[f32], cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
    let (step, rank) = (cx.agreed_step.step, comm.rank());
    not_finite(values, cx.slots).map_or(Ok(()), |slot| Err(SyncError::Diverged { step, rank, slot }))
}

/// Steps between headers of a strategy that needs none, so that ranks agree on stop requests and share their losses.
pub(crate) const HEADER_STEPS: u64 = 100;

/// Context of a hook: key, slots and agreements of the step.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Context<'a> {
    /// The run's root key.
    pub key: Key,
    /// Tensors inside the vector. Where all ranks agree on a gradient, slots for which no rank has a gradient at this step are
    /// [marked](Slot::is_absent).
    pub slots: &'a [Slot],
    /// The agreement of all ranks; where [no rank agrees](Agrees::NoRank), this rank's own values.
    pub agreed_step: &'a AgreedStep,
    /// Each rank's values for this step, in rank order; empty where no rank agrees.
    pub ranks: &'a [RankStep],
}

impl<'a> Context<'a> {
    /// Creates the context of a step without the values of each rank.
    pub fn new(key: Key, slots: &'a [Slot], agreed_step: &'a AgreedStep) -> Self {
        Context { key, slots, agreed_step, ranks: &[] }
    }
}

/// Treatment of the inner optimizer's momenta after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Momenta {
    /// Momenta are unchanged.
    #[default]
    Keep,
    /// Momenta are reset, as at step 0.
    Reset,
    /// Momenta are averaged over ranks.
    Average,
}

/// Synchronization of the ranks at each step.
///
/// **Agreement.** Ranks agree once a step, on one header. A strategy that receives both gradients and parameters has the same
/// context in both hooks. A rank whose parameters are not finite after the optimizer's step stops the others.
///
/// **State.** The hooks compute, communicate, and then change state. After an error, vector and state are as they were before
/// the step.
pub trait SyncStrategy: Stateful + Send {
    /// Returns the plan for `step`, the same on every rank.
    fn plan(&self, step: u64) -> Plan;

    /// Receives the number of the run's last step, if known, before the run starts or resumes. Progress that the
    /// [view](Self::view) would otherwise miss is exchanged at that step, whatever the period. The default does nothing: the
    /// view has everything.
    fn ends_at(&mut self, _last: u64) {}

    /// Receives the parameters that every rank starts with, before step 0.
    fn begin(&mut self, _parameters: &[f32]) {}

    /// Runs before the inner optimizer's step, with this rank's gradient. The optimizer steps with the values that this leaves
    /// in it. The vector may be swapped for another of the same length.
    ///
    /// # Errors
    /// [`SyncError`]; `gradient` and this strategy's state are then unchanged.
    fn after_backward(
        &mut self,
        _gradient: &mut Vec<f32>,
        _cx: &Context<'_>,
        _comm: &mut Session,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    /// Runs [`after_backward`](Self::after_backward) while the gradient is still being computed, and writes the result to
    /// `average`. Bits, state and errors are the same. The default waits for the whole gradient first.
    ///
    /// # Errors
    /// As [`after_backward`](Self::after_backward).
    fn during_backward(
        &mut self,
        gradient: &mut dyn Arriving,
        average: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let len = cx.slots.last().map_or(0, |slot| slot.range().end);
        average.clear();
        average.extend_from_slice(gradient.wait(0..len, comm));
        self.after_backward(average, cx, comm)
    }

    /// Discards what the exchange of gradients staged for these ranges, which are in order: slots for which no rank has a
    /// gradient. Returns whether it did; if so, the optimizer gets no gradient for them. By default it does not, and the
    /// average's values for them are applied.
    fn hold(&mut self, _absent: &[Range<usize>]) -> bool {
        false
    }

    /// Runs after the inner optimizer's step, with this rank's parameters. The next step starts with the values that this
    /// leaves in them. The vector may be swapped for another of the same length.
    ///
    /// # Errors
    /// [`SyncError`]; `parameters` and this strategy's state are then unchanged.
    fn after_step(
        &mut self,
        _parameters: &mut Vec<f32>,
        _cx: &Context<'_>,
        _comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        Ok(Momenta::Keep)
    }

    /// Runs when the step has succeeded. Starts actions that cannot be undone, such as a background exchange.
    fn after_commit(&mut self, _cx: &Context<'_>, _comm: &mut Session) {}

    /// Waits for background exchanges, so that their state can be saved, or the run left. Training continues as if this had not been
    /// called; simulated time may pass.
    ///
    /// # Errors
    /// [`SyncError`] when the background exchange failed.
    fn settle(&mut self, _comm: &mut Session) -> Result<(), SyncError> {
        Ok(())
    }

    /// Turns this rank's parameters into its share of the model to evaluate and save. Where replicas differ, that model is the
    /// mean of all ranks' shares.
    fn view(&self, _parameters: &mut [f32]) {}

    /// Returns a vector whose mean over ranks an exchange of parameters conserves, if this strategy has one. The default
    /// returns the parameters.
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        Some(parameters.to_vec())
    }

    /// Reports the last step's exchanges. At a step that exchanges both gradients and parameters this is called after each, and
    /// the second report must cover both.
    fn report(&self, report: &mut Report);
}

impl<S: SyncStrategy + ?Sized> SyncStrategy for Box<S> {
    fn plan(&self, step: u64) -> Plan {
        (**self).plan(step)
    }
    fn ends_at(&mut self, last: u64) {
        (**self).ends_at(last);
    }
    fn begin(&mut self, parameters: &[f32]) {
        (**self).begin(parameters);
    }
    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        (**self).after_backward(gradient, cx, comm)
    }
    fn during_backward(
        &mut self,
        gradient: &mut dyn Arriving,
        average: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        (**self).during_backward(gradient, average, cx, comm)
    }
    fn hold(&mut self, absent: &[Range<usize>]) -> bool {
        (**self).hold(absent)
    }
    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        (**self).after_step(parameters, cx, comm)
    }
    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        (**self).after_commit(cx, comm);
    }
    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        (**self).settle(comm)
    }
    fn view(&self, parameters: &mut [f32]) {
        (**self).view(parameters);
    }
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        (**self).conserved(parameters)
    }
    fn report(&self, report: &mut Report) {
        (**self).report(report);
    }
}
