//! Tracing: a span for each step, and events for changes of the compression. Neither has a cost without a subscriber.

use briquette_core::CompressionRatio;
use briquette_core::report::Report;
use tracing::field::Empty;
use tracing::span::EnteredSpan;
use tracing::{Level, Span, debug, debug_span, enabled, info};

use super::Synchronizer;

/// Format of the last exchange: the whole vector's ratio and carrier, and each slot's ratio.
#[derive(Debug, Default)]
pub(super) struct SentAs {
    whole: Option<(Option<CompressionRatio>, Option<&'static str>)>,
    slots: Vec<Option<CompressionRatio>>,
}

impl SentAs {
    /// Stores a step's format and returns whether it has changed. The first exchange, and a step without an exchange, do
    /// not count as changes.
    fn changes(&mut self, report: &Report) -> bool {
        let whole = (report.ratio, report.carrier);
        if whole == (None, None) {
            return false;
        }
        let slots = || report.slots.iter().map(|slot| slot.ratio);
        let before = self.whole.replace(whole);
        let same = before.is_none_or(|before| before == whole && self.slots.iter().copied().eq(slots()));
        self.slots.clear();
        self.slots.extend(slots());
        !same
    }
}

impl Synchronizer {
    /// Returns a description of the controller's state after the last step. `None` without a controller, or if the state adds
    /// nothing to the decision. The text is built on request.
    pub fn controller_state(&self) -> Option<String> {
        let mut report = Report::with_state();
        self.driver.strategy().report(&mut report);
        report.state
    }

    /// Begins the span of a step's exchange.
    pub(super) fn begin_span(&mut self) -> EnteredSpan {
        let (step, rank) = (self.step(), self.comm.rank());
        self.span = debug_span!(
            "briquette.step",
            step,
            rank,
            ratio = Empty,
            wire_ratio = Empty,
            gain = Empty,
            delay = Empty,
            bytes = Empty,
            seconds = Empty,
        );
        self.span.clone().entered()
    }

    /// Ends the span of a step, with its numbers and the controller's decision.
    pub(super) fn end_span(&mut self) {
        self.report.ratio_changed = self.sent_as.changes(&self.report.exchange);
        let span = std::mem::replace(&mut self.span, Span::none());
        if !span.is_disabled() {
            let report = &self.report;
            let numbers = [
                ("ratio", report.exchange.ratio.map(|ratio| ratio.get())),
                ("wire_ratio", Some(report.wire_ratio())),
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
        if self.report.ratio_changed || self.report.exchange.reason.is_some() {
            self.decided();
        }
    }

    /// Logs the controller's decision. It is the same on every rank, so only rank 0 logs it: changes at info, and reasons without
    /// a change at debug.
    fn decided(&self) {
        let (step, rank, exchange) = (self.step(), self.comm.rank(), &self.report.exchange);
        let (ratio, reason) = (exchange.ratio.map(|ratio| ratio.get()), exchange.reason.as_deref());
        if !self.report.ratio_changed {
            debug!(step, rank, ratio, reason, "the controller left the compression ratio as it was");
        } else if rank > 0 {
            debug!(step, rank, ratio, reason, "compression ratio changed");
        } else if enabled!(Level::INFO) {
            let state = self.controller_state();
            info!(step, rank, ratio, reason, state, "compression ratio changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use briquette_core::report::SlotReport;

    use super::*;

    fn sent(ratio: f64) -> Report {
        let mut report = Report::default();
        report.ratio = Some(CompressionRatio::new(ratio).unwrap());
        report
    }

    fn because(reason: &str) -> Report {
        let mut report = sent(10.0);
        report.reason = Some(reason.to_owned());
        report
    }

    #[test]
    fn only_what_is_sent_as_another_thing_than_before_is_a_change() {
        let mut sent_as = SentAs::default();
        let with_slot = |ratio| {
            let (mut report, mut slot) = (sent(20.0), SlotReport::default());
            slot.ratio = CompressionRatio::new(ratio).ok();
            report.slots = vec![slot];
            report
        };
        let by_carrier = |carrier| {
            let mut report = sent(20.0);
            report.carrier = Some(carrier);
            report
        };
        for (report, expected, what) in [
            (because("it begins"), false, "the first exchange"),
            (sent(10.0), false, "the same"),
            (because("it rests"), false, "a reason alone"),
            (sent(20.0), true, "another ratio"),
            (Report::default(), false, "a step without an exchange"),
            (sent(20.0), false, "the ratio before that step"),
            (by_carrier("int8 ring"), true, "another carrier"),
            (sent(20.0), true, "the carrier before"),
            (with_slot(5.0), true, "another ratio of a slot"),
            (with_slot(5.0), false, "the same slots"),
            (with_slot(6.0), true, "another ratio of a slot again"),
        ] {
            assert_eq!(sent_as.changes(&report), expected, "{what}");
        }
    }
}
