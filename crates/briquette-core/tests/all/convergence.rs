//! Plain SGD where theory predicts the result: sign compression diverges and error feedback corrects it; under an unbiased
//! quantizer SGD levels off at a known height.

use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::Local;
use briquette_core::compress::{
    Compressor, Norm, dense::Dense, plain_sign::PlainSign, qsgd::Qsgd, scaled_sign::ScaledSign,
};
use briquette_core::error::ReduceError;
use briquette_core::reduce::{AgreedStep, Reducer, Round, gather::Gather};
use briquette_core::wrapper::error_feedback::ErrorFeedback;
use briquette_core::{Key, Layout};
use rand::Rng;

/// Returns the parameters after every step, the same on all ranks. `gradient` receives rank, step and parameters.
fn descend<R: Reducer>(
    (world, rate, steps): (usize, f32, u64),
    start: &[f32],
    make: impl Fn() -> R + Sync,
    gradient: impl Fn(usize, u64, &[f32]) -> Vec<f32> + Sync,
) -> Vec<Vec<f32>> {
    let ranks = Local::run(world, |mut comm| {
        let (mut reducer, layout) = (make(), Layout::flat(start.len()));
        let (mut x, mut average, mut path) = (start.to_vec(), vec![0.0; start.len()], Vec::new());
        for step in 0..steps {
            let (agreed_step, key) = (AgreedStep { step, ..AgreedStep::default() }, Key::new(1).step(step));
            let (slots, input) = (layout.slots(), &gradient(comm.rank(), step, &x)[..]);
            reducer.exchange(
                Round { key, slots, agreed_step: &agreed_step, input, average: &mut average, sent: None },
                &mut comm,
            )?;
            x.iter_mut().zip(&average).for_each(|(x, g)| *x -= rate * g);
            path.push(x.clone());
        }
        Ok::<_, ReduceError>(path)
    });
    let mut paths = ranks.into_iter().map(|path| path.expect("no rank fails"));
    let first = paths.next().expect("at least one rank");
    assert!(paths.all(|path| path == first));
    first
}

fn alone<C: Compressor>(compressor: C) -> Gather<C, Mean> {
    Gather::new(compressor, Mean)
}

fn fed_back() -> ErrorFeedback<Gather<ScaledSign, Mean>> {
    ErrorFeedback::new(alone(ScaledSign::new()))
}

fn mean(x: &[f32]) -> f64 {
    x.iter().map(|v| f64::from(*v)).sum::<f64>() / x.len() as f64
}

/// Karimireddy et al. 2019, counter-example 1, in 64 coordinates: the gradient of `f(x) = x/4` is 4 with probability 1/4,
/// otherwise −1.
#[test]
fn signs_climb_where_most_gradients_are_small_and_wrong_and_feedback_descends() {
    let gradient = |rank: usize, step: u64, x: &[f32]| {
        let mut rng = Key::new(2).rank(rank).step(step).block(0);
        x.iter().map(|_| if rng.random_range(0..4) == 0 { 4.0 } else { -1.0 }).collect()
    };
    // The mean change of a step, in units of a step of 1: for signs −(1/4 − 3/4) = 1/2; scaled, with b of 64 the share of 4s,
    // −E (1 + 3b)(2b − 1) = 1.25 − 6·(1/16 + 3/16/64) = .8574; with feedback −1/4, and the residual does not grow. Standard
    // deviations over 1000 steps, of which 5.5 are allowed: .0034, .0034 and .0086.
    let run = (1, 1.0, 1000);
    let start = [0.0; 64];
    let change = |path: Vec<Vec<f32>>| mean(path.last().expect("some steps")) / path.len() as f64;
    let signs = change(descend(run, &start, || alone(PlainSign::default()), gradient));
    let scaled = change(descend(run, &start, || alone(ScaledSign::new()), gradient));
    let fed = change(descend(run, &start, fed_back, gradient));
    assert!((signs - 0.5).abs() < 0.02, "{signs}");
    assert!((scaled - 0.8574).abs() < 0.02, "{scaled}");
    assert!((fed + 0.25).abs() < 0.05, "{fed}");
}

