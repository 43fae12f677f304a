use super::plan::{Budget, Dual, bits_of, level_of};
use super::*;
use briquette_core::Layout;
use briquette_core::config::{ControllerConfig, ControllerSettings, Described};
use briquette_core::reduce::AgreedStep;
use briquette_core::state::Stateful;

const F: fn(f64) -> CompressionRatio = CompressionRatio::constant;

/// Returns the bits of one decision at a norm, and the reason.
fn decide(controller: &mut impl Controller, step: u64, norm: f64) -> (f64, Option<String>) {
    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
    controller.observe(&agreed_step);
    assert_eq!(controller.needs(), Needs { norm: true, ..Needs::default() });
    let mut agreed = Agreed::new(&agreed_step, &[]);
    agreed.norm2 = norm * norm;
    let decision = controller.decide(&agreed);
    (32.0 / decision.ratio().unwrap().get(), decision.reason)
}

fn run(settings: DqSgd, norms: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut controller = settings.controller(1).unwrap();
    (0..).zip(norms).map(|(step, norm)| decide(&mut controller, step, norm).0).collect()
}

fn mean(bits: &[f64]) -> f64 {
    bits.iter().sum::<f64>() / bits.len() as f64
}

/// `log₂(10·1 + 1) + 1`, `log₂(10·.1 + 1) + 1`, `log₂(100·1 + 1) + 1`.
#[test]
fn golden_bits_of_the_formulas() {
    for (constant, norm, bits) in [(10.0_f64, 1.0_f64, 4.459_432), (10.0, 0.1, 2.0), (100.0, 1.0, 7.658_211)] {
        let got = bits_of(constant.log2() + norm.log2());
        assert!((got - bits).abs() < 1e-6, "t = {constant}, norm {norm}: {got}");
        assert!((level_of(got) - (constant * norm).log2()).abs() < 1e-12);
    }
    assert_eq!([f64::NEG_INFINITY, -2000.0, 2000.0].map(bits_of), [1.0, 1.0, 2001.0]);
}

/// Norms 1, 4, 1, ¼, 0, 2 with 3 bits (s = 3) in the mean over ten steps. `m` is the base-2 logarithm of the present level, in which
/// the last norm has a weight of 1/2 at the second step and of 2/5 afterward.
///
/// | step | norm | m | bits so far | left a step | s = (2^(left − 1) − 1)·norm/2^m | log₂(s + 1) + 1 | bits |
/// |---|---|---|---|---|---|---|---|
/// | 0 | 1 | 0 | 0 | 30/10 = 3 | 3 | 3 | 3 |
/// | 1 | 4 | (0 + 2)/2 = 1 | 3 | 27/9 = 3 | 3·4/2 = 6 | 3.81 | 4 |
/// | 2 | 1 | .6·1 + .4·0 = .6 | 7 | 23/8 = 2.875 | 2.668/1.516 = 1.76 | 2.46 | 2 |
/// | 3 | ¼ | .6·.6 − .4·2 = −.44 | 9 | 21/7 = 3 | .75·1.357 = 1.02 | 2.01 | 2 |
/// | 4 | 0 | −.44 | 11 | | | | 2 |
/// | 5 | 2 | −.6·.44 + .4·1 = .136 | 13 | 17/5 = 3.4 | 4.278·2/1.099 = 7.79 | 4.14 | 4 |
#[test]
fn golden_bits_follow_norm_and_budget() {
    let settings = DqSgd { bits: Some(3.0), steps: Some(10), ..DqSgd::default() };
    let (mut controller, norms) = (settings.controller(1).unwrap(), [1.0, 4.0, 1.0, 0.25, 0.0, 2.0]);
    let seen = (0..).zip(norms).map(|(step, norm)| decide(&mut controller, step, norm));
    let (bits, reasons): (Vec<_>, Vec<_>) = seen.unzip();
    assert_eq!(bits, [3.0, 4.0, 2.0, 2.0, 2.0, 4.0]);
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    let at = |norm, step, bits| format!("gradient norm {norm} at step {step}: {bits} bits a value");
    assert_eq!(
        reasons,
        [at("1.00e0", 0, 3), at("4.00e0", 1, 4), at("1.00e0", 2, 2), at("2.00e0", 5, 4)],
        "when bits change"
    );
}

/// The mean square over ranks counts: four ranks with norm 3 each are equivalent to one rank with norm 3.
#[test]
fn bits_do_not_depend_on_how_many_ranks_have_the_same_norm() {
    let settings = DqSgd { steps: Some(50), ..DqSgd::default() };
    let (mut one, mut four) = (settings.controller(1).unwrap(), settings.controller(4).unwrap());
    for step in 0..50 {
        let norm = 3.0 + (step as f64).sin();
        assert_eq!(decide(&mut one, step, norm), decide(&mut four, step, 2.0 * norm));
    }
}

