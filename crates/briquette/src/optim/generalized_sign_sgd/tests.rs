use super::super::walk::{assert_near, walk};
use super::*;

/// Gradients of every size, and 0.
const GRADIENTS: [[f32; 6]; 5] = [
    [1.0, -2.0, 3e-30, 0.0, 1e30, 0.1],
    [-3.0, 1.0, -1e-30, 0.0, -5e29, 0.3],
    [0.5, 0.25, 2e-38, -1.0, 1.0, -0.7],
    [0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [8.0, -1.0, 1e-12, 2.0, -1e31, 1e-3],
];

#[test]
fn without_beta_2_and_epsilon_it_is_sign_momentum_to_the_bit() {
    let optimizer = GeneralizedSignSgdConfig::new().with_beta_2(0.0).with_epsilon(0.0).build();
    let (mut x, mut m) = ([1.0_f32; 6], [0.0_f32; 6]);
    let path = walk(&optimizer, 0.1, x, &GRADIENTS);
    for (gradient, got) in GRADIENTS.iter().zip(path) {
        for i in 0..6 {
            m[i] = 0.9 * m[i] + (1.0 - 0.9_f64) as f32 * gradient[i];
            x[i] -= 0.1 * if m[i] == 0.0 { 0.0 } else { m[i].signum() };
        }
        assert_eq!(got.map(f32::to_bits), x.map(f32::to_bits));
    }
}

#[test]
fn the_first_step_is_of_one_size() {
    let optimizer = GeneralizedSignSgdConfig::new().with_epsilon(0.0).build();
    let path = walk(&optimizer, 1e-3, [0.0; 3], &[[1e-6, -1.0, 1e6]]);
    let size = 1e-3 / 1e-3_f64.sqrt();
    assert_near(&path[0], &[-size, size, -size], 1e-6);
}

/// |m|/√v ≤ 1/√(1 − β₂), for any gradients.
#[test]
fn no_coordinate_moves_farther_than_the_bound() {
    let optimizer = GeneralizedSignSgdConfig::new().with_beta_2(0.9).build();
    let mut x = [1.0; 6];
    for next in walk(&optimizer, 1.0, x, &GRADIENTS) {
        let bound = 1.0 / 0.1_f32.sqrt() * 1.000_01;
        assert!(next.iter().zip(x).all(|(next, x)| (next - x).abs() <= bound), "{x:?} to {next:?}");
        x = next;
    }
}

#[test]
fn both_kinds_of_weight_decay() {
    let config = GeneralizedSignSgdConfig::new().with_beta_1(0.0).with_beta_2(0.0).with_epsilon(1.0);
    let coupled = config.clone().with_weight_decay(Some(WeightDecayConfig::new(0.5))).build();
    // g = 0.5·2 = 1: 1/(1 + 1).
    assert_eq!(walk(&coupled, 0.5, [2.0], &[[0.0]]), [[2.0 - 0.5 * 0.5]]);
    let decoupled = config.with_decoupled_weight_decay(0.5).build();
    // 2·(1 − 0.5·0.5), and 3/(3 + 1) of the gradient.
    assert_eq!(walk(&decoupled, 0.5, [2.0], &[[3.0]]), [[1.5 - 0.5 * 0.75]]);
}

#[test]
#[should_panic(expected = "beta_2 of GeneralizedSignSgd must be in [0, 1), got 1")]
fn a_beta_of_1_is_refused() {
    GeneralizedSignSgdConfig::new().with_beta_2(1.0).build();
}
