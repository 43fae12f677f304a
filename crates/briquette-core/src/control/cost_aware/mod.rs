//! Cost-aware controller: chooses the lowest compression ratio whose predicted step time is close to the fastest.
//!
//! **Why.** Whether compression saves time depends on the link, the model and the machine. On a fast link encoding costs more than it
//! saves. On a slow link more compression no longer pays once the exchange is short compared to the compute time. Beyond that ratio, the
//! *knee*, more compression risks accuracy and saves nothing. This controller measures the cost of each ratio at run time, dense included.
//! **Why not.** It considers only times. The controller inside it limits the ratio by the accuracy that would be lost
//! ([`LossGuard`](crate::control::loss_guard::LossGuard), GraVAC of `briquette-zoo`). Without a clock, and if the exchange takes no time, it
//! sends dense. In a world of one rank, which exchanges nothing, it sends dense and times nothing.
//!
//! **Method.** The controller chooses among a few ratios, its *rungs*. With `b` the bytes of an exchange, the time of a step at rung `l` is
//!
//! ```text
//! step(l) = compute + compress(l) + exchange(l),   exchange(l) ≈ α + β·b(l)
//! ```
//!
//! All times are those of the [last exchanges](crate::seam::LastExchange), on which all ranks agree. Each number is the median of
//! the last five steps at the rung. First the highest ratio within the limit is timed for `samples` steps, and all of its exchange is taken for
//! `β`, the seconds per byte. If the next lower rung would be within the tolerance with half of its predicted exchange, it is timed too. The line through both
//! exchanges has `α`, the link's latency, and `β`, and predicts the other rungs, without timing them. The bytes of a rung that was never sent are
//! interpolated between those of dense and of the nearest rung that was, with a power of the ratio. Then:
//!
//! - `fastest` is the smallest `step(l)`. The controller sends the rung with the lowest ratio whose `step(l)` is at most
//!   `(1 + tolerance)·fastest`. While the link does not change, a lower ratio replaces the current one only if it is within half
//!   of the tolerance. This keeps noise from making the rungs alternate;
//! - if the limit rises to a rung that was never timed, this rung is timed;
//! - every `look` steps the next lower rung is timed for `samples` steps;
//! - if two exchanges in a row, at that rung or at the rung sent, differ from its expected time by a quarter, and by more than `tolerance` of
//!   the step, the link has changed. The line `α + β·b` is fitted to these exchanges: by the bandwidth alone, or through the exchange at
//!   another rung that has already shown the change. The times of all other rungs change in proportion to the line. So the next choice
//!   follows at once, and no ratio is timed for it. Seconds that the new rung takes correct the line again. Then the next lower rung is
//!   timed, unless half of its predicted exchange would be too long.
//!
//! | symbol | here |
//! |---|---|
//! | rungs | 1x, 2x, 4x, 10x, 20x, 50x, 100x, … up to `max`, and `max`; others by [`Rungs`](crate::reduce::ladder::Rungs) |
//! | the knee | [`CostAwareConfig::tolerance`] |
//!
//! **Budgets.** `budget` (bytes, all ranks together) and `deadline` (seconds) are spread evenly over the steps that are left of `steps`:
//!
//! - With a `budget`, only rungs whose predicted bytes are within the share of a step are chosen or timed.
//! - With a `deadline`, the rung with the lowest ratio whose step is within the share is sent, instead of the knee. If there is none, the knee is sent.
//! - If the limit of the inner controller allows no rung within the budgets, the ratio exceeds this limit. A reason says so.
//! - A lower ratio than the present one must leave the tolerance to spare.
//!
//! Steps share what earlier steps have left, so that the last steps compress least. From step `steps` on, each step may spend all that is left. Bytes
//! include step headers, seconds do not. The first broadcast, evaluation and checkpoints are not counted. The strategy must exchange at every step.
//!
//! If an outer controller sends a lower ratio, the step is not used as a measurement, and no higher ratio is tried for `look` steps.
//!
//! **Knobs.** [`CostAwareConfig`]. A larger tolerance compresses less. `look` determines how soon a lower ratio is tried of which the
//! line predicts too much. Each look costs `samples` steps at the next lower rung. The total cost is bounded: the interval between
//! looks is long enough that their predicted cost stays below 1 % of it.
//!
//! **Invalid measurements.** Times that are negative or not finite (after a clock went backwards) do not count. The rung is then
//! timed again, for up to five times `samples` steps. If no rung can be measured, dense is sent. A step time of 0 s is valid.
//!
//! **Source.** The cost model is the usual one of latency and bandwidth (R. Hockney, *The communication challenge for MPP*, Parallel
//! Computing 20, 1994). The knee rule is this project's.
//!
//! ```
//! use briquette_core::control::{Agreed, Controller, cost_aware::{CostAware, CostAwareConfig}, schedule::Schedule};
//! use briquette_core::reduce::{AgreedStep, LastExchange};
//! use briquette_core::{CompressionRatio, Layout, Traffic};
//! let max = CompressionRatio::new(100.0)?;
//! let settings = CostAwareConfig { max, ..Default::default() };
//! let mut controller = CostAware::new(settings, Schedule::constant(max), 4)?;
//! let (mut ratio, mut previous, layout) = (1.0, None, Layout::flat(41_667));
//! for step in 0..20 {
//!     let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
//!     controller.observe(&agreed_step);
//!     ratio = controller.decide(&Agreed::new(&agreed_step, layout.slots())).ratio().expect("one for all").get();
//!     // 50 ms to compute; dense is 1 MB, and a megabyte takes 80 ms.
//!     let sent = (1e6 / ratio) as u64;
//!     let (compute_seconds, exchange_seconds) = (0.050, 80e-9 * sent as f64);
//!     let traffic = Traffic { sent, received: sent };
//!     previous = Some(LastExchange { compute_seconds, exchange_seconds, traffic, ..LastExchange::default() });
//! }
//! assert_eq!(ratio, 50.0); // 51.6 ms, and 50.8 ms at 100x: within 3 %; 20x would take 54 ms
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod budget;
mod choice;
mod config;
mod costs;
mod state;
#[cfg(test)]
mod tests;

