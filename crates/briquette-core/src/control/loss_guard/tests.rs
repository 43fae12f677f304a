mod rises;

use super::*;
use crate::control::schedule::Schedule;
use crate::settings::{ControllerConfig, Feedback};
use crate::state::Stateful;

fn ratio(ratio: f64) -> CompressionRatio {
    CompressionRatio::new(ratio).unwrap()
}

fn guard(settings: LossGuardConfig) -> LossGuard<Schedule> {
    LossGuard::new(settings, Schedule::constant(ratio(100.0))).unwrap()
}

fn step<K: Controller>(
    guard: &mut LossGuard<K>,
    loss: Option<f64>,
    validation_loss: Option<f64>,
) -> (f64, Option<String>) {
    let agreed_step = AgreedStep { loss, validation_loss, ..AgreedStep::default() };
    guard.observe(&agreed_step);
    let decision = guard.decide(&Agreed::new(&agreed_step, &[]));
    (decision.ratio().unwrap().get(), decision.reason)
}

/// Points of one step each: 8, 7, 6, 5 lie on a line of slope −1 without noise. The noise is then taken to be 2 % of the line's end,
/// and twice that as there are only four points. The maximum expected value of the next point is 5 − ½ + 5·2·.1 = 5.5. 5.6 is above
/// it, so 100x/4 = 25x is sent from the next step on. At 5 − ½ + .1 = 4.6 the loss is as expected again, and after two such points the
/// limit is lifted.
#[test]
fn golden_a_point_above_the_trend_lowers_the_ratio_for_a_while() {
    let mut guard = guard(LossGuardConfig { window: 1, points: 4, hold: 2, ..LossGuardConfig::default() });
    let losses = [8.0, 7.0, 6.0, 5.0, 5.6, 4.6, 4.6, 4.5];
    let seen: Vec<_> = losses.iter().map(|loss| step(&mut guard, Some(*loss), None)).collect();
    let (ratios, reasons): (Vec<f64>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(ratios, [100.0, 100.0, 100.0, 100.0, 100.0, 25.0, 100.0, 100.0]);
    assert_eq!(reasons[4].as_deref(), Some("training loss 5.60, 5.50 expected: at most 25x"));
    assert_eq!(reasons[6].as_deref(), Some("2 points as expected: no limit any more"));
    assert_eq!(reasons.iter().flatten().count(), 2);
}

#[test]
fn a_loss_that_falls_as_losses_do_has_no_effect() {
    use rand::Rng;
    for seed in 0..20 {
        let (mut guard, mut rng) = (guard(LossGuardConfig::default()), crate::Key::new(seed).block(0));
        for t in 0..3000 {
            let noise: f64 = (0..4).map(|_| rng.random::<f64>() - 0.5).sum::<f64>() * 0.3;
            let loss = 0.5 + 1.8 / (1.0 + 0.01 * f64::from(t)) + noise;
            let (ratio, reason) = step(&mut guard, Some(loss), None);
            assert_eq!((ratio, reason), (100.0, None), "seed {seed}, step {t}");
        }
    }
}

#[test]
fn a_loss_that_is_no_number_stops_compressing_and_alarms_hold_longer_each_time() {
    let mut guard = guard(LossGuardConfig { window: 1, points: 4, hold: 2, ..LossGuardConfig::default() });
    let mut held = Vec::new();
    for alarm in 0..4 {
        let sent = [f64::NAN, f64::INFINITY].map(|loss| step(&mut guard, Some(loss), None).0);
        assert_eq!(sent, [100.0, 1.0], "alarm {alarm}");
        let steps = (1..1000).find(|_| step(&mut guard, Some(1.0), None).0 > 1.0);
        held.push(steps.unwrap());
        // Runs until there is no limit.
        (0..20).for_each(|_| drop(step(&mut guard, Some(1.0), None)));
        assert_eq!(guard.limit(), None);
    }
    assert_eq!(held, [2, 4, 8, 16]);
}

/// Alternates between 100x and dense, as a controller that falls back does.
struct ByTurns(u64);

impl Stateful for ByTurns {}

impl Controller for ByTurns {
    fn decide(&mut self, _: &Agreed<'_>) -> Decision<'_> {
        self.0 += 1;
        Decision::all(ratio(if self.0.is_multiple_of(2) { 100.0 } else { 1.0 }), None)
    }
}

#[test]
fn a_controller_that_falls_back_for_a_step_does_not_end_the_limit() {
    let settings = LossGuardConfig { window: 1, points: 4, hold: 10, ..LossGuardConfig::default() };
    let mut guard = LossGuard::new(settings, ByTurns(0)).unwrap();
    (0..2).for_each(|_| drop(step(&mut guard, Some(1.0), None)));
    step(&mut guard, Some(f64::NAN), None);
    for t in 0..9 {
        assert_eq!(step(&mut guard, Some(1.0), None).0, 1.0, "step {t} after the alarm");
    }
    let later: Vec<f64> = (0..80).map(|_| step(&mut guard, Some(1.0), None).0).collect();
    assert_eq!((guard.limit(), later[79].max(later[78])), (None, 100.0));
}

/// The loss is 5.6, with a maximum expected value of 5.5: 25x. Two points later it has not returned to 4.6: 6.25x. Then dense, where
/// it holds for 4 points.
#[test]
fn a_loss_that_does_not_come_back_lowers_the_ratio_again() {
    let mut guard = guard(LossGuardConfig { window: 1, points: 4, hold: 2, ..LossGuardConfig::default() });
    let losses = [8.0, 7.0, 6.0, 5.0, 5.6, 5.6, 5.7, 5.7, 5.7, 5.4, 5.4, 5.4, 5.4];
    let seen: Vec<_> = losses.iter().map(|loss| step(&mut guard, Some(*loss), None)).collect();
    let (ratios, reasons): (Vec<f64>, Vec<_>) = seen.into_iter().unzip();
    assert_eq!(ratios[4..], [100.0, 25.0, 25.0, 6.25, 6.25, 1.0, 1.0, 1.0, 4.0]);
    assert_eq!(reasons[8].as_deref(), Some("training loss still 5.70, 4.60 expected: at most 1x"));
}

/// The step before each point is dense. The alarm is attributed to the point's other steps, and the limit ends at their ratio.
#[test]
fn a_point_counts_for_the_highest_ratio_of_its_steps() {
    let settings = LossGuardConfig { window: 2, points: 4, hold: 2, ..LossGuardConfig::default() };
    let mut guard = LossGuard::new(settings, ByTurns(0)).unwrap();
    let losses = [8.0, 7.0, 6.0, 5.0, 7.0, 6.9].into_iter().flat_map(|loss| [loss; 2]);
    let seen: Vec<_> = losses.map(|loss| step(&mut guard, Some(loss), None)).collect();
    assert_eq!(seen[9].1.as_deref(), Some("training loss 7.00, 5.50 expected: at most 25x"));
    assert_eq!(seen[9..].iter().map(|seen| seen.0).collect::<Vec<_>>(), [100.0, 1.0, 25.0]);
    assert_eq!(guard.limit(), Some(ratio(25.0)));
}

/// Points of 1 with a noise of 2 %: .08 above the promise is four noises. The first such point is no alarm, the second is (2.25 + 4 > 5).
#[test]
fn points_above_a_promise_add_up() {
    let reading = Reading { points: 8, trust: 0.5, noises: 5.0, rises: true };
    let mut trend = Trend::default();
    assert!((0..12).all(|_| trend.push((1.0, 0.0), reading).is_none()));
    trend.sent(10.0);
    assert_eq!(
        [trend.push((1.08, 0.0), reading), trend.push((1.08, 0.0), reading)].map(|alarm| alarm.is_some()),
        [false, true]
    );
}

/// Points that lie on a line by chance: the losses within their windows show that a point of 1.2 is within the noise. Losses of 1 to 5
/// have a median absolute deviation of 1.
#[test]
fn golden_losses_within_a_window_bound_the_noise() {
    let (point, error) = trend::point(&mut [3.0, 1.0, 5.0, 2.0, 4.0]);
    assert_eq!(point, 3.0);
    assert!((error - 1.2533 * 1.4826 / 5.0_f64.sqrt()).abs() < 1e-12, "{error}");
    let reading = Reading { points: 8, trust: 0.5, noises: 5.0, rises: true };
    let alarm = |error| {
        let mut trend = Trend::default();
        assert!((0..12).all(|_| trend.push((1.0, error), reading).is_none()));
        trend.push((1.2, error), reading).is_some()
    };
    // 5 noises are 0.1 by the minimum noise, and 5 · 1.5 · 0.03 = 0.225.
    assert_eq!([alarm(0.0), alarm(0.03)], [true, false]);
}

/// Harmless raises of the ratio every 500 steps, in runs of 3000 steps: 120 raises.
#[test]
fn raises_that_do_no_harm_raise_no_alarm() {
    use rand::Rng;
    let mut alarms = 0;
    for seed in 0..20 {
        let settings = LossGuardConfig::default();
        let mut guard = LossGuard::new(settings, Schedule::constant(ratio(2.0))).unwrap();
        let mut rng = crate::Key::new(seed).block(0);
        for t in 0..3000 {
            let noise: f64 = (0..4).map(|_| rng.random::<f64>() - 0.5).sum::<f64>() * 0.3;
            let loss = 0.5 + 1.8 / (1.0 + 0.01 * f64::from(t)) + noise;
            guard.inner = Schedule::constant(ratio(if t / 250 % 2 == 0 { 2.0 } else { 100.0 }));
            alarms += usize::from(step(&mut guard, Some(loss), None).1.is_some_and(|why| why.contains("expected: at")));
        }
    }
    assert!(alarms <= 1, "{alarms} of 120");
}

/// A look at a lower ratio and back is not a rise: no old line is kept as a promise.
#[test]
fn a_short_fall_promises_nothing() {
    let reading = Reading { points: 4, trust: 0.5, noises: 5.0, rises: true };
    let trend = |ratios: [f64; 10]| {
        let mut trend = Trend::default();
        (0..8).for_each(|t| {
            trend.sent(20.0);
            trend.push((8.0 - f64::from(t), 0.0), reading);
        });
        ratios.into_iter().for_each(|ratio| trend.sent(ratio));
        // Progress ends, which the line forgets after some time. A promise does not.
        (0..4).map(|_| trend.push((1.0, 0.0), reading).is_some()).collect::<Vec<_>>()
    };
    let held = trend([20.0; 10]);
    assert_eq!(trend([20.0, 4.0, 4.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0]), held);
    assert_ne!(trend([20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 20.0, 40.0]), held);
}

#[test]
fn where_nothing_is_compressed_no_alarm_is_raised() {
    let settings = LossGuardConfig { window: 1, points: 4, ..LossGuardConfig::default() };
    let mut guard = LossGuard::new(settings, Schedule::constant(ratio(1.0))).unwrap();
    for t in 0..50 {
        assert_eq!(step(&mut guard, Some(1.5_f64.powi(t)), None), (1.0, None));
    }
}

#[test]
fn a_reported_validation_loss_is_a_trend_of_its_own() {
    let mut guard = guard(LossGuardConfig::default());
    for (t, loss) in [2.0, 1.8, 1.6, 1.4].into_iter().enumerate() {
        assert_eq!(step(&mut guard, None, Some(loss)).0, 100.0, "report {t}");
        assert_eq!(step(&mut guard, None, None).0, 100.0);
    }
    let (ratio, reason) = step(&mut guard, None, Some(1.6));
    assert_eq!((ratio, reason.as_deref()), (100.0, Some("validation loss 1.60, 1.58 expected: at most 25x")));
    assert!(guard.discards_residual());
    assert_eq!((step(&mut guard, None, None).0, guard.discards_residual()), (25.0, false));
}

/// Plain gradient descent on a quadratic with a delayed feedback of the residual: at 1000x it diverges, with the guard it does not.
#[test]
fn training_that_diverges_under_compression_is_caught() {
    let train = |guarded: bool| {
        let settings = LossGuardConfig { window: 5, points: 6, hold: 20, ..LossGuardConfig::default() };
        let mut guard = LossGuard::new(settings, Schedule::constant(ratio(1000.0))).unwrap();
        let (mut x, mut residual, mut worst) = ([1.0_f64; 64], [0.0_f64; 64], 0.0_f64);
        let mut last = 0.0;
        for t in 0..600_usize {
            let loss: f64 = x.iter().map(|x| x * x).sum::<f64>() / 64.0;
            let sent = if guarded { step(&mut guard, Some(loss), None).0 } else { 1000.0 };
            let keep = ((64.0 / sent).round() as usize).max(1);
            for i in 0..64 {
                residual[i] += 2.0 * x[i];
            }
            // Values are sent in turn, so that each has the same delay.
            for i in (0..keep).map(|k| (t * keep + k) % 64) {
                x[i] -= 0.3 * residual[i];
                residual[i] = 0.0;
            }
            (worst, last) = (worst.max(loss), loss);
        }
        (last, worst)
    };
    let (bare, guarded) = (train(false), train(true));
    assert!(bare.0.is_nan() || bare.0 > 1e6, "{bare:?}");
    assert!(guarded.0 < 1.0, "{guarded:?}");
}

#[test]
fn impossible_settings_are_refused() {
    let base = LossGuardConfig::default();
    for wrong in [
        LossGuardConfig { window: 0, ..base.clone() },
        LossGuardConfig { hold: 0, ..base.clone() },
        LossGuardConfig { points: 3, ..base.clone() },
        LossGuardConfig { trust: 1.0, ..base.clone() },
        LossGuardConfig { noises: f64::NAN, ..base.clone() },
        LossGuardConfig { back: 1.0, ..base.clone() },
    ] {
        assert!(wrong.check().unwrap_err().to_string().contains("of loss-guard"), "{wrong:?}");
    }
    let none: ControllerConfig = "loss-guard:none".parse().unwrap();
    let error = none.get().build(&Feedback::error(), 4).map(drop).unwrap_err().to_string();
    assert!(error.contains("use loss-guard:cost-aware"), "{error}");
    let nested: ControllerConfig = "loss-guard:(cost-aware:50x,look=10),hold=4".parse().unwrap();
    assert_eq!(nested.to_string().parse(), Ok(nested));
}
