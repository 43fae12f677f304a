//! Synchronization strategy: decides at which steps ranks exchange gradients or parameters.

use super::RankStep;
use std::ops::Range;

use super::{AgreedStep, Arriving, not_finite};
use crate::error::SyncError;
use crate::report::Report;
use crate::state::Stateful;
use crate::{Key, Session, Slot};

/// Actions of a strategy at one step, the same on every rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// Ranks that agree on a [step header](crate::sync::header) before anything is sent.
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
    /// All ranks. Every rank exchanges, or none does.
    World,
    /// The ranks of this rank's machine: a group of this size, or [as placed](crate::comm::MachineMap). Stop requests are
    /// delayed until the next header of all ranks; a non-finite value aborts the whole process group.
    Machine(Option<usize>),
    /// No ranks. A rank detects another rank's failure when it waits for that rank. Stop requests, other ranks' losses and
    /// non-finite values are detected at the next step with a header.
    NoRank,
}

impl Plan {
    /// Plan: gradients are exchanged before the inner optimizer's step.
    pub const GRADIENTS: Plan = Plan {
        agrees: Agrees::World,
        gradients: true,
        parameters: false,
        replicas_equal: true,
        same_rate: true,
        optimizes: true,
    };
    /// Plan: parameters are exchanged after the inner optimizer's step, and are then the same on every rank.
    pub const PARAMETERS: Plan =
        Plan { agrees: Agrees::World, gradients: false, parameters: true, same_rate: false, ..Plan::GRADIENTS };
    /// Plan: every rank steps without communication.
    pub const ALONE: Plan =
        Plan { agrees: Agrees::NoRank, parameters: false, replicas_equal: false, ..Plan::PARAMETERS };

    /// Sets which ranks agree on a step header.
    #[must_use]
    pub const fn agreeing(self, agrees: Agrees) -> Plan {
        Plan { agrees, ..self }
    }

    /// Sets whether gradients are exchanged.
    #[must_use]
    pub const fn with_gradients(self, gradients: bool) -> Plan {
        Plan { gradients, ..self }
    }

    /// Sets whether parameters are exchanged.
    #[must_use]
    pub const fn with_parameters(self, parameters: bool) -> Plan {
        Plan { parameters, ..self }
    }

    /// Sets whether replicas are equal after the step.
    #[must_use]
    pub const fn with_replicas_equal(self, replicas_equal: bool) -> Plan {
        Plan { replicas_equal, ..self }
    }

    /// Sets whether all ranks need the same learning rate.
    #[must_use]
    pub const fn with_same_rate(self, same_rate: bool) -> Plan {
        Plan { same_rate, ..self }
    }

    /// Sets whether the inner optimizer steps.
    #[must_use]
    pub const fn with_optimizer(self, optimizes: bool) -> Plan {
        Plan { optimizes, ..self }
    }

    /// Returns whether anything may be sent.
    pub fn exchanges(&self) -> bool {
        self.gradients || self.parameters || self.agrees == Agrees::World
    }
}

/// Checks that a rank-local result of an exchange is finite.
///
/// # Errors
/// [`SyncError::Diverged`] names the rank and the slot.
pub fn check_own(values: &[f32], cx: &Context<'_>, comm: &Session) -> Result<(), SyncError> {
    let (step, rank) = (cx.agreed_step.step, comm.rank());
    not_finite(values, cx.slots).map_or(Ok(()), |slot| Err(SyncError::Diverged { step, rank, slot }))
}

/// Steps between headers of a strategy that needs no header itself. Ranks agree on stop requests and share their losses
/// in these headers.
pub const HEADER_STEPS: u64 = 100;

