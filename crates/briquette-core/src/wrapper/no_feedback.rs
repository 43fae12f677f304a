//! No error feedback: the part of a vector that is not sent is lost.

use crate::Layout;
use crate::config::{Described, Exchange, FeedbackRequirement, FeedbackSettings};
use crate::error::ConfigError;
use crate::reduce::Reducer;

/// No wrapper around the reducer.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct NoFeedback;

impl Described for NoFeedback {
    const NAME: &'static str = "none";
    const HELP: &'static str = "it is lost";
}

impl FeedbackSettings for NoFeedback {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(inner)
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Nothing
    }
}
