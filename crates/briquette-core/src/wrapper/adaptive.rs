//! Adaptive compression: a controller sets the compression ratio of every exchange, including dense, for the whole vector or per slot.
//!
//! **Method.** Measure the quantities of this rank's vector that the controller [needs](Controller::needs) and sum them over ranks. Every
//! rank's copy of the controller decides from these agreed numbers. Then set the [knob](Reducer::knob) and reduce. If the ratio of a probe
//! is chosen, the probe's message is sent, so nothing is compressed twice. If all ratios are 1 a [`Dense`] ring is used, because gathering
//! `W` full messages costs `W/2` times as much.
//!
//! **Cost.** A *gain*, the share of the vector's energy (squared norm) that a ratio keeps, is measured by compressing. Top-k, threshold top-k,
//! Redsync and random-k derive each message from the previous one, in a pass over its values, so the vector itself is compressed once. Compressors
//! without [`refine_into`](crate::seam::Compressor::refine_into) compress it once per probe.
//! On a device, each ratio is encoded from the vector, and the chosen message is encoded again.
//! [`SharedRandomK`](crate::reduce::shared_random_k::SharedRandomK) makes no message: its probes sum the values that would be selected. A norm
//! or a sum of values takes one pass over the vector.
//!
//! **Placement.** *Inside* [`ErrorFeedback`](crate::wrapper::error_feedback::ErrorFeedback) or [`MomentumCorrection`](crate::wrapper::momentum_correction::MomentumCorrection), so that gains are
//! those of the vector with its residual, as GraVAC defines them. *Outside* [`Bucketed`], so that one decision holds for all buckets.
//!
//! **Agreement** ([`Probing`]). *Late*, the default: the measurements of this step's vector are sent with the next step's header, and the
//! next step's decision uses them. They are one step old and cost no round trip. A step begins with an all-reduce in two cases: the
//! controller needs other numbers than were measured (at the first step, when GraVAC probes other ratios than before, when steps were skipped), or
//! it needs more than [`Measured::MOST`] numbers (L-GreCo, with more than a few slots). *First*, as published: an all-reduce before every
//! exchange.
//!
//! If the vector [arrives](Reducer::reduce_arriving) in parts, late numbers are measured after the whole exchange, so that no bucket
//! waits for another bucket's values. The messages of probes then come too late to be sent, and gains cost another compression. With
//! *First*, the exchange waits for the whole vector.
//!
//! **On the wire.** Late: 8 bytes per number in the header. First: an all-reduce of the numbers before the exchange. The numbers are f64:
//! `‖x‖²` and one number per gain (for each slot, if slots are needed), and the sum of all
//! values if moments (mean and standard deviation) are needed.

use std::ops::Range;

use super::bucketed::Bucketed;
use super::feed::Delivery;
use crate::error::{ConfigError, ReduceError, StateError};
use crate::reduce::dense::Dense;
use crate::report::{Measured, Report};
use crate::seam::{
    Agreed, Arriving, CompleteVector, Controller, DevicePart, Energies, Exchanged, Moments, Needs, OnDevice, Probe,
    ProbeInput, Ratios, Reducer, Round, SentInput, gain,
};
pub use crate::settings::Probing;
use crate::state::{State, Stateful};
use crate::{CompressionRatio, Session};

/// Quantities that a controller requested, for comparison.
#[derive(Debug, Default, PartialEq)]
struct Asked {
    gains: Vec<CompressionRatio>,
    flags: [bool; 3],
}

impl Asked {
    fn of(needs: Needs<'_>) -> Asked {
        Asked { gains: needs.gains.to_vec(), flags: [needs.slots, needs.norm, needs.moments] }
    }

