//! Lets a controller choose the compression factor of every exchange, dense included.
//!
//! **Method.** Probe this rank's vector at the factors the controller asks about, sum the energies over ranks (one small
//! all-reduce of f64, only when it asks), let every rank's copy of the controller decide from the agreed numbers, tune,
//! reduce. The message of the chosen probe is the message sent: nothing is compressed again to be sent. For factor 1 a
//! [`Dense`] ring is used, because gathering `W` full messages costs `W/2` times as much.
//!
//! **Cost.** Every probe is a message. Top-k makes each from the one before, in a pass over what that kept, so the vector
//! itself is compressed once; compressors without [`refine_into`](crate::compress::Compressor::refine_into) compress it once
//! a probe. [`SharedRandomK`](crate::reduce::SharedRandomK) makes no message: its probes add up what would be chosen.
//!
//! **Placement.** *Inside* [`ErrorFeedback`](super::ErrorFeedback) or
//! [`MomentumCorrection`](super::MomentumCorrection), so that gains are those of the vector with its residual, as GraVAC
//! defines them; *outside* [`Bucketed`](super::Bucketed), so that one decision holds for all buckets.
//!
//! **On the wire.** An all-reduce of `1 + probes` f64 in front of the exchange.

use crate::Session;
use crate::control::{Agreed, Controller, Outcome};
use crate::error::{ReduceError, StateError};
use crate::reduce::{Dense, Energies, Exchanged, Facts, Probing, Reducer, Round, gain};
use crate::report::Report;
use crate::state::{State, Stateful};
use crate::{CompressionFactor, Key};

/// What must be known of the last exchange when its outcome is told.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Last {
    factor: CompressionFactor,
    /// Whether the controller had asked for probes.
    asked: bool,
}

/// A reducer under a controller; see the [module](self).
#[derive(Debug)]
pub struct Adaptive<R, K> {
    inner: R,
    dense: Dense,
    controller: K,
    last: Option<Last>,
    reason: Option<String>,
    probes: Vec<CompressionFactor>,
    energies: Energies,
    sums: Vec<f64>,
}

impl<R: Probing, K: Controller> Adaptive<R, K> {
    /// `controller` turns the knob of `inner`.
    pub fn new(inner: R, controller: K) -> Self {
        Adaptive {
            inner,
            dense: Dense,
            controller,
            last: None,
            reason: None,
            probes: Vec::new(),
            energies: Energies::default(),
            sums: Vec::new(),
        }
    }

    /// Tells the controller what came of the exchange before.
    fn observe(&mut self, facts: &Facts) {
        let (Some(last), Some(previous)) = (self.last.filter(|l| l.asked), facts.previous) else { return };
        self.controller.observe(&Outcome {
            step: facts.step.saturating_sub(1),
            factor: last.factor.get(),
            samples: previous.samples,
            compute_seconds: previous.compute_seconds,
            compress_seconds: previous.compress_seconds,
            exchange_seconds: previous.exchange_seconds,
            traffic: previous.traffic,
        });
    }

    /// Measures what the controller asks for; afterwards `sums` holds `‖x‖²` and the gains, agreed.
    fn measure(&mut self, x: &[f32], slots: &[crate::Slot], key: Key, comm: &mut Session) -> Result<(), ReduceError> {
        self.probes.clear();
        self.probes.extend_from_slice(self.controller.probes());
        self.sums.clear();
        self.sums.push(0.0);
        if self.probes.is_empty() {
            return Ok(());
        }
        self.inner.probe(x, slots, key, &self.probes, comm.rank(), &mut self.energies);
        self.sums[0] = self.energies.total;
        self.sums.extend_from_slice(&self.energies.kept);
        comm.all_reduce_sum_f64(&mut self.sums)?;
        let total = self.sums[0];
        self.sums[1..].iter_mut().for_each(|kept| *kept = gain(*kept, total));
        Ok(())
    }

    fn exchange(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let before = comm.traffic();
        self.observe(round.facts);
        self.measure(round.input, round.slots, round.key, comm)?;
        let agreed = Agreed { facts: round.facts, norm2: self.sums[0], gains: &self.sums[1..] };
        let decision = self.controller.decide(&agreed);
        let exchanged = if decision.factor.is_dense() {
            self.dense.reduce(round, comm)?
        } else {
            self.inner.tune(decision.factor);
            self.inner.reduce(round, comm)?
        };
        self.last = Some(Last { factor: decision.factor, asked: !self.probes.is_empty() });
        self.reason = decision.reason;
        Ok(Exchanged { traffic: comm.traffic() - before, ..exchanged })
    }
}

fn saved_factor(factor: f64) -> Result<CompressionFactor, StateError> {
    CompressionFactor::new(factor).map_err(|_| StateError::Mismatch {
        name: "factor".into(),
        expected: "at least 1".into(),
        got: factor.to_string(),
    })
}

impl<R: Probing, K: Controller> Stateful for Adaptive<R, K> {
    fn save(&self, state: &mut State) {
        if let Some(last) = self.last {
            state.put("factor", last.factor.get());
            state.put("asked", u64::from(last.asked));
        }
        state.put_part("controller", &self.controller);
        state.put_part("inner", &self.inner);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let last = match state.contains("factor") {
            false => None,
            true => Some(Last { factor: saved_factor(state.f64("factor")?)?, asked: state.u64("asked")? != 0 }),
        };
        state.load_part("inner", &mut self.inner)?;
        state.load_part("controller", &mut self.controller)?;
        self.last = last;
        Ok(())
    }
}

impl<R: Probing, K: Controller> Reducer for Adaptive<R, K> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        // The controller has decided before the exchange can fail. Its state is a few numbers: take it back by loading.
        let mut before = State::default();
        before.put_part("controller", &self.controller);
        let result = self.exchange(round, comm);
        if result.is_err() {
            let restored = before.load_part("controller", &mut self.controller);
            debug_assert!(restored.is_ok(), "a controller must load what it saved: {restored:?}");
        }
        result
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        // Else it is the reducer's own: its knob may not reach what the controller asked for.
        if self.last.is_some_and(|last| last.factor.is_dense()) {
            report.factor = Some(CompressionFactor::DENSE);
        }
        report.reason.clone_from(&self.reason);
    }
}
