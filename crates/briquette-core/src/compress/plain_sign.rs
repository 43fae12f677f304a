//! Plain sign: replaces every value by 1 or −1, without a scale.
//!
//! **Why, and when not.** The compressor of signSGD. The learning rate must set the step size, because no magnitude is sent. The error has
//! no bound in terms of the vector, so error feedback does not work: use [`ScaledSign`](crate::compress::scaled_sign::ScaledSign) for that.
//!
//! **Method.** `C(x) = sign(x)`, with `sign(0) = sign(−0) = 1`, or [drawn](Zero::Random) by the key: in a vote, zeros are the ties.
//!
//! **On the wire.** `16 + 4 + ⌈d/8⌉` bytes (a scale of 1 is sent, so that one decoder serves both signs).
//!
//! **Properties.** Biased, without a general bound: the declared error is that on the given vector.
//!
//! **Deviations.** The code of the first paper maps zero to zero, which needs a third code. Here, as in the second paper's bit packing,
//! zero counts as positive, or as either sign with even chances, so that ties move nothing on average.
//!
//! **Reference.** J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, *signSGD: Compressed Optimisation for
//! Non-Convex Problems*, ICML 2018 (arXiv 1802.04434), algorithm 1; J. Bernstein, J. Zhao, K. Azizzadenesheli,
//! A. Anandkumar, *signSGD with Majority Vote is Communication Efficient and Fault Tolerant*, ICLR 2019 (arXiv 1810.05291).
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, plain_sign::PlainSign};
//! let mut message = Message::default();
//! PlainSign::default().compress_into(&[3.0, -0.1, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 3];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [1.0, -1.0, 1.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::buckets;
use crate::bits::packed_len;
use crate::math::{norm1, norm2};
use crate::seam::{Compressor, Encoding, ErrorBound};
use crate::settings::{CompressorSettings, CompressorTraits, Described};
use crate::{CompressionRatio, Key, Message};

/// Sign of a value that is 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Zero {
    /// Always 1.
    #[default]
    One,
    /// 1 or −1, drawn by the key.
    Random,
}

impl Zero {
    fn is_one(&self) -> bool {
        *self == Zero::One
    }
}

/// Signs without a scale; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "plain-sign",
    help = "one bit a value, without a size: for a hundredth of SGD's rate; of 0, 1 or either by chance"
)]
pub struct PlainSign {
    #[serde(skip_serializing_if = "Zero::is_one")]
    #[setting(syntax = "one|random")]
    zero: Zero,
}

impl PlainSign {
    /// Sets the sign of values that are 0.
    #[must_use]
    pub fn with_zero(self, zero: Zero) -> Self {
        PlainSign { zero }
    }
}

impl Compressor for PlainSign {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::of_bits(1)
    }

    fn encoding(&self) -> Option<Encoding> {
        Some(Encoding::PlainSign { random_zeros: self.zero == Zero::Random })
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (scales, signs) = out.sign(x.len(), x.len().max(1) as u32);
        scales.sized(x.len().min(1)).fill(1.0);
        let signs = signs.sized(packed_len(x.len(), 1));
        buckets::signs(x, signs);
        if self.zero == Zero::Random {
            let key = key.purpose("zeros");
            for (index, _) in x.iter().enumerate().filter(|(_, value)| **value == 0.0) {
                let bit = 1 << (index % 8);
                let drawn = key.word(index / 64) >> (index % 64) & 1 == 1;
                signs[index / 8] = if drawn { signs[index / 8] | bit } else { signs[index / 8] & !bit };
            }
        }
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let energy = norm2(x);
        // ‖x − sign(x)‖² = ‖x‖² − 2‖x‖₁ + d
        let error = energy - 2.0 * norm1(x) + x.len() as f64;
        ErrorBound::Biased { omega: if energy > 0.0 { error / energy } else { f64::INFINITY } }
    }
}

impl CompressorSettings for PlainSign {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { loses_magnitude: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laws::compress::{assert_edges, decoded};

    #[test]
    fn magnitudes_do_not_matter() {
        assert_edges(&mut PlainSign::default());
        let x = [f32::MAX, -1e-45, -0.0, 7.0, -7.0, 0.0, 1.0, -1.0, -1.0];
        assert_eq!(
            decoded(&mut PlainSign::default(), &x, Key::new(0)),
            [1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0]
        );
    }

    #[test]
    fn zeros_are_drawn_where_that_is_asked_for_and_nothing_else_is() {
        let x: Vec<f32> = (0..3001).map(|i| [0.0, 2.0, -3.0][i % 3]).collect();
        let mut compressor = PlainSign::default().with_zero(Zero::Random);
        assert_edges(&mut compressor);
        let [first, again, other] = [1, 1, 2].map(|seed| decoded(&mut compressor, &x, Key::new(seed)));
        assert!(first == again && first != other);
        let zeros: Vec<f32> = first.iter().copied().step_by(3).collect();
        assert!(zeros.iter().sum::<f32>().abs() < 5.0 * (zeros.len() as f32).sqrt());
        assert!(
            first
                .chunks(3)
                .all(|chunk| chunk.get(1).is_none_or(|v| *v == 1.0) && chunk.get(2).is_none_or(|v| *v == -1.0))
        );
    }
}
