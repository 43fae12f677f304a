use super::*;
use briquette_core::compress::{Norm, coded::Coded, top_k::TopK};
use briquette_core::laws::compress::{assert_edges, assert_unbiased, decoded, noise};
use briquette_core::math::distance2;
use proptest::prelude::*;

use crate::compress::exponential_dithering::ExponentialDithering;

const FORMATS: [Format; 2] = [Format::E3M0, Format::E2M1];

fn message(compressor: &mut impl Compressor, x: &[f32]) -> Message {
    let mut message = Message::default();
    compressor.compress_into(x, Key::new(0), &mut message);
    message
}

/// Scale 16, so values are floats times one. The second to the eighth are in the middle of two floats: of codes 6 and 7, 5 and 6, …, 0 and 1.
#[test]
fn e3m0_by_hand() {
    let x = [16.0, -12.0, 6.0, -3.0, 1.5, 0.75, 0.375, -0.125, 0.126, 13.0];
    let expected = [16.0, -8.0, 8.0, -2.0, 2.0, 0.5, 0.5, -0.0, 0.25, 16.0];
    assert_eq!(decoded(&mut Float4::new(Format::E3M0), &x, Key::new(0)), expected);
    assert_eq!(message(&mut Float4::new(Format::E3M0), &x).encoded_len(), 21 + 4 + 5);
}

/// Scale 6. The second to the eighth are in the middle of two floats.
#[test]
fn e2m1_by_hand() {
    let x = [6.0, -5.0, 3.5, -2.5, 1.75, 1.25, 0.75, -0.25, 0.26, 2.9];
    let expected = [6.0, -4.0, 4.0, -2.0, 2.0, 1.0, 1.0, -0.0, 0.5, 3.0];
    assert_eq!(decoded(&mut Float4::new(Format::E2M1), &x, Key::new(0)), expected);
    let bucketed = &mut Float4::new(Format::E2M1).bucketed(3).unwrap();
    assert_eq!(message(bucketed, &x).encoded_len(), 17 + 4 * 4 + 5);
    // Each bucket has its own scale: 5 is the largest of (1.75, 5, 0.75).
    assert_eq!(decoded(bucketed, &[6.0, 1.0, 1.0, 1.75, 5.0, 0.75], Key::new(0))[4], 5.0);
}

/// Returns the scale of a bucket over its largest float, and the floats on both sides of each value, in f64.
fn neighbors(format: Format, bucket: &[f32]) -> (f64, Vec<[f64; 3]>) {
    let floats = format.floats().map(f64::from);
    let unit = f64::from(largest(bucket)) / floats[7];
    let of = |v: &f32| {
        let a = if unit > 0.0 { f64::from(v.abs()) / unit } else { 0.0 };
        let low = floats.iter().copied().filter(|f| *f <= a).fold(0.0, f64::max);
        [low, a, floats.iter().copied().filter(|f| *f >= a).fold(floats[7], f64::min)]
    };
    (unit, bucket.iter().map(of).collect())
}

proptest! {
    /// The nearest of all floats, and the bound.
    #[test]
    fn it_equals_its_naive_twin(x in proptest::collection::vec(-1e3_f32..1e3, 1..300), bucket in 1_usize..100, small in 0_i32..12) {
        let x: Vec<f32> = x.iter().enumerate().map(|(i, v)| v * 2_f32.powi(-small * (i % 3) as i32)).collect();
        for format in FORMATS {
            let mut float4 = Float4::new(format).bucketed(bucket).unwrap();
            let out = decoded(&mut float4, &x, Key::new(0));
            for (x, out) in x.chunks(bucket).zip(out.chunks(bucket)) {
                let (unit, neighbors) = neighbors(format, x);
                for ((x, out), [low, a, high]) in x.iter().zip(out).zip(neighbors) {
                    let lost = (f64::from(*out) - f64::from(*x)).abs();
                    prop_assert!(lost <= unit * ((a - low).min(high - a) + 1e-5), "{x} {out}");
                    prop_assert!(*out == 0.0 || out.signum() == x.signum());
                }
            }
            let ErrorBound::Contractive { delta } = float4.error_bound(&x) else { panic!() };
            prop_assert!(distance2(&x, &out) <= (1.0 - delta) * norm2(&x) + 1e-6);
        }
    }

    #[test]
    fn random_e3m0_is_exponential_dithering_to_the_bit(x in proptest::collection::vec(-1e3_f32..1e3, 0..300), bucket in 1_usize..100) {
        let mut ours = Float4::new(Format::E3M0).bucketed(bucket).unwrap().random();
        let mut dither = ExponentialDithering::new(2.0, 7, bucket, Norm::Max).unwrap();
        prop_assert_eq!(message(&mut ours, &x), message(&mut dither, &x));
    }
}

