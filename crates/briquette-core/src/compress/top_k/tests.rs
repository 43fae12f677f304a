use super::*;
use crate::compress::threshold::{SAMPLED, tests::awkward};
use crate::math::{distance2, norm2};
use proptest::prelude::*;

fn compress(top_k: TopK, x: &[f32]) -> Message {
    let mut message = Message::default();
    { top_k }.compress_into(x, Key::new(0), &mut message);
    message
}

fn decoded(message: &Message) -> Vec<f32> {
    let mut out = vec![0.0; message.len()];
    message.decode_into(&mut out).unwrap();
    out
}

/// Sorts all values by magnitude, then by index.
fn naive(x: &[f32], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..x.len() as u32).filter(|&i| x[i as usize] != 0.0).collect();
    order.sort_by(|&a, &b| x[b as usize].abs().total_cmp(&x[a as usize].abs()).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

fn ratio(c: f64) -> TopK {
    TopK::ratio(CompressionRatio::new(c).unwrap())
}

#[test]
fn three_of_eight_by_hand() {
    // Magnitudes 4 (index 1), then 3 at indices 0, 2, 5 and 6: the lowest two of the ties are kept.
    let x = [3.0, -4.0, -3.0, 0.0, 2.0, 3.0, -3.0, 1.0];
    let message = compress(ratio(8.0 / 3.0), &x);
    assert_eq!(decoded(&message), [3.0, -4.0, -3.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!((message.kept(), message.kept_energy(&x), message.error_energy(&x)), (3, 34.0, 23.0));
    // Q8 of 3, 4, 3: range [3, 4], levels 0, 127, 0; all exact.
    assert_eq!(decoded(&compress(ratio(8.0 / 3.0).with_values(ValueKind::Q8), &x)), decoded(&message));
    // Q8 of 1, 2, 1.306: (1.306 − 1)·127 = 38.86 → 39, 1 + 39/127.
    let q8 = compress(ratio(1.0).with_values(ValueKind::Q8), &[1.0, -2.0, 1.306]);
    assert_eq!(decoded(&q8), [1.0, -2.0, 1.0 + 39.0 / 127.0]);
}

#[test]
fn constants_by_hand() {
    // 3 of 8 are kept; short value formats lose a little of them. Equal magnitudes lose at least 5 of 8.
    let (top, x) = (ratio(8.0 / 3.0), [-2.0, 2.0, 2.0, -2.0, 2.0, 2.0, 2.0, 2.0]);
    let delta = |values, x: &[f32]| match top.with_values(values).error_bound(x) {
        ErrorBound::Contractive { delta } => delta,
        class => panic!("{class:?}"),
    };
    assert_eq!(delta(ValueKind::F32, &x), 0.375);
    assert_eq!(distance2(&x, &decoded(&compress(top, &x))), (1.0 - 0.375) * norm2(&x));
    // (1 − 2⁻²³)² = 1 − 2⁻²² + 2⁻⁴⁶; 249 of 250.
    assert!((delta(ValueKind::F16, &x) / 0.375 - (1.0 - 2_f64.powi(-23)).powi(2)).abs() < 1e-12);
    assert!((delta(ValueKind::Q8, &x) / 0.375 - 0.996).abs() < 1e-12);
    // 9 values: round(9·3/8) = 3 of them. At least one of two; an empty vector loses nothing.
    assert_eq!([9, 2].map(|n| delta(ValueKind::F32, &vec![1.0; n])), [3.0 / 9.0, 0.5]);
    assert_eq!(delta(ValueKind::F32, &[]), 1.0);
}

#[test]
fn edges_are_kept_or_dropped_as_documented() {
    for values in [ValueKind::F32, ValueKind::F16, ValueKind::Q8] {
        let half = ratio(2.0).with_values(values);
        for (x, kept) in [
            (&[][..], 0),
            (&[0.0, -0.0, 0.0][..], 0),
            (&[-7.5][..], 1),
            (&[2.0; 9][..], 5),
            (&[1e-45, 0.0, -1e-45, 1e-45][..], 2),
            (&[f32::MAX, -f32::MAX, 1.0, 2.0][..], 2),
        ] {
            let message = compress(half, x);
            assert_eq!(message.kept(), kept, "{values:?} {x:?}");
            assert!(decoded(&message).iter().all(|v| v.is_finite()));
        }
        assert_eq!(decoded(&compress(half, &[1e-45, 0.0, -3e-45])), [1e-45, 0.0, -3e-45]);
    }
    assert!([0.0, -0.1, 1.1, f64::NAN, 1e-320].map(TopK::fraction).iter().all(Result::is_err));
}

#[test]
fn long_vectors_select_exactly_with_and_without_the_sampled_floor() {
    let noise = |i: usize| (((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0).powi(3);
    let spread: Vec<f32> = (0..SAMPLED + 77).map(noise).collect();
    let coarse: Vec<f32> = spread.iter().map(|v| (v * 4.0).round()).collect();
    let one_burst: Vec<f32> = (0..SAMPLED).map(|i| if (500..900).contains(&i) { noise(i) } else { 0.0 }).collect();
    for x in [spread, coarse, one_burst, vec![-1.0; SAMPLED]] {
        for k in [1, 30, 1000, SAMPLED / 4, SAMPLED / 4 + 1, SAMPLED] {
            let mut indices = Vec::new();
            select(&x, k, &mut indices).finish();
            assert_eq!(indices, naive(&x, k), "k = {k}");
        }
    }
}

proptest! {
    #[test]
    fn selection_equals_sorting(x in proptest::collection::vec(awkward(), 1..200), c in 1.0_f64..20.0) {
        let message = compress(ratio(c), &x);
        let expected = naive(&x, CompressionRatio::new(c).unwrap().keep(x.len()));
        prop_assert_eq!(message.sparse_indices(), Some(&expected[..]));
    }

    #[test]
    fn refining_equals_starting_over(
        x in proptest::collection::vec(awkward(), 0..200),
        a in 1.0_f64..20.0,
        b in 1.0_f64..20.0,
        coarse_values in prop::sample::select(vec![ValueKind::F32, ValueKind::Q8]),
    ) {
        let coarse = compress(ratio(a).with_values(coarse_values), &x);
        let mut refined = Message::default();
        ratio(b).refine_into(&x, &coarse, Key::new(0), &mut refined);
        prop_assert_eq!(refined, compress(ratio(b), &x));
    }

    #[test]
    fn declared_class_holds_and_no_kept_value_becomes_zero(
        x in proptest::collection::vec(awkward(), 1..600),
        c in 1.0_f64..20.0,
        values in prop::sample::select(vec![ValueKind::F32, ValueKind::F16, ValueKind::Q8]),
    ) {
        let message = compress(ratio(c).with_values(values), &x);
        let error = distance2(&x, &decoded(&message));
        let ErrorBound::Contractive { delta } = ratio(c).with_values(values).error_bound(&x) else { panic!() };
        prop_assert!(error <= (1.0 - delta) * norm2(&x) * (1.0 + 1e-12), "{} {}", error, norm2(&x));
        prop_assert!((message.error_energy(&x) - error).abs() <= 1e-12 * norm2(&x));
        if values == ValueKind::Q8 {
            prop_assert_eq!(decoded(&message).iter().filter(|v| **v != 0.0).count(), message.kept());
        }
    }
}
