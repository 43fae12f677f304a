//! The wire form: golden bytes, round trips, documented lengths, and damage of every kind.

use briquette_core::compress::*;
use briquette_core::error::WireError;
use briquette_core::{Key, Message};
use proptest::prelude::*;
use rand::Rng;

fn compressors() -> Vec<(&'static str, Box<dyn Compressor>)> {
    let top_k = |values| Box::new(TopK::fraction(0.3).unwrap().with_values(values));
    vec![
        ("dense", Box::new(Dense)),
        ("f16", Box::new(Half::new(HalfKind::F16))),
        ("bf16", Box::new(Half::new(HalfKind::Bf16))),
        ("top-k f32", top_k(ValueKind::F32)),
        ("top-k f16", top_k(ValueKind::F16)),
        ("top-k q8", top_k(ValueKind::Q8)),
        ("threshold top-k", Box::new(ThresholdTopK::fraction(0.3).unwrap())),
        ("redsync", Box::new(Redsync::fraction(0.3).unwrap())),
        ("sidco", Box::new(Sidco::fraction(0.3).unwrap())),
        ("hard threshold", Box::new(HardThreshold::new(0.03).unwrap())),
        ("random-k", Box::new(RandomK::fraction(0.3).unwrap())),
        ("random-k, scaled", Box::new(RandomK::fraction(0.3).unwrap().scaled())),
        ("biased random", Box::new(BiasedRandom::new(0.3).unwrap())),
        ("adaptive random", Box::new(AdaptiveRandom)),
        ("qsgd 2", Box::new(Qsgd::new(2, 7, Norm::Max).unwrap())),
        ("qsgd 5", Box::new(Qsgd::new(5, 512, Norm::L2).unwrap())),
        ("qsgd 8", Box::new(Qsgd::new(8, 100, Norm::Max).unwrap())),
        ("qsgd s5", Box::new(Qsgd::with_levels(5, 64, Norm::Max).unwrap())),
        ("elias", Box::new(Qsgd::with_levels(31, 1000, Norm::L2).unwrap().elias())),
        ("natural", Box::new(Natural)),
        ("minmax", Box::new(MinMax::blocks(33).unwrap())),
        ("dither", Box::new(ExponentialDithering::new(3.0, 6, 50, Norm::L2).unwrap())),
        ("round", Box::new(Rounding::nearest(2.0).unwrap())),
        ("terngrad", Box::new(TernGrad::new())),
        ("one-bit", Box::new(OneBit::bucketed(9).unwrap())),
        ("plain-sign", Box::new(PlainSign)),
        ("top-k natural", Box::new(Coded::new(TopK::fraction(0.3).unwrap(), Natural))),
        ("top-k minmax", Box::new(Coded::new(TopK::fraction(0.3).unwrap(), MinMax::new()))),
        ("sign", Box::new(ScaledSign::new())),
        ("signs", Box::new(ScaledSign::bucketed(9).unwrap())),
    ]
}

fn message(compressor: &mut dyn Compressor, x: &[f32]) -> Message {
    let mut out = Message::default();
    compressor.compress_into(x, Key::new(11), &mut out);
    out
}

fn encode(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode_into(&mut bytes);
    assert_eq!(bytes.len(), message.encoded_len());
    bytes
}

fn decode(bytes: &[u8]) -> Result<Message, WireError> {
    let mut out = Message::default();
    out.decode_from(bytes).map(|()| out)
}

/// A frame from its content: kind, length and fields, all in hexadecimal.
fn frame(content: &str) -> Vec<u8> {
    let digits: Vec<u8> = content.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    let mut bytes = b"BQ\x01".to_vec();
    bytes.extend(digits.chunks(2).map(byte));
    seal(bytes)
}

fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn field(what: &'static str, value: u64) -> Result<Message, WireError> {
    Err(WireError::Field { what, value })
}

