use super::*;
use crate::BLOCK;
use crate::laws::compress::{self as laws, assert_unbiased};
use crate::math::{largest, norm2};
use rand::Rng;

fn decoded(mut qsgd: Qsgd, x: &[f32], key: Key) -> Vec<f32> {
    laws::decoded(&mut qsgd, x, key)
}

fn both(bits: u8, bucket: usize) -> [Qsgd; 2] {
    [Norm::L2, Norm::Max].map(|norm| Qsgd::new(bits, bucket, norm).unwrap())
}

#[test]
fn codes_by_hand() {
    // L2 of (3, −4) is 5; s = 3: a = 1.8 and 2.4. Up to level 2 if u < 0.8, and to 3 if u < 0.4; a level is worth 5/3. The first two lanes
    // of this key give both u.
    let mut random = [0; 2];
    Key::new(9).lanes(0).halves(&mut random);
    let below = |i: usize, chance: f64| f32::from(f64::from(random[i]) < chance * 65_536.0);
    let levels = [1.0 + below(0, 0.8), 2.0 + below(1, 0.4)];
    let out = decoded(Qsgd::new(3, 512, Norm::L2).unwrap(), &[3.0, -4.0], Key::new(9));
    assert_eq!(out, [levels[0] / 3.0 * 5.0, -(levels[1] / 3.0 * 5.0)]);
}

#[test]
fn zeros_one_hot_and_levels_are_exact() {
    let mut one_hot = vec![0.0; 700];
    one_hot[600] = -3.7e-5;
    for x in [vec![], vec![0.0; 600], vec![-0.0], one_hot, vec![-f32::MAX], vec![1e-45, 0.0]] {
        for qsgd in [2, 5, 8].into_iter().flat_map(|bits| both(bits, 512)) {
            assert_eq!(decoded(qsgd, &x, Key::new(1)), x, "{qsgd:?}");
            assert_eq!(qsgd.variance(&x), 0.0);
        }
    }
}

#[test]
fn extremes_stay_finite_and_settings_are_checked() {
    for x in [vec![f32::MAX; 600], vec![f32::MAX, -1.0, 1e-45], vec![1e-45, -3e-45, 1e-44]] {
        for qsgd in both(4, 512) {
            assert!(decoded(qsgd, &x, Key::new(2)).iter().all(|v| v.is_finite()), "{qsgd:?}");
        }
    }
    assert!(Qsgd::new(1, 512, Norm::L2).is_err() && Qsgd::new(9, 512, Norm::L2).is_err());
    assert!(Qsgd::new(4, 0, Norm::L2).is_err());
    let mut qsgd = both(4, 512)[0];
    let bits = |c: f64, q: &mut Qsgd| {
        q.tune(CompressionRatio::new(c).unwrap());
        q.grid().bits()
    };
    assert_eq!([1.0, 4.0, 6.0, 8.0, 11.0, 100.0].map(|c| bits(c, &mut qsgd)), [8, 8, 5, 4, 3, 2]);
}

#[test]
fn max_norm_constant_is_attained_and_below_the_simple_bounds() {
    for (bits, n) in [(2, 128), (4, 512), (8, 64)] {
        let qsgd = Qsgd::new(bits, n, Norm::Max).unwrap();
        let s = f64::from(qsgd.levels);
        let m = (n - 1) as f64;
        let t = s / m * ((s * s + m).sqrt() - s);
        let mut x = vec![(t / s) as f32; n];
        x[0] = 1.0;
        let ErrorBound::Unbiased { omega } = qsgd.error_bound(&x) else { panic!() };
        assert!((qsgd.variance(&x) / norm2(&x) / omega - 1.0).abs() < 1e-5);
        assert!(omega <= (n as f64).sqrt() / (2.0 * s) && omega <= n as f64 / (4.0 * s * s));
        // Equal to n(1−t)/(2s√(s² + n)) with n for m.
        assert!((omega / (m * (1.0 - t) / (2.0 * s * (s * s + m).sqrt())) - 1.0).abs() < 1e-9);
    }
}

#[test]
fn constants_by_hand() {
    let omega =
        |levels, bucket, norm, len| match Qsgd::with_levels(levels, bucket, norm).unwrap().error_bound(&vec![1.0; len])
        {
            ErrorBound::Unbiased { omega } => omega,
            class => panic!("{class:?}"),
        };
    // L2 of 64 values, √n = 8: more levels than that, 64/16² = 1/4 (not 8/16); as many, both are 1; fewer, 8/4 (not 64/4²).
    assert_eq!([16, 8, 4].map(|s| omega(s, 64, Norm::L2, 64)), [0.25, 1.0, 2.0]);
    // A short vector is a short bucket: 16/16², and a long one is several: 1/4 as above.
    assert_eq!([16, 1000].map(|len| omega(16, 64, Norm::L2, len)), [0.0625, 0.25]);
    // L1 of 8 values: 8/1 (not 8²/4); 8²/(4·16²) = 1/16 (not 8/16).
    assert_eq!([1, 16].map(|s| omega(s, 8, Norm::L1, 8)), [8.0, 0.0625]);
    // Max of 2 values, one level: t = √2 − 1, and t(1 − t)/(1 + t²) = t/2. A single value loses nothing.
    assert!((omega(1, 2, Norm::Max, 2) - (2_f64.sqrt() - 1.0) / 2.0).abs() < 1e-15);
    assert_eq!(omega(1, 1, Norm::Max, 9), 0.0);
}

