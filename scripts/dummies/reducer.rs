//! For `scripts/count-edits.sh`: settings of a reducer; what they build is there already.

use super::{Dense, Reducer};
use crate::Layout;
use crate::compress::ErrorBound;
use crate::config::{Described, Exchange, ReducerSettings, ReducerTraits};
use crate::error::ConfigError;

/// An exact all-reduce.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherDense {
    /// Nothing depends on it.
    pub setting: usize,
}

impl Described for OtherDense {
    const NAME: &'static str = "other-dense";
    const SETTINGS: &'static str = "SETTING";
    const HELP: &'static str = "an exact all-reduce by another name";
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
