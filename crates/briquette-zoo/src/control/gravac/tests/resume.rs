//! Tests that GraVAC's state is complete: its decisions depend on nothing else.

use super::*;
use briquette_core::Key;
use briquette_core::state::{State, Stateful};
use proptest::prelude::*;

/// Numbers that reach `ε` occasionally, and times for which every kind of check occurs.
fn noise(step: u64, ratio: f64, what: &str) -> f64 {
    use rand::Rng;
    Key::new(9).step(step).bucket(ratio as usize).purpose(what).block(0).random()
}

fn busy() -> GraVacConfig {
    GraVacConfig {
        max: ratio(80.0),
        policy: two(),
        window: 3,
        saturation: 0.05,
        dense_steps: 4,
        reprobe_windows: 2,
        stale_windows: 4,
        smoothing: Some(0.5),
        settle: true,
        epsilon: 0.5,
        ..GraVacConfig::default()
    }
}

fn noisy_step(driver: &mut Driver) -> Decided {
    let step = driver.step;
    driver.step(&|f| 0.3 + 0.6 * noise(step, f, "gain"), &|f| 0.5 + 0.6 / f + noise(step, f, "time"))
}

/// Runs `steps`, and checks at each that a controller that loads its state is identical.
fn resume_at_each_step(config: &GraVacConfig, steps: u64, mut seen: impl FnMut(Decided)) {
    let mut whole = Driver::new(config);
    for _ in 0..steps {
        // Between two steps, and between `observe` and `decide`.
        for observed in [false, true] {
            let mut now = whole.clone();
            if observed {
                now.observe();
            }
            let mut state = State::default();
            now.controller.save(&mut state);
            let mut resumed = config.build(32).unwrap();
            resumed.load(&state).unwrap();
            assert_eq!(resumed, now.controller, "step {}", now.step);
            // Loading also takes a controller back that has continued.
            let mut taken_back = now.clone();
            (0..7).for_each(|_| drop(noisy_step(&mut taken_back)));
            taken_back.controller.load(&state).unwrap();
            assert_eq!(taken_back.controller, now.controller, "step {}", now.step);
        }
        seen(noisy_step(&mut whole));
    }
}

#[test]
fn resume_at_any_step_continues_to_the_bit() {
    let mut ratios = std::collections::BTreeSet::new();
    let mut reasons = String::new();
    for settle in [true, false] {
        resume_at_each_step(&GraVacConfig { settle, ..busy() }, 500, |decision| {
            ratios.insert(decision.ratio.get() as u64);
            reasons.extend(decision.reason);
        });
    }
    // The run has used all ratios.
    assert_eq!(ratios.into_iter().collect::<Vec<_>>(), [1, 10, 20, 40, 80]);
    let events = "trying, saturated, best, gain fell, throughput fell, dense timed, timing dense again, back to, off";
    for words in events.split(", ").chain(["below", "reaches"]) {
        assert!(reasons.contains(words), "never {words}");
    }
}

#[test]
fn foreign_state_is_refused_and_changes_nothing() {
    let mut driver = Driver::new(&busy());
    (0..20).for_each(|_| drop(noisy_step(&mut driver)));
    let before = driver.controller.clone();
    assert!(driver.controller.load(&State::default()).is_err());
    let mut other = State::default();
    GraVacConfig::default().build(32).unwrap().save(&mut other);
    assert!(driver.controller.load(&other).is_err());
    assert_eq!(driver.controller, before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Golden 9: copies with the same agreed numbers stay identical, and send only valid ratios.
    #[test]
    fn golden_9_same_observations_same_decision(
        numbers in prop::collection::vec((-0.5..1.5_f64, -0.5..1.5_f64, -0.2..2.0_f64, any::<bool>()), 1..200),
        window in 1..6_u64,
        epsilon in 0.0..1.2_f64,
        settle in any::<bool>(),
        dense_steps in 0..9_u64,
    ) {
        let config = GraVacConfig { window, epsilon, settle, dense_steps, ..busy() };
        let mut ranks: Vec<Driver> = (0..3).map(|_| Driver::new(&config)).collect();
        let allowed: Vec<f64> = [1.0, 10.0].into_iter().chain(ranks[0].controller.candidates().iter().map(|f| f.get())).collect();
        for (safe, bold, seconds, told) in numbers {
            let first = ranks[0].controller.search.safe.get();
            let decisions: Vec<Decided> = ranks
                .iter_mut()
                .map(|rank| {
                    rank.last = rank.last.filter(|_| told);
                    rank.step(&|f| if f == first { safe } else { bold }, &|f| seconds / f)
                })
                .collect();
            prop_assert!(decisions.windows(2).all(|pair| pair[0] == pair[1]));
            prop_assert!(ranks.windows(2).all(|pair| pair[0].controller == pair[1].controller));
            prop_assert!(allowed.contains(&decisions[0].ratio.get()), "{:?}", decisions[0]);
            let probes = ranks[0].controller.needs().gains;
            prop_assert!(probes.windows(2).all(|pair| pair[0] < pair[1]), "{probes:?}");
            prop_assert!(ranks[0].controller.search.safe <= config.max);
        }
    }
}
