//! Lets a controller set the compression ratio of every exchange, dense included, for the whole vector or for each slot.
//!
//! **Method.** Measure of this rank's vector what the controller [needs](Controller::needs), sum it over ranks, let every rank's
//! copy of the controller decide from the agreed numbers, set the [knob](Reducer::knob), reduce. The message of a probe whose factor
//! is chosen is the message sent: nothing is compressed again to be sent. Where all factors are 1 a [`Dense`] ring is used, because gathering `W` full messages costs
//! `W/2` times as much.
//!
//! **Cost.** Every gain needs a message. Top-k, threshold top-k, Redsync and random-k make each from the one before, in a pass over
//! what that kept, so the vector itself is compressed once; compressors without [`refine_into`](crate::compress::Compressor::refine_into) compress it once
//! a probe. [`SharedRandomK`](crate::reduce::SharedRandomK) makes no message: its probes add up what would be chosen. Norms and
//! moments are a pass over the vector each.
//!
//! **Placement.** *Inside* [`ErrorFeedback`](super::ErrorFeedback) or
//! [`MomentumCorrection`](super::MomentumCorrection), so that gains are those of the vector with its residual, as GraVAC
//! defines them; *outside* [`Bucketed`], so that one decision holds for all buckets.
//!
//! **When numbers are agreed** ([`Probing`]). *Late*, the default: what is measured of this step's vector goes with the next step's
//! header, and the decision of that step uses it. It is one step old and costs no round trip. Where the controller needs something
//! else than was measured (at the first step, where GraVAC's candidates moved, where steps are left out), and where there are more
//! than [`Measured::MOST`] numbers (L-GreCo's, of more than a few slots), a step asks first. *First*, as published: an all-reduce in front of every exchange.
//!
//! While the vector [arrives](Reducer::reduce_arriving) late numbers are measured when all has been exchanged, so that no bucket waits for
//! another one's values: no message of a probe can then be the one that is sent, and gains cost another compression. An exchange whose
//! numbers come first waits for the whole vector.
//!
//! **On the wire.** Late: 8 bytes a number in the header. First: an all-reduce of the numbers in front of the exchange. They are f64:
//! `‖x‖²` and one a gain, the same for each slot instead where slots are needed, and one where moments are.

use std::ops::Range;

use super::Bucketed;
use super::feed::Comes;
use crate::CompressionFactor;
use crate::Session;
use crate::control::{Agreed, Controller, Moments, Needs};
use crate::error::{ConfigError, ReduceError, StateError};
use crate::math::{norm2, total};
use crate::reduce::{Arriving, Dense, Energies, Exchanged, Levels, Probe, Reducer, Round, Unsent, Whole, gain};
use crate::report::{Measured, Report};
use crate::state::{State, Stateful};

/// When what controllers need is agreed; see the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probing {
    /// With the next step's header: decisions use numbers of the step before.
    #[default]
    Late,
    /// In an all-reduce in front of the exchange, as published.
    First,
}

/// What a controller needed, to compare.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    gains: Vec<CompressionFactor>,
    flags: [bool; 3],
}

impl Asked {
    fn of(needs: Needs<'_>) -> Asked {
        Asked { gains: needs.gains.to_vec(), flags: [needs.slots, needs.norm, needs.moments] }
    }

    /// How many numbers these are of a vector of this many slots.
    fn numbers(&self, slots: usize) -> usize {
        let [of_slots, norm, moments] = self.flags;
        let is_any = norm || moments || !self.gains.is_empty();
        let rows = if of_slots { slots } else { usize::from(is_any) };
        rows * (1 + self.gains.len()) + usize::from(moments)
    }
}

/// A reducer under a controller; see the [module](self).
#[derive(Debug)]
pub struct Adaptive<R, K> {
    inner: R,
    /// Where dense is sent in buckets, too.
    buckets: Option<Bucketed<Dense>>,
    controller: K,
    was_dense: bool,
    /// The controller before an exchange that was neither committed nor discarded.
    before: Option<State>,
    reason: Option<String>,
    probing: Probing,
    energies: Energies,
    /// Of the whole vector: `‖x‖²` and the gains.
    whole: Vec<f64>,
    /// This rank's own numbers, and what they are.
    own: Vec<f64>,
    asked: Option<Asked>,
    /// Those of this step, for the next header.
    measured: Measured,
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
                return Ok(Adaptive {
                    inner,
                    buckets: None,
                    controller,
                    was_dense: false,
                    before: None,
                    reason: None,
                    probing: Probing::default(),
                    energies: Energies::new(),
                    whole: Vec::new(),
                    own: Vec::new(),
                    asked: None,
                    measured: Measured::default(),
                });
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

    /// Sends dense in these buckets, and not in one ring of the whole vector.
    #[must_use]
    pub fn dense_in(mut self, buckets: Bucketed<Dense>) -> Self {
        self.buckets = Some(buckets);
        self
    }

    /// When what the controller needs is agreed.
    #[must_use]
    pub fn probing(mut self, probing: Probing) -> Self {
        self.probing = probing;
        self
    }

    /// This rank's numbers of what the controller needs, in `own`, unless they are there. Of a vector that is still being computed, all
    /// is waited for where any is needed.
    fn measure(&mut self, round: &Round<'_>, values: &mut dyn Arriving, comm: &mut Session) {
        let needs = self.controller.needs();
        let asked = Asked::of(needs);
        if self.asked.as_ref() == Some(&asked) {
            return;
        }
        self.own.clear();
        if asked.numbers(round.slots.len()) > 0 {
            let (rank, input) = (comm.rank(), values.wait(0..round.average.len(), comm));
            self.measure_whole(round, input, rank);
        }
        self.asked = Some(asked);
    }

