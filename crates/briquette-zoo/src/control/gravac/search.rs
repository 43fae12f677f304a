//! Search for a ratio: the check at the end of a window.

use super::average::Gain;
use super::event::Event;
use super::throughput::{Entry, Throughput};
use super::{GraVac, Sent};
use briquette_core::CompressionRatio;

/// State of the search.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Search {
    pub(super) safe: CompressionRatio,
    pub(super) bold: CompressionRatio,
    pub(super) safe_gain: Option<Gain>,
    pub(super) bold_gain: Option<Gain>,
    pub(super) throughput: Throughput,
    pub(super) steps_in_window: u64,
    /// Set if a window has ended and its check has not run yet.
    pub(super) check_due: bool,
    /// Number of steps that are sent dense regardless of the gains: to time dense, and while compression is off.
    pub(super) dense_left: u64,
    /// The throughput of `bold` when it was found best; the search then rests.
    pub(super) held: Option<f64>,
    /// Number of windows until a bolder candidate is tried.
    pub(super) rest: u64,
    /// The ratio of the last decision.
    pub(super) last: Option<CompressionRatio>,
    /// The ratio that the next measurement belongs to, if gains were measured.
    pub(super) sent: Option<Sent>,
    pub(super) note: Option<Event>,
}

impl Search {
    pub(super) fn start(safe: CompressionRatio, bold: CompressionRatio, dense_left: u64) -> Self {
        Search {
            safe,
            bold,
            safe_gain: None,
            bold_gain: None,
            throughput: Throughput::default(),
            steps_in_window: 0,
            check_due: false,
            dense_left,
            held: None,
            rest: 0,
            last: None,
            sent: None,
            note: None,
        }
    }

    /// Describes the state as text.
    pub(super) fn describe(&self, window: u64) -> String {
        let Search { safe, bold, rest, steps_in_window: step, .. } = self;
        let left = rest.saturating_mul(window).saturating_sub(*step);
        match (self.dense_left, self.held) {
            (1.., _) => format!("sending dense for {} more steps", self.dense_left),
            (0, Some(_)) if left == 0 => format!("holding {bold}"),
            (0, Some(_)) => format!("holding {bold} for {left} more steps"),
            (0, None) if left > 0 => format!("back at {bold} for {left} more steps"),
            (0, None) if bold == safe => format!("trying {bold}, step {step} of {window}"),
            (0, None) => format!("trying {bold} against {safe}, step {step} of {window}"),
        }
    }

    /// Changes the ratio to be tried. Its gain is not known yet.
    fn try_ratio(&mut self, ratio: CompressionRatio) {
        if ratio != self.bold {
            self.bold = ratio;
            self.bold_gain = if ratio == self.safe { self.safe_gain } else { None };
        }
    }

    /// Returns dense, if it was timed and its throughput is at least that of `bold`.
    fn better_dense(&self) -> Option<Entry> {
        let (dense, bold) = (self.throughput.get(CompressionRatio::DENSE)?, self.throughput.get(self.bold)?);
        (dense.value() >= bold.value()).then_some(dense)
    }
}

impl GraVac {
    pub(super) fn check_window(&mut self) {
        self.search.throughput.drop_stale(self.config.stale_windows);
        if let Some(fallen) = self.fallen() {
            self.start_again(fallen);
        } else {
            self.raise_safe();
            self.move_on();
        }
        self.time_dense_again();
    }

    fn lost(&self, gain: Option<Gain>) -> bool {
        gain.is_some_and(|gain| gain.counts < self.config.epsilon)
    }

    /// Returns the reason for a restart of the search, if there is one.
    fn fallen(&self) -> Option<Event> {
        let search = &self.search;
        let moved = search.safe > self.config.min;
        if self.lost(search.bold_gain) && (search.held.is_some() || (moved && self.lost(search.safe_gain))) {
            return Some(Event::GainFell);
        }
        let (held, now) = (search.held?, search.throughput.get(search.bold)?);
        (now.value() < (1.0 - self.config.hold_tolerance) * held).then_some(Event::ThroughputFell)
    }

