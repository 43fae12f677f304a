//! What ranks do together at a step: what they exchange, when, and with which ranks.
//!
//! A [`SyncStrategy`] sees a step, not a vector. Its [`plan`](SyncStrategy::plan) for a step states what must be agreed before
//! anything is sent, which vectors it is given, and whether replicas are equal afterwards. It then has two places to act:
//!
//! ```text
//! forward, backward ──► after_backward(gradient) ──► optimizer ──► after_step(parameters) ──► commit ──► after_commit
//! ```
//!
//! What [`after_step`](SyncStrategy::after_step) leaves in the parameters is what the next forward pass computes with. A strategy
//! that trains another vector than that (as stochastic gradient push does) keeps it as its own state.

mod away;
pub mod bmuf;
pub mod cocod;
pub mod delayed;
pub mod diloco;
pub mod easgd;
pub mod every_step;
pub mod graph;
pub mod header;
mod in_background;
pub mod lsgd;
pub mod minibatch;
pub mod outer;
pub mod overlap_local_sgd;
pub mod parle;
pub mod periodic;
mod rounds;
pub mod sgp;
pub mod slow_mo;
pub mod streaming_diloco;
#[cfg(test)]
mod testkit;
pub mod two_level;
mod unequal;

pub use away::Away;
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
pub use outer::{Outer, OuterRule};
pub use overlap_local_sgd::{OverlapConfig, OverlapLocalSgd};
pub use parle::{Parle, ParleConfig};
pub use periodic::{LocalSgdConfig, Periodic};
pub use rounds::FEWEST_EXCHANGES;
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

/// What a strategy does at a step; the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Which ranks agree on a [step header](header) before anything is sent.
    pub agrees: Agrees,
    /// Whether [`after_backward`](SyncStrategy::after_backward) is given the gradient.
    pub gradients: bool,
    /// Whether [`after_step`](SyncStrategy::after_step) is given the parameters.
    pub parameters: bool,
    /// Whether every rank has the same parameters when the step has ended, if all had at its start or parameters are exchanged.
    /// Where replicas differ, what is evaluated and saved as the model is the mean over ranks of their
    /// [views](SyncStrategy::view).
    pub replicas_equal: bool,
    /// Whether all ranks must step with the same learning rate.
    pub same_rate: bool,
    /// Set if the inner optimizer steps. Otherwise it receives no gradients: parameters, momenta and step counters do not change.
    pub optimizes: bool,
}

/// Which ranks agree on a step header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Agrees {
    /// All: no rank exchanges anything unless every rank can.
    World,
    /// Those of this rank's machine: the ranks of a group of this size, or [where they are](crate::comm::Places). Requests to stop
    /// wait for a header of all, and values that are not finite end the world.
    Machine(Option<usize>),
    /// None: a rank learns of another one's trouble when it waits for it. Requests to stop, losses of other ranks and values that
    /// are not finite are noticed when there is a header again.
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
    /// Parameters are exchanged after it, and are then the same on every rank.
    pub const PARAMETERS: Plan =
        Plan { agrees: Agrees::World, gradients: false, parameters: true, same_rate: false, ..Plan::GRADIENTS };
    /// Every rank steps by itself.
    pub const ALONE: Plan =
        Plan { agrees: Agrees::NoRank, parameters: false, replicas_equal: false, ..Plan::PARAMETERS };

    /// Whether anything may be sent.
    pub fn exchanges(&self) -> bool {
        self.gradients || self.parameters || self.agrees == Agrees::World
    }
}

/// That what is this rank's own after an exchange is finite.
fn check_own(values: &[f32], cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
    let (step, rank) = (cx.agreed_step.step, comm.rank());
    not_finite(values, cx.slots).map_or(Ok(()), |slot| Err(SyncError::Diverged { step, rank, slot }))
}

/// Steps from one header to the next of a strategy that needs none: so requests to stop are agreed, and every rank's losses known.
pub const HEADER_STEPS: u64 = 100;

