//! For `scripts/count-edits.sh`: settings of a reducer; what they build is there already.

use super::{Reducer, dense::Dense};
use crate::Layout;
use crate::compress::ErrorBound;
use crate::settings::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::error::ConfigError;

/// An exact all-reduce.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "other-dense", help = "an exact all-reduce by another name")]
pub struct OtherDense {
    /// Nothing depends on it.
    pub setting: usize,
}

impl ReducerSettings for OtherDense {
    fn build(&self, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Dense))
    }
    fn traits(&self) -> ReducerTraits {
        Dense.traits()
    }
    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        ReducerSettings::error_bound(&Dense, len)
    }
}