    fn measure_whole(&mut self, round: &Round<'_>, input: &[f32], rank: usize) {
        let (needs, energies) = (self.controller.needs(), &mut self.energies);
        let Round { slots, key, .. } = round;
        energies.clear(needs.gains.len());
        match self.inner.knob().filter(|_| !needs.gains.is_empty()) {
            Some(knob) => {
                let (factors, per_slot) = (needs.gains, needs.slots);
                knob.probe(&Probe { input, slots, key: *key, rank, factors, per_slot }, energies);
            }
            None if needs.slots => slots.iter().for_each(|slot| energies.push(norm2(&input[slot.range()]))),
            None if needs.norm || needs.moments => energies.push(norm2(input)),
            None => {}
        }
        self.own.clone_from(energies.numbers());
        self.own.extend(needs.moments.then(|| total(input)));
    }

    /// Agrees on what the controller needs: `energies` and `whole`, and the moments.
    fn agree(
        &mut self,
        round: &Round<'_>,
        values: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Moments, ReduceError> {
        let late = round.agreed_step.previous.map_or(Measured::default(), |previous| previous.measured);
        let asked = Asked::of(self.controller.needs());
        let mut sums = late.numbers().to_vec();
        self.controller.observe(round.agreed_step);
        let is_answered = self.probing == Probing::Late
            && !sums.is_empty()
            && sums.len() == asked.numbers(round.slots.len())
            && asked == Asked::of(self.controller.needs());
        if !is_answered {
            self.measure(round, values, comm);
            sums.clone_from(&self.own);
            if !sums.is_empty() {
                comm.all_reduce_sum_f64(&mut sums)?;
            }
        }
        let needs = self.controller.needs();
        let sum = if needs.moments { sums.pop() } else { None };
        self.energies.clear(needs.gains.len());
        *self.energies.numbers() = sums;
        self.energies.whole(&mut self.whole);
        let norm2 = self.whole.first().copied().unwrap_or(0.0);
        self.whole.iter_mut().skip(1).for_each(|kept| *kept = gain(*kept, norm2));
        let count = (round.average.len() * comm.world()) as f64;
        Ok(sum.map_or(Moments::default(), |sum| Moments::of(count, sum, norm2)))
    }

    fn decide_and_reduce(
        &mut self,
        round: Round<'_>,
        values: &mut dyn Arriving,
        comes: Comes,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        // The controller decides before the exchange can fail. Its state is a few numbers: discarding loads them again.
        self.discard();
        self.before.insert(State::default()).put_part("controller", &self.controller);
        let before = comm.traffic();
        (self.asked, self.measured) = (None, Measured::default());
        let moments = self.agree(&round, values, comm)?;
        let (norm2, gains) = self.whole.split_first().map_or((0.0, &[][..]), |(norm2, gains)| (*norm2, gains));
        let (agreed_step, slots, energies) = (round.agreed_step, round.slots, &self.energies);
        let decision = self.controller.decide(&Agreed { agreed_step, slots, norm2, moments, gains, energies });
        if let Levels::PerSlot(factors) = decision.levels {
            assert_eq!(factors.len(), slots.len(), "a controller must decide for each slot, or for all as one");
        }
        (self.was_dense, self.reason) = (decision.levels.is_dense(), decision.reason);
        if !self.was_dense {
            self.inner.knob().into_iter().for_each(|knob| knob.set(decision.levels));
        }
        let needs = self.controller.needs();
        let is_late = self.probing == Probing::Late && Asked::of(needs).numbers(round.slots.len()) <= Measured::MOST;
        // A message made for a gain may be the one that is sent. Norms can wait until all is there.
        let is_first = is_late && !needs.gains.is_empty() && comes == Comes::Whole;
        if is_first {
            self.measure(&round, values, comm);
        }
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let inner = Round { key, slots, agreed_step, input, average: &mut *average, sent };
        let exchanged = match &mut self.buckets {
            _ if !self.was_dense => comes.reduce(&mut self.inner, inner, values, comm)?,
            Some(buckets) => comes.reduce(buckets, inner, values, comm)?,
            None => comes.reduce(&mut Dense, inner, values, comm)?,
        };
        if is_late && !is_first {
            self.measure(&Round { key, slots, agreed_step, input, average, sent: None }, values, comm);
        }
        if is_late {
            self.measured = Measured::new(&self.own).unwrap_or_default();
        }
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
        let mut values = Whole(round.input);
        self.decide_and_reduce(round, &mut values, Comes::Whole, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        self.decide_and_reduce(round, input, Comes::InParts, comm)
    }

    fn can_take_off(&self) -> bool {
        self.inner.can_take_off()
    }

    fn take_off(&mut self, unsent: &mut Unsent<'_>) -> bool {
        if self.was_dense { Dense.take_off(unsent) } else { self.inner.take_off(unsent) }
    }

    fn gives_up_memory(&self) -> bool {
        self.controller.gives_up_memory()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        // Else it is the reducer's own: its knob may not reach what the controller asked for.
        if self.was_dense {
            report.factor = Some(CompressionFactor::DENSE);
            report.carrier = None;
            report.slots.iter_mut().for_each(|slot| slot.factor = report.factor);
        }
        if report.with_state {
            report.state = self.controller.describe();
        }
        report.reason.clone_from(&self.reason);
        report.measured = self.measured;
        report.dense_seconds = self.controller.dense_seconds();
    }
}