/// Returns the level and the trend from all levels so far, by textbook formulas.
fn expected(levels: &[f64]) -> (f64, f64) {
    let level = levels.iter().enumerate().fold(0.0, |level, (i, next)| {
        let gain = if i == 0 { 1.0 } else { 0.4_f64.max(1.0 / (i + 1) as f64) };
        (1.0 - gain) * level + gain * next
    });
    let count = levels.len() as f64;
    let times: Vec<f64> = (1..=levels.len()).map(|n| (n as f64).ln()).collect();
    let about = |values: &[f64]| -> Vec<f64> { values.iter().map(|value| value - mean(values)).collect() };
    let (times, levels) = (about(&times), about(levels));
    let sum = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let slope = sum(&times, &levels) / sum(&times, &times);
    let left: f64 = times.iter().zip(&levels).map(|(time, level)| (level - slope * time).powi(2)).sum();
    let error = ((left + 0.08) / count / sum(&times, &times)).sqrt();
    let is_clear = count > 2.0 && slope.abs() > 3.0 * (1.0 + 8.0 / (count - 2.0)).sqrt() * error;
    (level, if is_clear { slope.signum() } else { 0.0 })
}

/// Finds the constant by trying a fine grid of values, from the complete history.
#[test]
fn bits_equal_those_of_a_twin_that_remembers_everything_and_tries_constants() {
    let mut leans = [0; 3];
    for (target, steps, contraction, falls) in
        [(4.0, 30, 0.9_f64, 0.0), (3.3, 25, 1.0, 0.0), (5.5, 32, 0.97, 0.7), (4.0, 110, 1.0, 0.8), (4.0, 90, 1.0, -0.8)]
    {
        let settings = DqSgd { bits: Some(target), steps: Some(steps), contraction, ..DqSgd::default() };
        let mut controller = settings.controller(1).unwrap();
        let (mut levels, mut sent) = (Vec::new(), Vec::<f64>::new());
        let rule = |k: f64, step: u64, norm: f64| {
            ((k * contraction.powf((steps - step) as f64 / 2.0) * norm + 1.0).log2() + 1.0).clamp(2.0, 8.0)
        };
        for step in 0..steps {
            let norm = (0.3 * ((step * 7 % 11) as f64) - 1.0).exp() * ((step + 1) as f64).powf(-falls);
            levels.push(norm.log2());
            let (level, trend) = expected(&levels);
            let left = target * steps as f64 - sent.iter().sum::<f64>();
            let saved = left / (steps - step) as f64 - target;
            // The first hundredth of the steps counts as falling.
            let trend = if contraction == 1.0 && step < steps / 100 { -1.0 } else { trend };
            let lean = if trend * saved < 0.125 { trend } else { 0.0 };
            leans[(lean + 1.0) as usize] += 1;
            let spends = |k: f64| (step..steps).map(|later| rule(k, later, (level + lean).exp2())).sum::<f64>();
            let mut constants = (-8000..12_000).map(|i| (f64::from(i) / 400.0).exp2());
            // If there is more than can be spent, as much as possible is spent.
            let k = constants.find(|k| spends(*k) >= left).unwrap_or(f64::MAX);
            let wanted = rule(k, step, norm);
            let got = decide(&mut controller, step, norm).0;
            assert!((got - wanted).abs() < 0.51, "step {step}: {got} bits, the twin has {wanted}");
            sent.push(got);
        }
    }
    assert!(leans.iter().all(|count| *count > 10), "{leans:?}");
}

#[test]
fn mean_bits_meet_the_target() {
    let wave = |n: u64| 1.0 + 0.9 * (n as f64 / 5.0).sin();
    let falling = |n: u64| wave(n) * (1.0 + n as f64).powf(-0.5);
    let rising = |n: u64| wave(n) * (1.0 + n as f64).sqrt();
    for (name, norm) in [("wave", &wave as &dyn Fn(u64) -> f64), ("falling", &falling), ("rising", &rising)] {
        for target in [3.0, 4.5, 6.25] {
            for (steps, contraction) in [(Some(1000), 1.0), (Some(1000), 0.99), (None, 1.0)] {
                let settings = DqSgd { bits: Some(target), steps, contraction, ..DqSgd::default() };
                let got = mean(&run(settings, (0..1000).map(norm)));
                let bound = if steps.is_some() { 0.02 } else { 0.15 };
                assert!(
                    (got - target).abs() < bound,
                    "{name}: {got} bits instead of {target}, {steps:?}, {contraction}"
                );
            }
        }
    }
}