/// At most `s²` values are at least one level of the scale, and none of them becomes zero. The others are kept with probability `a`, and
/// `Σ a ≤ s·√n`.
#[test]
fn few_levels_of_the_l2_norm_are_not_zero() {
    let (n, draws) = (4096, 100);
    let mut rng = Key::new(4).block(0);
    let gauss: Vec<f32> = (0..n).map(|_| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0).collect();
    let mut outliers = gauss.clone();
    outliers[..40].fill(50.0);
    for (x, levels) in [vec![0.7; n], gauss, outliers].iter().flat_map(|x| [1, 8].map(|levels| (x, levels))) {
        let (qsgd, s) = (Qsgd::with_levels(levels, n, Norm::L2).unwrap(), f64::from(levels));
        let chance = |v: &f32| (f64::from(v.abs()) / norm2(x).sqrt() * s).min(1.0);
        let expected: f64 = x.iter().map(chance).sum();
        let variance: f64 = x.iter().map(chance).map(|p| p * (1.0 - p)).sum();
        let nonzero = |step| decoded(qsgd, x, Key::new(5).step(step)).iter().filter(|v| **v != 0.0).count() as f64;
        let mean = (0..draws).map(nonzero).sum::<f64>() / draws as f64;
        assert!((mean - expected).abs() <= 5.5 * (variance / draws as f64).sqrt(), "{levels}: {mean}, not {expected}");
        let bound = s * (s + (n as f64).sqrt());
        assert!(expected <= bound, "{levels} levels: {expected} above {bound}");
        // Equal values reach 64 of the bound of 65.
        assert!(x[0] != 0.7 || levels != 1 || expected > 0.98 * bound, "{expected} of {bound}");
    }
}

#[test]
fn draws_are_unbiased_with_the_exact_variance_below_the_declared_one() {
    let mut rng = Key::new(3).block(0);
    let gauss: Vec<f32> = (0..48).map(|_| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0).collect();
    let mut outlier = gauss.clone();
    outlier[5] = 300.0;
    for (x, mut qsgd) in [gauss, outlier, vec![0.7; 40]].iter().flat_map(|x| both(3, 20).map(|q| (x, q))) {
        let exact = qsgd.variance(x);
        assert_unbiased(&mut qsgd, x, exact);
        let ErrorBound::Unbiased { omega } = qsgd.error_bound(x) else { panic!() };
        assert!(exact <= omega * norm2(x), "{qsgd:?}");
    }
}

#[test]
fn elias_codes_of_as_many_levels_as_the_root_take_three_bits() {
    let mut rng = Key::new(8).block(0);
    let n = 4096;
    let x: Vec<f32> = (0..n).map(|_| (0..12).map(|_| rng.random::<f32>()).sum::<f32>() - 6.0).collect();
    let mut qsgd = Qsgd::with_levels(64, n, Norm::L2).unwrap().elias();
    let mut message = Message::default();
    qsgd.compress_into(&x, Key::new(1), &mut message);
    let bits = 8.0 * message.encoded_len() as f64;
    // P(0) = 0.369 at 1 bit, P(1) + P(2) = 0.60 at 4, the rest at 7 and more.
    assert!((2.9..3.0).contains(&(bits / n as f64)), "{bits}");
    // Equal values are all on level 1: 4 bits each, the maximum.
    qsgd.compress_into(&vec![0.5; n], Key::new(1), &mut message);
    assert_eq!(message.encoded_len(), 17 + 4 + n * 4 / 8);
    assert_eq!(decoded(qsgd, &x, Key::new(1)), decoded(Qsgd { coding: Coding::Fixed, ..qsgd }, &x, Key::new(1)));
}

#[test]
fn levels_that_no_number_of_bits_holds_exactly_keep_to_their_grid() {
    let x: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
    let qsgd = Qsgd::with_levels(5, 1000, Norm::Max).unwrap();
    let top = largest(&x);
    for v in decoded(qsgd, &x, Key::new(1)) {
        let level = f64::from(v) / f64::from(top) * 5.0;
        assert!((level - level.round()).abs() < 1e-5 && level.abs() < 5.1, "{v}");
    }
    assert!(Qsgd::with_levels(0, 512, Norm::L2).is_err() && Qsgd::with_levels(128, 512, Norm::L2).is_err());
}

#[test]
fn equal_draws_scale_with_the_vector_and_blocks_have_their_own() {
    let x: Vec<f32> = (0..BLOCK + 100).map(|i| ((i % BLOCK) as f32 * 0.37).sin()).collect();
    for qsgd in both(4, 512) {
        let base = decoded(qsgd, &x, Key::new(6));
        let scaled: Vec<f32> = x.iter().map(|v| v * 8.0).collect();
        let expected: Vec<f32> = base.iter().map(|v| v * 8.0).collect();
        assert_eq!(decoded(qsgd, &scaled, Key::new(6)), expected);
        assert_ne!(base[..100], base[BLOCK..], "other draws in the second block");
    }
}

/// Small values of either sign become zeros of either sign in codes of fixed width.
#[test]
fn codes_of_fixed_width_become_elias_codes() {
    let x: Vec<f32> = (0..300).map(|i| (i as f32 * 0.7).sin().powi(9)).collect();
    for (bits, norm) in [(2, Norm::L2), (4, Norm::Max), (8, Norm::Max)] {
        let fixed = Qsgd::new(bits, 64, norm).unwrap();
        let (mut message, mut elias) = (Message::default(), Message::default());
        { fixed }.compress_into(&x, Key::new(1), &mut message);
        fixed.elias().compress_into(&x, Key::new(1), &mut elias);
        let len = message.encoded_len();
        message.set_coding(Coding::Elias);
        assert_eq!(message, elias, "{bits} bits");
        message.set_coding(Coding::Fixed);
        assert_eq!((message.coding(), message.encoded_len()), (Some(Coding::Fixed), len));
    }
}
