//! Every controller of the list decides only from its observations, within its settings, for any numbers: non-finite, 0, huge,
//! repeated, absent, and clocks and steps that go back.

use briquette_core::config::{ControllerConfig, Feedback};
use briquette_core::control::{Agreed, Controller, Moments};
use briquette_core::reduce::{AgreedStep, Energies, LastExchange, Ratios};
use briquette_core::report::ResidualEnergy;
use briquette_core::state::{State, Stateful};
use briquette_core::{CompressionRatio, Layout, Traffic};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// Observations at one step.
#[derive(Debug, Clone)]
struct Observed {
    agreed_step: AgreedStep,
    moments: Moments,
    /// Values of every other number that a controller needs, in turn.
    numbers: Vec<f64>,
    /// Set if the exchange fails and is tried again.
    fails: bool,
    /// Set if another controller around it sends less.
    is_overruled: bool,
}

/// Generates valid and invalid numbers.
fn number() -> impl Strategy<Value = f64> {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, -0.0, 0.0, f64::MAX, f64::MIN, 1e300, 1e-300, 5e-324];
    prop_oneof![3 => 0.0..1.0_f64, 1 => 0.0..1e4_f64, 2 => Just(1.0), 2 => prop::sample::select(bad.to_vec())]
}

fn step() -> impl Strategy<Value = Option<u64>> {
    let leap = prop_oneof![Just(0), Just(u64::MAX), 0..200_u64, any::<u64>()];
    prop_oneof![9 => Just(None), 1 => leap.prop_map(Some)]
}

fn previous() -> impl Strategy<Value = LastExchange> {
    let bytes = prop_oneof![Just(0), Just(u64::MAX), 0..1_000_000_u64];
    let residual_energy = (number(), number()).prop_map(|(entered, left)| ResidualEnergy { entered, left });
    (prop_oneof![Just(0), 1..1000_u64, any::<u64>()], number(), number(), number(), bytes, residual_energy).prop_map(
        |(samples, compute_seconds, compress_seconds, exchange_seconds, bytes, residual_energy)| {
            let traffic = Traffic { sent: bytes, received: bytes };
            LastExchange {
                samples,
                compute_seconds,
                compress_seconds,
                exchange_seconds,
                traffic,
                residual_energy,
                ..LastExchange::default()
            }
        },
    )
}

fn observed() -> impl Strategy<Value = Observed> {
    let maybe = || prop::option::of(number());
    let step = (
        maybe(),
        prop_oneof![Just(0), 1..1000_u64, any::<u64>()],
        maybe(),
        number(),
        prop::option::of(previous()),
        maybe(),
    );
    let numbers = prop::collection::vec(number(), 1..8);
    let (fails, overruled) = (prop::bool::weighted(0.1), prop::bool::weighted(0.2));
    (step, (number(), number()), numbers, fails, overruled).prop_map(
        |(
            (loss, samples, learning_rate, compute_seconds, previous, validation_loss),
            (mean, deviation),
            numbers,
            fails,
            is_overruled,
        )| {
            let agreed_step =
                AgreedStep { step: 0, loss, validation_loss, samples, learning_rate, compute_seconds, previous };
            Observed { agreed_step, moments: Moments { mean, deviation }, numbers, fails, is_overruled }
        },
    )
}

/// Generates consecutive steps, with occasional jumps.
fn run() -> impl Strategy<Value = Vec<Observed>> {
    prop::collection::vec((step(), observed()), 1..40).prop_map(|mut run| {
        let mut next = 0_u64;
        for (leap, observed) in &mut run {
            observed.agreed_step.step = leap.unwrap_or(next);
            next = observed.agreed_step.step.wrapping_add(1);
        }
        run.into_iter().map(|(_, observed)| observed).collect()
    })
}

/// A controller's needs and decision.
#[derive(Debug, Clone, PartialEq)]
struct Decided {
    needed: String,
    ratios: Option<Vec<CompressionRatio>>,
    per_slot: bool,
    reason: Option<String>,
}

fn decide(controller: &mut dyn Controller, observed: &Observed, layout: &Layout) -> Decided {
    let Observed { agreed_step, moments, numbers, is_overruled, .. } = observed;
    controller.observe(agreed_step);
    let (needs, mut numbers) = (controller.needs(), numbers.iter().copied().cycle());
    let (needed, ratios, mut energies) = (format!("{needs:?}"), needs.gains.len(), Energies::new());
    assert!(needs.gains.is_sorted(), "gains are needed from the smallest ratio to the largest: {needed}");
    energies.clear(ratios);
    let is_any = needs.norm || needs.moments || ratios > 0;
    let rows = if needs.slots { layout.slots().len() } else { usize::from(is_any) };
    for row in 0..rows {
        energies.push(numbers.next().unwrap());
        energies.kept_mut(row).fill_with(|| numbers.next().unwrap());
    }
    let gains: Vec<f64> = (0..ratios).map(|_| numbers.next().unwrap()).collect();
    let norm2 = if rows > 0 { numbers.next().unwrap() } else { 0.0 };
    let moments = if needs.moments { *moments } else { Moments::default() };
    let slots = layout.slots();
    let mut agreed = Agreed::new(agreed_step, slots);
    (agreed.norm2, agreed.moments, agreed.gains, agreed.energies) = (norm2, moments, &gains, &energies);
    let decision = controller.decide(&agreed);
    let (ratios, per_slot) = match decision.ratios {
        Ratios::Own => (None, false),
        Ratios::All(ratio) => (Some(vec![ratio]), false),
        Ratios::PerSlot(ratios) => (Some(ratios.to_vec()), true),
    };
    let decided = Decided { needed, ratios, per_slot, reason: decision.reason };
    if let Some(ratios) = decided.ratios.as_ref().filter(|_| *is_overruled) {
        let less = |ratio: &CompressionRatio| CompressionRatio::new(ratio.get().sqrt()).unwrap();
        let less: Vec<_> = ratios.iter().map(less).collect();
        controller.overruled(if per_slot { Ratios::PerSlot(&less) } else { Ratios::All(less[0]) });
    }
    decided
}

