//! Wire format: golden bytes, round trips and documented lengths here, damaged frames in `damage.rs`.
//!
//! The assertions of the fuzz targets (`fuzz/`) are in [`briquette_testkit::wire`], and are tested here on random frames, vectors
//! and settings.

mod common;
mod damage;
mod settings;

use std::collections::BTreeSet;

use briquette_core::compress::{ValueKind, top_k::TopK};
use briquette_core::config::CompressorConfig;
use briquette_core::{Key, Message};
use briquette_testkit::wire::claims::check_compressor;
use briquette_testkit::wire::golden::GOLDEN;
use proptest::prelude::*;
use rand::Rng;

use common::*;

#[test]
fn golden_bytes_of_every_kind() {
    briquette_zoo::install();
    let mut kinds = BTreeSet::new();
    for (compressor, x, text) in GOLDEN {
        let bytes = frame(text);
        kinds.insert(bytes[3]);
        let decoded = decode(&bytes).unwrap();
        assert_eq!(encode(&decoded), bytes, "{text}");
        if !compressor.is_empty() {
            let compressor: CompressorConfig = compressor.parse().unwrap();
            let message = message(&mut *compressor.build(), x);
            assert_eq!(encode(&message), bytes, "{compressor}");
            assert_eq!(decoded, message, "{compressor}");
        }
        let mut values = vec![0.0; x.len()];
        decoded.decode_into(&mut values).unwrap();
        assert!(text.starts_with("09") || text.starts_with("07") || values == *x, "{text}: {values:?}");
    }
    assert!(kinds.into_iter().eq(0..=18));
}

#[test]
fn the_empty_vector_has_a_frame_of_every_kind() {
    for (name, mut compressor) in compressors() {
        let empty = message(&mut *compressor, &[]);
        assert_eq!(decode(&encode(&empty)), Ok(empty), "{name}");
    }
    assert_eq!(encode(&Message::default()).len(), 12);
}

/// Returns the bits of the codes of one bucket with the L2 norm, from the values that they represent.
fn elias_bits(message: &Message, x: &[f32], levels: usize) -> usize {
    fn omega(k: usize) -> usize {
        let digits = (k.ilog2() + 1) as usize;
        if k == 1 { 1 } else { digits + omega(digits - 1) }
    }
    let norm = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let mut decoded = vec![0.0; x.len()];
    message.decode_into(&mut decoded).unwrap();
    let level = |v: &f32| (f64::from(v.abs()) / norm * levels as f64).round() as usize;
    decoded.iter().map(level).map(|level| omega(level + 1) + usize::from(level > 0)).sum()
}

#[test]
fn lengths_follow_the_documented_formulas() {
    let n = 1000;
    let x: Vec<f32> = (0..n).map(|i| ((i * 37 % 101) as f32 - 50.5) * 1e-3).collect();
    let expected = |name: &str, r: usize, bits: usize, kept: usize| {
        // If the compressor chooses the length of a message, the formula uses the number of values it kept.
        let exact = name.starts_with("top-k") || name.starts_with("random-k") || name == "threshold top-k";
        let k = if exact { n * 3 / 10 } else { kept };
        let sparse = 17 + (k * (1 + r) + bits).div_ceil(8);
        match name {
            "dense" => 12 + 4 * n,
            "f16" | "bf16" => 12 + 2 * n,
            "top-k f32" | "threshold top-k" | "redsync" | "sidco" | "hard threshold" => sparse + 4 * k,
            "random-k" | "random-k, scaled" | "biased random" | "adaptive random" => sparse + 4 * k,
            "top-k f16" => sparse + 1 + 2 * k,
            "top-k q8" => sparse + 8 * k.div_ceil(256) + k,
            "qsgd 2" => 17 + 4 * n.div_ceil(7) + (2 * n).div_ceil(8),
            "qsgd 5" => 17 + 4 * n.div_ceil(512) + (5 * n).div_ceil(8),
            "qsgd 8" => 17 + 4 * n.div_ceil(100) + n,
            "qsgd s5" => 17 + 4 * n.div_ceil(64) + (4 * n).div_ceil(8),
            "natural" => 12 + n + n.div_ceil(8),
            "minmax" => 16 + 8 * n.div_ceil(33) + n,
            "dither" => 21 + 4 * n.div_ceil(50) + (4 * n).div_ceil(8),
            "round" => 25 + n,
            "terngrad" => 21 + n.div_ceil(4),
            "one-bit" => 16 + 8 * n.div_ceil(9) + n.div_ceil(8),
            "bins" => 17 + 32 * n.div_ceil(20) + (3 * n).div_ceil(8),
            "e3m0" => 21 + 4 * n.div_ceil(20) + n.div_ceil(2),
            "e2m1" => 17 + 4 * n.div_ceil(256) + n.div_ceil(2),
            "top-k natural" => sparse + 5 + k + k.div_ceil(8),
            "top-k minmax" => sparse + 5 + 4 + 8 * k.div_ceil(256) + k,
            "sign" | "plain-sign" => 16 + 4 + n.div_ceil(8),
            "signs" => 16 + 4 * n.div_ceil(9) + n.div_ceil(8),
            _ => unreachable!(),
        }
    };
    for (name, mut compressor) in compressors() {
        let message = message(&mut *compressor, &x);
        let bytes = encode(&message);
        // The unary part of the formula, from the decoded positions and the r on the wire.
        let (r, mut next, mut unary) = (bytes[12] as usize, 0, 0);
        if matches!(bytes[3], 3..=5 | 14) {
            let mut decoded = vec![0.0; n];
            message.decode_into(&mut decoded).unwrap();
            for (i, _) in decoded.iter().enumerate().filter(|(_, v)| **v != 0.0) {
                unary += (i - next) >> r;
                next = i + 1;
            }
        }
        let length = match name {
            // Exponents 111 to 122 at most, in 1 to 4 bits; 24 other bits.
            "lossless" if (3200..=3700).contains(&bytes.len()) => bytes.len(),
            "elias" => 17 + 4 + elias_bits(&message, &x, 31).div_ceil(8),
            _ => expected(name, r, unary, message.kept()),
        };
        assert_eq!(bytes.len(), length, "{name}");
    }
}

