//! For `scripts/count-edits.sh`: keeps the first half.

use super::{Compressor, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// The first half of the values.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "first-half", help = "the first half of the values")]
pub struct FirstHalf;

impl Compressor for FirstHalf {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let kept = (0..).zip(x.iter().copied()).take(x.len().div_ceil(2));
        out.write_sparse(x.len(), kept).expect("indices ascend");
    }
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 0.0 }
    }
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::constant(2.0)
    }
    fn selects(&self) -> bool {
        true
    }
}

impl CompressorSettings for FirstHalf {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, is_exact: true, is_sparse: true, ..CompressorTraits::default() }
    }
    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}
