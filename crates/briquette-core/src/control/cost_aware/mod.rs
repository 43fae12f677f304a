//! Chooses the least compression whose step is predicted to take hardly longer than the fastest one.
//!
//! **Why.** Whether compression saves time depends on the link, the model and the machine: on a fast link encoding costs more than
//! it saves, on a slow one more compression stops paying where the exchange is short beside the computation. Beyond that *knee* more
//! compression risks accuracy and saves nothing. This controller measures what each level costs here and now, dense included.
//! **Why not.** It knows seconds only: what a ratio costs in accuracy is for the controller inside it, which sets the limit
//! ([`LossGuard`](super::LossGuard), [`GraVac`](super::GraVac)). Without a clock, and where the exchange takes no time, it sends dense. In a
//! world of one rank nothing is exchanged: it sends dense there, and times nothing.
//!
//! **Method.** With `b` the bytes of an exchange, a step at level `l` takes
//!
//! ```text
//! step(l) = compute + compress(l) + exchange(l),   exchange(l) ≈ α + β·b(l)
//! ```
//!
//! all of them as the [last exchanges](crate::reduce::LastExchange) took them, which all ranks agree on; each number is the median of
//! the last five steps at the level. First every level is timed for `samples` steps, the most compressed first. `α` and `β`, the
//! link's latency and the seconds a byte takes, follow from the smallest and the largest exchange so far; a level that they predict to
//! take more than twice the best is left out. Then:
//!
//! - `fastest` is the least `step(l)`; the level sent is the smallest ratio with `step(l) ≤ (1 + tolerance)·fastest`. Between two
//!   timings of all levels a lower ratio replaces it only within half of the tolerance, so that noise does not move it to and fro;
//! - where the limit rises to a level that was never timed, that is timed;
//! - every `look` steps the next lower level is timed for `samples` steps. When the exchange there, or of the level sent, takes a
//!   quarter more or less than it did, and that is more than `tolerance` of the step, the link has changed, and all levels are timed anew.
//!
//! | symbol | here |
//! |---|---|
//! | levels | 1x, 2x, 4x, 10x, 20x, 50x, 100x, … up to `max`, and `max` |
//! | the knee | [`CostAwareConfig::tolerance`] |
//!
//! Where a controller around this one sends less, nothing is learnt of the step, and no more is tried for `look` steps.
//!
//! **Knobs.** [`CostAwareConfig`]. A larger tolerance compresses less. `look` is the reaction time to a link that became *faster*;
//! one look costs `samples` steps at the next lower level. The most it can take of a run is bounded: looks come at most as often as
//! that their predicted cost stays below 1 % of the time between them.
//!
//! **Not numbers.** Seconds that are negative or not finite (a clock that went backwards) are no measurement: the level is timed once
//! more, up to five times `samples` steps. Where no level can be measured dense is sent. A step that took 0 s is a measurement.
//!
//! **Source.** The cost model is the usual one of latency and bandwidth (R. Hockney, *The communication challenge for MPP*, Parallel
//! Computing 20, 1994); the rule of the knee is this project's.
//!
//! ```
//! use briquette_core::control::{Agreed, Constant, Controller, CostAware, CostAwareConfig};
//! use briquette_core::reduce::{AgreedStep, LastExchange};
//! use briquette_core::{CompressionFactor, Traffic};
//! let max = CompressionFactor::new(100.0)?;
//! let mut controller = CostAware::new(CostAwareConfig { max, ..Default::default() }, Constant(max), 4)?;
//! let (mut factor, mut previous) = (1.0, None);
//! for step in 0..30 {
//!     let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
//!     controller.observe(&agreed_step);
//!     factor = controller.decide(&Agreed::new(&agreed_step, &[])).factor().expect("one for all").get();
//!     // 50 ms to compute; dense is 1 MB, and a megabyte takes 80 ms.
//!     let sent = (1e6 / factor) as u64;
//!     let (compute_seconds, exchange_seconds) = (0.050, 80e-9 * sent as f64);
//!     let traffic = Traffic { sent, received: sent };
//!     previous = Some(LastExchange { compute_seconds, exchange_seconds, traffic, ..LastExchange::default() });
//! }
//! assert_eq!(factor, 50.0); // 51.6 ms, and 50.8 ms at 100x: within 3 %; 20x would take 54 ms
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;
mod costs;
#[cfg(test)]
mod tests;

