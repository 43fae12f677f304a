//! A dummy: takes every gradient, as asynchronous SGD does.

use super::{Arrival, Policy, PolicySettings, Verdict};
use crate::settings::Described;
use crate::error::ConfigError;

/// Takes every gradient.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "other-async", help = "every gradient, as async-sgd does")]
pub struct OtherAsync {
    /// Changes nothing.
    pub other: usize,
}

impl PolicySettings for OtherAsync {
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError> {
        super::check(self, workers)?;
        Ok(Box::new(*self))
    }
}

impl Policy for OtherAsync {
    fn judge(&self, _: &Arrival<'_>) -> Verdict {
        Verdict::Accepted
    }
}
