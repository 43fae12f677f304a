//! Adaptive random sparsification: keeps one value, drawn with probability proportional to its magnitude.
//!
//! **Why, and when not.** The smallest useful message: 22 bytes or so per vector. Use it per slot, or for vectors of few values. For long
//! vectors the residual takes very many steps to drain.
//!
//! **Method.** `C(x) = xᵢ·eᵢ` with probability `|xᵢ|/‖x‖₁`. The draw inverts the cumulative sum of magnitudes, block by block of 4 096
//! values and then value by value. The zero vector sends nothing.
//!
//! | paper | here |
//! |---|---|
//! | `|xᵢ|/‖x‖₁` | a share of the sum in `find` |
//! | `δ` (of B³) ≤ d | 1/`delta` of the error bound |
//!
//! **On the wire.** `17 + ⌈(1 + r + ⌊i/2ʳ⌋)/8⌉ + 4` bytes for position `i`, `r` the best Rice parameter; 17 for zeros.
//!
//! **Properties.** `E‖C(x)‖² = ⟨E C(x), x⟩ = Σ|xᵢ|³/‖x‖₁` and `E‖x − C(x)‖² = ‖x‖² − Σ|xᵢ|³/‖x‖₁`, exactly: contractive in the mean with δ
//! = Σ|xᵢ|³/(‖x‖₁‖x‖²), at least 1/d, which equal magnitudes attain. Kept values are bit-exact. Needs error feedback.
//!
//! **Knobs.** None. The ratio is `d`, so it depends on the vector: the nominal one is 1.
//!
//! **Deviations.** None.
//!
//! **Reference.** A. Beznosikov, S. Horváth, P. Richtárik, M. Safaryan, *On Biased Compression for Distributed Learning*,
//! JMLR 24 (276), 2023 (arXiv 2002.12410), adaptive random sparsification.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{Compressor, ErrorBound};
//! use briquette_zoo::compress::adaptive_random::AdaptiveRandom;
//! // (27 + 1)/((3 + 1)·(9 + 1)) = 0.7.
//! assert_eq!(AdaptiveRandom.error_bound(&[3.0, -1.0]), ErrorBound::MeanContractive { delta: 0.7 });
//! let mut message = Message::default();
//! AdaptiveRandom.compress_into(&[3.0, -1.0], Key::new(0), &mut message);
//! assert_eq!(message.kept(), 1);
//! ```

use rand::Rng;

use briquette_core::compress::threshold::fill;
use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::math::{norm1, norm2};
use briquette_core::{BLOCK, CompressionRatio, Key, Message};

/// Keeps one value, drawn by magnitude; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "adaptive-random", help = "one value, drawn by magnitude")]
pub struct AdaptiveRandom;

impl Compressor for AdaptiveRandom {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }

    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        let (indices, values) = out.start_sparse_f32(x.len());
        indices.extend(find(x, key.block(0).random()));
        fill(x, indices, values);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let total = norm1(x) * norm2(x);
        let cubes: f64 = x.iter().map(|v| f64::from(v.abs()).powi(3)).sum();
        // Zeros lose nothing.
        if total == 0.0 {
            ErrorBound::Contractive { delta: 1.0 }
        } else {
            ErrorBound::MeanContractive { delta: cubes / total }
        }
    }

    fn selects(&self) -> bool {
        true
    }
}

/// Returns the index where the cumulative magnitude exceeds the share `uniform`, in [0, 1), of the total. Never returns the index of a
/// zero.
fn find(x: &[f32], uniform: f64) -> Option<u32> {
    let total: f64 = x.chunks(BLOCK).map(norm1).sum();
    let mut left = uniform * total;
    let mut last = None;
    for (b, block) in x.chunks(BLOCK).enumerate() {
        let sum = norm1(block);
        if left >= sum && (b + 1) * BLOCK < x.len() {
            left -= sum;
            continue;
        }
        for (i, &v) in block.iter().enumerate().filter(|(_, v)| **v != 0.0) {
            last = Some((b * BLOCK + i) as u32);
            left -= f64::from(v.abs());
            if left < 0.0 {
                return last;
            }
        }
        // Rounding only: the sums in lanes and one by one differ in the last place.
        if last.is_some() {
            return last;
        }
    }
    // As above, if the last blocks hold only zeros.
    last.or_else(|| x.iter().rposition(|v| *v != 0.0).map(|i| i as u32))
}