#[test]
fn golden_bytes_of_every_kind() {
    let check = |compressor: &mut dyn Compressor, x: &[f32], content: &str| {
        let bytes = frame(content);
        assert_eq!(encode(&message(compressor, x)), bytes, "{content}");
        assert_eq!(decode(&bytes), Ok(message(compressor, x)), "{content}");
    };
    // 1.0 is 0x3f800000, -2.0 is 0xc0000000; stored lowest byte first.
    check(&mut Dense, &[1.0, -2.0], "00 02000000 0000803f 000000c0");
    // Sign, 5 exponent bits (bias 15), 10 fraction bits: 1.0 = 0x3c00, -2.0 = 0xc000.
    check(&mut Half::new(HalfKind::F16), &[1.0, -2.0], "01 02000000 003c 00c0");
    check(&mut Half::new(HalfKind::Bf16), &[1.0, -2.0], "02 02000000 803f 00c0");
    // Indices 1, 6, 7 of 8: gaps 1, 4, 0; r = 0: "01" "00001" "1", lowest bit first 0b1100_0010 (8 bits, and r = 1
    // needs 8 too: the smaller wins).
    let x = [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, -2.0, 1.0];
    let mut top_k = TopK::fraction(0.375).unwrap();
    check(&mut top_k, &x, "03 08000000 03000000 00 c2 0000803f 000000c0 0000803f");
    // The largest is 2 = 2^1: exponent 1 - 14 = -13 = 0xf3. 1·2^13 = 0x7000 (exponent 28 = 13 + 15), -2·2^13 = 0xf400.
    let mut top_k = top_k.with_values(ValueKind::F16);
    check(&mut top_k, &x, "04 08000000 03000000 00 c2 f3 0070 00f4 0070");
    // Range [1, 2]; levels 0, 127 with the sign bit, 0.
    let mut top_k = top_k.with_values(ValueKind::Q8);
    check(&mut top_k, &x, "05 08000000 03000000 00 c2 0000803f 00000040 00 ff 00");
    // 3 bits, buckets of 2: scales 3 and 1; levels 3, 1 | 0, 3: codes 3, 4+1, 0, 4+3 = 0b111_000_101_011 = 0x0e2b.
    let mut qsgd = Qsgd::new(3, 2, Norm::Max).unwrap();
    check(&mut qsgd, &[3.0, -1.0, 0.0, -1.0], "06 04000000 03 02000000 00004040 0000803f 2b0e");
    // (1 + 3)/2 = 2 and 5; signs +, -, - : 0b110.
    let mut sign = ScaledSign::bucketed(2).unwrap();
    check(&mut sign, &[1.0, -3.0, -5.0], "07 03000000 02000000 00000040 0000a040 06");
    // 5 levels take 4 bits: codes 5 and 8 + 1.
    let mut qsgd = Qsgd::with_levels(5, 2, Norm::Max).unwrap();
    check(&mut qsgd, &[5.0, -1.0], "06 02000000 05 02000000 0000a040 95");
    // Exponent fields 127 and 128; signs 0b10.
    check(&mut Natural, &[1.0, -2.0], "08 02000000 7f 80 02");
    // Means of both signs, bucket by bucket: 1 and -3, 0 (there is none) and -5; bits 0b110.
    let mut one_bit = OneBit::bucketed(2).unwrap();
    check(&mut one_bit, &[1.0, -3.0, -5.0], "09 03000000 02000000 0000803f 000040c0 00000000 0000a0c0 06");
    // Ranges [0, 1] and [2, 2].
    let mut min_max = MinMax::blocks(2).unwrap();
    check(&mut min_max, &[0.0, 1.0, 2.0], "0a 03000000 02000000 00000000 0000803f 00000040 00000040 00 ff 00");
    // Base 2, scale 8: 8 is level 3 and 4 level 2, in 3 bits: 3 and 4 + 2 = 0b110_011.
    let mut dither = ExponentialDithering::new(2.0, 3, 512, Norm::Max).unwrap();
    check(&mut dither, &[8.0, -4.0], "0b 02000000 03 00000040 00020000 00000041 33");
    // Levels 3, -1, 0: omega(4) = 10 100 0 and +, omega(2) = 10 0 and -, omega(1) = 0: 1010 0001 0010, lowest bit first.
    let mut elias = Qsgd::new(3, 512, Norm::Max).unwrap().elias();
    check(&mut elias, &[3.0, -1.0, 0.0], "0c 03000000 03 00020000 00004040 85 04");
    // One index, 1, in one byte (01, r = 0), then kind 8 with one value: exponent 128, negative.
    let mut coded = Coded::new(TopK::fraction(0.5).unwrap(), Natural);
    check(&mut coded, &[0.0, -2.0], "0e 02000000 01000000 00 01000000 02 08 80 01");
}

#[test]
fn the_empty_vector_has_a_frame_of_every_kind() {
    for (name, mut compressor) in compressors() {
        let empty = message(&mut *compressor, &[]);
        assert_eq!(decode(&encode(&empty)), Ok(empty), "{name}");
    }
    assert_eq!(encode(&Message::default()).len(), 12);
}

