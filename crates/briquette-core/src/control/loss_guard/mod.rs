//! Loss guard: lowers the compression ratio for a while if the loss falls behind its own trend.
//!
//! **Why.** A controller that observes gradients can misjudge the effect on the loss: at a large learning rate and 1000x, training
//! diverges while all gains look normal. The loss guard is a safety net around any other controller. It costs nothing, because ranks
//! agree on the loss in the step header anyway. **Why not.** The training loss is noisy, and the loss without compression is unknown.
//! The guard does not detect harm below the noise, or slower progress. [`DelayLimit`](crate::control::delay_limit::DelayLimit) covers
//! these.
//!
//! **Method.** A *point* is the median of the agreed training loss over `window` steps. A line by medians (Theil and Sen) is fitted to
//! the last `points` points. Its *noise* is the largest of three numbers: the median absolute deviation, the average error of earlier
//! lines' predictions, and 1.5 standard errors of the points, from the losses within their windows. The expected value of the next point is the end of the line, less `trust` of its progress per point.
//!
//! When the ratio rises to twice the highest ratio of the last point and of the current one so far, the line from before the rise is
//! kept as a *promise* for the next `points` points. After `j` points the loss should have fallen by `trust + trust² + … + trust^j` of
//! one point's progress. A point that is more than `noises` times the noise above either expectation is an *alarm*. Several points
//! above a promise also cause an alarm: if their distances from it, in noises and less 1.75 each, add up to `noises`.
//!
//! If a loss rises steadily, the line follows it, and its noise grows. The guard therefore also keeps the lowest level of the training
//! loss. This is the lowest median of the points of a line (`points` in a row, and after each start from 4 on). The noise of this
//! level is the larger of the noise of its line and the average error of points *below* their line. Points above a line do not
//! increase it. Each point adds its distance above the lowest level, in noises and at most `noises`, to a sum, and subtracts
//! 0.6·`noises`. The sum never falls below 0. A sum above 2·`noises` is an alarm. The sum has no time limit; an alarm or a point
//! without compression resets it.
//!
//! In 900 simulated runs, the loss falls for 500 steps and then rises exponentially, by 0.01 or by 0.0015 per step, with a noise of
//! standard deviation 0.02, 0.05 or 0.1. One of these has no alarm within 500 steps; the median delay is 20 to 340 steps. Of 3000
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
//! residual](Controller::discards_residual). At 1000x the residual is hundreds of steps old, and training would diverge if it were sent
//! at once when the limit falls.
//!
//! If the training loop reports a validation loss, this is a second trend, with one point per report. Its steady rise is not an
//! alarm, because the usual cause is overfitting. If the training loss rises for other reasons than compression (an adversary, harder
//! data), the guard costs compression, not accuracy. Steps without a loss change nothing. This controller has no effect without any
//! loss, or while points are as expected. The inner controller is notified of the ratios sent instead of its own
//! ([`Controller::overruled`]).
//!
//! **Knobs.** [`LossGuardConfig`].
//!
//! **Source.** This project's. The line is from P. K. Sen, *Estimates of the Regression Coefficient Based on Kendall's Tau*, JASA 63, 1968.
//!
//! ```
//! use briquette_core::CompressionRatio;
//! use briquette_core::control::{Agreed, Controller, loss_guard::{LossGuard, LossGuardConfig}, schedule::Schedule};
//! use briquette_core::reduce::AgreedStep;
//! let inner = Schedule::constant(CompressionRatio::new(100.0)?);
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