/// Takes a step as the exchange does: after a failed step the state from before is loaded.
fn step_of(controller: &mut dyn Controller, observed: &Observed, layout: &Layout) -> Decided {
    let mut before = State::default();
    controller.save(&mut before);
    let first = decide(controller, observed, layout);
    if !observed.fails {
        return first;
    }
    controller.load(&before).expect("a controller loads what it saved");
    let again = decide(controller, observed, layout);
    assert_eq!(first, again, "the same step after the exchange failed");
    again
}

/// Checks the decision against the settings alone, without their names.
fn check_allowed(settings: &ControllerConfig, decided: &Decided, slots: usize) {
    let [least, most] = settings.get().ratios();
    let (allowed, text) = (least..=most, format!("{settings}: {decided:?}"));
    assert!(decided.ratios.iter().flatten().all(|ratio| allowed.contains(ratio)), "{text}, of {allowed:?}");
    assert!(!decided.per_slot || settings.get().per_slot(), "a ratio for each slot is not declared: {text}");
    assert!(!decided.per_slot || decided.ratios.iter().all(|ratios| ratios.len() == slots), "{text}");
    assert!(decided.reason.as_ref().is_none_or(|reason| !reason.is_empty()), "{text}");
}

fn layout(slots: usize) -> Layout {
    Layout::new((0..slots).map(|slot| (slot.to_string(), vec![3 + 20 * slot])))
}

/// Returns the same observations at other seconds.
fn at_other_seconds(observed: &Observed, seconds: [f64; 4]) -> Observed {
    let mut other = observed.clone();
    let [own, compute, compress, exchange] = seconds;
    other.agreed_step.compute_seconds = own;
    if let Some(previous) = &mut other.agreed_step.previous {
        (previous.compute_seconds, previous.compress_seconds, previous.exchange_seconds) =
            (compute, compress, exchange);
    }
    other
}

/// Returns whether, by its settings, seconds may have changed a decision.
fn depends_on_seconds(run: &[Observed], settings: &ControllerConfig, seconds: [f64; 4]) -> bool {
    let build = || settings.get().build(&Feedback::error(), 3).unwrap();
    let (Some(mut one), Some(mut other)) = (build(), build()) else { return false };
    let layout = layout(2);
    run.iter().any(|observed| {
        let other_seconds = at_other_seconds(observed, seconds);
        step_of(&mut one, observed, &layout) != step_of(&mut other, &other_seconds, &layout)
    })
}

#[test]
fn a_controller_that_states_to_read_seconds_decides_otherwise_at_some() {
    briquette_zoo::install();
    let mut random = TestRunner::deterministic();
    let runs: Vec<_> = (0..200).map(|_| run().new_tree(&mut random).unwrap().current()).collect();
    for settings in ControllerConfig::all().into_iter().filter(|settings| settings.get().reads_seconds()) {
        let depends = |run: &Vec<Observed>| depends_on_seconds(run, &settings, [1e-3, 10.0, 1e-3, 1e-3]);
        assert!(runs.iter().any(depends), "{settings}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_does_not_state_to_read_seconds_decides_the_same_whatever_they_are(
        run in run(), seconds in [number(), number(), number(), number()],
    ) {
        briquette_zoo::install();
        for settings in ControllerConfig::all().into_iter().filter(|settings| !settings.get().reads_seconds()) {
            prop_assert!(!depends_on_seconds(&run, &settings, seconds), "{}", settings);
        }
    }

    #[test]
    fn the_same_observations_give_the_same_decisions_within_the_settings(
        run in run(), world in 1..6_usize, slots in 1..4_usize, cut in 0..40_usize,
    ) {
        briquette_zoo::install();
        let layout = layout(slots);
        for settings in ControllerConfig::all() {
            let build = || settings.get().build(&Feedback::error(), world).unwrap();
            let (Some(mut one), Some(mut other), Some(mut resumed)) = (build(), build(), build()) else { continue };
            prop_assert_eq!(one.per_slot(), settings.get().per_slot(), "{}", settings);
            for (index, observed) in run.iter().enumerate() {
                if index == cut % run.len() {
                    let mut state = State::default();
                    other.save(&mut state);
                    resumed.load(&state).unwrap();
                }
                let decided = step_of(&mut one, observed, &layout);
                check_allowed(&settings, &decided, slots);
                prop_assert_eq!(&decided, &step_of(&mut other, observed, &layout), "{}, a second copy", settings);
                if index >= cut % run.len() {
                    let resumed = step_of(&mut resumed, observed, &layout);
                    prop_assert_eq!(&decided, &resumed, "{}, resumed before {}", settings, cut % run.len());
                }
            }
        }
    }
}
