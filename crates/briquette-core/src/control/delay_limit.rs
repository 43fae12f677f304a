//! Delay limit: raises the compression ratio while the effective delay of the residual stays within a limit.
//!
//! **Why.** If a residual is kept, the gain does not measure the accuracy that compression costs, because all of a gradient arrives in the
//! end. The *effective delay* `‖residual‖ / ‖gradient‖` ([`ResidualEnergy::delay`](crate::report::ResidualEnergy::delay)) measures this staleness in
//! steps. Measured in the first third of a run, it ranks settings by their loss of accuracy (`docs/evidence/signals.md`). **Why not.** Without
//! a residual there is no delay, and the ratio stays at its start. The controller does not observe times. As the limit of
//! [`CostAware`](crate::control::cost_aware::CostAware), it only excludes the ratios that lose accuracy.
//!
//! **Method.** During the first `window` steps at a ratio, the residual grows to its steady size. The median delay of the next
//! `window` steps is the measurement. The delay is assumed to be proportional to the ratio. The rungs are 1x, 2x, 4x, 10x, 20x, 50x,
//! 100x, … and `max`:
//!
//! - If the delay is above `most`, the next rung is the highest ratio with an expected delay within `most`. The ratio that was too
//!   high may be tried again after 80 steps. This number doubles with each failure.
//! - If the expected delay of the next higher ratio is within `most`, this ratio is next.
//!
//! If an outer controller chooses another ratio than this controller decided ([`Controller::overruled`]), the step counts for the ratio that was
//! sent. A higher ratio becomes the limit if its delay is within `most`; otherwise it does not count as a failure of the limit. Up to five such
//! steps in a row do not count for any ratio, because [`CostAware`](crate::control::cost_aware::CostAware) sends them to time a rung.
//!
//! **Knobs.** [`DelayLimitConfig`]. **Invalid measurements.** A step without a delay (nothing entered the residual, or sums are not finite) is not
//! counted.
//!
//! **Source.** This project's.
//!
//! ```
//! use briquette_core::control::{Agreed, Controller, delay_limit::DelayLimitConfig};
//! use briquette_core::{CompressionRatio, reduce::{AgreedStep, LastExchange}, report::ResidualEnergy};
//! let settings = DelayLimitConfig { max: CompressionRatio::new(100.0)?, most: 1.0, ..Default::default() };
//! let mut controller = settings.controller()?;
//! let (mut ratio, mut previous) = (10.0, None);
//! for step in 0..200 {
//!     let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
//!     controller.observe(&agreed_step);
//!     ratio = controller.decide(&Agreed::new(&agreed_step, &[])).ratio().expect("one for all").get();
//!     // At 10x a fifth of a step waits, and in proportion.
//!     let residual_energy = ResidualEnergy { entered: 1.0, left: (0.02 * ratio) * (0.02 * ratio) };
//!     previous = Some(LastExchange { residual_energy, ..LastExchange::default() });
//! }
//! assert_eq!(ratio, 50.0); // a delay of 1; 100x would be 2
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::reduce::ladder::{LadderConfig, Rungs};
use crate::seam::{Agreed, AgreedStep, Controller, Decision, Ratios};
use crate::settings::{ControllerSettings, Described, Feedback, ReducerConfig};
use crate::{CompressionRatio, stateful};

/// Settings of [`DelayLimit`]; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "delay-limit",
    help = "the highest ratio at which what waits to be sent stays as fresh as `most` steps (100x)",
    representatives("delay-limit:20x,start=4x,window=1")
)]
pub struct DelayLimitConfig {
    /// The highest ratio.
    #[setting(default = "100x")]
    pub max: CompressionRatio,
    /// The initial ratio; `max`, if that is lower.
    #[setting(default = "10x")]
    pub start: CompressionRatio,
    /// The longest effective delay, in steps; positive.
    #[setting(default = 0.2, range = "(0, inf)")]
    pub most: f64,
    /// Number of steps in which a ratio settles, and of the following steps whose delay counts; at least 1.
    #[setting(default = 10, range = "[1, inf)")]
    pub window: u64,
    /// The ratios, and the rings of the ladder.
    #[setting(syntax = "usual|int4|lossless")]
    pub rungs: Rungs,
}

/// Number of steps in a row at another ratio that do not count.
const ASIDE: u64 = 5;
/// Number of steps until a ratio that was too high is tried again for the first time, and the limit on the doublings of this number.
const CLOSED: u64 = 80;
const MOST_DOUBLINGS: u32 = 6;

/// The controller; see the [module](self).
#[derive(Debug, Clone, PartialEq)]
pub struct DelayLimit {
    settings: DelayLimitConfig,
    rungs: Vec<CompressionRatio>,
    /// The ratio decided.
    limit: CompressionRatio,
    /// The ratio sent at the last steps, the number of these steps, and the ratio sent at this step.
    sent: CompressionRatio,
    steps: u64,
    now: CompressionRatio,
    /// Number of steps in a row at another ratio than `sent`.
    aside: u64,
    delays: Vec<f64>,
    /// The lowest ratio that was too high, the number of steps until it may be tried again, and the number of failures.
    too_high: Option<CompressionRatio>,
    closed: u64,
    failures: u32,
    why: Option<String>,
}

