//! A compressor of your own.

use briquette::core::compress::{Compressor, ErrorBound};
use briquette::core::config::{CompressorSettings, CompressorTraits, Described};
use briquette::core::{CompressionRatio, Key, Message};
use serde::{Deserialize, Serialize};

/// Sends the sign and the first bits of every value's magnitude relative to the largest of 256 values: `±i/levels` of
/// it, rounded down: `first-bits:3` for 3 levels.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "first-bits", help = "Sign and first bits of every value: LEVELS (3) besides zero, rounded down")]
pub struct FirstBits {
    #[setting(default = 3, range = "[1, 127]")]
    levels: u8,
}

const BUCKET: usize = 256;

impl FirstBits {
    /// Creates a compressor with this number of levels besides zero: 1, 3, 7, …, 127.
    ///
    /// # Panics
    /// If there are none, or more than 127.
    pub fn new(levels: u8) -> Self {
        FirstBits { levels }.checked().expect("1 to 127 levels")
    }
}

impl Compressor for FirstBits {
    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let scales: Vec<f32> =
            x.chunks(BUCKET).map(|values| values.iter().fold(0.0, |largest: f32, v| largest.max(v.abs()))).collect();
        let level = |(value, scale): (&f32, f32)| match scale {
            0.0 => 0,
            // Truncated, not rounded: the magnitude never exceeds the value's.
            scale => (value / scale * f32::from(self.levels)) as i8,
        };
        let scaled = x.iter().zip(scales.iter().flat_map(|scale| [*scale; BUCKET]));
        out.write_levels(x.len(), self.levels, BUCKET, &scales, scaled.map(level)).expect("levels of finite values");
    }

    /// The largest value of a bucket is kept exactly, and no magnitude increases: at least 1/256 of the energy is kept.
    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 / BUCKET as f64 }
    }

    fn nominal(&self) -> CompressionRatio {
        let bits = 1 + (u8::BITS - self.levels.leading_zeros());
        CompressionRatio::new(32.0 / f64::from(bits)).expect("at least 32/8")
    }

    fn selects(&self) -> bool {
        false
    }
}

impl CompressorSettings for FirstBits {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}
