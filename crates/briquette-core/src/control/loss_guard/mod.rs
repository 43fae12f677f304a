//! Loss guard: lowers the compression ratio for a while if the loss falls behind its own trend.
//!
//! **Why.** A controller that reads gradients can be wrong about the loss, which is what matters: at a large learning rate and 1000x,
//! training diverges while all gains look normal. The loss guard is a safety net around any other controller. It costs nothing, since
//! the step header agrees on the loss anyway. **Why not.** The training loss is noisy, and the loss without compression is unknown.
//! Harm below the noise, and slower progress, are not detected. [`DelayLimit`](super::DelayLimit) covers these.
//!
//! **Method.** A point is the median of the agreed training loss over `window` steps. A line by medians (Theil and Sen) is fitted to
//! the last `points` points. Its noise is the larger of the median absolute deviation and the average miss of earlier lines. The
//! expected value of the next point is the line's end, less `trust` of its progress per point. When the ratio rises to twice the
//! highest of the last point and of the present one so far, the line from before the rise is kept as a promise for as many points. The
//! loss should then have fallen by `trust + trust² + … + trust^j` of a point's progress after `j` points. A point that lies more than
//! `noises` times the noise above either expectation is an *alarm*. Points above a promise also are an alarm if their noises, less
//! 1.75 each, add up to `noises`.
//!
//! If a loss rises steadily, the line follows it, and its noise grows. The guard therefore also keeps the lowest level of the training
//! loss: the lowest median of the points of a line, which are `points` in a row, and from 4 on after each start. The noise of this
//! level is that of its line, or the average miss of points *below* their line, whichever is larger. Points above a line do not widen
//! it. Each point adds the number of noises by which it lies above the lowest level to a sum, at most `noises`, less 0.6·`noises`. The
//! sum never falls below 0. A sum above 2·`noises` is an alarm. The sum has no time limit, and is reset by an alarm or by a point
//! without compression. Of 900 simulated runs that fall for 500 steps and then rise exponentially, by 0.01 a step or by 0.0015 a step,
//! at noise of standard deviation 0.02, 0.05 or 0.1, one has no alarm within 500 steps. The median delay is 20 to 340 steps. Of 3000
//! healthy runs of 1000 steps (falling, on a plateau, with lower learning rates, epochs or one cycle) none has an alarm.
//!
//! | event | consequence |
//! |---|---|
//! | alarm | the limit is the highest ratio of the point, divided by `back`; below 2x it is dense. The trend restarts |
//! | two points after an alarm that lie more than a noise above the middle of the expected values | the limit is divided by `back` again, and `hold` is twice the alarm's |
//! | the loss is not a finite number | the limit is dense |
//! | `hold` points without an alarm | the limit is multiplied by `back`: a new attempt, with a promise |
//! | an alarm after a new attempt | `hold` doubles, up to 64 times |
//! | the limit reaches the ratio sent before the alarms | the limit is removed |
//!
//! A lower limit applies from the next step on. The step of the alarm is still sent at the previous limit, and then [discards the
//! residual](Controller::discards_residual). At 1000x the residual is hundreds of steps old, and sending it at once when the limit falls
//! would make training diverge.
//!
//! A validation loss reported by the training loop is a second trend, with one point per report. Its steady rise is not an alarm,
//! since it is more often overfitting. If the training loss rises for other reasons than compression (an adversary, harder data), the
//! guard costs compression, not accuracy. Steps without a loss change nothing. This controller has no effect without any loss, or
//! while points are as expected. The inner controller is notified of the levels sent instead of its own ([`Controller::overruled`]).
//!
//! **Knobs.** [`LossGuardConfig`].
//!
//! **Source.** This project's. The line is from P. K. Sen, *Estimates of the Regression Coefficient Based on Kendall's Tau*, JASA 63, 1968.
//!
//! ```
//! use briquette_core::CompressionFactor;
//! use briquette_core::control::{Agreed, Controller, LossGuard, LossGuardConfig, Schedule};
//! use briquette_core::reduce::AgreedStep;
//! let inner = Schedule::constant(CompressionFactor::new(100.0)?);
//! let mut guard = LossGuard::new(LossGuardConfig::default(), inner)?;
//! let mut reasons = vec![];
//! for step in 0..120 {
//!     // It falls for 80 steps, then rises.
//!     let loss = Some(2.0 - 0.01 * if step < 80 { step as f64 } else { 160.0 - step as f64 });
//!     let agreed_step = AgreedStep { step, loss, ..AgreedStep::default() };
//!     guard.observe(&agreed_step);
//!     let decision = guard.decide(&Agreed::new(&agreed_step, &[]));
//!     reasons.extend(decision.reason.map(|reason| (step, reason)));
//! }
//! let alarm = (99, "training loss 1.35, 1.28 expected: at most 25x".into());
//! assert_eq!(reasons, [alarm, (119, "training loss still 1.55, 1.13 expected: at most 6.25x".into())]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;
mod rise;
#[cfg(test)]
mod tests;
mod trend;

