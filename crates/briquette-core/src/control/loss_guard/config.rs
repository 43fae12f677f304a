//! Settings of the loss guard.

use serde::{Deserialize, Serialize};

use super::LossGuard;
use crate::CompressionRatio;
use crate::error::ConfigError;
use crate::seam::Controller;
use crate::settings::{ControllerConfig, ControllerSettings, Described, Feedback, ReducerConfig};

/// Settings of [`LossGuard`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "loss-guard",
    help = "lowers the ratio of another controller where the loss falls behind its trend (schedule:10x)",
    representatives("loss-guard:schedule:10x,window=1,points=4,hold=1")
)]
pub struct LossGuardConfig {
    /// The inner controller, which is guarded.
    #[setting(default = "schedule:10x", syntax = "(CONTROLLER)")]
    pub inner: ControllerConfig,
    /// Number of steps per point, at least 1.
    #[setting(default = 10, range = "[1, inf)")]
    pub window: u64,
    /// Number of points of a trend, at least 4.
    #[setting(default = 8, range = "[4, inf)")]
    pub points: usize,
    /// Share of a point's progress that is expected of the next one, in [0, 1).
    #[setting(default = 0.5, range = "[0, 1)")]
    pub trust: f64,
    /// Number of noises that a point may lie above its expected value, positive.
    #[setting(default = 5.0, range = "(0, inf)")]
    pub noises: f64,
    /// Factor that divides the ratio after an alarm, and multiplies it for a new attempt; above 1.
    #[setting(default = 4.0, range = "(1, inf)")]
    pub back: f64,
    /// Number of points from an alarm to the first new attempt, at least 1.
    #[setting(default = 8, range = "[1, inf)")]
    pub hold: u64,
}

impl ControllerSettings for LossGuardConfig {
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        let inner = self.inner.get().build(feedback, world)?.ok_or_else(|| {
            let inner = format!("controller {}", self.inner);
            ConfigError::conflict(
                "controller loss-guard",
                inner,
                "it limits another controller",
                "use loss-guard:cost-aware",
            )
        })?;
        Ok(Some(Box::new(LossGuard::new(self.clone(), inner)?)))
    }

    fn per_slot(&self) -> bool {
        self.inner.get().per_slot()
    }

    fn reducer(&self) -> Option<ReducerConfig> {
        self.inner.get().reducer()
    }

    fn needs_clock(&self) -> bool {
        self.inner.get().needs_clock()
    }

    fn reads_seconds(&self) -> bool {
        self.inner.get().reads_seconds()
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        let [_, most] = self.inner.get().ratios();
        [CompressionRatio::DENSE, most]
    }
}