pub use config::CostAwareConfig;

use super::{Agreed, Controller, Decision, Needs};
use crate::CompressionFactor;
use crate::config::Described;
use crate::error::{ConfigError, StateError};
use crate::reduce::{AgreedStep, Levels};
use crate::state::{State, Stateful};
use costs::Costs;

/// Levels that are tried, as far as they are below the highest ratio.
const LEVELS: [f64; 10] = [1.0, 2.0, 4.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
/// What may be sent where the highest ratio is `max`.
pub(super) fn levels(max: CompressionFactor) -> Vec<CompressionFactor> {
    LEVELS.into_iter().map(CompressionFactor::constant).filter(|level| *level < max).chain([max]).collect()
}

/// A level that is predicted to take longer than the best by more than this is not timed at the start.
const HOPELESS: f64 = 2.0;
/// The share of the time that looks may take.
const LOOKING: f64 = 0.01;
/// From when on the exchange is not what was predicted.
const SURPRISE: f64 = 1.25;

/// Chooses the knee of the step time, at most what `K` decides; see the [module](self).
#[derive(Debug)]
pub struct CostAware<K> {
    settings: CostAwareConfig,
    limit: K,
    levels: Vec<CompressionFactor>,
    costs: Costs,
    /// The level that is sent apart from timing others.
    chosen: usize,
    /// Set if `chosen` was chosen after the last timing of all levels.
    is_chosen: bool,
    /// The level of the last decision.
    sent: Option<usize>,
    /// Levels that are still to be timed, the next one last.
    to_time: Vec<usize>,
    /// Steps until the next lower level is looked at.
    until_look: u64,
    /// Whether all levels have been through the timing at the start.
    has_started: bool,
    /// Levels that the limit kept from being timed when it was their turn.
    passed_over: Vec<bool>,
    /// What was sent instead of a level, and for how many steps no more is tried.
    overruled: Option<(CompressionFactor, u64)>,
}

impl<K: Controller> CostAware<K> {
    /// With `limit` inside, in a world of this many ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for settings out of range, and for a `limit` that decides for each slot.
    pub fn new(settings: CostAwareConfig, limit: K, world: usize) -> Result<Self, ConfigError> {
        settings.check()?;
        if limit.per_slot() {
            let why = "cost-aware chooses one ratio for the whole vector: its limit must not decide for each slot";
            return Err(ConfigError::Conflict(why.into()));
        }
        let levels = levels(settings.max);
        let costs = Costs::new(&levels, world);
        let to_time = (0..levels.len()).collect();
        let (chosen, until_look) = (levels.len() - 1, settings.look);
        let (sent, overruled, passed_over) = (None, None, vec![false; levels.len()]);
        Ok(CostAware {
            settings,
            limit,
            levels,
            costs,
            chosen,
            is_chosen: false,
            sent,
            to_time,
            until_look,
            has_started: false,
            passed_over,
            overruled,
        })
    }

    /// The lower of both limits, where there are.
    fn limit(&mut self, inner: Option<CompressionFactor>) -> Option<CompressionFactor> {
        self.overruled = self.overruled.filter(|(_, left)| *left > 0).map(|(ratio, left)| (ratio, left - 1));
        let outer = self.overruled.map(|(ratio, _)| ratio);
        inner.into_iter().chain(outer).min_by(|a, b| a.get().total_cmp(&b.get()))
    }

    /// How many levels may be sent.
    fn within(&self, limit: Option<CompressionFactor>) -> usize {
        let is_within = |level: &&CompressionFactor| limit.is_none_or(|limit| **level <= limit);
        self.levels.iter().filter(is_within).count().max(1)
    }

    /// Goes on with timing: the level to be sent next, if one is still to be timed.
    fn next_to_time(&mut self, allowed: usize) -> Option<usize> {
        while let Some(level) = self.to_time.last().copied() {
            let is_timed = self.sent == Some(level) && self.costs.is_timed(self.settings.samples);
            let is_hopeless = !self.has_started && self.costs.is_hopeless(level, HOPELESS);
            if level < allowed && !is_timed && !is_hopeless {
                return Some(level);
            }
            self.to_time.pop();
            self.passed_over[level] = level >= allowed;
            if !self.has_started {
                self.costs.draw_line();
                self.costs.believe(level);
            } else if is_timed && self.is_surprised() {
                self.time_all();
            }
        }
        self.has_started = true;
        None
    }

    /// Whether the exchange takes something else than it did, and so that it may change what is chosen.
    fn is_surprised(&self) -> bool {
        self.costs.surprise(SURPRISE, self.settings.tolerance.max(LOOKING))
    }

    /// The link is no longer what it was.
    fn time_all(&mut self) {
        self.costs.forget();
        // The most compressed is popped first.
        self.to_time = (0..self.levels.len()).collect();
        (self.has_started, self.is_chosen, self.until_look) = (false, false, self.settings.look);
    }

    /// The knee among the allowed levels.
    fn knee(&self, allowed: usize) -> usize {
        let fastest = (0..allowed).map(|level| self.costs.step(level)).fold(f64::INFINITY, f64::min);
        let within = |level: usize, tolerance: f64| self.costs.step(level) <= (1.0 + tolerance) * fastest;
        let tolerance = self.settings.tolerance;
        let least = |tolerance| (0..allowed).find(|level| within(*level, tolerance)).unwrap_or(0);
        // Not to and fro between two levels that take the same time: to a lower ratio only where it is well within. The level
        // of before all were timed is no reason to stay.
        match self.chosen {
            chosen if self.is_chosen && chosen < allowed && within(chosen, tolerance) => {
                least(tolerance / 2.0).min(chosen)
            }
            _ => least(tolerance),
        }
    }

    /// Has levels timed where that is due: all where the present one is not what it was, else now and then the next lower one.
    fn look(&mut self) {
        let is_known = self.costs.samples() >= self.settings.samples.max(3);
        if self.costs.is_new() && is_known {
            self.costs.believe(self.chosen);
        }
        self.until_look = self.until_look.saturating_sub(1);
        if is_known && self.is_surprised() {
            return self.time_all();
        }
        if let Some(below) = self.chosen.checked_sub(1).filter(|_| self.until_look == 0) {
            let more = self.costs.step(below) / self.costs.step(self.chosen) - 1.0;
            let pause = self.settings.samples as f64 * more / LOOKING;
            self.until_look = self.settings.look.max(if pause.is_finite() { pause as u64 } else { 0 });
            self.to_time.push(below);
        }
    }

    fn reason(&self, from: Option<usize>, limit: Option<CompressionFactor>) -> Option<String> {
        let to = self.chosen;
        if from == Some(to) {
            return None;
        }
        let milliseconds = |level: usize| 1e3 * self.costs.step(level);
        let other = from.filter(|from| *from != to).unwrap_or(0);
        let (sent, before) = (self.levels[to], self.levels[other]);
        let is_limited = limit.is_some_and(|limit| self.levels.get(to + 1).is_some_and(|next| *next > limit));
        let limited = if is_limited { ", the limit" } else { "" };
        let (here, there) = (milliseconds(to), milliseconds(other));
        Some(format!("predicted step {here:.1} ms at {sent}, {there:.1} ms at {before}: sending {sent}{limited}"))
    }
}

impl<K: Controller> Controller for CostAware<K> {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.limit.observe(agreed_step);
        if let (Some(_), Some(last)) = (self.sent, &agreed_step.previous) {
            self.costs.learn(last);
        }
    }

    fn needs(&self) -> Needs<'_> {
        self.limit.needs()
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let limited = self.limit.decide(agreed);
        let (inner, why) = (limited.factor(), limited.reason);
        if self.costs.is_alone() {
            self.limit.overruled(Levels::All(CompressionFactor::DENSE));
            return Decision::all(CompressionFactor::DENSE, None);
        }
        let limit = self.limit(inner);
        self.costs.set_values(agreed.slots.iter().map(|slot| slot.len()).sum());
        let allowed = self.within(limit);
        let before = self.has_started.then_some(self.chosen);
        let highest = allowed - 1;
        if self.has_started && std::mem::take(&mut self.passed_over[highest]) && !self.costs.is_known(highest) {
            self.to_time.push(highest);
        }
        let mut timing = self.next_to_time(allowed);
        if timing.is_none() && self.sent == Some(self.chosen) {
            // What no longer holds must not choose.
            self.look();
            timing = self.next_to_time(allowed);
        }
        let is_open = self.chosen >= allowed || self.sent != Some(self.chosen);
        // What was measured of other levels on another link chooses nothing, while it is not sure yet that it is another.
        let is_settled = self.costs.is_timed(self.settings.samples) && !self.is_surprised();
        if timing.is_none() && (is_open || is_settled) {
            (self.chosen, self.is_chosen) = (self.knee(allowed), true);
        }
        let level = timing.unwrap_or(self.chosen);
        if self.sent != Some(level) {
            self.costs.begin(level);
        }
        self.sent = Some(level);
        if inner != Some(self.levels[level]) {
            self.limit.overruled(Levels::All(self.levels[level]));
        }
        let own = if self.has_started { self.reason(before, limit) } else { None };
        let reason = [own, why].into_iter().flatten().reduce(|own, why| format!("{own}; {why}"));
        Decision::all(self.levels[level], reason)
    }

    fn gives_up_memory(&self) -> bool {
        self.limit.gives_up_memory()
    }

    fn overruled(&mut self, levels: Levels<'_>) {
        self.limit.overruled(levels);
        if let Levels::All(ratio) = levels {
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
        let level = self.levels[self.sent.unwrap_or(self.chosen)];
        let own = match (self.to_time.len(), self.settings.samples) {
            (0, _) if self.chosen == 0 => format!("holding {level}"),
            (0, _) => format!("holding {level}, {} steps until a look at the next lower level", self.until_look),
            (left, samples) => {
                let measured = self.costs.samples().min(samples);
                format!("timing {level}, {measured} of {samples} samples, at most {left} levels left")
            }
        };
        super::both(own, self.limit.describe())
    }
}

