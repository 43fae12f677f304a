//! Only the signs: every value becomes 1 or −1.
//!
//! **Why, and when not.** What signSGD sends. The learning rate must bring the size of a step, as nothing of it travels; and
//! as the error has no bound in terms of the vector, error feedback has nothing to hold on to: use
//! [`ScaledSign`](super::ScaledSign) for that.
//!
//! **Method.** `C(x) = sign(x)`, with `sign(0) = sign(−0) = 1`.
//!
//! **On the wire.** `16 + 4 + ⌈d/8⌉` bytes (a scale of 1 travels, so that one decoder serves both signs).
//!
//! **Properties.** Biased, of no class: what is declared is the error on the vector at hand.
//!
//! **Deviations.** The code of the first paper maps zero to zero, which needs a third code; here, as in the second paper's bit
//! packing, zero counts as positive.
//!
//! **Reference.** J. Bernstein, Y.-X. Wang, K. Azizzadenesheli, A. Anandkumar, *signSGD: Compressed Optimisation for
//! Non-Convex Problems*, ICML 2018 (arXiv 1802.04434), algorithm 1; J. Bernstein, J. Zhao, K. Azizzadenesheli,
//! A. Anandkumar, *signSGD with Majority Vote is Communication Efficient and Fault Tolerant*, ICLR 2019 (arXiv 1810.05291).
//!
//! ```
//! use briquette_core::{Key, Message, compress::{Compressor, PlainSign}};
//! let mut message = Message::default();
//! PlainSign.compress_into(&[3.0, -0.1, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 3];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [1.0, -1.0, 1.0]);
//! # Ok::<(), briquette_core::error::WireError>(())
//! ```

use super::{Compressor, ErrorBound, Knobs, Spec, buckets};
use crate::bits::packed_len;
use crate::error::ConfigError;
use crate::math::{norm1, norm2};
use crate::{CompressionFactor, Key, Message};

/// Signs without a scale; see the [module](self).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PlainSign;

impl Compressor for PlainSign {
    fn nominal(&self) -> CompressionFactor {
        CompressionFactor::of_bits(1)
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        let (scales, signs) = out.sign(x.len(), x.len().max(1) as u32);
        scales.sized(x.len().min(1)).fill(1.0);
        buckets::signs(x, signs.sized(packed_len(x.len(), 1)));
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let energy = norm2(x);
        // ‖x − sign(x)‖² = ‖x‖² − 2‖x‖₁ + d
        let error = energy - 2.0 * norm1(x) + x.len() as f64;
        ErrorBound::Biased { omega: if energy > 0.0 { error / energy } else { f64::INFINITY } }
    }
}

impl std::fmt::Display for PlainSign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("plain-sign")
    }
}

impl Spec for PlainSign {
    const SYNTAX: &'static str = "plain-sign";
    const HELP: &'static str = "one bit a value";
    const NEEDS_FEEDBACK: bool = false;
    const SPARSE: bool = false;
    const SEARCHES: bool = false;

    fn parse(name: &str, _knobs: &mut Knobs<'_>) -> Result<Option<Self>, ConfigError> {
        Ok((name == "plain-sign").then_some(PlainSign))
    }

    fn is_exact(&self) -> bool {
        false
    }

    fn representative() -> Self {
        PlainSign
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testkit::{assert_edges, decoded};

    #[test]
    fn magnitudes_do_not_matter() {
        assert_edges(&mut PlainSign);
        let x = [f32::MAX, -1e-45, -0.0, 7.0, -7.0, 0.0, 1.0, -1.0, -1.0];
        assert_eq!(decoded(&mut PlainSign, &x, Key::new(0)), [1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0, -1.0, -1.0]);
    }
}
