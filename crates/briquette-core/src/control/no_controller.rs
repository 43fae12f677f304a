//! No controller: the ratio stays at the compressor's own setting.

use super::Controller;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::error::ConfigError;

/// No controller.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct NoController;

impl Described for NoController {
    const NAME: &'static str = "none";
    const HELP: &'static str = "the compressor's own setting, always";
}

impl ControllerSettings for NoController {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(None)
    }
}