#[test]
fn indices_cost_close_to_their_entropy() {
    let n = 1 << 20;
    for (fraction, limit) in [(0.01, 8.2), (0.1, 4.8)] {
        let mut rng = Key::new(5).block(0);
        let x: Vec<f32> = (0..n).map(|_| rng.random::<f32>() + 0.1).collect();
        let mut top_k = TopK::fraction(fraction).unwrap().with_values(ValueKind::F32);
        let message = message(&mut top_k, &x);
        let bits = (encode(&message).len() - 17 - 4 * message.kept()) as f64 * 8.0 / message.kept() as f64;
        assert!(bits <= limit, "{bits} bits an index at {fraction}");
    }
}

/// In units of the last place, `MAX` = 2²⁴ − 1 and `low` = 1.5: `MAX − low` = 2²⁴ − 2.5 rounds to 2²⁴ − 2, and adding
/// `low` gives 2²⁴ − 0.5, which rounds to infinity.
#[test]
fn eight_bit_values_never_exceed_their_range() {
    let x = [f32::MAX, 1.5 * 2_f32.powi(104)];
    assert_eq!(x[1] + (x[0] - x[1]), f32::INFINITY);
    let mut decoded = [0.0; 2];
    message(&mut TopK::fraction(1.0).unwrap().with_values(ValueKind::Q8), &x).decode_into(&mut decoded).unwrap();
    assert_eq!(decoded, x);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trip_through_reused_storage_is_exact(x in values(), before in values()) {
        for (name, mut compressor) in compressors() {
            let original = message(&mut *compressor, &x);
            let mut back = message(&mut *compressor, &before);
            back.decode_from(&encode(&original)).unwrap();
            prop_assert_eq!(&back, &original, "{}", name);
            let mut reused = message(&mut *compressor, &before);
            compressor.compress_into(&x, Key::new(11), &mut reused);
            prop_assert_eq!(&reused, &original, "{}: storage must not matter", name);
            check_compressor(&mut *compressor, &x, Key::new(12));
        }
    }

    #[test]
    fn ranges_add_the_same_bits_as_the_whole(x in values(), cut in 0.0_f64..1.0, weight in -2.0_f32..2.0) {
        for (name, mut compressor) in compressors() {
            let message = message(&mut *compressor, &x);
            let mut whole = vec![0.25; x.len()];
            message.add_to(weight, &mut whole).unwrap();
            let cut = (cut * x.len() as f64) as usize;
            let mut parts = vec![0.25; x.len()];
            message.add_range(cut, weight, &mut parts[cut..]).unwrap();
            message.add_range(0, weight, &mut parts[..cut]).unwrap();
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&whole), bits(&parts), "{}", name);
            let mut decoded = vec![f32::NAN; x.len()];
            message.decode_into(&mut decoded).unwrap();
            prop_assert!(decoded.iter().all(|v| v.is_finite()), "{}", name);
            let by_hand = decoded.iter().map(|v| 0.25 + weight * v).collect::<Vec<f32>>();
            prop_assert_eq!(bits(&whole), bits(&by_hand), "{}", name);
            let error: f64 = x.iter().zip(&decoded).map(|(x, c)| (f64::from(*x) - f64::from(*c)).powi(2)).sum();
            let energy: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
            prop_assert!((message.error_energy(&x) - error).abs() <= 1e-12 * (energy + error), "{}", name);
            prop_assert!((message.kept_energy(&x) - (energy - error)).abs() <= 1e-12 * (energy + error), "{}", name);
        }
    }
}