#[test]
fn random_draws_are_unbiased_with_the_exact_variance_below_the_declared_one() {
    let x: Vec<f32> = (0..40).map(|i| (i as f32 * 1.7).sin() * 10_f32.powi(i % 5 - 2)).collect();
    for format in FORMATS {
        let mut random = Float4::new(format).bucketed(20).unwrap().random();
        let variance = |bucket: &[f32]| {
            let (unit, neighbors) = neighbors(format, bucket);
            neighbors.iter().map(|[low, a, high]| (a - low) * (high - a)).sum::<f64>() * unit * unit
        };
        let exact: f64 = x.chunks(20).map(variance).sum();
        assert_unbiased(&mut random, &x, exact);
        let ErrorBound::Unbiased { omega } = random.error_bound(&x) else { panic!() };
        assert!(exact <= omega * norm2(&x), "{exact} {omega}");
    }
}

/// Bounds are reached in the middle of two floats: of 8 and 16 or 0.5 and 1 a third is lost, of 0 and the lowest all of it.
#[test]
fn the_declared_bound_is_reached() {
    for (format, third, lowest) in [(Format::E3M0, 0.374_99, 1.0 / 128.01), (Format::E2M1, 0.124_99, 1.0 / 24.01)] {
        let of = |rest: f32| {
            let mut x = vec![rest; 20];
            x[0] = 1.0;
            let mut float4 = Float4::new(format);
            let ErrorBound::Contractive { delta } = float4.error_bound(&x) else { panic!() };
            (distance2(&x, &decoded(&mut float4, &x, Key::new(0))), (1.0 - delta) * norm2(&x))
        };
        let h = f64::from(format.floats()[1] / format.floats()[7]) / 2.0;
        let (lost, bound) = of(third);
        assert!(lost <= bound && bound <= lost * 1.001 + 19.0 * h * h + 1e-5, "{lost} {bound}");
        let (lost, bound) = of(lowest);
        assert!(lost <= bound && bound <= lost * 1.01 + 1e-5, "{lost} {bound}");
    }
}

/// The smallest δ of the module's note: all values but one are just below the largest magnitude that is lost.
#[test]
fn the_declared_constant_holds_for_buckets_up_to_the_named_size() {
    for (format, values) in [(Format::E3M0, 1821), (Format::E2M1, 65)] {
        let delta = |n: usize, rest: f32| {
            let mut x = vec![rest; n];
            x[0] = 1.0;
            let float4 = Float4::new(format).bucketed(n).unwrap();
            let ErrorBound::Contractive { delta } = float4.error_bound(&x) else { panic!() };
            delta
        };
        let rests = || (0..60).map(|i| 0.8_f32.powi(i));
        let smallest = |n: usize| rests().map(|rest| delta(n, rest)).fold(1.0, f64::min);
        assert!(smallest(values) > 8.0 / 9.0 - 1e-5, "{}", smallest(values));
        assert!(smallest(2 * values) < 0.85 && smallest(2 * values) > 0.5 / values as f64);
    }
}

/// The shares of the module's note.
#[test]
fn most_energy_of_normal_values_is_kept() {
    let x = noise("gauss", 1 << 18, 9);
    for (format, shares) in [(Format::E3M0, [0.967, 0.962, 0.962]), (Format::E2M1, [0.990, 0.988, 0.983])] {
        for (bucket, share) in [32, 256, 1 << 18].into_iter().zip(shares) {
            let out = decoded(&mut Float4::new(format).bucketed(bucket).unwrap(), &x, Key::new(0));
            let kept = 1.0 - distance2(&x, &out) / norm2(&x);
            assert!((kept - share).abs() < 1e-3, "{format:?} {bucket}: {kept}");
        }
    }
}

/// Values of a sparsifier take four bits and their share of a scale.
#[test]
fn values_of_a_sparsifier_take_four_bits() {
    let x = noise("gauss", 1 << 16, 5);
    let top_k = TopK::fraction(1.0 / 16.0).unwrap();
    let (plain, coded) = (message(&mut { top_k }, &x), message(&mut Coded::new(top_k, Float4::new(Format::E2M1)), &x));
    // 4096 values: 16 scales of 4 bytes and half a byte each, and 10 bytes for the shape of the inner message.
    assert_eq!(plain.encoded_len() - coded.encoded_len(), 4 * 4096 - (2048 + 64 + 10));
    let out = decoded(&mut Coded::new(top_k, Float4::new(Format::E2M1)), &x, Key::new(0));
    assert!(distance2(&x, &out) < 1.02 * distance2(&x, &decoded(&mut { top_k }, &x, Key::new(0))));
}

#[test]
fn edges_stay_finite() {
    for format in FORMATS {
        assert_edges(&mut Float4::new(format));
        assert_edges(&mut Float4::new(format).bucketed(3).unwrap().random());
    }
}

#[test]
fn settings_out_of_range_are_named() {
    crate::install();
    for (text, says) in [
        ("float4:e4m0", "`e4m0`, expected `e3m0` or `e2m1`"),
        ("float4:e3m0:0", "bucket of float4 must be"),
        ("float4:e3m0:9:up", "expected `nearest` or `random`"),
    ] {
        let error = text.parse::<briquette_core::config::CompressorConfig>().unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(Float4::default().bucketed(0).is_err());
}
