//! For `scripts/count-edits.sh`: the mean by another name.

use super::{Aggregator, mean::Mean};
use crate::settings::Described;
use crate::{Message, error::AggregateError};

/// The mean.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "other-mean", help = "the mean by another name")]
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