impl<K: Controller> Stateful for CostAware<K> {
    fn save(&self, state: &mut State) {
        self.costs.save(state);
        state.put("chosen", self.chosen as u64);
        let passed_over = (0..self.levels.len()).filter(|level| self.passed_over[*level]);
        state.put("passed_over", passed_over.map(|level| level as f64).collect::<Vec<f64>>());
        state.put("until_look", self.until_look);
        state.put("has_started", u64::from(self.has_started));
        state.put("is_chosen", u64::from(self.is_chosen));
        // Counted from 1: 0 is none.
        state.put("sent", self.sent.map_or(0, |sent| sent as u64 + 1));
        let overruled = self.overruled.map(|(ratio, left)| vec![ratio.get(), left as f64]);
        state.put("overruled", overruled.unwrap_or_default());
        state.put("to_time", self.to_time.iter().map(|level| *level as f64).collect::<Vec<f64>>());
        state.put_part("limit", &self.limit);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let levels = self.levels.len();
        let valid = |name: &str, level: u64| match usize::try_from(level) {
            Ok(level) if level < levels => Ok(level),
            _ => Err(StateError::mismatch(name, &format!("below {levels} levels"), level)),
        };
        let chosen = valid("chosen", state.u64("chosen")?)?;
        let sent = state.u64("sent")?.checked_sub(1).map(|sent| valid("sent", sent)).transpose()?;
        let to_time = state.f64s("to_time")?.iter().map(|level| valid("to_time", *level as u64));
        let to_time = to_time.collect::<Result<_, _>>()?;
        let (until_look, has_started) = (state.u64("until_look")?, state.u64("has_started")? != 0);
        // A state without it is of a version that always kept what it had chosen.
        let is_chosen = if state.contains("is_chosen") { state.u64("is_chosen")? != 0 } else { has_started };
        let overruled = match state.f64s("overruled")? {
            &[ratio, left] => CompressionFactor::new(ratio).ok().map(|ratio| (ratio, left as u64)),
            _ => None,
        };
        let mut passed_over = vec![false; levels];
        for level in state.f64s("passed_over")? {
            passed_over[valid("passed_over", *level as u64)?] = true;
        }
        self.costs.load(state)?;
        state.load_part("limit", &mut self.limit)?;
        (self.chosen, self.sent, self.to_time) = (chosen, sent, to_time);
        (self.until_look, self.has_started, self.is_chosen) = (until_look, has_started, is_chosen);
        (self.passed_over, self.overruled) = (passed_over, overruled);
        Ok(())
    }
}