impl CompressorSettings for AdaptiveRandom {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { needs_feedback: true, is_exact: true, is_sparse: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::testkit::awkward;
    use briquette_core::laws::compress::{edges, kept};
    use proptest::prelude::*;

    /// Magnitudes 3, 0, 1, 4, 8 sum to 16: of 16 equal parts, 3 fall to the first, none to the second, and so on.
    #[test]
    fn enumerated_draws_have_the_exact_energy() {
        let x = [-3.0, 0.0, 1.0, 4.0, -8.0];
        let (mut counts, mut energy, mut error) = ([0; 5], 0.0, 0.0);
        for part in 0..16 {
            let i = find(&x, (f64::from(part) + 0.5) / 16.0).unwrap() as usize;
            counts[i] += 1;
            energy += f64::from(x[i]).powi(2) / 16.0;
            error += (norm2(&x) - f64::from(x[i]).powi(2)) / 16.0;
        }
        assert_eq!(counts, [3, 0, 1, 4, 8]);
        // (27 + 1 + 64 + 512)/16 = 37.75, of 9 + 1 + 16 + 64 = 90.
        assert_eq!((energy, error), (37.75, 90.0 - 37.75));
        let ErrorBound::MeanContractive { delta } = AdaptiveRandom.error_bound(&x) else { panic!() };
        assert!((delta - 37.75 / 90.0).abs() < 1e-15);
    }

    #[test]
    fn long_vectors_are_searched_by_block_as_value_by_value() {
        let x: Vec<f32> = (0..3 * BLOCK + 5).map(|i| if i / BLOCK == 1 { 0.0 } else { (i % 7) as f32 - 3.0 }).collect();
        let total: f64 = x.iter().map(|v| f64::from(v.abs())).sum();
        for part in 0..1000 {
            // Whole magnitudes: sums are exact, whatever the order.
            let uniform = (f64::from(part) + 0.5) / 1000.0;
            let mut sum = 0.0;
            let naive = x.iter().position(|v| {
                sum += f64::from(v.abs());
                sum > uniform * total
            });
            assert_eq!(find(&x, uniform), naive.map(|i| i as u32));
        }
    }

    #[test]
    fn edges_send_one_value_or_none() {
        for x in edges() {
            for key in [Key::new(0), Key::new(1)] {
                assert_eq!(kept(AdaptiveRandom, &x, key).len(), usize::from(x.iter().any(|v| *v != 0.0)), "{x:?}");
            }
        }
        let trailing = [vec![0.1; BLOCK], vec![0.0; 2 * BLOCK]].concat();
        assert_eq!(find(&trailing, 1.0), Some(BLOCK as u32 - 1), "rounding up to the whole is the last non-zero value");
    }

    #[test]
    fn draws_follow_the_magnitudes() {
        let x = [1.0, -2.0, 0.0, 7.0];
        let mut counts = [0.0_f64; 4];
        (0..10_000).for_each(|s| counts[kept(AdaptiveRandom, &x, Key::new(3).step(s))[0] as usize] += 1.0);
        // Standard deviations 30, 40, 0 and 46; 5.5 of them.
        for (count, (mean, off)) in counts.iter().zip([(1000.0, 165.0), (2000.0, 220.0), (0.0, 0.0), (7000.0, 252.0)]) {
            assert!((count - mean).abs() <= off, "{counts:?}");
        }
    }

    proptest! {
        #[test]
        fn the_constant_is_never_below_one_in_d(x in proptest::collection::vec(awkward(), 1..60)) {
            match AdaptiveRandom.error_bound(&x) {
                ErrorBound::MeanContractive { delta } => prop_assert!(delta >= (1.0 - 1e-12) / x.len() as f64),
                class => prop_assert_eq!(class, ErrorBound::Contractive { delta: 1.0 }),
            }
        }
    }
}