pub use config::CostAwareConfig;

use crate::CompressionRatio;
use crate::error::ConfigError;
use crate::seam::{Agreed, AgreedStep, Controller, Decision, Needs, Ratios};
use crate::settings::Described;
use budget::Budget;
use costs::Costs;

/// Maximum share of the time spent on looks.
const LOOKING: f64 = 0.01;
/// Factor by which an exchange time must differ from its prediction to count as a change.
const SURPRISE: f64 = 1.25;

/// Chooses the lowest ratio at the knee of the step time, up to the limit that `K` decides; see the [module](self).
#[derive(Debug)]
pub struct CostAware<K> {
    settings: CostAwareConfig,
    limit: K,
    rungs: Vec<CompressionRatio>,
    costs: Costs,
    budget: Budget,
    /// The rung that is sent while no other rung is timed.
    chosen: usize,
    /// Set if `chosen` was chosen after the initial timing, and after the last change of the link had settled.
    is_chosen: bool,
    /// The rung of the last decision.
    sent: Option<usize>,
    /// Rungs that are still to be timed. The last one is next.
    to_time: Vec<usize>,
    /// Number of steps until the next look at the next lower rung.
    until_look: u64,
    /// Set if the initial timing is complete.
    has_started: bool,
    /// Rungs that were not timed at their turn because the limit excluded them.
    passed_over: Vec<bool>,
    /// The ratio that was sent instead of a rung, and the number of steps during which no higher ratio is tried.
    overruled: Option<(CompressionRatio, u64)>,
    /// A change of the link that no decision has stated yet.
    change: Option<String>,
}

impl<K: Controller> CostAware<K> {
    /// Creates the controller around `limit`, in a world of this many ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for settings out of range, and for a `limit` that decides for each slot.
    pub fn new(settings: CostAwareConfig, limit: K, world: usize) -> Result<Self, ConfigError> {
        settings.check()?;
        let budget = Budget::new(&settings)?;
        if limit.per_slot() {
            return Err(ConfigError::conflict(
                "controller cost-aware",
                "a limit that decides for each slot",
                "cost-aware chooses one ratio for the whole vector",
                "use a limit for the whole vector",
            ));
        }
        let rungs = settings.rungs.ratios(settings.max);
        let costs = Costs::new(&rungs, world);
        let to_time = (0..rungs.len()).collect();
        let (chosen, until_look) = (rungs.len() - 1, settings.look);
        let (sent, overruled, change, passed_over) = (None, None, None, vec![false; rungs.len()]);
        Ok(CostAware {
            settings,
            limit,
            rungs,
            costs,
            budget,
            chosen,
            is_chosen: false,
            sent,
            to_time,
            until_look,
            has_started: false,
            passed_over,
            overruled,
            change,
        })
    }

