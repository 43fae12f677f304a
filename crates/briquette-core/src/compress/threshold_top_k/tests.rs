use super::*;
use crate::compress::threshold::tests::awkward;
use crate::laws::compress::{edges, kept, noise, refining_equals_starting_over};
use proptest::prelude::*;

fn fraction(share: f64) -> ThresholdTopK {
    ThresholdTopK::fraction(share).unwrap()
}

#[test]
fn picks_by_hand() {
    // k = 2 of 5, exactly.
    assert_eq!(kept(fraction(0.4), &[1.0, -5.0, 2.0, 3.0, -0.0], Key::new(0)), [1, 3]);
    // k = 400 of 40 000, some of which are 5 and the others 0: 380 and 500 are within 280..=520 and all are sent; of 600 the first 400 are
    // sent.
    for (fives, sent) in [(380, 380), (500, 500), (600, 400)] {
        let mut x = vec![0.0; 40_000];
        (0..fives).for_each(|i| x[i * 61] = -5.0);
        let expected: Vec<u32> = (0..sent).map(|i| i as u32 * 61).collect();
        assert_eq!(kept(fraction(0.01), &x, Key::new(3)), expected);
    }
    // All equal: every value passes every threshold.
    assert_eq!(kept(fraction(0.01), &[0.3; 40_000], Key::new(0)), (0..400).collect::<Vec<u32>>());
}

#[test]
fn density_is_within_thirty_percent_and_nothing_larger_is_dropped() {
    let (mut lowest, mut highest) = (f64::MAX, 0.0_f64);
    for (name, len) in ["gauss", "laplace", "heavy"].iter().flat_map(|n| [40_000, 250_007].map(|len| (n, len))) {
        for (seed, share) in [0.1, 0.01, 0.001].into_iter().flat_map(|share| (0..4).map(move |s| (s, share))) {
            let x = noise(name, len, seed);
            let threshold = fraction(share);
            let mut message = Message::default();
            { threshold }.compress_into(&x, Key::new(seed), &mut message);
            let indices = message.sparse_indices().unwrap();
            let target = CompressionRatio::new(1.0 / share).unwrap().keep(len) as f64;
            let density = indices.len() as f64 / target;
            assert!((0.7..=1.3).contains(&density), "{name} {len} {share}: {density}");
            (lowest, highest) = (lowest.min(density), highest.max(density));
            // The naive reference: as many of all magnitudes, sorted.
            let smallest = indices.iter().map(|&i| x[i as usize].abs()).fold(f32::MAX, f32::min);
            assert_eq!(x.iter().filter(|v| v.abs() >= smallest).count(), indices.len(), "{name} {len} {share}");
        }
    }
    assert!(lowest < 1.0 && highest > 1.1, "both sides are seen: {lowest} to {highest}");
    println!("density over target: {lowest:.3} to {highest:.3}");
}

/// 20 of 40 000: the sample holds two of them, or none, or six.
#[test]
fn a_sample_too_small_costs_passes_but_not_density() {
    let threshold = fraction(0.0005).with_sample(1e-6).unwrap();
    let (x, mut again) = (noise("heavy", 40_000, 9), 0);
    for seed in 0..60 {
        let (mut sample, mut storage) = (Vec::new(), Vec::new());
        let mut once = Picks::new(&mut storage);
        draw(&x, threshold.samples(x.len()).unwrap(), Key::new(seed), &mut sample);
        sample.sort_by(|a, b| b.abs().total_cmp(&a.abs()));
        collect(&x, magnitude(sample[2]), [x.len(), x.len()], &mut once); // ⌊2.048 + √2.048⌋ = 3 of the sample pass
        again += usize::from(once.len() < 14);
        assert!(pick(&x, [20, x.len()], &mut sample, &mut once), "{seed}: a later pass is enough");
        assert!((14..=26).contains(&kept(threshold, &x, Key::new(seed)).len()), "{seed}");
    }
    assert!(again > 3, "{again} keys need a second pass");
}

#[test]
fn edges_are_finite_and_settings_are_checked() {
    for x in edges() {
        let n = kept(fraction(0.5), &x, Key::new(1)).len();
        let nonzero = x.iter().filter(|v| **v != 0.0).count();
        assert_eq!(n, nonzero.min(x.len().div_ceil(2)), "{x:?}");
    }
    let long = [vec![f32::MAX; 20_000], vec![-1e-45; 20_000]].concat();
    assert_eq!(kept(fraction(0.6), &long, Key::new(1)).len(), 24_000);
    assert_eq!(kept(fraction(1.0), &noise("gauss", 40_000, 0), Key::new(1)).len(), 40_000);
    assert!([0.0, 1.5, f64::NAN].map(ThresholdTopK::fraction).iter().all(Result::is_err));
    assert!([0.0, 1.5, f64::NAN].map(|s| fraction(0.1).with_sample(s)).iter().all(Result::is_err));
}

#[test]
fn declared_class_holds_where_a_sample_decides() {
    for (seed, x) in [vec![0.7; 40_000], noise("gauss", 40_000, 2), noise("heavy", 40_000, 2)].iter().enumerate() {
        let mut message = Message::default();
        { fraction(0.01) }.compress_into(x, Key::new(seed as u64), &mut message);
        let ErrorBound::Contractive { delta } = fraction(0.01).error_bound(x) else { panic!() };
        assert_eq!(delta, 0.007);
        assert!(message.error_energy(x) <= (1.0 - delta) * crate::math::norm2(x));
    }
}

#[test]
fn refining_long_vectors_equals_starting_over() {
    let few = (0..40_000).map(|i| if i % 61 == 0 { 5.0 } else { 0.0 }).collect();
    let noises = ["gauss", "laplace", "heavy"].map(|name| noise(name, 50_000, 3));
    for x in noises.into_iter().chain([vec![0.3; 40_000], few]) {
        for ratios in [[10.0, 20.0], [10.0, 1000.0], [10.0, 12.0], [100.0, 10.0], [1.0, 3.0], [4.0, 4.0]] {
            refining_equals_starting_over(fraction(1.0), &x, ratios);
            // With few samples, so that thresholds miss.
            refining_equals_starting_over(fraction(1.0).with_sample(1e-6).unwrap(), &x, ratios);
        }
    }
}

proptest! {
    #[test]
    fn refining_short_vectors_equals_starting_over(
        x in proptest::collection::vec(awkward(), 0..200),
        coarse in 1.0_f64..20.0,
        fine in 1.0_f64..20.0,
    ) {
        refining_equals_starting_over(fraction(1.0), &x, [coarse, fine]);
    }
}
