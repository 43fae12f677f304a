use super::*;
use crate::compress::testkit::awkward;
use briquette_core::laws::compress::{
    edges, keeps_the_largest_as_declared, kept, noise, refining_equals_starting_over,
};
use proptest::prelude::*;

fn fraction(share: f64) -> Redsync {
    Redsync::fraction(share).unwrap()
}

#[test]
fn bisection_by_hand() {
    // Magnitudes 1 to 8: mean 4.5, largest 8; k = 1. ρ = 0: t = 4.5 passes 4; ½: 6.25 passes 2; ¾: 7.125 passes 1.
    let x = [-8.0, 1.0, 2.0, -3.0, 4.0, 5.0, 6.0, -7.0];
    assert_eq!(bisect(&x, mean(&x), 1), (7.125_f32.to_bits(), 1));
    assert_eq!(kept(fraction(0.125), &x, Key::new(0)), [0]);
    // k = 2: 4 picks at ρ = 0 are one too many; 2 at ½.
    assert_eq!(kept(fraction(0.25), &x, Key::new(0)), [0, 7]);
    // Six equal above the mean of 2.7: 7 ≥ 2k = 4 at every threshold up to them, and 1 beyond: the first two of the
    // largest.
    let ties = [3.0, 3.0, -9.0, 3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0];
    assert_eq!(kept(fraction(0.2), &ties, Key::new(0)), [0, 2]);
}

#[test]
fn picks_lie_between_k_and_2k_and_fall_short_only_for_heavy_tails() {
    for (name, share) in ["gauss", "laplace", "heavy"].iter().flat_map(|n| [0.1, 0.01, 0.001].map(|s| (n, s))) {
        for seed in 0..3 {
            let (x, k) = (noise(name, 50_000, seed), (share * 50_000.0) as usize);
            let n = kept_count(fraction(share), &x);
            assert!((k..2 * k).contains(&n), "{name} {share}: {n}");
        }
    }
    // One value raises the mean above all others.
    let mut x = noise("gauss", 50_000, 1);
    x[77] = 1e7;
    assert_eq!(kept(fraction(0.01), &x, Key::new(0)), [77]);
}

fn kept_count(mut redsync: Redsync, x: &[f32]) -> usize {
    let mut message = Message::default();
    redsync.compress_into(x, Key::new(0), &mut message);
    message.kept()
}

#[test]
fn refining_long_vectors_equals_starting_over() {
    for name in ["gauss", "laplace", "heavy"] {
        let x = noise(name, 50_000, 3);
        for ratios in [[10.0, 20.0], [10.0, 1000.0], [10.0, 12.0], [100.0, 10.0], [1.0, 3.0], [4.0, 4.0]] {
            refining_equals_starting_over(fraction(1.0), &x, ratios);
        }
    }
}

#[test]
fn edges_are_finite() {
    for x in edges() {
        let n = kept(fraction(0.1), &x, Key::new(1)).len();
        let k = CompressionRatio::new(10.0).unwrap().keep(x.len());
        assert!(n < 2 * k.max(1) && (n > 0 || x.iter().all(|v| *v == 0.0)), "{x:?}: {n}");
        let all = kept(fraction(1.0), &x, Key::new(1)).len();
        assert_eq!(all, x.iter().filter(|v| **v != 0.0).count());
    }
    assert_eq!(kept(fraction(0.5), &[2.0; 90], Key::new(0)).len(), 45);
    assert!([0.0, 1.5, f64::NAN].map(Redsync::fraction).iter().all(Result::is_err));
}

proptest! {
    #[test]
    fn picks_are_the_largest_and_as_many_as_declared(
        x in proptest::collection::vec(awkward(), 1..200),
        share in 0.01_f64..1.0,
    ) {
        keeps_the_largest_as_declared(fraction(share), &x);
    }

    #[test]
    fn refining_short_vectors_equals_starting_over(
        x in proptest::collection::vec(awkward(), 0..200),
        coarse in 1.0_f64..20.0,
        fine in 1.0_f64..20.0,
    ) {
        refining_equals_starting_over(fraction(1.0), &x, [coarse, fine]);
    }
}
