//! A dummy: takes every gradient, as asynchronous SGD does.

use super::{Arrival, Policy, PolicySettings, Verdict};
use crate::config::Described;
use crate::error::ConfigError;

/// Takes every gradient.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherAsync {
    /// Changes nothing.
    pub other: usize,
}

impl Described for OtherAsync {
    const NAME: &'static str = "other-async";
    const SETTINGS: &'static str = "OTHER";
    const HELP: &'static str = "every gradient, as async-sgd does";
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
