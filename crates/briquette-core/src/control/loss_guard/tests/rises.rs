//! Tests of losses that rise steadily, and of losses of healthy runs that must not raise an alarm.

use super::*;
use crate::Key;
use crate::state::{State, Stateful};
use rand::Rng;

/// The noiseless loss of a step.
type Curve = fn(f64) -> f64;

fn falling(t: f64) -> f64 {
    0.5 + 1.8 * (-t / 300.0).exp()
}

/// Draws from a normal distribution.
fn normal(rng: &mut impl Rng) -> f64 {
    let (radius, angle): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Returns the steps at which a guard with default settings raises an alarm.
fn alarms<K: Controller>(mut guard: LossGuard<K>, losses: impl Iterator<Item = f64>) -> Vec<usize> {
    let mut limited = 0;
    let alarmed = |(at, loss)| {
        step(&mut guard, Some(loss), None);
        let is_new = guard.alarms > limited;
        limited = guard.alarms;
        is_new.then_some(at)
    };
    losses.enumerate().filter_map(alarmed).collect()
}

fn noisy(curve: Curve, deviation: f64, seed: u64) -> impl Iterator<Item = f64> {
    let mut rng = Key::new(seed).block(0);
    (0..1000).map(move |t| curve(f64::from(t)) + deviation * normal(&mut rng))
}

const NOISES: [f64; 3] = [0.02, 0.05, 0.1];

/// The loss falls for five hundred steps, then rises: by 44 in the first case, by 5 in the second, and in the last by 0.75 minus the
/// amount by which it would have fallen.
#[test]
fn a_loss_that_rises_steadily_is_an_alarm() {
    let shapes: [(&str, Curve); 3] = [
        ("exponential", |t| falling(t) + 0.3 * (((t - 500.0).max(0.0) / 100.0).exp() - 1.0)),
        ("0.01 a step", |t| falling(t) + 0.01 * (t - 500.0).max(0.0)),
        ("0.0015 a step", |t| falling(t) + 0.0015 * (t - 500.0).max(0.0)),
    ];
    for (shape, curve) in shapes {
        for deviation in NOISES {
            let first =
                |seed| alarms(guard(LossGuardConfig::default()), noisy(curve, deviation, seed)).first().copied();
            let seen = (0..100).filter_map(first).filter(|at| *at >= 500).count();
            assert!(seen > 95, "{shape}, noise {deviation}: {seen} of 100");
        }
    }
}

#[test]
fn healthy_runs_raise_at_most_one_alarm_in_two_hundred() {
    let shapes: [(&str, Curve); 5] = [
        ("falling", falling),
        ("plateau", |t| 1.0 + 0.3 * (-t / 30.0).exp()),
        ("lower learning rates", |t| {
            let drop = |at: f64| if t > at { 0.3 * (1.0 - (-(t - at) / 15.0).exp()) } else { 0.0 };
            1.2 + 1.1 * (-t / 100.0).exp() - drop(400.0) - drop(700.0)
        }),
        // Epochs of 100 steps. During each the loss rises again by half of its fall at the start.
        ("epochs", |t| falling(t) - 0.05 * (t / 100.0).floor().min(5.0) + 0.025 * (t / 100.0).fract()),
        // The loss rises by 0.1 while the learning rate rises.
        ("one cycle", |t| {
            let [top, end] = [(t - 350.0) / 100.0, (t - 500.0).max(0.0) / 500.0];
            1.6 + 0.7 * (-t / 40.0).exp() + 0.1 * (-top * top).exp() - 0.6 * end
        }),
    ];
    for (shape, curve) in shapes {
        for deviation in NOISES {
            let alarmed =
                |seed: &u64| !alarms(guard(LossGuardConfig::default()), noisy(curve, deviation, *seed)).is_empty();
            let alarmed = (1000..1200).filter(alarmed).count();
            assert!(alarmed <= 1, "{shape}, noise {deviation}: {alarmed} of 200");
        }
    }
}

/// The noise of points of 1 is taken to be 2 %. A point may lie 0.6 of five noises above them, .06, and adds at most 0.4 to the sum.
/// 1.08 adds .2, and 1.13 and later points .4 each, until at 1.33 the sum is 2.2. The line follows them, so that none lies far above
/// it.
#[test]
fn golden_points_above_the_lowest_level_add_up() {
    let mut guard = guard(LossGuardConfig { window: 1, points: 4, ..LossGuardConfig::default() });
    let losses = [1.0, 1.0, 1.0, 1.0, 1.08, 1.13, 1.18, 1.23, 1.28, 1.33];
    let reasons: Vec<_> = losses.iter().map(|loss| step(&mut guard, Some(*loss), None).1).collect();
    assert_eq!(reasons[9].as_deref(), Some("training loss 1.33, 1.10 expected: at most 25x"));
    assert_eq!(reasons.iter().flatten().count(), 1);
}

/// Dense until this many steps have passed, then the highest ratio.
struct DenseUntil(u64);

impl Stateful for DenseUntil {}

impl Controller for DenseUntil {
    fn decide(&mut self, _: &Agreed<'_>) -> Decision<'_> {
        self.0 = self.0.saturating_sub(1);
        Decision::all(ratio(if self.0 > 0 { 1.0 } else { 100.0 }), None)
    }
}

#[test]
fn a_rise_while_nothing_was_compressed_is_no_alarm_later() {
    let curve: Curve = |t| 1.0 + 0.002 * t.min(500.0);
    let dense_until = |steps| LossGuard::new(LossGuardConfig::default(), DenseUntil(steps)).unwrap();
    assert_eq!(alarms(dense_until(520), noisy(curve, 0.02, 1)), [0; 0]);
    assert!(alarms(dense_until(0), noisy(curve, 0.02, 1))[0] < 200);
}

/// A model that overfits: the training loss falls, the validation loss rises by 1 % per report.
#[test]
fn a_validation_loss_that_rises_steadily_is_overfitting() {
    let mut guard = guard(LossGuardConfig::default());
    for t in 0..1000 {
        let validation = (t % 10 == 0).then(|| 1.0 + 0.001 * f64::from(t));
        assert_eq!(step(&mut guard, Some(falling(f64::from(t))), validation), (100.0, None), "step {t}");
    }
}

#[test]
fn a_sum_goes_on_where_its_state_is_loaded() {
    let curve: Curve = |t| falling(t) + 0.0015 * (t - 500.0).max(0.0);
    let through: Vec<_> = {
        let mut guard = guard(LossGuardConfig::default());
        noisy(curve, 0.05, 3).map(|loss| step(&mut guard, Some(loss), None)).collect()
    };
    let mut resumed = guard(LossGuardConfig::default());
    let mut step_resumed = |loss| {
        let mut state = State::default();
        resumed.save(&mut state);
        resumed = guard(LossGuardConfig::default());
        resumed.load(&state).unwrap();
        step(&mut resumed, Some(loss), None)
    };
    assert_eq!(noisy(curve, 0.05, 3).map(&mut step_resumed).collect::<Vec<_>>(), through);
    assert!(through.iter().any(|(ratio, _)| *ratio < 100.0));
}

/// A run whose loss diverges by 0.01 a step above 8x, and converges below.
#[test]
fn a_run_that_diverges_slowly_is_kept_by_giving_up_compression() {
    let train = |guarded: bool| {
        let (mut guard, mut rng) = (guard(LossGuardConfig::default()), Key::new(5).block(0));
        let (mut loss, mut sent) = (2.3, Vec::new());
        for _ in 0..3000 {
            let ratio = step(&mut guard, Some(loss + 0.1 * normal(&mut rng)), None).0;
            sent.push(if guarded { ratio } else { 100.0 });
            loss += if *sent.last().unwrap() > 8.0 { 0.01 } else { 0.01 * (0.5 - loss) };
        }
        (loss, sent.iter().filter(|ratio| **ratio <= 8.0).count() as f64 / 3000.0)
    };
    let ((bare, _), (guarded, dense)) = (train(false), train(true));
    assert!(bare > 30.0 && guarded < 1.5, "{bare} and {guarded}");
    assert!(dense > 0.6, "{dense}");
}
