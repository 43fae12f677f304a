//! For `scripts/count-edits.sh`: keeps the first half.

use super::{ErrorBound, Compressor, Knobs, Spec};
use crate::error::ConfigError;
use crate::{CompressionFactor, Key, Message};

/// The first half of the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FirstHalf;

impl Compressor for FirstHalf {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let kept = (0..).zip(x.iter().copied()).take(x.len().div_ceil(2));
        out.write_sparse(x.len(), kept).expect("indices ascend");
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 0.0 }
    }
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::constant(2.0)
    }
    fn selects(&self) -> bool {
        true
    }
}

impl std::fmt::Display for FirstHalf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("first-half")
    }
}

impl Spec for FirstHalf {
    const SYNTAX: &'static str = "first-half";
    const HELP: &'static str = "the first half of the values";
    const NEEDS_FEEDBACK: bool = true;
    const SPARSE: bool = true;
    const SEARCHES: bool = false;

    fn parse(name: &str, _knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        Ok((name == "first-half").then_some(FirstHalf))
    }
    fn is_exact(&self) -> bool {
        true
    }
    fn representative() -> Self {
        FirstHalf
    }
}
