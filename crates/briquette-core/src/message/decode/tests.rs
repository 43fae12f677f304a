use super::*;
use crate::math::distance2;

#[test]
fn eight_bit_codes_stay_between_the_ends_of_their_block() {
    let top = f32::MAX;
    for [low, high] in [[top, top], [-top, -top], [-top, top], [0.999_999 * top, top], [0.0, 1e-45], [1.0, 1.0]] {
        for code in 0..=255 {
            let value = Affine.value([low, high], code);
            assert!((low..=high).contains(&value), "{low:e}, {high:e}, {code}: {value:e}");
        }
    }
}

#[test]
fn all_quotients_of_whole_numbers_are_those_of_a_division() {
    for divisor in 1..=255_u8 {
        let by = Quotient::by(f32::from(divisor));
        for number in 0..=divisor {
            let [got, expected] = [by.share(number), f32::from(number) / f32::from(divisor)];
            assert_eq!(got.to_bits(), expected.to_bits(), "{number} / {divisor}");
        }
    }
}

/// Reference decoder: implements `docs/wire.md` literally, one value at a time.
fn naive(message: &Message, i: usize) -> f32 {
    let code = |bytes: &[u8], bits: usize| {
        (0..bits).map(|b| (bytes[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1) << b).sum::<u8>()
    };
    let negated = |v: f32, negative: bool| if negative { -v } else { v };
    match &message.payload {
        Payload::Dense(values) | Payload::Lossless { values, .. } => values[i],
        Payload::Half { kind: HalfKind::F16, exponents, bits } => {
            let exponent = exponents.get(i / 256).copied().unwrap_or(0);
            half::f16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]).to_f32() * 2_f32.powi(exponent.into())
        }
        Payload::Half { kind: HalfKind::Bf16, bits, .. } => {
            half::bf16::from_le_bytes([bits[2 * i], bits[2 * i + 1]]).to_f32()
        }
        Payload::Quantized { grid, bucket, scales, codes, .. } => {
            let bits = usize::from(grid.bits());
            let code = code(codes, bits);
            let share = grid.shares()[usize::from(code) & ((1 << (bits - 1)) - 1)];
            negated(share, code >> (bits - 1) == 1) * scales[i / *bucket as usize]
        }
        Payload::Sign { bucket, scales, signs } => negated(scales[i / *bucket as usize], code(signs, 1) == 1),
        Payload::Levels { bits, bucket, levels, codes } => {
            levels[(i / *bucket as usize) << bits | usize::from(code(codes, usize::from(*bits)))]
        }
        Payload::Natural { exponents, signs } => {
            negated(f32::from_bits(u32::from(exponents[i]) << 23), code(signs, 1) == 1)
        }
        Payload::Affine { block, ranges, codes } => {
            let [low, high] = ranges[i / *block as usize];
            let share = f32::from(codes[i]) / 255.0;
            (low * (1.0 - share) + high * share).max(low).min(high)
        }
        Payload::Sparse { indices, values } => {
            let mut value = 0.0;
            if let Ok(place) = indices.binary_search(&(i as u32)) {
                values.for_each(place, place + 1, |_, v| value = v);
            }
            value
        }
    }
}

/// Returns the message of a compressor of any crate. It is read from its wire form: other crates write messages of this crate as it is
/// built without tests.
fn message(compressor: &str, x: &[f32]) -> Message {
    let mut message = Message::default();
    message.decode_from(&briquette_testkit::wire::encoded(compressor, x)).unwrap();
    message
}

/// Compares bit for bit, negative zeros included, from any start, with a nonzero output vector.
fn adds_as_the_naive_decoder(compressor: &str, x: &[f32]) {
    let message = message(compressor, x);
    let values: Vec<f32> = (0..x.len()).map(|i| naive(&message, i)).collect();
    for (start, weight) in [(0, 1.0), (1, -0.3), (x.len() / 3, 0.125), (x.len(), 1.0)] {
        let start = start.min(x.len());
        let before: Vec<f32> = (start..x.len()).map(|i| [0.0, -0.0, 1.5, -1e-3][i % 4]).collect();
        let mut sum = before.clone();
        message.add_range(start, weight, &mut sum).unwrap();
        for ((sum, before), value) in sum.iter().zip(before).zip(&values[start..]) {
            let expected = before + weight * value;
            let kept = message.sparse_indices().is_none() || *value != 0.0;
            let expected = if kept { expected } else { before };
            assert_eq!(sum.to_bits(), expected.to_bits(), "{compressor}: {value:e}");
        }
    }
    let mut energy = vec![0.0; x.len()];
    message.decode_into(&mut energy).unwrap();
    let plain = distance2(x, &energy);
    assert!((message.error_energy(x) - plain).abs() <= 1e-9 * plain.max(distance2(x, &vec![0.0; x.len()])));
}

fn edges() -> Vec<Vec<f32>> {
    let one_hot = (0..1030).map(|i| if i == 600 { -3.7e-5 } else { 0.0 }).collect();
    vec![vec![], vec![0.0], vec![-0.0; 9], vec![-0.7; 33], vec![1e-45, -1e-45, 3e-40], vec![0.7; 1100], one_hot]
}

#[test]
fn every_shape_adds_what_the_naive_decoder_says() {
    let names = [
        "dense",
        "f16",
        "bf16",
        "minmax",
        "minmax:7",
        "natural",
        "sign",
        "sign:3",
        "one-bit",
        "one-bit:100",
        "bins",
        "bins:3:100",
    ];
    let levels = [
        "qsgd:2",
        "qsgd:3:7",
        "qsgd:4",
        "qsgd:8",
        "qsgd:s5:33",
        "terngrad",
        "dither",
        "dither:3:9",
        "round",
        "round:3",
        "float4:e3m0:9",
        "float4:e2m1",
        "float4:e2m1:9:random",
    ];
    let long: Vec<f32> = (0..2 * SEGMENT + 77).map(|i| (i as f32 * 0.37).sin() * ((i % 11) as f32 - 5.0)).collect();
    for name in names.into_iter().chain(levels) {
        for x in edges().iter().chain([&long, &vec![f32::MAX, -f32::MAX, 1e-45, 0.0]]) {
            adds_as_the_naive_decoder(name, x);
        }
    }
}
