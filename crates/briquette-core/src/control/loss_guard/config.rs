//! Settings of the loss guard.

use serde::{Deserialize, Serialize};

use super::LossGuard;
use crate::CompressionFactor;
use crate::config::{ControllerConfig, ControllerSettings, Described, Feedback, ReducerConfig};
use crate::control::{Controller, ScheduleConfig};
use crate::error::ConfigError;

/// Settings of [`LossGuard`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LossGuardConfig {
    /// The inner controller, which is guarded.
    pub inner: Box<ControllerConfig>,
    /// Number of steps per point, at least 1.
    pub window: u64,
    /// Number of points of a trend, at least 4.
    pub points: usize,
    /// Share of a point's progress that is expected of the next one, in [0, 1).
    pub trust: f64,
    /// Number of noises that a point may lie above its expected value, positive.
    pub noises: f64,
    /// Factor that divides the ratio after an alarm, and multiplies it for a new attempt; above 1.
    pub back: f64,
    /// Number of points from an alarm to the first new attempt, at least 1.
    pub hold: u64,
}

impl Default for LossGuardConfig {
    fn default() -> Self {
        let inner = Box::new(ScheduleConfig::constant(CompressionFactor::constant(10.0)).into());
        LossGuardConfig { inner, window: 10, points: 8, trust: 0.5, noises: 5.0, back: 4.0, hold: 8 }
    }
}

impl Described for LossGuardConfig {
    const NAME: &'static str = "loss-guard";
    const SETTINGS: &'static str =
        "(CONTROLLER)[,window=STEPS,points=POINTS,trust=SHARE,noises=TIMES,back=TIMES,hold=POINTS]";
    const HELP: &'static str =
        "lowers the ratio of another controller where the loss falls behind its trend (schedule:10x)";

    fn check(&self) -> Result<(), ConfigError> {
        let positive = |name: &'static str, value: u64| match value {
            0 => Err(ConfigError::range(name, "at least 1", 0)),
            _ => Ok(()),
        };
        positive("window of loss-guard", self.window)?;
        positive("hold of loss-guard", self.hold)?;
        if self.points < 4 {
            return Err(ConfigError::range("points of loss-guard", "at least 4", self.points));
        }
        if !(0.0..1.0).contains(&self.trust) {
            return Err(ConfigError::range("trust of loss-guard", "in [0, 1)", self.trust));
        }
        if !(self.noises > 0.0 && self.noises.is_finite()) {
            return Err(ConfigError::range("noises of loss-guard", "a positive number", self.noises));
        }
        if !(self.back > 1.0 && self.back.is_finite()) {
            return Err(ConfigError::range("back of loss-guard", "a number above 1", self.back));
        }
        Ok(())
    }

    fn representatives() -> Vec<Self> {
        vec![LossGuardConfig { window: 1, points: 4, hold: 1, ..LossGuardConfig::default() }]
    }
}

impl ControllerSettings for LossGuardConfig {
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        let inner = self.inner.get().build(feedback, world)?.ok_or_else(|| {
            let inner = format!("controller {}", self.inner);
            ConfigError::conflict(
                "controller loss-guard",
                inner,
                "it limits another controller",
                "use loss-guard:gravac",
            )
        })?;
        Ok(Some(Box::new(LossGuard::new(self.clone(), inner)?)))
    }

    fn per_slot(&self) -> bool {
        self.inner.get().per_slot()
    }

    fn reducer(&self) -> ReducerConfig {
        self.inner.get().reducer()
    }

    fn needs_clock(&self) -> bool {
        self.inner.get().needs_clock()
    }

    fn reads_seconds(&self) -> bool {
        self.inner.get().reads_seconds()
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        let [_, most] = self.inner.get().ratios();
        [CompressionFactor::DENSE, most]
    }
}
