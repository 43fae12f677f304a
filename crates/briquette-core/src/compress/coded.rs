//! Composition of a sparsifier and a compressor for its kept values: top-k with natural compression, with 8-bit blocks, ….
//!
//! **Why, and when not.** After a sparsifier, values are most of the bytes. A few bits each are enough, and error feedback, which the
//! sparsifier needs anyway, compensates their error. Written `topk:0.01+natural`.
//!
//! **Method.** `C = C₂ ∘ C₁`: the sparsifier `C₁` selects coordinates, the compressor `C₂` encodes the vector of their values.
//!
//! *Random bits.* `C₁` uses the key, `C₂` its purpose `"values"`.
//!
//! **On the wire.** `22 + ⌈Σⱼ(1 + r + ⌊gⱼ/2ʳ⌋)/8⌉` bytes, the gaps `gⱼ` coded as in every sparse message, plus the bytes of `C₂` for `k`
//! values without its 12 bytes of frame. A [device](crate::seam::DeviceVector) selects, and the host encodes the kept values.
//!
//! **Properties.** With `C₁` contractive (δ₁): contractive with `δ₁·δ₂`, or in the mean with `δ₁·(1 − ω₂)` if `C₂` is unbiased. Both
//! unbiased: `ω₁ω₂ + ω₁ + ω₂`. The errors of the two parts are orthogonal, because the sparsifier's error lies in the coordinates that were
//! not kept. Needs error feedback if `C₁` does.
//!
//! **Reference.** S. Horváth et al., *Natural Compression for Distributed Deep Learning*, 2019 (arXiv 1905.10988), theorem 3;
//! A. Beznosikov et al., *On Biased Compression for Distributed Learning*, JMLR 2023 (arXiv 2002.12410), top-k combined
//! with exponential dithering.
//!
//! ```
//! use briquette_core::{Key, Message};
//! use briquette_core::compress::{coded::Coded, Compressor, scaled_sign::ScaledSign, top_k::TopK};
//! let mut message = Message::default();
//! let mut coded = Coded::new(TopK::fraction(0.4)?, ScaledSign::new());
//! coded.compress_into(&[1.0, -5.0, 2.0, 3.5, 0.0], Key::new(0), &mut message);
//! let mut decoded = [0.0; 5];
//! message.decode_into(&mut decoded)?;
//! assert_eq!(decoded, [0.0, -4.25, 0.0, 4.25, 0.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::cell::RefCell;

use crate::seam::{Compressor, Encoding, ErrorBound, Tunable};
use crate::{CompressionRatio, Key, Message};

use super::ValueKind;

/// A compressor for the values that a sparsifier keeps; see the [module](self).
#[derive(Debug, Clone)]
pub struct Coded<S, C> {
    /// An error bound is that of values that the sparsifier keeps.
    sparsifier: RefCell<S>,
    values: C,
    chosen: Message,
}

impl<S, C> Coded<S, C> {
    /// Creates a composition. `sparsifier` must write its values in f32, and `values` must keep all values that it is given.
    pub fn new(sparsifier: S, values: C) -> Self {
        Coded { sparsifier: RefCell::new(sparsifier), values, chosen: Message::default() }
    }
}

/// Encodes the message `chosen` with its values compressed by `values`.
fn encode<C: Compressor>(values: &mut C, chosen: &Message, key: Key, out: &mut Message) {
    let (indices, kept) = chosen.sparse_f32().expect("a sparsifier with values in f32");
    let (out, message) = out.coded(chosen.len());
    out.extend_from_slice(indices);
    values.compress_into(kept, key.purpose("values"), message);
    assert!(message.sparse_indices().is_none(), "values are kept, all of them");
}

impl<S: Compressor, C: Compressor> Compressor for Coded<S, C> {
    fn compress_into(&mut self, x: &[f32], key: Key, out: &mut Message) {
        self.sparsifier.get_mut().compress_into(x, key, &mut self.chosen);
        encode(&mut self.values, &self.chosen, key, out);
    }

