//! Lossless code of gradients: the same bits as dense, in fewer bytes. Huffman codes of the exponents, all other bits as they are.
//!
//! **Why, and when not.** A run has the bits of one without compression, and needs no feedback, no tuning and no evaluation. It saves a sixth of the
//! bytes of f32, more where many values are zero, and a third of those of values that are bfloat16. Lossy compressors save ten to a hundred times as
//! much. Coding takes time (`lossless.csv`): on a fast link it takes longer than it saves. For a mean in a world of more than two ranks, use
//! `ring:lossless`: a gather moves more bytes than a ring.
//!
//! **Method.** The exponents of gradients are concentrated on few numbers: those of normal values have an entropy of about 2.6 bits, and take 8.
//! Signs and fractions are close to random. Per block of 16 384 values:
//!
//! | part of a value | bits before | here |
//! |---|---|---|
//! | exponent | 8 | a Huffman code of at most 11 bits, with a table for the block |
//! | sign and high 7 bits of the fraction | 8 | as they are |
//! | low 16 bits of the fraction | 16 | as they are, or omitted if zero in the whole block (values of bfloat16) |
//! | zero, in a block with more than a sixteenth of zeros | 32 | the code of a symbol of its own |
//!
//! A block that would not become smaller is stored as it is.
//!
//! *Random bits.* None.
//!
//! **On the wire.** Kind 17 of `docs/wire.md`: at most `12 + ⌈d/16384⌉ + 4d` bytes; about `d·(24 + H)/8` with the entropy `H` of the exponents.
//!
//! **Properties.** `C(x) = x` in every bit: contractive with δ = 1, unbiased with ω = 0. No error feedback. Values that are kept by a sparsifier can
//! be coded, too: `topk:100x+lossless`.
//!
//! **State.** None. **Knobs.** None.
//!
//! **Deviations.** ZipNN and DFloat11 code weights once, with one table per tensor, by general-purpose or GPU Huffman coders. Here each block has a table,
//! because layers differ in scale, and four bit streams for the speed of one core. Byte planes of fractions are not coded: they do not gain.
//!
//! **Reference.** M. Hershcovitch et al., *ZipNN: Lossless Compression for AI Models*, 2024 (arXiv 2411.05239). T. Zhang et al., *70% Size, 100%
//! Accuracy: Lossless LLM Compression via Dynamic-Length Float (DFloat11)*, 2025 (arXiv 2504.11651).
//!
//! ```
//! use briquette_core::compress::Compressor;
//! use briquette_core::{Key, Message};
//! use briquette_zoo::compress::lossless::Lossless;
//! let (mut message, mut decoded) = (Message::default(), vec![0.0; 4096]);
//! let x: Vec<f32> = (0..4096).map(|i| 1e-3 * (i as f32).sin()).collect();
//! Lossless.compress_into(&x, Key::new(0), &mut message);
//! message.decode_into(&mut decoded)?;
//! assert!(x.iter().zip(&decoded).all(|(x, c)| x.to_bits() == c.to_bits()));
//! assert_eq!(8 * message.encoded_len() / 4096, 26); // bits a value
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::compress::{Compressor, ErrorBound};
use briquette_core::config::{CompressorSettings, CompressorTraits, Described};
use briquette_core::{CompressionRatio, Key, Message};

/// The identity in fewer bytes; see the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "lossless", help = "every value in f32, exponents in Huffman codes")]
pub struct Lossless;

impl Compressor for Lossless {
    fn nominal(&self) -> CompressionRatio {
        CompressionRatio::DENSE
    }

    fn compress_into(&mut self, x: &[f32], _key: Key, out: &mut Message) {
        out.write_lossless(x).expect("finite values");
    }

    fn error_bound(&self, _x: &[f32]) -> ErrorBound {
        ErrorBound::Contractive { delta: 1.0 }
    }
}

impl CompressorSettings for Lossless {
    fn traits(&self) -> CompressorTraits {
        CompressorTraits { is_exact: true, ..CompressorTraits::default() }
    }

    fn build(&self) -> Box<dyn Compressor> {
        Box::new(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use briquette_core::compress::coded::Coded;
    use briquette_core::compress::top_k::TopK;
    use briquette_core::laws::compress::{assert_edges, decoded, noise};

    fn bytes(x: &[f32]) -> usize {
        let mut message = Message::default();
        Lossless.compress_into(x, Key::new(0), &mut message);
        message.encoded_len()
    }

    /// 12 of the frame, flags, 2 of the range of exponents, 2 of lengths, 8 of sizes, a byte for each stream of six bits, a byte for each value.
    #[test]
    fn two_exponents_of_bfloat16_by_hand() {
        let x: Vec<f32> = (0..24).map(|i| if i % 2 == 0 { 1.5 } else { -2.5 }).collect();
        assert_eq!(bytes(&x), 12 + 1 + 2 + 1 + 8 + 4 + 24);
        assert_eq!(decoded(&mut Lossless, &x, Key::new(0)), x);
    }

    /// The entropy of the exponents, in f64, is reached up to 0.06 bits.
    #[test]
    fn the_size_is_the_entropy_of_the_exponents_and_24_bits() {
        let x = noise("gauss", 1 << 18, 3);
        let mut counts = [0.0_f64; 256];
        x.iter().for_each(|v| counts[(v.to_bits() >> 23 & 0xff) as usize] += 1.0 / x.len() as f64);
        let entropy: f64 = counts.iter().filter(|p| **p > 0.0).map(|p| -p * p.log2()).sum();
        let bits = 8.0 * bytes(&x) as f64 / x.len() as f64 - 24.0;
        assert!(bits >= entropy && bits < entropy + 0.06, "{bits} {entropy}");
    }

    /// Claim (ZipNN): a sixth less for f32, a third less for bfloat16.
    #[test]
    fn normal_values_lose_a_sixth_of_their_bytes_and_a_third_in_bfloat16() {
        let x = noise("gauss", 1 << 18, 4);
        let share = |x: &[f32], size: usize| bytes(x) as f64 / (size * x.len()) as f64;
        let short: Vec<f32> = x.iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect();
        let shares = [share(&x, 4), share(&short, 2)];
        assert!((shares[0] - 5.0 / 6.0).abs() < 0.01 && (shares[1] - 2.0 / 3.0).abs() < 0.01, "{shares:?}");
    }

    #[test]
    fn kept_values_are_coded_too() {
        let x = noise("gauss", 100_000, 5);
        let (mut plain, mut coded) = (Message::default(), Message::default());
        let top = TopK::fraction(0.1).unwrap();
        top.clone().compress_into(&x, Key::new(0), &mut plain);
        Coded::new(top, Lossless).compress_into(&x, Key::new(0), &mut coded);
        let (mut a, mut b) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        plain.decode_into(&mut a).unwrap();
        coded.decode_into(&mut b).unwrap();
        assert!(a == b && 1.15 * (coded.encoded_len() as f64) < plain.encoded_len() as f64);
    }

    #[test]
    fn edges_keep_their_bits() {
        assert_edges(&mut Lossless);
        let x = [0.0, -0.0, 1e-45, f32::MAX, f32::MIN_POSITIVE].repeat(100);
        let out = decoded(&mut Lossless, &x, Key::new(0));
        assert!(x.iter().zip(&out).all(|(x, c)| x == c));
    }
}