/// Everything around the vector.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The run's root key.
    pub key: Key,
    /// The tensors inside the vector; where all ranks agree on a gradient, those that no rank has one for at this step are
    /// [marked](Slot::is_absent).
    pub slots: &'a [Slot],
    /// What all ranks agree on; where [no rank agrees](Agrees::NoRank), what this rank knows by itself.
    pub agreed_step: &'a AgreedStep,
    /// What each rank brings to this step, in rank order; empty where no rank agrees.
    pub ranks: &'a [RankStep],
}

/// What becomes of the inner optimizer's momenta after a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Momenta {
    /// They stay as they are.
    #[default]
    Keep,
    /// They begin anew, as at step 0.
    Reset,
    /// They become their mean over ranks.
    Average,
}

/// What ranks do together at each step.
///
/// **Agreement.** Ranks agree once a step, on one header: a strategy that is given gradients and parameters has the same context
/// in both hooks, and a rank whose parameters are not finite after the optimizer's step stops the others.
///
/// **State.** The hooks compute, communicate, and then change state. After an error, vector and state are as they were before
/// the step.
pub trait SyncStrategy: Stateful + Send {
    /// What is done at `step`; the same answer on every rank.
    fn plan(&self, step: u64) -> Plan;

    /// The number of the run's last step, where it is known, before the run begins or goes on: what would not be in the
    /// [view](Self::view) after it is exchanged then, whatever the period. By default the view has all.
    fn ends_at(&mut self, _last: u64) {}

    /// The parameters that every rank begins with, before step 0.
    fn begin(&mut self, _parameters: &[f32]) {}

    /// Before the inner optimizer's step, with this rank's gradient: what is left in it is what the optimizer steps with. It may be
    /// exchanged for another vector of the same length.
    ///
    /// # Errors
    /// [`SyncError`]; `gradient` and this strategy's state are then as before.
    fn after_backward(
        &mut self,
        _gradient: &mut Vec<f32>,
        _cx: &Context<'_>,
        _comm: &mut Session,
    ) -> Result<(), SyncError> {
        Ok(())
    }

    /// [`after_backward`](Self::after_backward) while the gradient is still being computed: `average` has the result. Bits, state and
    /// errors are the same. By default all is waited for first.
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

    /// Takes back what the exchange of gradients has staged for these places, in order: slots that no rank has a gradient for. Whether
    /// that is done: then the optimizer gets no gradient for them. By default it is not, and what the average has for them is
    /// applied.
    fn hold(&mut self, _absent: &[Range<usize>]) -> bool {
        false
    }

    /// After the inner optimizer's step, with this rank's parameters: what is left in them is what the next step begins with. They
    /// may be exchanged for another vector of the same length.
    ///
    /// # Errors
    /// [`SyncError`]; `parameters` and this strategy's state are then as before.
    fn after_step(
        &mut self,
        _parameters: &mut Vec<f32>,
        _cx: &Context<'_>,
        _comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        Ok(Momenta::Keep)
    }

    /// When the step has succeeded: starts what cannot be taken back, such as a background exchange.
    fn after_commit(&mut self, _cx: &Context<'_>, _comm: &mut Session) {}

    /// Waits for what is under way in the background, so that it can be saved or left. Training goes on as if it had not been
    /// called; simulated seconds may pass.
    ///
    /// # Errors
    /// [`SyncError`] when the background exchange failed.
    fn settle(&mut self, _comm: &mut Session) -> Result<(), SyncError> {
        Ok(())
    }

    /// Makes of this rank's parameters its share of the model to evaluate and save, which is the mean of all ranks' shares where
    /// replicas differ.
    fn view(&self, _parameters: &mut [f32]) {}

    /// A vector whose mean over ranks an exchange of parameters does not change, where this strategy has one. By default the
    /// parameters.
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        Some(parameters.to_vec())
    }

    /// What the last step's exchanges did. At a step that exchanges gradients and parameters it is asked for after each, and the
    /// second time is to state both.
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