impl DelayLimitConfig {
    /// Creates the controller.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for settings out of range.
    pub fn controller(&self) -> Result<DelayLimit, ConfigError> {
        self.check()?;
        let rungs = self.rungs.ratios(self.max);
        let limit = rungs.iter().rev().find(|rung| **rung <= self.start).copied().unwrap_or(rungs[0]);
        let (steps, aside, closed, failures, delays, too_high, why) = Default::default();
        let (settings, sent, now) = (*self, limit, limit);
        Ok(DelayLimit { settings, rungs, limit, sent, steps, now, aside, delays, too_high, closed, failures, why })
    }
}

impl DelayLimit {
    /// Records a step at the present ratio.
    fn learn(&mut self, delay: Option<f64>) {
        self.steps += 1;
        self.closed = self.closed.saturating_sub(1);
        let Some(delay) = delay.filter(|_| self.steps > self.settings.window) else { return };
        self.delays.push(delay);
        if (self.delays.len() as u64) < self.settings.window {
            return;
        }
        let mut delays = std::mem::take(&mut self.delays);
        delays.sort_by(f64::total_cmp);
        self.weigh(delays[(delays.len() - 1) / 2]);
    }

    /// Updates the limit from the delay at the ratio that is sent.
    fn weigh(&mut self, delay: f64) {
        let most = self.settings.most;
        let expected = |rung: CompressionRatio| delay * rung.get() / self.sent.get();
        if self.sent > self.limit {
            // An outer controller sends more. That shows what is fresh enough; what is not has not failed here.
            if delay <= most {
                self.limit = self.sent;
                self.why = Some(format!("effective delay {delay:.2} at {}: up to {}", self.sent, self.limit));
            }
        } else if delay > most {
            let fits = |rung: &&CompressionRatio| **rung < self.sent && expected(**rung) <= most;
            self.limit = self.rungs.iter().rev().find(fits).copied().unwrap_or(CompressionRatio::DENSE);
            self.too_high = Some(self.sent);
            self.closed = CLOSED << self.failures.min(MOST_DOUBLINGS);
            self.failures = self.failures.saturating_add(1);
            self.why = Some(format!("effective delay {delay:.2} at {}: at most {}", self.sent, self.limit));
        } else if self.sent == self.limit {
            let is_open = |next: &CompressionRatio| self.closed == 0 || self.too_high.is_none_or(|high| *next < high);
            let higher = self.rungs.iter().find(|rung| **rung > self.limit).copied();
            if let Some(next) = higher.filter(|next| expected(*next) <= most && is_open(next)) {
                self.limit = next;
                self.why = Some(format!("effective delay {delay:.2} at {}: up to {next}", self.sent));
            }
        }
    }
}

impl Controller for DelayLimit {
    fn observe(&mut self, agreed_step: &AgreedStep) {
        let Some(previous) = &agreed_step.previous else { return };
        self.aside = if self.now == self.sent { 0 } else { self.aside + 1 };
        if self.aside > ASIDE || self.aside > 0 && self.now == self.limit {
            (self.sent, self.steps, self.aside) = (self.now, 0, 0);
            self.delays.clear();
        }
        if self.aside == 0 {
            self.learn(previous.residual_energy.delay());
        }
    }

