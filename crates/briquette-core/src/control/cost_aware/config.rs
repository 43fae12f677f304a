//! Settings of [`CostAware`], and their construction.

use serde::{Deserialize, Serialize};

use super::CostAware;
use crate::CompressionRatio;
use crate::control::schedule::Schedule;
use crate::error::ConfigError;
use crate::reduce::ladder::{LadderConfig, Rungs};
use crate::seam::Controller;
use crate::settings::{ControllerConfig, ControllerSettings, Described, Feedback, ReducerConfig};

/// Settings of [`CostAware`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "cost-aware",
    help = "the least compression whose predicted step is within 3 % of the fastest, dense included (100x)",
    representatives(
        "cost-aware:8x,samples=1,look=2",
        "cost-aware:8x,samples=1,look=2,steps=12,budget=2000,deadline=60"
    )
)]
pub struct CostAwareConfig {
    /// The highest ratio.
    #[setting(default = "100x")]
    pub max: CompressionRatio,
    /// Share by which a step may be slower than the fastest reachable one; in [0, 1].
    #[setting(default = 0.03, range = "[0, 1]")]
    pub tolerance: f64,
    /// Number of steps for which a ratio is timed, 1 to 5.
    #[setting(default = 2, range = "[1, 5]")]
    pub samples: usize,
    /// Number of steps from one look at the next lower ratio to the next look, at least 1.
    #[setting(default = 25, range = "[1, inf)")]
    pub look: u64,
    /// Number of steps of the run, over which `budget` and `deadline` are spread.
    #[setting(range = "[1, inf)")]
    pub steps: Option<u64>,
    /// Bytes that all ranks together may send in these steps.
    #[setting(range = "(0, inf)")]
    pub budget: Option<f64>,
    /// Seconds that these steps may take.
    #[setting(range = "(0, inf)")]
    pub deadline: Option<f64>,
    /// The ratios, and the rings of the ladder.
    #[setting(syntax = "usual|int4|lossless")]
    pub rungs: Rungs,
    /// The controller that sets a limit below `max`; [`NoController`](crate::control::no_controller::NoController) for no limit.
    #[setting(default = "none", syntax = "(CONTROLLER)")]
    pub limit: ControllerConfig,
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

    fn reducer(&self) -> Option<ReducerConfig> {
        Some(LadderConfig { rungs: self.rungs, ..LadderConfig::default() }.into())
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [CompressionRatio::DENSE, self.max]
    }

    fn is_dense_alone(&self) -> bool {
        true
    }
}