    /// Returns the limit after an overruled decision, if there is any.
    fn outer_limit(&mut self) -> Option<CompressionRatio> {
        self.overruled = self.overruled.filter(|(_, left)| *left > 0).map(|(ratio, left)| (ratio, left - 1));
        self.overruled.map(|(ratio, _)| ratio)
    }

    /// Returns the number of rungs that the limit allows.
    fn within(&self, limit: Option<CompressionRatio>) -> usize {
        let is_within = |rung: &&CompressionRatio| limit.is_none_or(|limit| **rung <= limit);
        self.rungs.iter().filter(is_within).count().max(1)
    }

    /// Continues the timing. Returns the rung to be sent next, if one is still to be timed.
    fn next_to_time(&mut self, allowed: usize) -> Option<usize> {
        while let Some(rung) = self.to_time.last().copied() {
            let is_timed = self.sent == Some(rung) && self.costs.is_timed(self.settings.samples);
            if rung < allowed && !is_timed {
                return Some(rung);
            }
            self.to_time.pop();
            self.passed_over[rung] = rung >= allowed;
            if !self.has_started {
                if rung < allowed {
                    self.costs.start();
                    self.to_time.clear();
                }
            } else if is_timed && self.is_surprised() {
                self.follow();
            } else if is_timed && self.costs.is_unsettled() {
                self.costs.refine();
            }
        }
        self.has_started = true;
        None
    }

    /// Returns whether the exchange time has changed by enough to affect the choice.
    fn is_surprised(&self) -> bool {
        self.costs.surprise(SURPRISE, self.settings.tolerance.max(LOOKING))
    }

    /// Follows a change of the link.
    fn follow(&mut self) {
        self.change = self.costs.follow().map(|[expected, got]| {
            format!("the link has changed: an exchange takes {:.1} ms, not {:.1}", 1e3 * got, 1e3 * expected)
        });
        (self.is_chosen, self.until_look) = (false, self.settings.look);
    }

    /// Returns whether a rung may be within the tolerance of the present one although its prediction is not: its exchange may take half of that,
    /// and its compression, if it was never sent, no time.
    fn is_promising(&self, rung: usize) -> bool {
        let least = self.costs.least(rung);
        least <= (1.0 + self.settings.tolerance) * self.costs.step(self.chosen)
    }

    /// Follows a change of the link that the current rung shows, or schedules a timing of the next lower rung: after a change, and now and then.
    fn look(&mut self) {
        let is_known = self.costs.samples() >= self.settings.samples.max(3);
        if self.costs.is_new() && is_known {
            self.costs.believe(self.chosen);
        }
        self.until_look = self.until_look.saturating_sub(1);
        if self.costs.samples() >= self.settings.samples && self.is_surprised() {
            return self.follow();
        }
        let below = self.chosen.checked_sub(1).filter(|below| self.fits(*below));
        if self.costs.is_unsettled() && self.costs.samples() >= self.settings.samples {
            match below.filter(|below| self.is_promising(*below)) {
                Some(below) => self.to_time.push(below),
                None => self.costs.settle(),
            }
        } else if let Some(below) = below.filter(|_| self.until_look == 0) {
            let more = self.costs.step(below) / self.costs.step(self.chosen) - 1.0;
            let pause = self.settings.samples as f64 * more / LOOKING;
            self.until_look = self.settings.look.max(if pause.is_finite() { pause as u64 } else { 0 });
            self.to_time.push(below);
        }
    }