    fn decide(&mut self, _: &Agreed<'_>) -> Decision<'_> {
        self.now = self.limit;
        Decision::all(self.limit, self.why.take())
    }

    fn overruled(&mut self, ratios: Ratios<'_>) {
        if let Ratios::All(ratio) = ratios {
            self.now = ratio;
        }
    }
}

stateful! {
    impl Stateful for DelayLimit {
        [limit, sent, now, too_high]: numbers("ratios"),
        [steps, closed, failures, aside]: numbers("steps"),
        delays: value("delays"),
    }
    after_load: |it| it.why = None;
}

impl ControllerSettings for DelayLimitConfig {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller()?)))
    }

    fn reducer(&self) -> Option<ReducerConfig> {
        Some(LadderConfig { rungs: self.rungs, ..LadderConfig::default() }.into())
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, self.max]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::ResidualEnergy;
    use crate::seam::LastExchange;

    fn ratio(value: f64) -> CompressionRatio {
        CompressionRatio::new(value).unwrap()
    }

    /// Returns the ratio after each of `steps` steps. `delay` is the delay at a ratio, and the ratio sent is at most `sent`.
    fn run(settings: DelayLimitConfig, steps: u64, sent: f64, delay: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut controller = settings.controller().unwrap();
        let mut previous = None;
        let step = |step| {
            let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
            controller.observe(&agreed_step);
            let decided = controller.decide(&Agreed::new(&agreed_step, &[])).ratio().unwrap().get();
            let now = decided.min(sent);
            if now < decided {
                controller.overruled(Ratios::All(ratio(now)));
            }
            let residual_energy = ResidualEnergy { entered: 1.0, left: delay(now).powi(2) };
            previous = Some(LastExchange { residual_energy, ..LastExchange::default() });
            decided
        };
        (0..steps).map(step).collect()
    }

    /// 50x is sent instead of 10x. At a delay within the limit it becomes the limit. At a longer one nothing has failed, and nothing is stated.
    #[test]
    fn a_higher_ratio_of_an_outer_controller_is_evidence_and_no_failure() {
        for (delay, limit) in [(1.0, 50.0), (8.0, 10.0)] {
            let mut controller =
                DelayLimitConfig { max: ratio(50.0), most: 5.0, ..Default::default() }.controller().unwrap();
            let (mut previous, mut reasons) = (None, 0);
            for step in 0..100 {
                let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
                controller.observe(&agreed_step);
                reasons += usize::from(controller.decide(&Agreed::new(&agreed_step, &[])).reason.is_some());
                controller.overruled(Ratios::All(ratio(50.0)));
                let residual_energy = ResidualEnergy { entered: 1.0, left: delay * delay };
                previous = Some(LastExchange { residual_energy, ..LastExchange::default() });
            }
            assert_eq!((controller.limit, controller.failures), (ratio(limit), 0), "delay {delay}");
            assert_eq!(reasons, usize::from(limit == 50.0));
        }
    }

    /// Starts at 10x with a delay of 0.1 steps. 10 steps settle, and the next 10 count.
    #[test]
    fn the_ratio_rises_while_the_delay_is_expected_to_stay_short_and_no_further() {
        let ratios = run(DelayLimitConfig::default(), 200, f64::MAX, |ratio| 0.0099 * ratio);
        let changes: Vec<_> = ratios.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]).collect();
        assert_eq!(changes.iter().map(|(step, pair)| (step + 1, pair[1])).collect::<Vec<_>>(), [(20, 20.0)]);
    }

    /// Checks that the median counts: one long delay in ten would make the mean and the largest delay too long, and changes nothing.
    #[test]
    fn single_long_delays_do_not_count() {
        let steps = std::cell::Cell::new(0);
        let delay = |_| {
            steps.set(steps.get() + 1);
            if steps.get() % 10 == 5 { 5.0 } else { 0.05 }
        };
        assert_eq!(run(DelayLimitConfig::default(), 26, f64::MAX, delay)[25], 20.0);
    }

    #[test]
    fn a_delay_that_is_too_long_lowers_the_ratio_at_once_to_one_that_fits() {
        // The delay is .82 at 10x. The expected delay is .16 at 2x and .33 at 4x.
        let ratios = run(DelayLimitConfig::default(), 60, f64::MAX, |ratio| 0.082 * ratio);
        assert_eq!((ratios[19], ratios[20], ratios[59]), (10.0, 2.0, 2.0));
        assert_eq!(run(DelayLimitConfig::default(), 60, f64::MAX, |_| 50.0)[59], 1.0);
    }

    /// Rings leave a very small residual, so that from below the ratio above them looks better than it is.
    #[test]
    fn a_ratio_that_was_too_high_is_tried_again_ever_more_rarely() {
        let ratios = run(DelayLimitConfig::default(), 1000, f64::MAX, |ratio| if ratio > 4.0 { 0.8 } else { 0.001 });
        let tries = ratios.windows(2).enumerate().filter(|(_, pair)| pair[0] < 10.0 && pair[1] == 10.0);
        assert_eq!(tries.map(|(step, _)| step + 1).collect::<Vec<_>>(), [100, 280, 620]);
        assert_eq!(ratios[60..100], [4.0; 40]);
    }

    #[test]
    fn nothing_is_learnt_of_ratios_that_are_not_sent() {
        let ratios = run(DelayLimitConfig::default(), 200, 4.0, |_| 0.01);
        assert!(ratios.iter().all(|ratio| *ratio == 10.0), "{ratios:?}");
        // The ratio that is sent, below the limit, has a delay that is too long.
        assert_eq!(run(DelayLimitConfig::default(), 30, 4.0, |_| 0.3)[29], 2.0);
    }

    #[test]
    fn a_look_at_another_ratio_does_not_begin_anew() {
        // Two of eight steps are at 4x.
        let (mut controller, mut previous, mut decided) =
            (DelayLimitConfig::default().controller().unwrap(), None, 0.0);
        for step in 0..40 {
            let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
            controller.observe(&agreed_step);
            decided = controller.decide(&Agreed::new(&agreed_step, &[])).ratio().unwrap().get();
            if step % 8 > 5 {
                controller.overruled(Ratios::All(ratio(4.0)));
            }
            let residual_energy = ResidualEnergy { entered: 1.0, left: 1e-4 };
            previous = Some(LastExchange { residual_energy, ..LastExchange::default() });
        }
        assert_eq!(decided, 20.0);
    }

    #[test]
    fn steps_without_a_delay_change_nothing() {
        for delay in [f64::NAN, f64::INFINITY] {
            assert_eq!(run(DelayLimitConfig::default(), 100, f64::MAX, |_| delay)[99], 10.0);
        }
        let nothing = ResidualEnergy { entered: 0.0, left: 1.0 };
        assert_eq!((nothing.delay(), ResidualEnergy { entered: 1.0, ..nothing }.delay()), (None, Some(1.0)));
    }
}
