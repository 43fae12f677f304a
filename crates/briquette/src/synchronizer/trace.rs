//! A step as a `tracing` span, and the changes of its ratio as events. Neither costs anything where no subscriber wants it.

use briquette_core::report::Report;
use tracing::field::Empty;
use tracing::span::EnteredSpan;
use tracing::{Level, Span, debug, debug_span, enabled, info};

use super::Synchronizer;

impl Synchronizer {
    /// Where the controller stands, in words, after the last step; `None` where there is none, or nothing to add to its decision.
    /// Made when it is asked for.
    pub fn controller_state(&self) -> Option<String> {
        let mut report = Report::with_state();
        self.joined.iter().for_each(|joined| joined.strategy.report(&mut report));
        report.state
    }

    /// A step begins to exchange.
    pub(super) fn begin_span(&mut self) -> EnteredSpan {
        let (step, rank) = (self.step, self.comm.rank());
        self.span = debug_span!(
            "briquette.step",
            step,
            rank,
            ratio = Empty,
            measured_ratio = Empty,
            gain = Empty,
            delay = Empty,
            bytes = Empty,
            seconds = Empty,
        );
        self.span.clone().entered()
    }

    /// A step has ended: its numbers, and why its ratio is another one than that of the step before.
    pub(super) fn end_span(&mut self) {
        let span = std::mem::replace(&mut self.span, Span::none());
        if !span.is_disabled() {
            let report = &self.report;
            let numbers = [
                ("ratio", report.exchange.factor.map(|factor| factor.get())),
                ("measured_ratio", Some(report.wire_factor())),
                ("gain", report.exchange.gain),
                ("delay", report.exchange.delay()),
                ("seconds", Some(report.seconds())),
            ];
            span.record("bytes", report.traffic.sent);
            numbers.into_iter().filter_map(|(name, value)| Some((name, value?))).for_each(|(name, value)| {
                span.record(name, value);
            });
        }
        let _step = span.entered();
        if let Some(reason) = self.report.exchange.reason.as_deref() {
            self.changed(reason);
        }
    }

    /// Every rank decides the same: rank 0 speaks for all.
    fn changed(&self, reason: &str) {
        let (step, rank, ratio) = (self.step, self.comm.rank(), self.report.exchange.factor.map(|factor| factor.get()));
        if rank > 0 {
            debug!(step, rank, ratio, reason, "compression ratio changed");
        } else if enabled!(Level::INFO) {
            let state = self.controller_state();
            info!(step, rank, ratio, reason, state, "compression ratio changed");
        }
    }
}
