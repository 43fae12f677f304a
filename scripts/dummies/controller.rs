//! For `scripts/count-edits.sh`: settings of a controller; what they build is there already.

use super::{Controller, Schedule};
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::error::ConfigError;

/// Twice a factor.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Twice {
    /// Half of what every step sends.
    pub factor: CompressionFactor,
}

impl Default for Twice {
    fn default() -> Self {
        Twice { factor: CompressionFactor::constant(4.0) }
    }
}

impl Described for Twice {
    const NAME: &'static str = "twice";
    const SETTINGS: &'static str = "FACTORx";
    const HELP: &'static str = "twice a ratio";
}

impl ControllerSettings for Twice {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(Schedule::constant(CompressionFactor::new(2.0 * self.factor.get())?))))
    }
}
