//! Saved step, clock, and statistics that the next step's header reports.

use briquette_core::Traffic;
use briquette_core::error::StateError;
use briquette_core::reduce::{AgreedStep, LastExchange};
use briquette_core::report::{Measured, ResidualEnergy};
use briquette_core::state::State;

use crate::synchronizer::Synchronizer;

pub(super) struct StepTiming {
    step: u64,
    clock: f64,
    /// Agreement and statistics of the last exchange; `None` after a change of the world size.
    last: Option<(AgreedStep, LastExchange)>,
    /// The order in which gradients arrive, if buckets are exchanged during the backward pass.
    order_of_arrival: Vec<usize>,
    /// The state of balanced shares; empty without any.
    shares: Vec<f64>,
    /// This rank's samples in the steps since the last exchange.
    local_samples: u64,
}

impl StepTiming {
    pub(super) fn of(sync: &Synchronizer) -> StepTiming {
        StepTiming {
            step: sync.step(),
            clock: sync.comm.now(),
            last: sync.driver.agreed_step().copied().zip(sync.driver.previous().copied()),
            order_of_arrival: sync.order_of_arrival().to_vec(),
            shares: sync.saved_shares(),
            local_samples: sync.local_samples(),
        }
    }

    pub(super) fn apply(self, sync: &mut Synchronizer) {
        let (agreed_step, previous) = self.last.unzip();
        sync.driver.resume(self.step, agreed_step, previous);
        sync.set_clock(self.clock);
        sync.set_order_of_arrival(self.order_of_arrival);
        sync.load_shares(&self.shares, self.local_samples);
        sync.computing();
    }

    pub(super) fn save(&self, state: &mut State) {
        state.put("step", self.step);
        state.put("clock", self.clock);
        if let Some((agreed_step, previous)) = &self.last {
            state.put("agreed_step/samples", agreed_step.samples);
            state.put("agreed_step/compute_seconds", agreed_step.compute_seconds);
            agreed_step.loss.into_iter().for_each(|loss| state.put("agreed_step/loss", loss));
            agreed_step.validation_loss.into_iter().for_each(|loss| state.put("agreed_step/validation_loss", loss));
            state.put("previous/seconds", vec![previous.compress_seconds, previous.exchange_seconds]);
            let ResidualEnergy { entered, left } = previous.residual_energy;
            state.put("previous/waiting", vec![entered, left]);
            if !previous.measured.numbers().is_empty() {
                state.put("previous/measured", previous.measured.numbers().to_vec());
            }
            state.put("previous/sent", previous.traffic.sent);
            state.put("previous/received", previous.traffic.received);
        }
        if !self.shares.is_empty() {
            state.put("shares", self.shares.clone());
        }
        if self.local_samples > 0 {
            state.put("local_samples", self.local_samples);
        }
        if !self.order_of_arrival.is_empty() {
            state.put("order_of_arrival", self.order_of_arrival.iter().map(|slot| *slot as f64).collect::<Vec<_>>());
        }
    }

    /// Reads the saved values. Those of the last exchange are read only if the world has the same size.
    pub(super) fn read(state: &State, same_world: bool) -> Result<StepTiming, StateError> {
        let last = || -> Result<(AgreedStep, LastExchange), StateError> {
            let seconds = state.f64s("previous/seconds")?;
            let loss = |name| if state.contains(name) { state.f64(name).map(Some) } else { Ok(None) };
            let agreed_step = AgreedStep {
                loss: loss("agreed_step/loss")?,
                validation_loss: loss("agreed_step/validation_loss")?,
                samples: state.u64("agreed_step/samples")?,
                compute_seconds: state.f64("agreed_step/compute_seconds")?,
                ..AgreedStep::default()
            };
            let optional = |name| if state.contains(name) { state.f64s(name) } else { Ok(&[][..]) };
            let (residual_energy, measured) = (optional("previous/waiting")?, optional("previous/measured")?);
            let energy = |at: usize| residual_energy.get(at).copied().unwrap_or_default();
            let previous = LastExchange {
                compress_seconds: seconds.first().copied().unwrap_or_default(),
                exchange_seconds: seconds.get(1).copied().unwrap_or_default(),
                traffic: Traffic { sent: state.u64("previous/sent")?, received: state.u64("previous/received")? },
                residual_energy: ResidualEnergy { entered: energy(0), left: energy(1) },
                measured: Measured::new(measured).unwrap_or_default(),
                ..LastExchange::default()
            };
            Ok((agreed_step, previous))
        };
        let last = if same_world && state.contains("agreed_step/samples") { Some(last()?) } else { None };
        let order = "order_of_arrival";
        let order_of_arrival = if same_world && state.contains(order) { state.f64s(order)? } else { &[] };
        let order_of_arrival = order_of_arrival.iter().map(|slot| *slot as usize).collect();
        let shares = if state.contains("shares") { state.f64s("shares")?.to_vec() } else { Vec::new() };
        let local_samples =
            if same_world && state.contains("local_samples") { state.u64("local_samples")? } else { 0 };
        let (step, clock) = (state.u64("step")?, state.f64("clock")?);
        Ok(StepTiming { step, clock, last, order_of_arrival, shares, local_samples })
    }
}
