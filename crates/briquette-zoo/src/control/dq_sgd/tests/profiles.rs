//! Tests of the paper's error term, `Σ ‖g‖²/s²`, relative to constant bits of the same mean, if norms are not flat.

use super::{mean, run};
use crate::control::dq_sgd::DqSgd;
use briquette_core::Key;
use rand_distr::{Distribution, StandardNormal};

const STEPS: u64 = 300;

/// Returns `Σ ‖g‖²/s²` of these bits relative to that of their mean.
fn relative(norms: &[f64], bits: &[f64]) -> f64 {
    let term = |norm: &f64, bits: f64| (norm / ((bits - 1.0).exp2() - 1.0)).powi(2);
    let (constant, ours) = (mean(bits), norms.iter().zip(bits).map(|(norm, bits)| term(norm, *bits)).sum::<f64>());
    ours / norms.iter().map(|norm| term(norm, constant)).sum::<f64>()
}

fn norms(of: Norm) -> Vec<f64> {
    (0..STEPS).map(|step| of(step as f64)).collect()
}

/// A function from steps to norms.
type Norm = fn(f64) -> f64;

/// Norms that fall 20-fold, fall by 1/√n, fall tenfold after a tenth of the steps, and rise 20-fold.
const PROFILES: [(&str, Norm); 4] = [
    ("falling 20-fold", |n| 20_f64.powf(-n / (STEPS - 1) as f64)),
    ("1/√n", |n| (n + 1.0).powf(-0.5)),
    ("a drop at the start", |n| if n < 30.0 { 10.0 } else { 1.0 }),
    ("rising 20-fold", |n| 20_f64.powf(n / (STEPS - 1) as f64)),
];

fn settings(bits: f64) -> DqSgd {
    DqSgd { bits: Some(bits), steps: Some(STEPS), ..DqSgd::default() }
}

/// The online constant must not undo the rule.
#[test]
fn the_error_is_below_that_of_constant_bits_of_the_same_mean() {
    for (name, of) in PROFILES {
        for target in [3.0, 4.0, 6.0] {
            let norms = norms(of);
            let bits = run(settings(target), norms.iter().copied());
            let error = relative(&norms, &bits);
            println!("{name}, {target} bits: {error:.3} at {:.3} in the mean", mean(&bits));
            assert!(error < 1.0, "{name}, {target} bits: {error}");
            assert!((mean(&bits) - target).abs() < 0.02, "{name}: {} bits instead of {target}", mean(&bits));
        }
    }
}

/// Averages over draws of the noise of mini-batches in norms.
#[test]
fn it_is_below_where_norms_have_noise() {
    for (name, of) in PROFILES {
        let errors = (0..10).map(|seed| {
            let mut rng = Key::new(seed).block(0);
            let mut noise = || -> f64 { StandardNormal.sample(&mut rng) };
            let norms: Vec<f64> = norms(of).into_iter().map(|norm| norm * (0.4 * noise()).exp()).collect();
            let bits = run(settings(4.0), norms.iter().copied());
            assert!((mean(&bits) - 4.0).abs() < 0.02, "{name}: {} bits", mean(&bits));
            relative(&norms, &bits)
        });
        let error = mean(&errors.collect::<Vec<_>>());
        println!("{name}, with noise: {error:.3}");
        assert!(error < 0.95, "{name}: {error}");
    }
}

/// Checks that bits are constant, except for the first hundredth of the steps and the last steps.
#[test]
fn flat_norms_have_constant_bits() {
    let bits = run(settings(4.0), vec![7.0; STEPS as usize]);
    assert!(bits[..3] == [5.0; 3] && bits[3..295].iter().all(|bits| *bits == 4.0), "{bits:?}");
    assert_eq!(bits[295..], [3.0, 4.0, 3.0, 4.0, 3.0]);
    // All bits are constant without the number of steps, or if a hundredth of it is less than one step.
    assert_eq!(run(DqSgd { steps: None, ..settings(4.0) }, vec![7.0; 300]), [4.0; 300]);
    assert_eq!(run(DqSgd { steps: Some(99), ..settings(4.0) }, vec![7.0; 99]), [4.0; 99]);
}

/// A trend that ends has a small cost. Earlier, a jump at nine tenths of the steps cost 21 times as much.
#[test]
fn a_trend_that_ends_and_a_jump_cost_little() {
    let cases: [(&str, Norm, f64); 5] = [
        ("a jump at a tenth", |n| if n < 30.0 { 1.0 } else { 10.0 }, 1.6),
        ("a jump at the middle", |n| if n < 150.0 { 1.0 } else { 10.0 }, 1.7),
        ("a jump at nine tenths", |n| if n < 270.0 { 1.0 } else { 10.0 }, 2.3),
        ("a hill", |n| 1.0 + 9.0 * (-((n - 150.0) / 37.5).powi(2)).exp(), 1.1),
        ("spikes", |n| if n as u64 % 37 == 36 { 10.0 } else { 1.0 }, 0.5),
    ];
    for (name, of, most) in cases {
        let norms = norms(of);
        let error = relative(&norms, &run(settings(4.0), norms.iter().copied()));
        println!("{name}: {error:.3}");
        assert!(error < most, "{name}: {error}");
    }
}
