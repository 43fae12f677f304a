//! For `scripts/count-edits.sh`: the mean by another name.

use super::{Aggregator, Mean};
use crate::config::Described;
use crate::{Message, error::AggregateError};

/// The mean.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherMean {
    /// Nothing depends on it.
    pub setting: usize,
}

impl Aggregator for OtherMean {
    fn combine(&mut self, weights: &[f32], parts: &[&Message], out: &mut [f32]) -> Result<(), AggregateError> {
        Mean.combine(weights, parts, out)
    }
    fn is_mean(&self) -> bool {
        true
    }
}

impl Described for OtherMean {
    const NAME: &'static str = "other-mean";
    const SETTINGS: &'static str = "SETTING";
    const HELP: &'static str = "the mean by another name";
}
