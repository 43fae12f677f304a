//! Min-max quantization: eight bits per value, evenly spaced between the smallest and the largest value of its block.
//!
//! **Why, and when not.** A quarter of the bytes for almost no loss, nearly as fast as copying: use it if the network is only somewhat too
//! slow. Needs no error feedback in practice.
//!
//! **Method.** Per block with range `[low, high]`: `code = round(255·(x − low)/(high − low))`, and
//! `C(x) = low·(1 − code/255) + high·(code/255)`, within the range. Both ends and a block of equal values are exact.
//!
//! **On the wire.** `16 + 8·⌈d/block⌉ + d` bytes.
//!
//! **Properties.** Contractive with `δ = 1 − n/(2·255²)`, `n = min(block, d)`: an error is at most half a step, and
//! `‖x‖² ≥ low² + high² ≥ (high − low)²/2`. That is 0.998 at the default block.
//!
//! **Knobs.** `block` in values, default 256.
//!
//! **Reference.** The usual per-block affine quantization; T. Dettmers, *8-Bit Approximations for Parallelism in Deep
//! Learning*, ICLR 2016 (arXiv 1511.04561), compares it with other 8-bit types.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::Compressor;
//! use briquette_core::compress::min_max::MinMax;
//! let mut message = Message::default();
//! MinMax::new().compress_into(&[0.0, 255.0, 100.4, -0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 4];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded.map(f32::round), [0.0, 255.0, 100.0, 0.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::bucket_size;
use super::buckets::{Segment, write_affine};
use crate::error::ConfigError;
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// 8-bit codes in blocks; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "minmax",
    help = "8 bits between the ends of each block (256)",
    representatives("minmax:20"),
    combinations("reducer=gather:topk:8x+minmax:20 feedback=error")
)]
pub struct MinMax {
    #[setting(default = 256, range = "[1, inf)")]
    block: u32,
}

impl MinMax {
    /// Creates a compressor with blocks of 256 values.
    pub fn new() -> Self {
        MinMax::default()
    }

    /// Creates a compressor with blocks of `block` values.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if `block` is 0 or has more than 32 bits.
    pub fn blocks(block: usize) -> Result<Self, ConfigError> {
        Ok(MinMax { block: bucket_size(block)? })
    }
}

/// Returns the smallest and the largest value, compared by bits that order as integers do: the compiler vectorizes integer comparisons,
/// unlike those of floats.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn range(x: &[f32]) -> [f32; 2] {
    // Its own inverse: flips the magnitude's bits if the sign is set.
    let turned = |bits: i32| bits ^ (((bits >> 31) as u32) >> 1) as i32;
    let (mut low, mut high) = (i32::MAX, i32::MIN);
    for v in x {
        let order = turned(v.to_bits() as i32);
        low = low.min(order);
        high = high.max(order);
    }
    [low, high].map(|order| f32::from_bits(turned(order) as u32))
}

/// Writes the codes of one segment.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512dq+avx512vl", "x86_64+avx2"))]
fn encode<'a>(segment: Segment<'a, [f32; 2]>, block: u32, codes: &mut [u8]) {
    segment.for_buckets(block, |[low, high], range| {
        let (x, codes) = (&segment.x[range.clone()], &mut codes[range]);
        // Halves, because the whole range may exceed f32.
        let (half_low, half_range) = (low * 0.5, high * 0.5 - low * 0.5);
        let per_step = 255.0 / half_range;
        if half_range < f32::MIN_POSITIVE || !per_step.is_normal() {
            return encode_extreme(x, [low, high], codes);
        }
        for (code, x) in codes.iter_mut().zip(x) {
            // Adding 1.5·2²³ leaves the nearest integer in the lowest bits: faster than any conversion.
            let rounded = (x * 0.5 - half_low) * per_step + 12_582_912.0;
            *code = rounded.to_bits() as u8;
        }
    });
}

/// Writes the codes for ranges too small or too large for f32 arithmetic.
fn encode_extreme(x: &[f32], ends: [f32; 2], codes: &mut [u8]) {
    let [low, high] = ends.map(f64::from);
    for (code, x) in codes.iter_mut().zip(x) {
        *code = if high > low { ((f64::from(*x) - low) / (high - low) * 255.0).round() as u8 } else { 0 };
    }
}

impl Compressor for MinMax {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(8)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::MinMax { block: self.block as usize })
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        write_affine((x, self.block), range, |segment, codes| encode(segment, self.block, codes), out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let n = x.len().min(self.block as usize) as f64;
        // A thousandth for the step, plus the rounding of the decoded value relative to the largest of its block.
        let lost = 1.001 * n / (2.0 * 255.0 * 255.0) + n * 2_f64.powi(-44);
        ErrorBound::Contractive { delta: (1.0 - lost).max(0.0) }
    }
}

impl CompressorSettings for MinMax {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits::default()
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::compress::{assert_edges, decoded};
    use proptest::prelude::*;

    #[test]
    fn blocks_by_hand() {
        // Blocks of 3: range [−1, 1], a step is 2/255; 0.5 is 1.5/2·255 = 191.25 steps up: code 191. Then [5, 5].
        let mut message = Message::default();
        MinMax::blocks(3).unwrap().compress_into(&[-1.0, 0.5, 1.0, 5.0, 5.0], Key::new(0), &mut message);
        let mut out = [0.0; 5];
        message.decode_into(&mut out).unwrap();
        assert_eq!(out, [-1.0, -(1.0 - 191.0 / 255.0) + 191.0 / 255.0, 1.0, 5.0, 5.0]);
        assert_eq!(message.encoded_len(), 16 + 8 * 2 + 5);
    }

    #[test]
    fn edges_stay_finite_and_settings_are_checked() {
        assert_edges(&mut MinMax::new());
        assert!(MinMax::blocks(0).is_err());
        let widest = [f32::MAX, -f32::MAX, 0.0];
        assert_eq!(decoded(&mut MinMax::new(), &widest, Key::new(0))[..2], widest[..2]);
        let narrow = [1e-45, 0.0, 3e-45];
        assert_eq!(decoded(&mut MinMax::new(), &narrow, Key::new(0)), narrow);
    }

    proptest! {
        #[test]
        fn no_value_is_further_than_half_a_step_away(x in proptest::collection::vec(-1e3_f32..1e3, 1..300), block in 1..80_usize) {
            let out = decoded(&mut MinMax::blocks(block).unwrap(), &x, Key::new(0));
            for (x, out) in x.chunks(block).zip(out.chunks(block)) {
                let [low, high] = range(x);
                prop_assert_eq!([low, high], [x.iter().copied().fold(f32::MAX, f32::min), x.iter().copied().fold(f32::MIN, f32::max)]);
                prop_assert!(x.iter().zip(out).all(|(a, b)| (a - b).abs() <= (high - low) / 510.0 * 1.001 + 1e-3));
            }
        }
    }
}