use crate::error::ConfigError;
use crate::seam::{Agreed, AgreedStep, Controller, Decision, Needs, Ratios};
use crate::settings::Described;
use crate::{CompressionRatio, stateful};
use trend::{Alarm, Reading, Trend, point};

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
    limit: Option<CompressionRatio>,
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
    limited: Vec<CompressionRatio>,
    /// The limit before the reductions since the last decision.
    before: Option<Option<CompressionRatio>>,
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
    pub fn limit(&self) -> Option<CompressionRatio> {
        self.limit
    }

    /// Lowers the limit to `from / by`. `from` is the highest ratio that may have caused the alarm.
    fn lower(&mut self, from: f64, by: f64, why: String) {
        let to = Some(from / by).filter(|to| *to >= 2.0).unwrap_or(1.0);
        let limit = CompressionRatio::new(to).unwrap_or(CompressionRatio::DENSE);
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

    /// Adds a point and its standard error to one of the two trends. All points are finite.
    fn point(&mut self, of: &str, loss: f64, error: f64) {
        let LossGuardConfig { points, trust, noises, back, .. } = self.settings;
        // A steady rise of the validation loss is more often overfitting than a consequence of compression.
        let rises = of == "training";
        let trend = if rises { &mut self.training } else { &mut self.validation };
        let (highest, reading) = (trend.highest(), Reading { points, trust, noises, rises });
        // Without compression, an alarm cannot be due to compression.
        if let Some(Alarm { loss, most, recovered }) = trend.push((loss, error), reading)
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
            if self.limit != Some(CompressionRatio::DENSE) {
                self.lower(self.training.highest(), f64::INFINITY, "the training loss is not finite".into());
                self.alarms = self.alarms.saturating_add(1);
            }
            return;
        }
        self.losses.push(loss);
        if (self.losses.len() as u64) < self.settings.window {
            return;
        }
        let (alarms, (middle, error)) = (self.alarms, point(&mut std::mem::take(&mut self.losses)));
        self.point("training", middle, error);
        if let Some(limit) = self.limit.filter(|_| alarms == self.alarms) {
            self.hold(middle, limit);
        }
    }

    /// Handles a point without an alarm while there is a limit.
    fn hold(&mut self, loss: f64, limit: CompressionRatio) {
        let LossGuardConfig { back, hold, .. } = self.settings;
        match self.expected.filter(|expected| loss > *expected) {
            None => self.expected = None,
            Some(expected) if limit > CompressionRatio::DENSE => {
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
            let next = CompressionRatio::new(limit.get() * back).unwrap_or(limit);
            self.limit = Some(next).filter(|next| next.get() < self.wanted);
            (self.hold, self.expected) = (hold, None);
            let until = self.limit.map_or("no limit any more".to_owned(), |next| format!("at most {next}"));
            self.why = Some(format!("{hold} points as expected: {until}"));
            self.training.promise();
        }
    }

    /// Returns the limit of this step if the decision exceeds it. At the step that lowers the limit, the previous limit applies.
    fn apply(&mut self, highest: f64) -> Option<CompressionRatio> {
        let before = self.before.take();
        self.gives_up = before.is_some();
        let limit = before.unwrap_or(self.limit).filter(|limit| highest > limit.get());
        self.sent = limit.map_or(highest, |limit| limit.get());
        limit
    }
}

fn highest(ratios: Ratios<'_>) -> f64 {
    match ratios {
        Ratios::Own => 1.0,
        Ratios::All(ratio) => ratio.get(),
        Ratios::PerSlot(ratios) => ratios.iter().map(|ratio| ratio.get()).fold(1.0, f64::max),
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
        reported.into_iter().for_each(|loss| self.point("validation", loss, 0.0));
    }

    fn needs(&self) -> Needs<'_> {
        self.inner.needs()
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let Decision { ratios, reason } = self.inner.decide(agreed);
        let (all, highest) = (matches!(ratios, Ratios::All(_)), highest(ratios));
        self.limited.clear();
        if let Ratios::PerSlot(ratios) = ratios {
            self.limited.extend_from_slice(ratios);
        }
        let limit = self.apply(highest);
        let reason = [self.why.take(), reason].into_iter().flatten().reduce(|own, inner| format!("{own}; {inner}"));
        let ratios = match (all, limit) {
            (true, Some(limit)) => Ratios::All(limit),
            (true, None) => Ratios::All(CompressionRatio::new(highest).unwrap_or(CompressionRatio::DENSE)),
            (false, limit) => {
                let limit = limit.map_or(f64::INFINITY, |limit| limit.get());
                self.limited.iter_mut().filter(|ratio| ratio.get() > limit).for_each(|ratio| {
                    *ratio = CompressionRatio::new(limit).unwrap_or(CompressionRatio::DENSE);
                });
                if self.limited.is_empty() { Ratios::Own } else { Ratios::PerSlot(&self.limited) }
            }
        };
        if limit.is_some() {
            self.inner.overruled(ratios);
        }
        Decision { ratios, reason }
    }

    fn discards_residual(&self) -> bool {
        self.gives_up || self.inner.discards_residual()
    }

    fn overruled(&mut self, ratios: Ratios<'_>) {
        self.sent = highest(ratios);
        self.inner.overruled(ratios);
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