    fn error_bound(&self, x: &[f32]) -> ErrorBound {
        let mut chosen = Message::default();
        self.sparsifier.borrow_mut().compress_into(x, Key::new(0), &mut chosen);
        let (_, kept) = chosen.sparse_f32().expect("a sparsifier with values in f32");
        match (self.sparsifier.borrow().error_bound(x), self.values.error_bound(kept)) {
            (ErrorBound::Unbiased { omega: a }, ErrorBound::Unbiased { omega: b }) => {
                ErrorBound::Unbiased { omega: a * b + a + b }
            }
            (ErrorBound::Contractive { delta: a }, ErrorBound::Contractive { delta: b }) => {
                ErrorBound::Contractive { delta: a * b }
            }
            (
                ErrorBound::Contractive { delta: a } | ErrorBound::MeanContractive { delta: a },
                ErrorBound::Contractive { delta: b } | ErrorBound::MeanContractive { delta: b },
            ) => ErrorBound::MeanContractive { delta: a * b },
            (
                ErrorBound::Contractive { delta } | ErrorBound::MeanContractive { delta },
                ErrorBound::Unbiased { omega },
            ) => {
                if omega < 1.0 {
                    ErrorBound::MeanContractive { delta: delta * (1.0 - omega) }
                } else {
                    // The error of the dropped part plus the noise of the kept part.
                    ErrorBound::Biased { omega: 1.0 - delta + omega }
                }
            }
            (first, second) => {
                // ‖x − C₂C₁x‖ ≤ ‖x − C₁x‖ + ‖C₁x − C₂C₁x‖, and ‖C₁x‖ ≤ ‖x‖ + ‖x − C₁x‖.
                let (a, b) = (first.error().sqrt(), second.error().sqrt());
                ErrorBound::Biased { omega: (a + b * (1.0 + a)).powi(2) }
            }
        }
    }

    fn nominal(&self) -> CompressionRatio {
        self.sparsifier.borrow().nominal()
    }

    fn refine_into(&mut self, x: &[f32], coarse: &Message, key: Key, out: &mut Message) {
        self.sparsifier.get_mut().refine_into(x, coarse, key, &mut self.chosen);
        encode(&mut self.values, &self.chosen, key, out);
    }

    fn selects(&self) -> bool {
        self.sparsifier.borrow().selects()
    }

    fn encoding(&self) -> Option<Encoding> {
        // A device selects values as they are.
        let is_plain =
            |encoding: &Encoding| !matches!(encoding, Encoding::TopK { values, .. } if *values != ValueKind::F32);
        self.sparsifier.borrow().encoding().filter(is_plain)
    }

    fn value_code(&mut self) -> Option<&mut dyn Compressor> {
        Some(&mut self.values)
    }

