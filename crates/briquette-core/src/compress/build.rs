//! Builds compressors from settings.

use super::{ValueKind, coded::Coded, top_k::TopK};
use crate::CompressionRatio;
use crate::seam::Compressor;
use crate::settings::CompressorConfig;

impl CompressorConfig {
    /// Top-k with 8-bit values.
    pub fn top_k_q8(ratio: CompressionRatio) -> Self {
        TopK::ratio(ratio).with_values(ValueKind::Q8).into()
    }

    /// Builds the compressor.
    pub fn build(&self) -> Box<dyn Compressor> {
        let compressor = self.compressor().get().build();
        match self.values() {
            None => compressor,
            Some(values) => Box::new(Coded::new(compressor, values.get().build())),
        }
    }
}