/// Bits of the codes of one bucket with the L2 norm, from the values they stand for.
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
        // Where the length of a message is its compressor's choice, the formula is in what it kept.
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

#[test]
fn wrong_frames_are_refused_with_the_field_named() {
    assert_eq!(decode(b"BQ"), Err(WireError::Truncated { what: "header and checksum", needed: 12, left: 2 }));
    assert_eq!(decode(b"BQ\x02---------"), Err(WireError::Version { expected: 1, got: *b"BQ\x02" }));
    let good = frame("00 01000000 0000803f");
    let mut bad = good.clone();
    bad[9] ^= 1;
    assert!(matches!(decode(&bad), Err(WireError::Checksum { .. })));
    for (content, what, value) in [
        ("0f 00000000", "kind", 15),
        ("00 01000000 0000807f", "value that must be finite", 0x7f80_0000),
        ("01 01000000 007c", "value", 0x7c00),
        ("02 01000000 c0ff", "value", 0xffc0),
        ("03 02000000 03000000 00 07 000000000000000000000000", "count of indices", 3),
        ("03 02000000 01000000 20 01 00000000", "Rice parameter", 32),
        ("03 02000000 01000000 00 04 0000803f", "index", 2),
        ("03 02000000 01000000 00 05 0000803f", "padding", 2),
        ("03 02000000 01000000 1f 00000000 01000000 0000803f", "gap between indices", 32),
        ("03 02000000 01000000 00 01 0000c0ff", "value that must be finite", 0xffc0_0000),
        ("04 02000000 01000000 00 01 80 0000", "exponent", 0x80),
        ("04 02000000 01000000 00 01 72 0000", "exponent", 0x72),
        ("04 02000000 01000000 00 01 00 0078", "kept value", 0x7800),
        ("05 02000000 01000000 00 01 00000040 0000803f 00", "range", 0x4000_0000_3f80_0000),
        ("05 02000000 01000000 00 01 000080bf 0000803f 00", "range", 0xbf80_0000_3f80_0000),
        ("05 02000000 01000000 00 01 0000803f 0000807f 00", "value that must be finite", 0x7f80_0000),
        ("06 01000000 00 01000000 00000000 00", "levels", 0),
        ("06 01000000 80 01000000 00000000 00", "levels", 128),
        ("06 01000000 05 01000000 0000803f 07", "level", 7),
        ("06 01000000 04 00000000 00000000 00", "bucket size", 0),
        ("06 01000000 04 01000000 000080bf 00", "scale", 0xbf80_0000),
        ("06 01000000 04 01000000 0000c07f 00", "value that must be finite", 0x7fc0_0000),
        ("06 01000000 04 01000000 0000803f 10", "padding", 1),
        ("07 01000000 00000000 0000803f 00", "bucket size", 0),
        ("07 01000000 01000000 00000080 00", "scale", 0x8000_0000),
        ("07 01000000 01000000 0000803f 02", "padding", 1),
        ("08 01000000 ff 00", "exponent", 0xff),
        ("09 01000000 00000000 0000803f 000080bf 00", "bucket size", 0),
        ("09 01000000 01000000 0000807f 000080bf 00", "value that must be finite", 0x7f80_0000),
        ("0a 01000000 01000000 0000803f 00000000 00", "range", 0x3f80_0000_0000_0000),
        ("0b 01000000 03 0000803f 01000000 0000803f 00", "base", 0x3f80_0000),
        ("0c 01000000 01 01000000 0000803f 05", "level", 3),
        ("0c 01000000 01 01000000 0000803f 02", "padding", 1),
        ("0e 01000000 01000000 00 01000000 01 03 0000803f", "kind of the kept values", 3),
    ] {
        assert_eq!(decode(&frame(content)), field(what, value), "{content}");
    }
}

