//! No error feedback: the part of a vector that is not sent is lost.

use crate::Layout;
use crate::error::ConfigError;
use crate::seam::Reducer;
use crate::settings::{Described, Exchange, FeedbackRequirement, FeedbackSettings};

/// No wrapper around the reducer.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "none", help = "it is lost")]
pub struct NoFeedback;

impl FeedbackSettings for NoFeedback {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(inner)
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Nothing
    }

    fn is_identity_when_dense(&self) -> bool {
        true
    }
}