    /// Returns the count of numbers for a vector with this many slots.
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
    /// Buckets for dense exchanges. Without them a dense exchange uses one ring.
    buckets: Option<Bucketed<Dense>>,
    controller: K,
    was_dense: bool,
    /// The controller's state before an exchange that is neither committed nor discarded.
    before: Option<State>,
    reason: Option<String>,
    probing: Probing,
    energies: Energies,
    /// `‖x‖²` and the gains of the whole vector.
    whole: Vec<f64>,
    /// This rank's own numbers, and the request that they answer.
    own: Vec<f64>,
    asked: Option<Asked>,
    /// The numbers of this step, for the next header.
    measured: Measured,
}

impl<R: Reducer, K: Controller> Adaptive<R, K> {
    /// Creates a wrapper in which `controller` sets the compression ratio of `inner`.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] if `inner` has no knob, or if the controller decides per slot and `inner` compresses all slots together.
    pub fn new(mut inner: R, controller: K) -> Result<Self, ConfigError> {
        let (why, instead) = match inner.knob() {
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
            Some(_) => (
                "it sets a compression ratio for each slot, and the reducer compresses all slots together",
                "use gather with a message for each slot (per_slot = true), or a controller for the whole vector",
            ),
            None => (
                "it sets the compression ratio, and the reducer has no adjustable ratio",
                "use gather with topk or qsgd, shared-random-k, or no controller",
            ),
        };
        Err(ConfigError::conflict("the controller", "the reducer", why, instead))
    }

    /// Sends dense exchanges in these buckets instead of one ring of the whole vector.
    #[must_use]
    pub(crate) fn dense_in(mut self, buckets: Bucketed<Dense>) -> Self {
        self.buckets = Some(buckets);
        self
    }

    /// Sets when ranks agree on the measurements.
    #[must_use]
    pub fn probing(mut self, probing: Probing) -> Self {
        self.probing = probing;
        self
    }

    /// Measures the quantities of this rank's vector that the controller needs, and writes them to `own`. Does nothing if they were
    /// measured already. If any is needed, waits for the whole vector.
    fn measure(&mut self, round: &Round<'_>, values: &mut dyn Arriving, comm: &mut Session) -> Result<(), ReduceError> {
        let (needs, rank) = (self.controller.needs(), comm.rank());
        let asked = Asked::of(needs);
        if self.asked.as_ref() == Some(&asked) {
            return Ok(());
        }
        self.own.clear();
        if asked.numbers(round.slots.len()) > 0 {
            let failed = |source| ReduceError::Device { rank, source };
            let on_device = values.device(0..round.average.len(), comm);
            let on_device = on_device.filter(DevicePart::is_whole).map(ProbeInput::Device);
            let is_measured = on_device.map_or(Ok(false), |input| self.measure_input(round, input, rank));
            if !is_measured.map_err(failed)? {
                let input = ProbeInput::Host(values.wait(0..round.average.len(), comm));
                self.measure_input(round, input, rank).map_err(failed)?;
            }
        }
        self.asked = Some(asked);
        Ok(())
    }

    /// Writes the quantities to `own`, and returns true. Returns false if gains of a vector on a device must be measured on the host.
    fn measure_input(&mut self, round: &Round<'_>, mut input: ProbeInput<'_>, rank: usize) -> OnDevice<bool> {
        let (needs, energies) = (self.controller.needs(), &mut self.energies);
        let Round { slots, key, .. } = round;
        energies.clear(needs.gains.len());
        match self.inner.knob().filter(|_| !needs.gains.is_empty()) {
            Some(knob) => {
                let probe = Probe { slots, key: *key, rank, ratios: needs.gains, per_slot: needs.slots };
                if !knob.probe(&probe, input.part(0..round.average.len()), energies)? {
                    return Ok(false);
                }
            }
            None if needs.slots => input.energies(slots)?.into_iter().for_each(|energy| energies.push(energy)),
            None => energies.push(input.norm2()?),
        }
        self.own.clone_from(energies.numbers());
        if needs.moments {
            self.own.push(input.total()?);
        }
        Ok(true)
    }