    fn start_again(&mut self, fallen: Event) {
        let search = &mut self.search;
        if search.safe != self.config.min {
            (search.safe, search.safe_gain) = (self.config.min, None);
        }
        (search.held, search.rest) = (None, 0);
        search.throughput.keep_dense_and(None);
        search.try_ratio(self.candidates[0]);
        search.note = Some(fallen);
    }

    /// Raises `safe` to `bold` if `bold` loses hardly more energy.
    fn raise_safe(&mut self) {
        let search = &mut self.search;
        if let (Some(safe), Some(bold)) = (search.safe_gain, search.bold_gain)
            && safe.counts > 0.0
            && (safe.counts - bold.counts).abs() / safe.counts <= self.config.saturation
        {
            search.safe = search.bold;
            search.safe_gain = search.bold_gain;
        }
    }

    /// Holds a ratio if throughput saturates, steps back if the gain is too small, and otherwise tries the next candidate.
    fn move_on(&mut self) {
        let (failed, bold) = (self.lost(self.search.bold_gain), self.search.bold);
        let above = self.candidates.iter().find(|c| **c > bold).copied();
        if self.search.held.is_some() || self.search.rest > 0 {
            if let Some(dense) = self.search.better_dense() {
                return self.hold(dense, Event::Best);
            }
            self.search.rest = self.search.rest.saturating_sub(1);
            if !failed && (self.search.rest > 0 || above.is_none()) {
                return;
            }
            // The other timings are as old as the rest, and would saturate again without a new measurement.
            self.search.held = None;
            self.search.throughput.keep_dense_and(Some(bold));
        }
        let best = self.search.throughput.best_two();
        if let Some((first, second)) = best
            && (first.value() - second.value()) / second.value() <= self.config.saturation
        {
            let (low, high) = if first.ratio < second.ratio { (first, second) } else { (second, first) };
            return self.hold(low, Event::Saturated(low.ratio, high.ratio));
        }
        match above.filter(|_| !failed) {
            Some(next) => {
                self.search.try_ratio(next);
                self.search.note = Some(Event::Next);
            }
            None => self.exhaust(best.map(|(first, _)| first), failed),
        }
    }

    /// Ends the search without a bolder candidate: `bold` is the largest, or it failed, and so would any bolder one.
    fn exhaust(&mut self, best: Option<Entry>, failed: bool) {
        let (safe, bold) = (self.search.safe, self.search.bold);
        let settles = |best: &Entry| self.config.settle && !(failed && best.ratio == bold);
        if let Some(best) = best.filter(|best| best.ratio.is_dense() || settles(best)) {
            return self.hold(best, Event::Best);
        }
        let below = self.candidates.iter().rfind(|c| safe < **c && **c < bold).copied();
        if let Some(below) = below.filter(|_| failed) {
            self.search.try_ratio(below);
            self.search.rest = self.config.reprobe_windows;
            self.search.note = Some(Event::Back);
        }
    }

    fn hold(&mut self, found: Entry, note: Event) {
        let windows = self.config.reprobe_windows;
        self.search.note = Some(note);
        if found.ratio.is_dense() {
            let last = self.search.last;
            self.search =
                Search::start(self.config.min, self.candidates[0], windows.saturating_mul(self.config.window));
            (self.search.last, self.search.note) = (last, Some(note));
        } else {
            // `safe` may have been raised above the ratio found.
            let raised = self.search.safe > found.ratio;
            let ratio = if raised { self.search.safe } else { found.ratio };
            self.search.note = Some(note).filter(|_| !raised);
            self.search.try_ratio(ratio);
            let now = self.search.throughput.get(ratio).unwrap_or(found);
            (self.search.held, self.search.rest) = (Some(now.value()), windows);
        }
    }

    /// Times dense again if its measurement was dropped: the ratio sent must be compared with the current cost of dense.
    fn time_dense_again(&mut self) {
        let search = &mut self.search;
        let forgotten = !search.throughput.is_empty() && search.throughput.get(CompressionRatio::DENSE).is_none();
        if forgotten && self.config.dense_steps > 0 {
            search.dense_left = self.config.dense_steps;
            search.note = Some(Event::Forgotten);
        }
    }
}