/// Counter-example 2: `f(x) = ε|x₁ + x₂| + |x₁ − x₂|`, whose subgradients all have the signs of ±(1, −1).
#[test]
fn signs_stay_on_a_line_that_misses_the_minimum_and_feedback_leaves_it() {
    let epsilon = 0.25;
    let f = |x: &[f32]| epsilon * (x[0] + x[1]).abs() + (x[0] - x[1]).abs();
    let gradient = |_: usize, _: u64, x: &[f32]| {
        let (along, across) = (epsilon * (x[0] + x[1]).signum(), (x[0] - x[1]).signum());
        vec![along + across, along - across]
    };
    let run = (1, 1.0 / 64.0, 1000);
    let stays = |path: Vec<Vec<f32>>| path.iter().all(|x| x[0] + x[1] == 2.0 && f(x) >= 2.0 * epsilon);
    assert!(stays(descend(run, &[1.0, 1.0], || alone(PlainSign::default()), gradient)));
    assert!(stays(descend(run, &[1.0, 1.0], || alone(ScaledSign::new()), gradient)));
    let path = descend(run, &[1.0, 1.0], fed_back, gradient);
    let worst = path[500..].iter().map(|x| f(x)).fold(0.0, f32::max);
    // As near as steps of this length get: a quarter of the level above which the signs stay.
    assert!(worst < 0.5 * epsilon, "{worst}");
}

/// Counter-example 3, smooth and strongly convex: `f(x) = ½(⟨a, x⟩² + ⟨b, x⟩²)` with `a = (3/2, −1/2)`, `b = (−1/2, 3/2)`, and
/// one of the two squares at a time.
#[test]
fn signs_of_single_samples_stay_on_a_line_and_feedback_converges_as_sgd_does() {
    let gradient = |rank: usize, step: u64, x: &[f32]| {
        let a = match Key::new(3).rank(rank).step(step).block(0).random() {
            true => [1.5, -0.5],
            false => [-0.5, 1.5],
        };
        a.map(|v| 2.0 * (a[0] * x[0] + a[1] * x[1]) * v).to_vec()
    };
    // No multiple of this rate is ½, where a gradient would be 0.
    let run = (1, 3.0 / 256.0, 2000);
    let furthest = |path: &[Vec<f32>]| path.iter().map(|x| (x[0] + x[1] - 2.0).abs()).fold(0.0, f32::max);
    assert_eq!(furthest(&descend(run, &[1.0, 1.0], || alone(PlainSign::default()), gradient)), 0.0);
    let scaled = furthest(&descend(run, &[1.0, 1.0], || alone(ScaledSign::new()), gradient));
    assert!(scaled < 1e-4, "{scaled}");
    // The smaller curvature is 1: (1 − 3/256)²⁰⁰⁰ = 6e-11.
    let last = |path: Vec<Vec<f32>>| path.last().expect("some steps").iter().fold(0.0_f32, |m, v| m.max(v.abs()));
    let (sgd, fed) = (
        last(descend(run, &[1.0, 1.0], || alone(Dense), gradient)),
        last(descend(run, &[1.0, 1.0], fed_back, gradient)),
    );
    assert!(sgd < 1e-9 && fed < 1e-9, "{sgd} {fed}");
}

/// On `½‖x‖²` with noise of ±1 in every gradient, `x ← x − γ·mean C(x + ξ)` levels off where
/// `E‖x‖² = (1 − γ)²E‖x‖² + γ²(d + ω(E‖x‖² + d))/W`, that is at `d·γ(1 + ω)/(W(2 − γ) − γω)`.
#[test]
fn sgd_levels_off_where_omega_and_the_number_of_ranks_say() {
    let (rate, steps, start) = (1.0 / 32.0, 1000, [0.0; 512]);
    let gradient = |rank: usize, step: u64, x: &[f32]| {
        let mut rng = Key::new(4).rank(rank).step(step).block(0);
        x.iter().map(|x| if rng.random() { x + 1.0 } else { x - 1.0 }).collect()
    };
    let height = |path: Vec<Vec<f32>>| {
        let late = path[200..].iter().flatten().map(|v| f64::from(*v).powi(2));
        late.sum::<f64>() / ((path.len() - 200) * 512) as f64
    };
    for world in [2, 4] {
        let run = (world, rate, steps);
        // One level of the L2 norm, 16 values of about ±1 a bucket: each becomes ±4 with probability 1/4, otherwise 0, so ω =
        // 3. Slightly less where the parameters make magnitudes unequal: 2 % of the height; the sample's standard deviation is
        // 1 %.
        let qsgd = || alone(Qsgd::with_levels(1, 16, Norm::L2).expect("valid settings"));
        for (omega, seen) in [
            (0.0, height(descend(run, &start, || alone(Dense), gradient))),
            (3.0, height(descend(run, &start, qsgd, gradient))),
        ] {
            let (rate, world) = (f64::from(rate), world as f64);
            let theory = rate * (1.0 + omega) / (world * (2.0 - rate) - rate * omega);
            assert!((seen / theory - 1.0).abs() < 0.06, "ω = {omega}, {world} ranks: {seen}, not {theory}");
        }
    }
}