    fn reason(&self, from: Option<usize>, limit: Option<CompressionRatio>) -> Option<String> {
        let to = self.chosen;
        if from == Some(to) {
            return None;
        }
        let milliseconds = |rung: usize| 1e3 * self.costs.step(rung);
        let other = from.filter(|from| *from != to).unwrap_or(0);
        let (sent, before) = (self.rungs[to], self.rungs[other]);
        let is_above = |rung: usize| limit.zip(self.rungs.get(rung)).is_some_and(|(limit, rung)| *rung > limit);
        let is_limited = is_above(to + 1) && !is_above(to);
        let limited = if is_limited { ", the limit" } else { "" };
        let (here, there) = (milliseconds(to), milliseconds(other));
        Some(format!("predicted step {here:.1} ms at {sent}, {there:.1} ms at {before}: sending {sent}{limited}"))
    }
}

impl<K: Controller> Controller for CostAware<K> {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.limit.observe(agreed_step);
        self.budget.learn(agreed_step.step, agreed_step.previous.as_ref());
        if let (Some(_), Some(last)) = (self.sent, &agreed_step.previous) {
            self.costs.learn(last);
        }
    }

    fn needs(&self) -> Needs<'_> {
        self.limit.needs()
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let limited = self.limit.decide(agreed);
        let (inner, why) = (limited.ratio(), limited.reason);
        if self.costs.is_alone() {
            self.limit.overruled(Ratios::All(CompressionRatio::DENSE));
            return Decision::all(CompressionRatio::DENSE, None);
        }
        let outer = self.outer_limit();
        let limit = inner.into_iter().chain(outer).min_by(|a, b| a.get().total_cmp(&b.get()));
        self.costs.set_values(agreed.slots.iter().map(|slot| slot.len()).sum());
        let (allowed, verdict) = self.within_budget(self.within(inner));
        let allowed = allowed.min(self.within(outer));
        let before = self.has_started.then_some(self.chosen);
        let highest = allowed - 1;
        if self.has_started && std::mem::take(&mut self.passed_over[highest]) && !self.costs.is_known(highest) {
            self.to_time.push(highest);
        }
        let mut timing = self.next_to_time(allowed);
        if timing.is_none() && self.sent == Some(self.chosen) {
            // Outdated measurements must not affect the decision.
            self.look();
            timing = self.next_to_time(allowed);
        }
        let is_open = self.chosen >= allowed || self.sent != Some(self.chosen) || !self.fits(self.chosen);
        // Measurements of other rungs may be from before a change of the link. They must not decide until such a change is
        // ruled out.
        let is_settled = self.costs.is_timed(self.settings.samples) && !self.is_surprised();
        if timing.is_none() && (is_open || is_settled) {
            (self.chosen, self.is_chosen) = (self.choose(allowed), !self.costs.is_unsettled());
        }
        let rung = timing.unwrap_or(self.chosen);
        if self.sent != Some(rung) {
            self.costs.begin(rung);
        }
        self.sent = Some(rung);
        if inner != Some(self.rungs[rung]) {
            self.limit.overruled(Ratios::All(self.rungs[rung]));
        }
        let own = if self.has_started { self.reason(before, limit) } else { None };
        let parts = [self.change.take(), self.budget.announce(verdict), own, why].into_iter().flatten();
        let reason = parts.reduce(|before, next| format!("{before}; {next}"));
        Decision::all(self.rungs[rung], reason)
    }

    fn discards_residual(&self) -> bool {
        self.limit.discards_residual()
    }

    fn overruled(&mut self, ratios: Ratios<'_>) {
        self.limit.overruled(ratios);
        if let Ratios::All(ratio) = ratios {
            (self.sent, self.overruled) = (None, Some((ratio, self.settings.look)));
        }
    }

    fn dense_seconds(&self) -> Option<f64> {
        self.has_started.then(|| self.costs.overhead(0))
    }

    fn describe(&self) -> Option<String> {
        if self.costs.is_alone() {
            return super::both("dense, because one rank exchanges nothing".to_owned(), self.limit.describe());
        }
        let rung = self.rungs[self.sent.unwrap_or(self.chosen)];
        let own = match (self.to_time.len(), self.settings.samples) {
            (0, _) if self.chosen == 0 => format!("holding {rung}"),
            (0, _) => format!("holding {rung}, {} steps until a look at the next lower ratio", self.until_look),
            (left, samples) => {
                let measured = self.costs.samples().min(samples);
                format!("timing {rung}, {measured} of {samples} samples, at most {left} ratios left")
            }
        };
        let own = super::both(own, self.budget.describe()).unwrap_or_default();
        super::both(own, self.limit.describe())
    }
}
