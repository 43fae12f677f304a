//! Settings of [`CostAware`], and their construction.

use serde::{Deserialize, Serialize};

use super::CostAware;
use crate::CompressionFactor;
use crate::config::{ControllerConfig, ControllerSettings, Described, Feedback, ReducerConfig};
use crate::control::{Controller, Schedule};
use crate::error::ConfigError;
use crate::reduce::LadderConfig;

/// Settings of [`CostAware`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CostAwareConfig {
    /// The highest ratio.
    pub max: CompressionFactor,
    /// Share by which a step may be slower than the fastest reachable one; in [0, 1].
    pub tolerance: f64,
    /// Number of steps for which a level is timed, 1 to 5.
    pub samples: usize,
    /// Number of steps from one look at the next lower level to the next look, at least 1.
    pub look: u64,
    /// The controller that sets a limit below `max`; [`NoController`](crate::control::NoController) for no limit.
    pub limit: Box<ControllerConfig>,
}

impl Default for CostAwareConfig {
    fn default() -> Self {
        let max = CompressionFactor::constant(100.0);
        CostAwareConfig { max, tolerance: 0.03, samples: 2, look: 25, limit: Box::new(ControllerConfig::None) }
    }
}

impl Described for CostAwareConfig {
    const NAME: &'static str = "cost-aware";
    const SETTINGS: &'static str = "MAX[,tolerance=SHARE,samples=STEPS,look=STEPS,limit=(CONTROLLER)]";
    const HELP: &'static str =
        "the least compression whose predicted step is within 3 % of the fastest, dense included (100x)";

    fn check(&self) -> Result<(), ConfigError> {
        if !(0.0..=1.0).contains(&self.tolerance) {
            return Err(ConfigError::range("tolerance of cost-aware", "in [0, 1]", self.tolerance));
        }
        if !(1..=5).contains(&self.samples) {
            return Err(ConfigError::range("samples of cost-aware", "1 to 5 steps", self.samples));
        }
        match self.look {
            0 => Err(ConfigError::range("look of cost-aware", "at least 1 step", 0)),
            _ => Ok(()),
        }
    }

    fn representatives() -> Vec<Self> {
        let max = CompressionFactor::constant(8.0);
        vec![CostAwareConfig { max, samples: 1, look: 2, ..CostAwareConfig::default() }]
    }
}

impl ControllerSettings for CostAwareConfig {
    fn build(&self, feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        let limit = self.limit.get().build(feedback, world)?;
        let limit = limit.unwrap_or_else(|| Box::new(Schedule::constant(self.max)));
        Ok(Some(Box::new(CostAware::new(self.clone(), limit, world)?)))
    }

    fn needs_clock(&self) -> bool {
        true
    }

    fn reducer(&self) -> ReducerConfig {
        LadderConfig::default().into()
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, self.max]
    }
}