/// A tenth of the steps is sent at 8 bits. The others get the rest of a mean of 5.
#[test]
fn bits_sent_instead_are_spent() {
    let settings = DqSgd { bits: Some(5.0), steps: Some(400), ..DqSgd::default() };
    let mut controller = settings.controller(1).unwrap();
    let sent = (0..400).map(|step| match (decide(&mut controller, step, 1.0).0, step) {
        (_, ..40) => {
            controller.overruled(Ratios::All(F(4.0)));
            8.0
        }
        (bits, _) => bits,
    });
    let mean = mean(&sent.collect::<Vec<_>>());
    assert!((mean - 5.0).abs() < 0.05, "{mean}");
}

/// A run that continues after `steps`, in which `bits` are still the mean.
#[test]
fn a_run_longer_than_its_steps_goes_on_at_the_mean() {
    let settings = DqSgd { bits: Some(5.0), steps: Some(100), contraction: 0.95, ..DqSgd::default() };
    let bits = run(settings, vec![1.0; 1000]);
    assert!(mean(&bits[90..100]) > 6.0 && bits[..10].iter().all(|bits| *bits < 5.0), "{:?}", &bits[..100]);
    assert!(bits[120..].iter().all(|bits| *bits == 5.0), "{:?}", &bits[100..]);
}

/// On flat norms rule (18) grows by `−log₂(α)/2` bits per step if there are many levels.
#[test]
fn contraction_moves_bits_to_the_end_and_large_norms_get_more_without_it() {
    let convex = DqSgd { bits: Some(5.0), steps: Some(40), contraction: 0.9, ..DqSgd::default() };
    let bits = run(convex, vec![7.0; 40]);
    assert!(bits.is_sorted() && bits[0] == 4.0 && bits[39] == 6.0, "{bits:?}");
    let deep = DqSgd { contraction: 1.0, ..convex };
    assert!(run(deep, vec![7.0; 40]).iter().all(|bits| *bits == 5.0));
    // If the norm falls as fast as the steps contract, the convex rule has nothing to move.
    let falls = |n: u64| 0.9_f64.powf(n as f64 / 2.0);
    let fixed = Budget { mean: 5.0, steps: Some(40), decay: 0.9_f64.log2() / 2.0 };
    let levels = (0..40).map(|n| fixed.exponent(n) + falls(n).log2());
    assert!(levels.clone().all(|level| (level - fixed.exponent(0)).abs() < 1e-9));
}

/// Inserting `s_n` into theorem 1's term gives `error` again: `(L·d·η²/12)·Σ α^(N−1−n)·‖g_n‖²/s_n²/ranks`.
#[test]
fn the_dual_spends_the_error_exactly() {
    let (steps, smoothness, rate, error, alpha, ranks) = (40_u64, 3.0, 0.05, 0.02, 0.93_f64, 4.0);
    for (len, d) in [(200, 200.0), (10_000, 512.0)] {
        let squared = [steps as f64, smoothness, rate, rate].map(f64::log2).iter().sum::<f64>();
        let constant = (squared - [12.0, error, ranks].map(f64::log2).iter().sum::<f64>()) / 2.0;
        let dual = Dual { constant, steps, decay: alpha.log2() / 2.0, bucket: 512 };
        let term = |n: u64| {
            let norm = 1.0 + (n as f64).cos();
            let levels = norm * dual.level(n, len).exp2();
            alpha.powf((steps - 1 - n) as f64) * norm * norm / (levels * levels)
        };
        let added = smoothness * d * rate * rate / 12.0 * (0..steps).map(term).sum::<f64>() / ranks;
        assert!((added / error - 1.0).abs() < 1e-9, "{added}");
    }
}

/// By hand: `N = 4`, `L = 3`, `η = 1`, `d = 16`, `error = 1`: `√(4·3·16/12) = 4` levels at norm 1 and `α = 1`, so `log₂ 5 + 1 = 3.3`.
#[test]
fn golden_bits_of_an_error_are_rounded_up_and_a_shortage_is_stated() {
    let numbers = (Some(1.0), Some(3.0), Some(1.0));
    let settings =
        DqSgd { error: numbers.0, smoothness: numbers.1, rate: numbers.2, steps: Some(4), ..DqSgd::default() };
    let (mut controller, layout) = (settings.controller(1).unwrap(), Layout::flat(16));
    let mut decide = |norm: f64| {
        let agreed_step = AgreedStep::default();
        let mut agreed = Agreed::new(&agreed_step, layout.slots());
        agreed.norm2 = norm * norm;
        let decision = controller.decide(&agreed);
        (32.0 / decision.ratio().unwrap().get(), decision.reason.unwrap_or_default())
    };
    assert_eq!(decide(1.0), (4.0, "gradient norm 1.00e0 at step 0: 4 bits a value".into()));
    assert_eq!(decide(0.7).0, 3.0); // log₂ 3.8 + 1 = 2.93
    assert_eq!(decide(1e-9).0, 2.0);
    let (bits, reason) = decide(100.0); // log₂ 401 + 1 = 9.65
    assert_eq!(bits, 8.0);
    assert_eq!(reason, "gradient norm 1.00e2 at step 0 needs 10 bits for this error: 8 bits a value");
}