/// Context of a hook: key, slots and agreements of the step.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Context<'a> {
    /// The run's root key.
    pub key: Key,
    /// Tensors inside the vector. A slot for which no rank has a gradient at this step is [marked](Slot::is_absent), provided
    /// that all ranks agree on the header.
    pub slots: &'a [Slot],
    /// The agreement of all ranks, or this rank's own values where [no rank agrees](Agrees::NoRank).
    pub agreed_step: &'a AgreedStep,
    /// Each rank's values for this step, in rank order; empty where no rank agrees.
    pub ranks: &'a [RankStep],
    /// Factor for this rank's parameters, or their change, that turns the mean over ranks into the mean over the samples since the last
    /// exchange: `n_i · W / Σ n`. It is 1 for a gradient, which is weighted already, and if samples are not known or give no weight.
    pub weight: f32,
}

impl<'a> Context<'a> {
    /// Creates the context of a step without the values of each rank.
    pub fn new(key: Key, slots: &'a [Slot], agreed_step: &'a AgreedStep) -> Self {
        Context { key, slots, agreed_step, ranks: &[], weight: 1.0 }
    }

    /// Sets the slots.
    #[must_use]
    pub fn with_slots(self, slots: &'a [Slot]) -> Self {
        Context { slots, ..self }
    }

    /// Sets each rank's values.
    #[must_use]
    pub fn with_ranks(self, ranks: &'a [RankStep]) -> Self {
        Context { ranks, ..self }
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
    /// All momenta but second moments (of squared gradients, as Adam's `v`) are averaged over ranks.
    #[serde(skip)]
    AverageFirst,
    /// Second moments are averaged over ranks.
    #[serde(skip)]
    AverageSecond,
}

impl Momenta {
    /// Returns whether momenta are averaged over ranks, all or some of them.
    pub fn is_average(self) -> bool {
        matches!(self, Momenta::Average | Momenta::AverageFirst | Momenta::AverageSecond)
    }
}

/// Synchronizes the ranks at each step.
///
/// **Agreement.** Ranks agree once per step, on one header. A strategy that receives both gradients and parameters has the
/// same context in both hooks. If a rank's parameters are not finite after the optimizer's step, all ranks stop.
///
/// **State.** The hooks compute and communicate first, and change state last. After an error, vector and state are the same
/// as before the step.
pub trait SyncStrategy: Stateful + Send {
    /// Returns the plan for `step`, the same on every rank.
    fn plan(&self, step: u64) -> Plan;

    /// Receives the number of the run's last step, if known, before the run starts or resumes. A strategy whose
    /// [view](Self::view) may lack recent progress must exchange it at that step, whatever its period. The default does
    /// nothing, for strategies whose view is always complete.
    fn ends_at(&mut self, _last: u64) {}

    /// Receives the parameters that every rank starts with, before step 0.
    fn begin(&mut self, _parameters: &[f32]) {}

    /// Runs before the inner optimizer's step, with this rank's gradient. Replaces the gradient by the one that the optimizer
    /// steps with. The vector may be swapped for another of the same length.
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

    /// Discards the state that the gradient exchange staged for these ranges, which are in order: slots for which no rank
    /// has a gradient. Returns whether it did; if so, the optimizer gets no gradient for these slots. The default
    /// discards nothing, and the average's values for these slots are applied.
    fn hold(&mut self, _absent: &[Range<usize>]) -> bool {
        false
    }

    /// Runs after the inner optimizer's step, with this rank's parameters. Replaces them by those with which the next
    /// step starts. The vector may be swapped for another of the same length.
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

    /// Returns whether [`after_step`](Self::after_step) may return an [average](Momenta::is_average). By default it does not.
    fn averages_momenta(&self) -> bool {
        false
    }

    /// Runs when the step has succeeded. Starts actions that cannot be undone, such as a background exchange.
    fn after_commit(&mut self, _cx: &Context<'_>, _comm: &mut Session) {}

    /// Waits for background exchanges before their state is saved or the run ends. Training continues as if this had not been
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

    /// Reports the exchanges of the last step. At a step that exchanges both gradients and parameters this is called after each
    /// exchange; the second report must cover both.
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
    fn averages_momenta(&self) -> bool {
        (**self).averages_momenta()
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
