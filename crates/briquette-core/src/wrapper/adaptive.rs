//! Lets a controller set the compression ratio of every exchange, dense included, for the whole vector or for each slot.
//!
//! **Method.** Measure of this rank's vector what the controller [needs](Controller::needs), sum it over ranks (one small
//! all-reduce of f64, only where something is needed), let every rank's copy of the controller decide from the agreed numbers,
//! set the [knob](Reducer::knob), reduce. The message of a probe whose factor is chosen is the message sent: nothing is
//! compressed again to be sent. Where all factors are 1 a [`Dense`] ring is used, because gathering `W` full messages costs
//! `W/2` times as much.
//!
//! **Cost.** Every gain needs a message. Top-k, threshold top-k, Redsync and random-k make each from the one before, in a pass over
//! what that kept, so the vector itself is compressed once; compressors without [`refine_into`](crate::compress::Compressor::refine_into) compress it once
//! a probe. [`SharedRandomK`](crate::reduce::SharedRandomK) makes no message: its probes add up what would be chosen. Norms and
//! moments are a pass over the vector each.
//!
//! **Placement.** *Inside* [`ErrorFeedback`](super::ErrorFeedback) or
//! [`MomentumCorrection`](super::MomentumCorrection), so that gains are those of the vector with its residual, as GraVAC
//! defines them; *outside* [`Bucketed`](super::Bucketed), so that one decision holds for all buckets.
//!
//! **On the wire.** In front of the exchange an all-reduce of the numbers needed, as f64: `‖x‖²` and one a gain, the same for each
//! slot instead where slots are needed, and one where moments are.

use crate::CompressionFactor;
use crate::Session;
use crate::control::{Agreed, Controller, Moments};
use crate::error::{ConfigError, ReduceError, StateError};
use crate::math::{norm2, total};
use crate::reduce::{Dense, Energies, Exchanged, Levels, Probe, Reducer, Round, Unsent, gain};
use crate::report::Report;
use crate::state::{State, Stateful};

/// A reducer under a controller; see the [module](self).
#[derive(Debug)]
pub struct Adaptive<R, K> {
    inner: R,
    dense: Dense,
    controller: K,
    was_dense: bool,
    /// The controller before an exchange that was neither committed nor discarded.
    before: Option<State>,
    reason: Option<String>,
    energies: Energies,
    /// Of the whole vector: `‖x‖²` and the gains.
    whole: Vec<f64>,
}

impl<R: Reducer, K: Controller> Adaptive<R, K> {
    /// `controller` sets the compression ratio of `inner`.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] when `inner` has no knob, or the controller decides for each slot and `inner` compresses all
    /// of them together.
    pub fn new(mut inner: R, controller: K) -> Result<Self, ConfigError> {
        let why = match inner.knob() {
            Some(knob) if knob.per_slot() || !controller.per_slot() => {
                let (energies, whole) = (Energies::new(), Vec::new());
                let (dense, was_dense, before, reason) = (Dense, false, None, None);
                return Ok(Adaptive { inner, dense, controller, was_dense, before, reason, energies, whole });
            }
            Some(_) => {
                "the controller sets a compression ratio for each slot, and the reducer compresses all slots together: use gather \
                 with a message for each slot (per_slot = true), or a controller for the whole vector"
            }
            None => {
                "the controller sets the compression ratio, and the reducer has no knob for it: use gather with a compressor that \
                 has one, such as topk or qsgd, or shared-random-k, or no controller"
            }
        };
        Err(ConfigError::Conflict(why.into()))
    }

    /// Measures what the controller needs. Afterwards `energies` and `whole` are agreed.
    fn measure(&mut self, round: &Round<'_>, comm: &mut Session) -> Result<Moments, ReduceError> {
        let (needs, energies) = (self.controller.needs(), &mut self.energies);
        let Round { input, slots, key, .. } = *round;
        energies.clear(needs.gains.len());
        match self.inner.knob().filter(|_| !needs.gains.is_empty()) {
            Some(knob) => {
                let (rank, factors, per_slot) = (comm.rank(), needs.gains, needs.slots);
                knob.probe(&Probe { input, slots, key, rank, factors, per_slot }, energies);
            }
            None if needs.slots => slots.iter().for_each(|slot| energies.push(norm2(&input[slot.range()]))),
            None if needs.norm || needs.moments => energies.push(norm2(input)),
            None => {}
        }
        let sums = energies.numbers();
        sums.extend(needs.moments.then(|| total(input)));
        if !sums.is_empty() {
            comm.all_reduce_sum_f64(sums)?;
        }
        let sum = if needs.moments { sums.pop() } else { None };
        energies.whole(&mut self.whole);
        let norm2 = self.whole.first().copied().unwrap_or(0.0);
        self.whole.iter_mut().skip(1).for_each(|kept| *kept = gain(*kept, norm2));
        let count = (input.len() * comm.world()) as f64;
        Ok(sum.map_or(Moments::default(), |sum| Moments::of(count, sum, norm2)))
    }

    fn decide_and_reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        self.controller.observe(round.agreed_step);
        let moments = self.measure(&round, comm)?;
        let (norm2, gains) = self.whole.split_first().map_or((0.0, &[][..]), |(norm2, gains)| (*norm2, gains));
        let (agreed_step, slots, energies) = (round.agreed_step, round.slots, &self.energies);
        let decision = self.controller.decide(&Agreed { agreed_step, slots, norm2, moments, gains, energies });
        if let Levels::PerSlot(factors) = decision.levels {
            assert_eq!(factors.len(), slots.len(), "a controller must decide for each slot, or for all as one");
        }
        let is_dense = decision.levels.is_dense();
        let exchanged = if is_dense {
            self.dense.reduce(round, comm)?
        } else {
            self.inner.knob().into_iter().for_each(|knob| knob.set(decision.levels));
            self.inner.reduce(round, comm)?
        };
        (self.was_dense, self.reason) = (is_dense, decision.reason);
        Ok(Exchanged { traffic: comm.traffic() - before, ..exchanged })
    }
}

impl<R: Reducer, K: Controller> Stateful for Adaptive<R, K> {
    fn save(&self, state: &mut State) {
        match &self.before {
            Some(before) => state.extend(before),
            None => state.put_part("controller", &self.controller),
        }
        state.put_part("inner", &self.inner);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        state.load_part("inner", &mut self.inner)?;
        state.load_part("controller", &mut self.controller)?;
        self.before = None;
        Ok(())
    }

    fn commit(&mut self) {
        self.before = None;
        self.inner.commit();
    }

    fn discard(&mut self) {
        if let Some(before) = self.before.take() {
            let restored = before.load_part("controller", &mut self.controller);
            debug_assert!(restored.is_ok(), "a controller must load what it saved: {restored:?}");
        }
        self.inner.discard();
    }
}

impl<R: Reducer, K: Controller> Reducer for Adaptive<R, K> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        // The controller decides before the exchange can fail. Its state is a few numbers: discarding loads them again.
        self.discard();
        self.before.insert(State::default()).put_part("controller", &self.controller);
        self.decide_and_reduce(round, comm)
    }

    fn can_take_off(&self) -> bool {
        self.inner.can_take_off()
    }

    fn take_off(&mut self, unsent: &mut Unsent<'_>) -> bool {
        if self.was_dense { self.dense.take_off(unsent) } else { self.inner.take_off(unsent) }
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        // Else it is the reducer's own: its knob may not reach what the controller asked for.
        if self.was_dense {
            report.factor = Some(CompressionFactor::DENSE);
        }
        report.reason.clone_from(&self.reason);
    }
}
