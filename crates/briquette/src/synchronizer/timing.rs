//! Timing of a step: start of the computation, start and end of the exchange.

use briquette_core::Traffic;
use briquette_core::comm::{Scope, all_reduce_traffic};
use briquette_core::reduce::{AgreedStep, LastExchange};
use briquette_core::sync::StopFlags;

use super::Synchronizer;
use crate::error::Error;
use crate::step_report::StepReport;

/// The start of an exchange.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Start {
    pub(super) now: f64,
    pub(super) compute_seconds: f64,
    pub(super) traffic: Traffic,
    /// Seconds spent in the header.
    pub(super) header_seconds: f64,
    /// Seconds between the exchange of gradients and that of parameters.
    pub(super) optimizer_seconds: f64,
    pub(super) is_second_half: bool,
}

impl Synchronizer {
    /// The timing of a step without an exchange: its compute seconds are this rank's own.
    pub(super) fn skip_exchange(&mut self) {
        self.begin();
        let Start { now, compute_seconds, .. } = self.start;
        let len = self.joined.as_ref().map_or(0, |j| j.inventory.layout.len());
        self.report = StepReport {
            step: self.step(),
            compute_seconds,
            own_compute_seconds: compute_seconds,
            dense_traffic: all_reduce_traffic(len, self.world(), self.rank()),
            clock: now,
            ..StepReport::default()
        };
        self.last_end = now;
    }

    /// Begins a step: marks this rank as computing, for its errors and panics.
    pub(crate) fn computing(&mut self) {
        self.open = false;
        *self.comm.scope() = Scope { operation: "compute", step: self.step(), bucket: None };
    }

    /// Ends the step's computation and begins its exchange.
    pub(super) fn begin(&mut self) {
        self.comm.begin_step_of(self.step(), self.loss.samples);
        let now = self.comm.now();
        // If several optimizers share the session, this rank computed for another optimizer until the end of that
        // optimizer's exchange.
        let last_end = self.comm.other_used_until().map_or(self.last_end, |other| other.max(self.last_end));
        let (compute_seconds, traffic) = (now - last_end, self.comm.traffic());
        self.start = Start { now, compute_seconds, traffic, ..Start::default() };
    }

    /// Begins the exchange of parameters at a step that has also exchanged gradients. The step's exchange consists of
    /// both. The optimizer's seconds in between count as compute time of the next step.
    pub(super) fn begin_second_half(&mut self) {
        let optimizer_seconds = self.comm.now() - self.last_end;
        let now = self.start.now + optimizer_seconds;
        self.start = Start { now, optimizer_seconds, is_second_half: true, ..self.start };
    }

    /// Reports the strategy's last or pending exchange. `waited` is the time, in seconds, for which this rank waited for a
    /// background exchange.
    pub(super) fn report_exchange(&mut self, agreed_step: AgreedStep, stop: StopFlags, waited: Option<f64>) {
        let mut exchange = self.driver.report();
        if let (Some(waited), Some(seconds)) = (waited, &mut exchange.seconds) {
            seconds.overlapped = (seconds.compress + seconds.exchange + self.start.header_seconds - waited).max(0.0);
        }
        self.agreed_stop = stop.without(StopFlags::CANDIDATE);
        self.elastic.admits = stop.contains(StopFlags::CANDIDATE);
        let first_half = std::mem::take(&mut self.report);
        if exchange.excluded != first_half.exchange.excluded && !exchange.excluded.is_empty() {
            let (step, ranks) = (self.step(), &exchange.excluded);
            tracing::warn!("step {step}: excluded the contributions of ranks {ranks:?}: not finite, or not a gradient");
        }
        let first_half = if self.start.is_second_half { first_half } else { StepReport::default() };
        self.report = StepReport {
            step: self.step(),
            loss: agreed_step.loss,
            samples: agreed_step.samples,
            compute_seconds: agreed_step.compute_seconds,
            own_compute_seconds: self.start.compute_seconds,
            dense_traffic: all_reduce_traffic(self.driver.layout().len(), self.world(), self.rank()),
            exchange_seconds: self.start.header_seconds
                + exchange.seconds.map_or(0.0, |s| (s.exchange - s.overlapped).max(0.0)),
            wait_seconds: self.start.header_seconds,
            generations: std::mem::take(&mut self.elastic.unreported),
            exchange,
            ..first_half
        };
    }

    /// Ends the exchange. If it failed on this rank alone, the other ranks are stopped.
    pub(super) fn end<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        let now = self.comm.now();
        self.last_end = now - self.start.optimizer_seconds;
        match &result {
            Ok(_) => {
                let traffic = self.comm.traffic() - self.start.traffic;
                self.driver.set_previous(LastExchange::reported(&self.report.exchange, traffic));
                self.report.traffic = traffic;
                self.report.compress_seconds = (now - self.start.now - self.report.exchange_seconds).max(0.0);
                self.report.clock = now;
            }
            // Every rank detected the same error, or is in the same new world.
            Err(Error::Sync(error)) if error.is_on_all_ranks() => {}
            Err(Error::WorldChanged { .. }) => {}
            Err(error) => self.comm.abort(&error.to_string()),
        }
        if let Err(error) = &result {
            tracing::debug!(step = self.step(), rank = self.comm.rank(), %error, "the step failed");
        }
        result.map_err(|error| match error {
            Error::Device(problem) => Error::Device(format!("{problem} (rank {}, step {})", self.rank(), self.step())),
            error => error,
        })
    }

    /// Adds the cost of averaging momenta to the step that required it.
    pub(crate) fn spent_on_momenta(&mut self, seconds: f64, traffic: Traffic) {
        self.report.traffic += traffic;
        self.report.exchange_seconds += seconds;
        self.report.clock = self.comm.now();
        self.last_end += seconds;
        self.tally.add_late(traffic, seconds);
    }

    /// Excludes time spent outside of training (evaluation, saving) from the next step's compute seconds. `seconds` is the
    /// clock's value before that time. A simulated clock returns to it; any other clock continues.
    pub fn set_clock(&mut self, seconds: f64) {
        self.comm.set_clock(seconds);
        self.last_end = self.comm.now();
    }
}
