//! For `scripts/count-edits.sh`: settings of a memory; what they build is there already.

use super::ErrorFeedback;
use crate::Layout;
use crate::config::{FeedbackRequirement, Described, Exchange, FeedbackSettings};
use crate::error::ConfigError;
use crate::reduce::Reducer;

/// Error feedback.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherError {
    /// Nothing depends on it.
    pub setting: usize,
}

impl Described for OtherError {
    const NAME: &'static str = "other-error";
    const SETTINGS: &'static str = "SETTING";
    const HELP: &'static str = "error feedback by another name";
}

impl FeedbackSettings for OtherError {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner)))
    }
    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }
}