#[test]
fn counts_beyond_the_frame_are_refused() {
    for content in [
        "00 ffffffff 0000803f",
        "01 ffffffff 003c",
        "03 ffffffff ffffffff 00 ff",
        "04 ffffffff 10000000 00 ff 00 0000",
        "05 ffffffff ffffff7f 00 ff",
        "06 ffffffff 08 01000000 00",
        "07 ffffffff ffffffff 0000803f ff",
        "08 ffffffff 7f",
        "09 ffffffff 01000000 0000803f 0000803f",
        "0a ffffffff ffffffff 0000803f 0000803f 00",
        "0b ffffffff 7f 00000040 ffffffff 0000803f ff",
        "0c ffffffff 7f ffffffff 0000803f ff",
        "0e ffffffff 01000000 00 ffffffff 01",
    ] {
        assert!(matches!(decode(&frame(content)), Err(WireError::Truncated { .. })), "{content}");
    }
    for content in ["00 00000000 00", "03 08000000 01000000 00 01 00 0000803f", "07 01000000 01000000 0000803f 00 00"] {
        assert_eq!(decode(&frame(content)), Err(WireError::Trailing { extra: 1 }), "{content}");
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

#[test]
fn a_failed_decode_leaves_the_empty_message() {
    let mut out = message(&mut Dense, &[1.0, 2.0]);
    assert!(out.decode_from(&frame("03 02000000 02000000 00 05 0000803f 0000803f")).is_err());
    assert_eq!(out, Message::default());
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let message = message(&mut Dense, &[1.0; 3]);
    let mut out = [5.0; 4];
    assert_eq!(message.add_to(1.0, &mut out), Err(WireError::Length { expected: 4, got: 3 }));
    assert_eq!(message.decode_into(&mut out), Err(WireError::Length { expected: 4, got: 3 }));
    assert_eq!(message.add_range(2, 1.0, &mut out[..2]), Err(WireError::Length { expected: 4, got: 3 }));
    assert!(message.add_range(usize::MAX, 1.0, &mut out).is_err());
    assert_eq!(out, [5.0; 4]);
}

fn values() -> impl Strategy<Value = Vec<f32>> {
    let finite = any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |v| v.is_finite());
    let special = prop::sample::select(vec![0.0, -0.0, 1.0, -1.0, 1e-45, f32::MAX, -f32::MAX]);
    prop_oneof![
        proptest::collection::vec(-1.0_f32..1.0, 0..2100),
        proptest::collection::vec(prop_oneof![finite, special], 0..80),
    ]
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

    #[test]
    fn one_damaged_byte_is_always_noticed(x in values(), at in any::<prop::sample::Index>(), flip in 1..=255_u8) {
        for (name, mut compressor) in compressors() {
            let mut bytes = encode(&message(&mut *compressor, &x));
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            prop_assert!(decode(&bytes).is_err(), "{} at {}", name, at);
        }
    }

    #[test]
    fn a_truncated_frame_is_always_noticed(x in values(), at in any::<prop::sample::Index>()) {
        for (name, mut compressor) in compressors() {
            let bytes = encode(&message(&mut *compressor, &x));
            prop_assert!(decode(&bytes[..at.index(bytes.len())]).is_err(), "{}", name);
        }
    }

    #[test]
    fn arbitrary_content_with_a_right_checksum_never_panics(
        kind in 0..9_u8,
        len in prop_oneof![0..40_u32, any::<u32>()],
        mut body in proptest::collection::vec(any::<u8>(), 0..120),
        small in 0..40_u32,
    ) {
        // Half of the time a small count or bucket, so that later fields are reached.
        if body.len() > 8 && len < 40 {
            body[..4].copy_from_slice(&small.to_le_bytes());
            body[4] %= 34;
        }
        let mut bytes = b"BQ\x01".to_vec();
        bytes.push(kind);
        bytes.extend(len.to_le_bytes());
        bytes.extend(body);
        check_use(&seal(bytes))?;
    }

    #[test]
    fn a_changed_field_under_a_right_checksum_never_panics(
        x in proptest::collection::vec(-1.0_f32..1.0, 0..60),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
    ) {
        for (_, mut compressor) in compressors() {
            let mut bytes = encode(&message(&mut *compressor, &x));
            bytes.truncate(bytes.len() - 4);
            let at = at.index(bytes.len());
            bytes[at] = value;
            check_use(&seal(bytes))?;
        }
    }
}

/// Whatever decodes can be used, gives finite values, and encodes to something that decodes to the same.
fn check_use(bytes: &[u8]) -> Result<(), TestCaseError> {
    if let Ok(message) = decode(bytes)
        && message.len() < 1_000_000
    {
        let mut out = vec![0.0; message.len()];
        message.add_to(1.0, &mut out).unwrap();
        prop_assert!(out.iter().all(|v| v.is_finite()));
        prop_assert!(message.error_energy(&out) <= 1e-9 * (1.0 + out.iter().map(|v| f64::from(v * v)).sum::<f64>()));
        prop_assert_eq!(decode(&encode(&message)), Ok(message));
    }
    Ok(())
}
