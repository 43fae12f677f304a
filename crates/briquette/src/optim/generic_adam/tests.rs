use super::super::walk::{assert_near, walk};
use super::*;

fn schedules(beta: f64, s: f64, scale: f64, r: f64, from: u64) -> GenericAdamConfig {
    let config = GenericAdamConfig::new().with_beta_1(beta).with_rate_power(s);
    config.with_theta_scale(scale).with_theta_power(r).with_theta_from(from)
}

/// β, s, α, r, K.
const ACCEPTED: [(f64, f64, f64, f64, u64); 6] = [
    (0.9, 0.5, 1.0, 1.0, 10),
    (0.0, 0.5, 1.0, 1.0, 1), // AdaGrad
    (0.0, 0.5, 0.9, 1.0, 1),
    (0.5, 0.5, 0.5, 0.5, 1),
    (0.0, 0.75, 1.0, 1.5, 1),
    (0.9, 0.99, 0.1, 0.25, 1),
];

#[test]
fn the_condition_accepts_and_refuses_the_golden_list() {
    for (beta, s, scale, r, from) in ACCEPTED {
        assert_eq!(schedules(beta, s, scale, r, from).sufficient_condition(), Ok(()), "{beta} {s} {scale} {r} {from}");
    }
    assert_eq!(GenericAdamConfig::new().sufficient_condition(), Ok(()), "by default");
    let refused = |beta, s, scale, r, from| schedules(beta, s, scale, r, from).sufficient_condition().unwrap_err();
    let (constant, theta) = (refused(0.0, 0.5, 0.1, 0.0, 1), 0.9);
    assert_eq!(constant, Unmet::Constant { theta }, "a rate of 1/√t does not help");
    assert_eq!(refused(0.0, 0.0, 0.1, 0.0, 1), Unmet::Constant { theta }, "Adam with its constants");
    assert_eq!(refused(0.0, 0.5, 1.0, 1.5, 1), Unmet::Rising { theta_power: 1.5, twice: 1.0 });
    assert_eq!(refused(0.0, 0.0, 1.0, 0.5, 1), Unmet::Rising { theta_power: 0.5, twice: 0.0 });
    assert_eq!(refused(0.0, 1.0, 1.0, 1.0, 1), Unmet::Falling { rate_power: 1.0 });
    assert_eq!(refused(0.9, 0.5, 0.75, 1.0, 1), Unmet::Momentum { beta: 0.9, root: 0.5 });
    let said = refused(0.9, 0.5, 0.75, 1.0, 1).to_string();
    assert!(said.contains("beta_1 must be below the root of θ₁, 0.5, got 0.9"), "{said}");
}

/// The paper's conditions, evaluated numerically: χ_t at 10³ and 10⁵, and the quotient of condition 4.
#[test]
fn the_verdict_is_that_of_the_sums() {
    let grid = [0.0, 0.25, 0.5, 0.75, 1.0, 1.25].into_iter().flat_map(|s| [0.0, 0.5, 1.0, 1.5, 2.0].map(|r| (s, r)));
    for (s, r) in grid {
        let config = schedules(0.0, s, 1.0, r, 2);
        let chi = |t: u64| config.rate(t) / config.off_theta(t).sqrt();
        let mut sum = 0.0;
        let mut quotient = [0.0; 3];
        for t in 1..=100_000_u64 {
            sum += config.rate(t) * config.off_theta(t).sqrt();
            for (at, quotient) in [1000, 10_000, 100_000].into_iter().zip(&mut quotient) {
                if t == at {
                    *quotient = sum / (t as f64 * config.rate(t));
                }
            }
        }
        let rises = chi(100_000) > chi(1000) * 1.01;
        let vanishes = quotient[2] < 0.8 * quotient[1] && quotient[1] < 0.8 * quotient[0];
        assert_eq!(config.sufficient_condition().is_ok(), !rises && vanishes, "s = {s}, r = {r}: {quotient:?}");
    }
}

#[test]
fn with_an_average_of_all_squares_it_is_ada_grad() {
    let gradients: Vec<[f32; 2]> = (0..50).map(|t| [(t as f32 * 0.7).sin() + 0.1, 1e-3 * (t as f32).cos()]).collect();
    let path = walk(&schedules(0.0, 0.5, 1.0, 1.0, 1).build(), 0.1, [1.0; 2], &gradients);
    let (mut x, mut sum) = ([1.0_f64; 2], [0.0_f64; 2]);
    for (gradient, got) in gradients.iter().zip(path) {
        for i in 0..2 {
            let g = f64::from(gradient[i]);
            sum[i] += g * g;
            x[i] -= 0.1 * g / sum[i].sqrt();
        }
        got.iter().zip(x).for_each(|(got, x)| assert!((f64::from(*got) - x).abs() < 1e-5, "{got}, expected {x}"));
    }
}

/// `f(x) = C·x` at one step of three and `−x` at the others, on [−1, 1]: the best point is −1.
#[test]
fn the_counter_example_of_reddi_ends_at_the_worst_point_or_at_the_best() {
    let run = |config: GenericAdamConfig| {
        let (optimizer, device) = (config.build(), Device::flex());
        let (mut x, mut state) = (Tensor::<1>::from_floats([0.0], &device), None);
        for step in 0..6000 {
            let gradient = if step % 3 == 0 { 3.0 } else { -1.0 };
            let (next, kept) = optimizer.step(0.5, x, Tensor::from_floats([gradient], &device), state);
            (x, state) = (next.clamp(-1.0, 1.0), kept);
        }
        x.into_scalar::<f32>()
    };
    // β₂ = 1/(1 + C²).
    let constant = schedules(0.0, 0.5, 0.9, 0.0, 1);
    assert!(constant.sufficient_condition().is_err());
    assert!(run(constant) > 0.95);
    let growing = schedules(0.0, 0.5, 0.9, 1.0, 1);
    assert!(growing.sufficient_condition().is_ok());
    assert!(run(growing) < -0.95);
}

#[test]
fn momentum_fades_with_its_decay() {
    // β: .5, .25. m: .5·4 = 2, then .25·2 + .75·0 = .5. v: 16, then 16·.5.
    let path = walk(&schedules(0.5, 0.0, 1.0, 1.0, 1).with_beta_decay(0.5).build(), 1.0, [0.0], &[[4.0], [0.0]]);
    assert_near(&path[0], &[-2.0 / 4.0], 1e-6);
    assert_near(&path[1], &[-0.5 - 0.5 / 8_f64.sqrt()], 1e-6);
}

#[test]
fn without_a_gradient_nothing_moves_where_the_beginning_is_forgotten() {
    assert_eq!(walk(&schedules(0.0, 0.5, 1.0, 1.0, 1).build(), 1.0, [2.0], &[[0.0]]), [[2.0]]);
}

#[test]
#[should_panic(
    expected = "theta_scale of GenericAdam must be in (0, 10], theta_from to the power of theta_power, got 11"
)]
fn a_negative_theta_is_refused() {
    GenericAdamConfig::new().with_theta_scale(11.0).build();
}
