//! For `scripts/count-edits.sh`: settings of a memory; what they build is there already.

use super::error_feedback::ErrorFeedback;
use crate::Layout;
use crate::settings::{FeedbackRequirement, Described, Exchange, FeedbackSettings};
use crate::error::ConfigError;
use crate::reduce::Reducer;

/// Error feedback.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "other-error", help = "error feedback by another name")]
pub struct OtherError {
    /// Nothing depends on it.
    pub setting: usize,
}

impl FeedbackSettings for OtherError {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(ErrorFeedback::new(inner)))
    }
    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Bounded
    }
}
