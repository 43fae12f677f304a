//! Decides by itself how much to compress, dense included: cost and loss progress together.
//!
//! **Why.** Which ratio pays depends on the link, the machine, the model and the phase of training. This is what
//! [`Config::auto`](crate::config::Config::auto) uses: no setting has to be given. **Why not.** Where ratio and network are known and do
//! not change, a [`Constant`] saves the steps that time other levels (about fourteen at the start).
//!
//! **Method.** [`CostAware`] chooses the least compression whose predicted step is within a few per cent of the fastest, at most what
//! [`LossGuard`] allows; that begins with `max`, and lowers it for a while where the loss falls behind its trend. Written out:
//! `cost-aware:MAX,tolerance=0.04,limit=(loss-guard:(constant:MAX))`.
//!
//! **Knobs.** `max`: 20x, which under momentum correction trained a ResNet-8 as well as dense (five seeds); more compression hardly
//! shortens a step there. What it reads are seconds, so a run replays only on a clock that does.
//!
//! **Source.** This project's.
//!
//! ```
//! use briquette_core::{Layout, config::Config};
//! let config = Config::auto();
//! assert_eq!(config.exchange.controller.to_string(), "auto:20x");
//! config.build(&Layout::flat(1000), 4)?;
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use serde::{Deserialize, Serialize};

use super::{Constant, Controller, CostAware, CostAwareConfig, LossGuard, LossGuardConfig};
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described};
use crate::error::ConfigError;

/// Settings of the controller; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AutoConfig {
    /// The highest ratio.
    pub max: CompressionFactor,
}

impl Default for AutoConfig {
    fn default() -> Self {
        AutoConfig { max: CompressionFactor::constant(20.0) }
    }
}

/// With what timing costs, within 5 % of the fastest.
const TOLERANCE: f64 = 0.04;

impl Described for AutoConfig {
    const NAME: &'static str = "auto";
    const SETTINGS: &'static str = "MAX";
    const HELP: &'static str =
        "what pays here and now by seconds and loss progress, dense included; with reducer ladder (20x)";
}

impl ControllerSettings for AutoConfig {
    fn build(&self, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        let guard = LossGuard::new(LossGuardConfig::default(), Constant(self.max))?;
        let settings = CostAwareConfig { max: self.max, tolerance: TOLERANCE, ..CostAwareConfig::default() };
        Ok(Some(Box::new(CostAware::new(settings, guard, world)?)))
    }

    fn needs_clock(&self) -> bool {
        true
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [CompressionFactor::DENSE, self.max]
    }
}