    /// Agrees on the controller's inputs: writes `energies` and `whole`, and returns the moments.
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
            self.measure(round, values, comm)?;
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
        delivery: Delivery,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        // The controller decides before the exchange can fail. Its state is a few numbers, and `discard` restores them.
        self.discard();
        self.before.insert(State::default()).put_part("controller", &self.controller);
        let before = comm.traffic();
        (self.asked, self.measured) = (None, Measured::default());
        let moments = self.agree(&round, values, comm)?;
        let (norm2, gains) = self.whole.split_first().map_or((0.0, &[][..]), |(norm2, gains)| (*norm2, gains));
        let (agreed_step, slots, energies) = (round.agreed_step, round.slots, &self.energies);
        let decision = self.controller.decide(&Agreed { agreed_step, slots, norm2, moments, gains, energies });
        if let Ratios::PerSlot(ratios) = decision.ratios {
            assert_eq!(ratios.len(), slots.len(), "a controller must decide for each slot, or for all as one");
        }
        (self.was_dense, self.reason) = (decision.ratios.is_dense(), decision.reason);
        if !self.was_dense {
            self.inner.knob().into_iter().for_each(|knob| knob.set(decision.ratios));
        }
        let needs = self.controller.needs();
        let is_late = self.probing == Probing::Late && Asked::of(needs).numbers(round.slots.len()) <= Measured::MOST;
        // The message of a gain probe may be the one that is sent, so gains are measured before the exchange. Norms can wait until the
        // whole vector has arrived.
        let is_first = is_late && !needs.gains.is_empty() && delivery == Delivery::Complete;
        if is_first {
            self.measure(&round, values, comm)?;
        }
        let Round { key, slots, agreed_step, input, average, sent } = round;
        let inner = Round { key, slots, agreed_step, input, average: &mut *average, sent };
        let exchanged = match &mut self.buckets {
            _ if !self.was_dense => delivery.reduce(&mut self.inner, inner, values, comm)?,
            Some(buckets) => delivery.reduce(buckets, inner, values, comm)?,
            None => delivery.reduce(&mut Dense, inner, values, comm)?,
        };
        if is_late && !is_first {
            self.measure(&Round { key, slots, agreed_step, input, average, sent: None }, values, comm)?;
        }
        if is_late {
            self.measured = Measured::new(&self.own).unwrap_or_default();
        }
        Ok(Exchanged { traffic: comm.traffic() - before, ..exchanged })
    }
}

/// By hand, because a controller is not staged: `discard` restores the state from before the step.
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
        let mut values = CompleteVector(round.input);
        self.decide_and_reduce(round, &mut values, Delivery::Complete, comm)
    }

    fn reduce_arriving(
        &mut self,
        round: Round<'_>,
        input: &mut dyn Arriving,
        comm: &mut Session,
    ) -> Result<Exchanged, ReduceError> {
        self.decide_and_reduce(round, input, Delivery::InParts, comm)
    }

    fn can_subtract_sent(&self) -> bool {
        self.inner.can_subtract_sent()
    }

    fn subtracts_on_device(&self) -> bool {
        !self.was_dense && self.inner.subtracts_on_device()
    }

    fn subtract_sent(&mut self, input: &mut SentInput<'_>) -> bool {
        if self.was_dense { Dense.subtract_sent(input) } else { self.inner.subtract_sent(input) }
    }

    fn discards_residual(&self) -> bool {
        self.controller.discards_residual()
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        // At other ratios the inner reducer reports the ratio, because its knob may not reach the requested one
        // exactly.
        if self.was_dense {
            report.ratio = Some(CompressionRatio::DENSE);
            report.carrier = None;
            report.slots.iter_mut().for_each(|slot| slot.ratio = report.ratio);
        }
        if report.with_state {
            report.state = self.controller.describe();
        }
        report.reason.clone_from(&self.reason);
        report.measured = self.measured;
        report.dense_seconds = self.controller.dense_seconds();
    }
}
