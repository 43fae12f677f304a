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
    fn is_in_time(&self, rung: usize) -> bool {
        let within = |seconds| self.costs.step(rung) <= seconds * self.spare(rung);
        !self.has_started || self.budget.seconds().is_none_or(within)
    }

    /// Returns the number of rungs that may be sent: those that the limit allows, and if none of them is within the budgets, more.
    pub(super) fn within_budget(&self, allowed: usize) -> (usize, Verdict) {
        let rungs = self.rungs.len();
        let fitting = || (0..rungs).filter(|rung| self.fits(*rung));
        if let Some(first) = fitting().find(|rung| self.is_in_time(*rung)) {
            return if first < allowed { (allowed, Verdict::Met) } else { (first + 1, Verdict::AboveLimit) };
        }
        // Rungs that are as fast as the fastest, up to the tolerance, are no reason to go above the limit.
        let slowest = (1.0 + self.settings.tolerance) * self.fastest(fitting());
        match fitting().find(|rung| self.costs.step(*rung) <= slowest) {
            Some(knee) => (allowed.max(knee + 1), Verdict::TooSlow),
            None => (self.least_bytes(rungs) + 1, Verdict::TooManyBytes),
        }
    }

    /// Returns the shortest predicted step.
    fn fastest(&self, rungs: impl Iterator<Item = usize>) -> f64 {
        rungs.map(|rung| self.costs.step(rung)).fold(f64::INFINITY, f64::min)
    }

    fn least_bytes(&self, rungs: usize) -> usize {
        (0..rungs).min_by(|a, b| self.costs.bytes(*a).total_cmp(&self.costs.bytes(*b))).unwrap_or(0)
    }

    /// Returns the rung to be sent among the allowed ones: the lowest one within the deadline; without a deadline, or if none is, the knee.
    pub(super) fn choose(&self, allowed: usize) -> usize {
        let mut rungs: Vec<usize> = (0..allowed).filter(|rung| self.fits(*rung)).collect();
        if rungs.is_empty() {
            rungs.push(self.least_bytes(allowed));
        }
        let fastest = self.fastest(rungs.iter().copied());
        let within = |rung: usize, tolerance: f64| self.costs.step(rung) <= (1.0 + tolerance) * fastest;
        let first = |fits: &dyn Fn(usize) -> bool| rungs.iter().copied().find(|rung| fits(*rung));
        if let Some(in_time) = first(&|rung| self.is_in_time(rung)).filter(|_| self.budget.seconds().is_some()) {
            return in_time;
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
