//! Choice of a rung: the knee, within the budgets of the run.

use super::CostAware;
use super::budget::Verdict;
use crate::seam::Controller;

impl<K: Controller> CostAware<K> {
    /// Returns whether a rung sends few enough bytes for the budget. A lower one than the present must have the tolerance to spare.
    pub(super) fn fits(&self, rung: usize) -> bool {
        self.costs.bytes(rung) <= self.budget.bytes() * self.spare(rung)
    }

    fn spare(&self, rung: usize) -> f64 {
        if self.has_started && rung < self.chosen { 1.0 - self.settings.tolerance } else { 1.0 }
    }

    /// Returns whether a step at a rung is fast enough for the deadline. Nothing is known before the first measurement.
    fn is_in_time(&self, rung: usize, spare: f64) -> bool {
        !self.has_started || self.budget.seconds().is_none_or(|seconds| self.costs.step(rung) <= seconds * spare)
    }

    /// Returns the number of rungs that may be sent: those that the limit allows, and if none of them is within the budgets, more.
    pub(super) fn within_budget(&self, allowed: usize) -> (usize, Verdict) {
        let rungs = self.rungs.len();
        let fitting = || (0..rungs).filter(|rung| self.fits(*rung));
        if let Some(first) = fitting().find(|rung| self.is_in_time(*rung, self.spare(*rung))) {
            return if first < allowed { (allowed, Verdict::Met) } else { (first + 1, Verdict::AboveLimit) };
        }
        let Some(fastest) = fitting().min_by(|a, b| self.costs.step(*a).total_cmp(&self.costs.step(*b))) else {
            return (self.least_bytes(rungs) + 1, Verdict::TooManyBytes);
        };
        // A step that is slower by no more than the tolerance is not yet worth a word.
        let is_late = !self.is_in_time(fastest, 1.0 + self.settings.tolerance);
        (allowed.max(fastest + 1), if is_late { Verdict::TooSlow } else { Verdict::Met })
    }

    fn least_bytes(&self, rungs: usize) -> usize {
        (0..rungs).min_by(|a, b| self.costs.bytes(*a).total_cmp(&self.costs.bytes(*b))).unwrap_or(0)
    }

    /// Returns the rung to be sent among the allowed ones: the lowest one within the deadline, and without a deadline the knee.
    pub(super) fn choose(&self, allowed: usize) -> usize {
        let mut rungs: Vec<usize> = (0..allowed).filter(|rung| self.fits(*rung)).collect();
        if rungs.is_empty() {
            rungs.push(self.least_bytes(allowed));
        }
        let fastest = rungs.iter().map(|rung| self.costs.step(*rung)).fold(f64::INFINITY, f64::min);
        let within = |rung: usize, tolerance: f64| self.costs.step(rung) <= (1.0 + tolerance) * fastest;
        let first = |fits: &dyn Fn(usize) -> bool| rungs.iter().copied().find(|rung| fits(*rung));
        if self.budget.seconds().is_some() {
            let in_time = first(&|rung| self.is_in_time(rung, self.spare(rung)));
            return in_time.or_else(|| first(&|rung| within(rung, 0.0))).unwrap_or(rungs[0]);
        }
        let tolerance = self.settings.tolerance;
        let least = |tolerance| first(&|rung| within(rung, tolerance)).unwrap_or(rungs[0]);
        // Avoids alternating between two rungs with the same time: a lower ratio must be within half of the tolerance. A rung
        // that was chosen before the last change of the link has settled has no such advantage.
        match self.chosen {
            chosen if self.is_chosen && rungs.contains(&chosen) && within(chosen, tolerance) => {
                least(tolerance / 2.0).min(chosen)
            }
            _ => least(tolerance),
        }
    }
}
