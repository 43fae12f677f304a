//! For `scripts/count-edits.sh`: settings of a controller; what they build is there already.

use super::{Controller, schedule::Schedule};
use crate::CompressionRatio;
use crate::settings::{ControllerSettings, Described, Feedback};
use crate::error::ConfigError;

/// Twice a ratio.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "twice", help = "twice a ratio")]
pub struct Twice {
    /// Half of what every step sends.
    #[setting(default = "4x")]
    pub ratio: CompressionRatio,
}

impl ControllerSettings for Twice {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(Schedule::constant(CompressionRatio::new(2.0 * self.ratio.get())?))))
    }
}