#[test]
fn norms_that_are_not_finite_get_the_most_bits_and_are_forgotten() {
    let settings = DqSgd { bits: Some(4.0), steps: Some(1000), ..DqSgd::default() };
    let mut controller = settings.controller(1).unwrap();
    // A hundredth of the steps counts as falling.
    (0..20).for_each(|step| assert_eq!(decide(&mut controller, step, 1.0).0, if step < 10 { 5.0 } else { 4.0 }));
    let (bits, reason) = decide(&mut controller, 20, f64::NAN);
    assert_eq!((bits, reason.as_deref()), (8.0, Some("the gradient's norm is not finite: 8 bits a value")));
    assert_eq!(decide(&mut controller, 21, f64::INFINITY).0, 8.0);
    assert_eq!(decide(&mut controller, 22, 0.0).0, 2.0);
    (23..40).for_each(|step| assert_eq!(decide(&mut controller, step, 1.0).0, 4.0, "step {step}"));
    // The largest and the smallest norm that f32 gradients can have.
    assert_eq!(decide(&mut controller, 40, 1e45).0, 8.0);
    assert_eq!(decide(&mut controller, 41, 1e-60).0, 2.0);
}

#[test]
fn impossible_settings_are_refused() {
    let base = DqSgd { steps: Some(10), ..DqSgd::default() };
    let (error, smoothness, rate) = (Some(1.0), Some(1.0), Some(0.1));
    let dual = DqSgd { error, smoothness, rate, ..base };
    assert!(base.check().is_ok() && dual.check().is_ok());
    let bits = [1.9, 8.1, f64::NAN].map(|bits| DqSgd { bits: Some(bits), ..base });
    let range = [(1, 8), (5, 4), (2, 9)].map(|(min, max)| DqSgd { min, max, ..base });
    let contraction = [0.0, 1.1, f64::NAN].map(|contraction| DqSgd { contraction, ..base });
    let error = [0.0, f64::INFINITY].map(|error| DqSgd { error: Some(error), ..dual });
    let others = [
        DqSgd { steps: Some(0), ..base },
        DqSgd { steps: None, contraction: 0.5, ..base },
        DqSgd { bucket: 0, ..base },
        DqSgd { bits: Some(4.0), ..dual },
        DqSgd { steps: None, ..dual },
        DqSgd { smoothness: None, ..dual },
        DqSgd { rate: Some(-1.0), ..dual },
        DqSgd { error: None, ..dual },
    ];
    for wrong in bits.iter().chain(&range).chain(&contraction).chain(&error).chain(&others) {
        assert!(wrong.controller(2).map(drop).unwrap_err().to_string().contains("dqsgd"), "{wrong:?}");
    }
    // The default is limited to any allowed range.
    assert_eq!(run(DqSgd { min: 6, ..DqSgd::default() }, [1.0; 3]), [6.0; 3]);
}

#[test]
fn state_of_other_settings_is_refused() {
    let (mut state, mut other) = (State::default(), DqSgd { max: 3, ..DqSgd::default() }.controller(1).unwrap());
    let mut controller = DqSgd::default().controller(1).unwrap();
    decide(&mut controller, 0, 1.0);
    controller.save(&mut state);
    assert!(other.load(&state).unwrap_err().to_string().contains("`last` is 4"));
    let mut short = State::default();
    short.put("last", 4_u64);
    short.put("sums", vec![0.0; 4]);
    short.put("trend", vec![0.0; 3]);
    assert!(controller.load(&short).unwrap_err().to_string().contains("`trend`"));
}

#[test]
fn texts_are_read_and_ratios_are_those_of_bits() {
    crate::install();
    let read = |text: &str| *text.parse::<ControllerConfig>().unwrap().downcast_ref::<DqSgd>().unwrap();
    assert_eq!(read("dqsgd:bits=4,steps=4000"), DqSgd { bits: Some(4.0), steps: Some(4000), ..DqSgd::default() });
    assert_eq!(read("dqsgd:4.5"), DqSgd { bits: Some(4.5), ..DqSgd::default() });
    let dual = "dqsgd:steps=9,error=0.5,smoothness=2,rate=0.1";
    for text in ["dqsgd", "dqsgd:4.5,steps=9,contraction=0.9", dual] {
        assert_eq!(ControllerConfig::from(read(text)).to_string(), text);
    }
    assert_eq!(read("dqsgd:min=3,max=6").ratios(), [F(32.0 / 6.0), F(32.0 / 3.0)]);
}

mod profiles;
