use super::*;
use crate::compress::testkit::awkward;
use briquette_core::laws::compress::{edges, keeps_the_largest_as_declared, kept, noise};
use proptest::prelude::*;

fn fraction(share: f64) -> Sidco {
    Sidco::fraction(share).unwrap()
}

fn kept_count(mut sidco: Sidco, x: &[f32]) -> usize {
    let mut message = Message::default();
    sidco.compress_into(x, Key::new(0), &mut message);
    message.kept()
}

#[test]
fn one_stage_by_hand() {
    // d = 4, k = 1: one stage. Mean 10/4 = 2.5, threshold 2.5·ln 4 = 3.466: one value.
    let x = [1.0, -4.0, 2.0, 3.0];
    assert_eq!(fit(&x, 1), (floor_of(2.5 * 4_f64.ln()), 1));
    assert_eq!(kept(fraction(0.25), &x, Key::new(0)), [1]);
    // Two stages for k = 1 of 8 (ln 8/ln 4 = 1.5): mean 36/8 = 4.5, half of ln 8 is 1.0397, threshold 4.679. Above it are 5 to 8: mean 6.5,
    // excess 1.821, ln(4/1) = 1.386, threshold 7.204: one value.
    let x = [-8.0, 1.0, 2.0, -3.0, 4.0, 5.0, 6.0, -7.0];
    let first = 4.5 * 8_f64.ln() / 2.0;
    assert_eq!(fit(&x, 1), (floor_of(first + (6.5 - first) * 4_f64.ln()), 1));
    // Six equal values: no threshold passes 2, so the first two of the largest are sent.
    assert_eq!(kept(fraction(0.25), &[3.0, 3.0, -9.0, 3.0, 3.0, 3.0, 3.0, 0.0], Key::new(0)), [0, 2]);
}

#[test]
fn exponential_magnitudes_give_the_ratio_within_three_percent() {
    for share in [0.3, 0.1, 0.02, 0.013] {
        for seed in 0..3 {
            let x = noise("laplace", 1 << 19, seed);
            let achieved = kept_count(fraction(share), &x) as f64 / x.len() as f64 / share;
            assert!((achieved - 1.0).abs() < 0.03, "{share}: {achieved}");
        }
    }
}

#[test]
fn picks_are_within_a_fifth_on_every_tail() {
    for (name, share) in ["gauss", "laplace", "heavy"].iter().flat_map(|n| [0.5, 0.1, 0.01, 0.001].map(|s| (n, s))) {
        for seed in 0..3 {
            let (x, k) = (noise(name, 50_000, seed), (share * 50_000.0) as usize);
            let n = kept_count(fraction(share), &x);
            assert!(enough(n, k), "{name} {share}: {n}");
            assert!(fit(&x, k).1 <= most(k), "a threshold was found: {name} {share}");
        }
    }
    let mut x = noise("gauss", 50_000, 1);
    x[77] = 1e7;
    assert!(enough(kept_count(fraction(0.01), &x), 500), "one huge value");
}

/// For ten, from 8 to 12; for one, one.
#[test]
fn enough_is_eight_to_twelve_tenths() {
    assert_eq!([7, 8, 12, 13].map(|n| enough(n, 10)), [false, true, true, false]);
    assert_eq!((most(10), most(1), most(4)), (12, 1, 4));
}

#[test]
fn edges_are_finite() {
    for x in edges() {
        let (n, k) = (kept(fraction(0.5), &x, Key::new(1)).len(), x.len().div_ceil(2));
        let nonzero = x.iter().filter(|v| **v != 0.0).count();
        assert!(enough(n, k) || n == nonzero, "{x:?}: {n}");
        assert_eq!(kept(fraction(1.0), &x, Key::new(1)).len(), nonzero);
    }
    assert!([0.0, 1.5, f64::NAN].map(Sidco::fraction).iter().all(Result::is_err));
}

proptest! {
    #[test]
    fn picks_are_the_largest_and_as_many_as_declared(
        x in proptest::collection::vec(awkward(), 1..200),
        share in 0.01_f64..1.0,
    ) {
        keeps_the_largest_as_declared(fraction(share), &x);
        let (n, nonzero) = (kept_count(fraction(share), &x), x.iter().filter(|v| **v != 0.0).count());
        prop_assert!(enough(n, fraction(share).ratio.keep(x.len())) || n == nonzero);
    }
}
