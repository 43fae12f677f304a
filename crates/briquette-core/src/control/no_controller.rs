//! No controller: the ratio stays at the compressor's own setting.

use crate::error::ConfigError;
use crate::seam::Controller;
use crate::settings::{ControllerSettings, Described, Feedback};

/// No controller.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "none", help = "the compressor's own setting, always")]
pub struct NoController;

impl ControllerSettings for NoController {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(None)
    }
}