    fn knob(&mut self) -> Option<&mut dyn Tunable> {
        self.sparsifier.get_mut().knob()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{ValueKind, dense::Dense, natural::Natural, scaled_sign::ScaledSign, top_k::TopK};
    use crate::laws::compress::{assert_edges, decoded};
    use crate::math::{distance2, norm2};

    fn wave(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 1.7).sin() * (1.0 + (i % 13) as f32)).collect()
    }

    /// ω of 2x random-k is 1, of natural rounding ⅛: (1 + 1)·(1 + ⅛) − 1 = 1¼.
    #[test]
    fn unbiased_both_ways_by_hand() {
        let random = crate::compress::random_k::RandomK::fraction(0.5).unwrap().scaled();
        let bound = Coded::new(random, Natural).error_bound(&[1.0, -2.0, 3.0, 0.7]);
        assert_eq!(bound, ErrorBound::Unbiased { omega: 1.25 });
    }

    #[test]
    fn with_dense_values_it_is_the_sparsifier() {
        let (x, top_k) = (wave(1000), TopK::fraction(0.1).unwrap());
        let expected = decoded(&mut { top_k }, &x, Key::new(1));
        assert_eq!(decoded(&mut Coded::new(top_k, Dense), &x, Key::new(1)), expected);
    }

    #[test]
    fn kept_values_are_what_the_second_compressor_makes_of_them() {
        let (x, top_k, key) = (wave(500), TopK::fraction(0.1).unwrap(), Key::new(1));
        let kept: Vec<f32> = decoded(&mut { top_k }, &x, key).into_iter().filter(|v| *v != 0.0).collect();
        let expected = decoded(&mut ScaledSign::bucketed(7).unwrap(), &kept, key);
        let mut coded = Coded::new(top_k, ScaledSign::bucketed(7).unwrap());
        let coded: Vec<f32> = decoded(&mut coded, &x, key).into_iter().filter(|v| *v != 0.0).collect();
        assert_eq!(coded, expected);
    }

    #[test]
    fn values_draw_random_bits_of_their_own() {
        let (x, top_k, key) = (wave(500), TopK::fraction(0.1).unwrap(), Key::new(1));
        let nonzero = |values: Vec<f32>| values.into_iter().filter(|v| *v != 0.0).collect::<Vec<_>>();
        let kept = nonzero(decoded(&mut { top_k }, &x, key));
        let coded = nonzero(decoded(&mut Coded::new(top_k, Natural), &x, key));
        assert_eq!(coded, decoded(&mut Natural, &kept, key.purpose("values")));
        // With the sparsifier's bits, a random selection of coordinates would determine the rounding of their values.
        assert_ne!(coded, decoded(&mut Natural, &kept, key));
    }

    #[test]
    fn refining_gives_the_message_that_starting_over_gives() {
        let (x, key) = (wave(5000), Key::new(3));
        let mut coded = Coded::new(TopK::fraction(0.1).unwrap(), Natural);
        let (mut coarse, mut refined, mut fresh) = (Message::default(), Message::default(), Message::default());
        coded.compress_into(&x, key, &mut coarse);
        coded.knob().unwrap().tune(CompressionRatio::new(50.0).unwrap());
        coded.refine_into(&x, &coarse, key, &mut refined);
        coded.compress_into(&x, key, &mut fresh);
        assert_eq!(refined, fresh);
    }

    #[test]
    fn the_composed_constant_holds_in_the_mean() {
        let x = wave(400);
        let mut coded = Coded::new(TopK::fraction(0.2).unwrap(), Natural);
        let mean: f64 =
            (0..2000).map(|step| distance2(&x, &decoded(&mut coded, &x, Key::new(5).step(step)))).sum::<f64>() / 2000.0;
        let ErrorBound::MeanContractive { delta } = coded.error_bound(&x) else { panic!() };
        assert_eq!(delta, 0.2 * (1.0 - 0.125));
        assert!(mean <= (1.0 - delta) * norm2(&x));
    }

    #[test]
    fn edges_stay_finite_and_long_messages_decode_from_anywhere() {
        assert_edges(&mut Coded::new(TopK::fraction(0.5).unwrap(), Natural));
        assert_edges(&mut Coded::new(TopK::fraction(0.5).unwrap(), ScaledSign::bucketed(100).unwrap()));
        let (x, mut message) = (wave(9000), Message::default());
        Coded::new(TopK::fraction(0.5).unwrap(), ScaledSign::bucketed(100).unwrap()).compress_into(
            &x,
            Key::new(2),
            &mut message,
        );
        let (mut whole, mut part) = (vec![0.0; 9000], vec![0.0; 4000]);
        message.decode_into(&mut whole).unwrap();
        message.add_range(3000, 1.0, &mut part).unwrap();
        assert_eq!(part, whole[3000..7000]);
    }

    #[test]
    #[should_panic(expected = "values in f32")]
    fn values_that_are_coded_already_are_refused() {
        let top_k = TopK::fraction(0.5).unwrap().with_values(ValueKind::Q8);
        Coded::new(top_k, Natural).compress_into(&[1.0, 2.0], Key::new(0), &mut Message::default());
    }
}