pub use config::LossGuardConfig;

use super::{Agreed, Controller, Decision, Needs};
use crate::CompressionFactor;
use crate::config::Described;
use crate::error::ConfigError;
use crate::reduce::{AgreedStep, Levels};
use crate::stateful;
use trend::{Alarm, Reading, Trend};

/// Number of points after an alarm at which the loss must be as expected.
const PATIENCE: u64 = 2;
/// Maximum number of doublings of the time to a new attempt.
const MOST_DOUBLINGS: u32 = 6;

/// Limits the decisions of the inner controller; see the [module](self).
#[derive(Debug)]
pub struct LossGuard<K> {
    settings: LossGuardConfig,
    inner: K,
    /// The losses since the last point.
    losses: Vec<f64>,
    training: Trend,
    validation: Trend,
    limit: Option<CompressionFactor>,
    /// Number of points until a new attempt.
    hold: u64,
    alarms: u32,
    /// The value to which the training loss has not returned since the last alarm, and the number of points for which it has not.
    /// `None` once the loss has returned.
    expected: Option<f64>,
    late: u64,
    /// The highest ratio of the last step.
    sent: f64,
    /// The ratio sent before the alarms, at which the limit is removed.
    wanted: f64,
    /// The reason for a changed limit, until it is reported.
    why: Option<String>,
    /// Limited ratios of slots.
    limited: Vec<CompressionFactor>,
    /// The limit before the reductions since the last decision.
    before: Option<Option<CompressionFactor>>,
    /// Set if this step discards the residual.
    gives_up: bool,
}

impl<K: Controller> LossGuard<K> {
    /// Creates the guard around `inner`.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for settings out of range.
    pub fn new(settings: LossGuardConfig, inner: K) -> Result<Self, ConfigError> {
        settings.check()?;
        let (training, validation) = Default::default();
        let (losses, limit, hold, alarms, late, why, limited) = Default::default();
        Ok(LossGuard {
            settings,
            inner,
            losses,
            training,
            validation,
            limit,
            hold,
            alarms,
            expected: None,
            late,
            sent: 1.0,
            wanted: 1.0,
            why,
            limited,
            before: None,
            gives_up: false,
        })
    }

    /// Returns the highest ratio that may be sent; `None` if the inner controller decides.
    pub fn limit(&self) -> Option<CompressionFactor> {
        self.limit
    }

    /// Lowers the limit to `from / by`. `from` is the highest ratio that may have caused the alarm.
    fn lower(&mut self, from: f64, by: f64, why: String) {
        let to = Some(from / by).filter(|to| *to >= 2.0).unwrap_or(1.0);
        let limit = CompressionFactor::new(to).unwrap_or(CompressionFactor::DENSE);
        self.before.get_or_insert(self.limit);
        self.wanted = if self.limit.is_some() { self.wanted.max(from) } else { from };
        self.limit = Some(limit);
        self.hold = self.settings.hold.saturating_mul(1 << self.alarms.min(MOST_DOUBLINGS));
        self.late = 0;
        self.why = Some(format!("{why}: at most {limit}"));
        self.losses.clear();
        self.training.restart();
        self.validation.restart();
    }

    /// Adds a point to one of the two trends. All points are finite.
    fn point(&mut self, of: &str, loss: f64) {
        let LossGuardConfig { points, trust, noises, back, .. } = self.settings;
        // A steady rise of the validation loss is more often overfitting than a consequence of compression.
        let rises = of == "training";
        let trend = if rises { &mut self.training } else { &mut self.validation };
        let (highest, reading) = (trend.highest(), Reading { points, trust, noises, rises });
        // Without compression, an alarm cannot be due to compression.
        if let Some(Alarm { loss, most, recovered }) = trend.push(loss, reading)
            && highest > 1.0
        {
            self.lower(highest, back, format!("{of} loss {loss:.2}, {most:.2} expected"));
            self.alarms = self.alarms.saturating_add(1);
            self.expected = (of == "training").then_some(recovered);
        }
    }

    /// Records the training loss of a step.
    fn learn(&mut self, loss: f64) {
        if !loss.is_finite() {
            if self.limit != Some(CompressionFactor::DENSE) {
                self.lower(self.training.highest(), f64::INFINITY, "the training loss is not finite".into());
                self.alarms = self.alarms.saturating_add(1);
            }
            return;
        }
        self.losses.push(loss);
        if (self.losses.len() as u64) < self.settings.window {
            return;
        }
        let mut losses = std::mem::take(&mut self.losses);
        losses.sort_by(f64::total_cmp);
        let (alarms, middle) = (self.alarms, losses[losses.len() / 2]);
        self.point("training", middle);
        if let Some(limit) = self.limit.filter(|_| alarms == self.alarms) {
            self.hold(middle, limit);
        }
    }

    /// Handles a point without an alarm while there is a limit.
    fn hold(&mut self, loss: f64, limit: CompressionFactor) {
        let LossGuardConfig { back, hold, .. } = self.settings;
        match self.expected.filter(|expected| loss > *expected) {
            None => self.expected = None,
            Some(expected) if limit > CompressionFactor::DENSE => {
                self.late += 1;
                if self.late == PATIENCE {
                    self.lower(limit.get(), back, format!("training loss still {loss:.2}, {expected:.2} expected"));
                }
                return;
            }
            Some(_) => {}
        }
        self.hold = self.hold.saturating_sub(1);
        if self.hold == 0 {
            let next = CompressionFactor::new(limit.get() * back).unwrap_or(limit);
            self.limit = Some(next).filter(|next| next.get() < self.wanted);
            (self.hold, self.expected) = (hold, None);
            let until = self.limit.map_or("no limit any more".to_owned(), |next| format!("at most {next}"));
            self.why = Some(format!("{hold} points as expected: {until}"));
            self.training.promise();
        }
    }

    /// Returns the limit of this step if the decision exceeds it. At the step that lowers the limit, the previous limit applies.
    fn apply(&mut self, highest: f64) -> Option<CompressionFactor> {
        let before = self.before.take();
        self.gives_up = before.is_some();
        let limit = before.unwrap_or(self.limit).filter(|limit| highest > limit.get());
        self.sent = limit.map_or(highest, |limit| limit.get());
        limit
    }
}

fn highest(levels: Levels<'_>) -> f64 {
    match levels {
        Levels::Own => 1.0,
        Levels::All(factor) => factor.get(),
        Levels::PerSlot(factors) => factors.iter().map(|factor| factor.get()).fold(1.0, f64::max),
    }
}

impl<K: Controller> Controller for LossGuard<K> {
    fn per_slot(&self) -> bool {
        self.inner.per_slot()
    }

    fn dense_seconds(&self) -> Option<f64> {
        self.inner.dense_seconds()
    }

    fn observe(&mut self, agreed_step: &AgreedStep) {
        self.inner.observe(agreed_step);
        self.training.sent(self.sent);
        self.validation.sent(self.sent);
        agreed_step.loss.into_iter().for_each(|loss| self.learn(loss));
        let reported = agreed_step.validation_loss.filter(|loss| loss.is_finite());
        reported.into_iter().for_each(|loss| self.point("validation", loss));
    }

    fn needs(&self) -> Needs<'_> {
        self.inner.needs()
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let Decision { levels, reason } = self.inner.decide(agreed);
        let (all, highest) = (matches!(levels, Levels::All(_)), highest(levels));
        self.limited.clear();
        if let Levels::PerSlot(factors) = levels {
            self.limited.extend_from_slice(factors);
        }
        let limit = self.apply(highest);
        let reason = [self.why.take(), reason].into_iter().flatten().reduce(|own, inner| format!("{own}; {inner}"));
        let levels = match (all, limit) {
            (true, Some(limit)) => Levels::All(limit),
            (true, None) => Levels::All(CompressionFactor::new(highest).unwrap_or(CompressionFactor::DENSE)),
            (false, limit) => {
                let limit = limit.map_or(f64::INFINITY, |limit| limit.get());
                self.limited.iter_mut().filter(|factor| factor.get() > limit).for_each(|factor| {
                    *factor = CompressionFactor::new(limit).unwrap_or(CompressionFactor::DENSE);
                });
                if self.limited.is_empty() { Levels::Own } else { Levels::PerSlot(&self.limited) }
            }
        };
        if limit.is_some() {
            self.inner.overruled(levels);
        }
        Decision { levels, reason }
    }

    fn discards_residual(&self) -> bool {
        self.gives_up || self.inner.discards_residual()
    }

    fn overruled(&mut self, levels: Levels<'_>) {
        self.sent = highest(levels);
        self.inner.overruled(levels);
    }

    fn describe(&self) -> Option<String> {
        let own = match self.limit {
            Some(limit) => format!("at most {limit} for {} more points of the loss", self.hold),
            None => "the loss sets no limit".to_owned(),
        };
        super::both(own, self.inner.describe())
    }
}

stateful! {
    impl<K: Controller> Stateful for LossGuard<K> {
        [limit, sent, wanted]: numbers("ratios"),
        training: part("training"),
        validation: part("validation"),
        [hold, late]: numbers("hold"),
        losses: value("losses"),
        expected: value("expected"),
        alarms: value("alarms"),
        inner: part("inner"),
    }
    after_load: |it| (it.why, it.before, it.gives_up) = (None, None, false);
}
