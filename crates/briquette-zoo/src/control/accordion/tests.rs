use super::*;
use briquette_core::Layout;
use briquette_core::config::Described;
use briquette_core::reduce::Energies;
use briquette_core::state::Stateful;

fn settings() -> Accordion {
    let (low, high) = (CompressionRatio::constant(4.0), CompressionRatio::constant(16.0));
    Accordion { low, high, interval: 4, window: 2, ..Accordion::default() }
}

/// Runs one step with these norms of slots, if they are measured. Returns the ratios, and the reason.
fn step(
    controller: &mut impl Controller,
    (step, learning_rate): (u64, Option<f64>),
    norms: &[f64],
) -> (Vec<f64>, Option<String>) {
    let agreed_step = AgreedStep { step, learning_rate, ..AgreedStep::default() };
    controller.observe(&agreed_step);
    let (mut energies, layout) = (Energies::new(), Layout::new((0..norms.len()).map(|i| (i.to_string(), vec![2]))));
    let needs = controller.needs();
    assert!(needs.gains.is_empty() && !needs.moments);
    if needs.slots || needs.norm {
        norms.iter().for_each(|norm| energies.push(norm * norm));
    }
    let mut agreed = Agreed::new(&agreed_step, layout.slots());
    agreed.norm2 = if needs.norm { norms[0] * norms[0] } else { 0.0 };
    agreed.energies = &energies;
    let decision = controller.decide(&agreed);
    let ratios = match decision.ratios {
        Ratios::PerSlot(ratios) => ratios.iter().map(|ratio| ratio.get()).collect(),
        Ratios::All(ratio) => vec![ratio.get()],
        Ratios::Own => panic!("the reducer's own"),
    };
    (ratios, decision.reason)
}

/// Two slots; windows are the first two steps of four. By hand, with `r` the root mean square of the measured norms:
///
/// | steps | norms of a | r | change | norms of b | r | change | from the step after on |
/// |---|---|---|---|---|---|---|---|
/// | 0, 1 | 7, 1 | 5 | | 1, 1 | 1 | | 4x, 4x: nothing to compare with |
/// | 4, 5 | 2, 4 | √10 = 3.16 | .37 | 0, 0 | 0 | 1 | 16x, 4x |
/// | 8, 9 | 1, 3 | √5 = 2.24 | .29 | 0, 0 | 0 | 0 of 0 | 16x, 16x |
/// | 12, 13 | 1, 1 | 1 | .55 | 0, 1 | .71 | from 0 | 4x, 4x |
/// | 16, 17 | 1, 1 | 1 | 0 | 1, 1 | 1 | .41 | 16x, 16x |
#[test]
fn golden_regimes_of_two_slots() {
    let a = [7.0, 1.0, 2.0, 4.0, 1.0, 3.0, 1.0, 1.0, 1.0, 1.0];
    let b = [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0];
    let mut controller = settings().controller().unwrap();
    let (mut ratios, mut reasons) = (Vec::new(), Vec::new());
    for t in 0..20 {
        // Steps that are not measured must not matter.
        let norms = if t % 4 < 2 { [a[t / 4 * 2 + t % 4], b[t / 4 * 2 + t % 4]] } else { [f64::NAN; 2] };
        let (ratio, reason) = step(&mut controller, (t as u64, None), &norms);
        ratios.push([ratio[0], ratio[1]]);
        reasons.extend(reason.map(|reason| (t, reason)));
    }
    let expected = [[[4.0, 4.0]; 6], [[16.0, 4.0]; 6]].concat();
    assert_eq!(ratios[..6], expected[..6]);
    assert_eq!(ratios[6..10], expected[6..10]);
    assert_eq!(
        (&ratios[10..14], &ratios[14..18], &ratios[18..]),
        (&[[16.0, 16.0]; 4][..], &[[4.0, 4.0]; 4][..], &[[16.0, 16.0]; 2][..])
    );
    let critical = |count| format!("{count} of 2 slots critical: sending 4x of them, 16x of the others");
    let expected = [(0, "the first interval: sending 4x".into()), (6, critical(1)), (10, critical(0))];
    assert_eq!(reasons, [&expected[..], &[(14, critical(2)), (18, critical(0))]].concat());
}

#[test]
fn the_whole_vector_is_one_slot_and_is_measured_in_windows_only() {
    let mut controller = Accordion { per_slot: false, ..settings() }.controller().unwrap();
    assert!(!controller.per_slot());
    // The needs of the first step, and after each step those of the next.
    let norm = Needs { norm: true, ..Needs::default() };
    let mut needed = vec![controller.needs() == norm];
    for t in 0..9 {
        let (ratio, reason) = step(&mut controller, (t, None), &[3.0, 9.0]);
        needed.push(controller.needs() == norm);
        assert_eq!(ratio, if t < 6 { [4.0] } else { [16.0] }, "step {t}");
        assert_eq!(reason.is_some(), t == 0 || t == 6);
        if t == 6 {
            assert_eq!(reason.as_deref(), Some("the gradient's norm is steady: sending 16x"));
        }
    }
    assert_eq!(needed, [true, true, false, false, true, true, false, false, true, true]);
}

/// Norms never change: only the learning rate makes slots critical, from that step to the next check.
#[test]
fn a_fall_of_the_learning_rate_makes_all_slots_critical_until_the_next_check() {
    let mut controller = settings().controller().unwrap();
    // .1 to .06 is less than a fall by half, .1 to .05 is one; then .05 to .03 is less again.
    let rate = |t| [0.1, 0.06, 0.05, 0.03][[8, 11, 21].iter().filter(|from| t >= **from).count()];
    let mut low = Vec::new();
    for t in 0..32 {
        let (ratios, reason) = step(&mut controller, (t, Some(rate(t))), &[1.0, 2.0]);
        low.extend((ratios == [4.0, 4.0]).then_some(t));
        let fell = reason.is_some_and(|reason| reason == "the learning rate fell from 0.1 to 0.05: sending 4x");
        assert_eq!(fell, t == 11, "step {t}");
    }
    assert_eq!(low, [0, 1, 2, 3, 4, 5, 11, 12, 13]);
}

#[test]
fn a_learning_rate_that_is_no_number_is_not_seen() {
    let mut controller = settings().controller().unwrap();
    for t in 0..40 {
        let rates = [None, Some(f64::NAN), Some(0.0), Some(-1.0), Some(f64::INFINITY), Some(0.1)];
        let ratios = step(&mut controller, (t, rates[t as usize % 6]), &[1.0]).0;
        assert_eq!(ratios, if t < 6 { [4.0] } else { [16.0] }, "step {t}");
    }
}

/// Recomputes the decision at each step from the complete history.
#[test]
fn regimes_equal_those_of_a_twin_that_remembers_every_norm() {
    use rand::Rng;
    for seed in 0..20 {
        let mut rng = briquette_core::Key::new(seed).block(0);
        let mut controller = settings().controller().unwrap();
        let (mut all, mut t) = (Vec::<(u64, f64)>::new(), 0_u64);
        for _ in 0..60 {
            let norm = f64::from(rng.random_range(1..6_u8));
            let ratios = step(&mut controller, (t, None), &[norm]).0;
            let window = |number: u64| {
                let inside: Vec<f64> = all.iter().filter(|m| m.0 == number).map(|m| m.1 * m.1).collect();
                (inside.iter().sum::<f64>() / inside.len() as f64).sqrt()
            };
            let mut over: Vec<u64> = all.iter().map(|m| m.0).filter(|w| t >= w * 4 + 2).collect();
            over.dedup();
            let critical = match over[..] {
                [.., before, now] => (window(before) - window(now)).abs() / window(before) >= 0.5,
                _ => true,
            };
            assert_eq!(ratios, if critical { [4.0] } else { [16.0] }, "seed {seed}, step {t}");
            all.extend((t % 4 < 2).then_some((t / 4, norm)));
            // Exchanges need not take place at every step.
            t += rng.random_range(1..4_u64);
        }
    }
}

#[test]
fn a_window_with_an_energy_that_is_not_finite_is_critical_and_so_is_the_next() {
    for bad in [f64::NAN, f64::INFINITY, 1e200] {
        let mut controller = settings().controller().unwrap();
        let mut low = Vec::new();
        for t in 0..24 {
            let ratios = step(&mut controller, (t, None), &[if t == 8 { bad } else { 1.0 }, 1.0]).0;
            assert_eq!(ratios[1], if t < 6 { 4.0 } else { 16.0 });
            low.extend((ratios[0] == 4.0).then_some(t));
        }
        assert_eq!(low, [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15, 16, 17][..14], "{bad}");
    }
}

#[test]
fn other_slots_start_anew() {
    let mut controller = settings().controller().unwrap();
    (0..8).for_each(|t| drop(step(&mut controller, (t, None), &[1.0, 1.0])));
    let (ratios, reason) = step(&mut controller, (8, None), &[1.0; 3]);
    assert_eq!((ratios, reason.as_deref()), (vec![4.0; 3], Some("the first interval: sending 4x")));
}

#[test]
fn impossible_settings_are_refused() {
    let base = settings();
    let wrong = [
        Accordion { high: base.low, ..base },
        Accordion { interval: 0, ..base },
        Accordion { window: 0, ..base },
        Accordion { window: 5, ..base },
        Accordion { change: 0.0, ..base },
        Accordion { change: f64::NAN, ..base },
        Accordion { drop: 1.0, ..base },
        Accordion { drop: 0.0, ..base },
    ];
    for wrong in wrong {
        assert!(wrong.controller().map(drop).unwrap_err().to_string().contains("accordion"), "{wrong:?}");
    }
    assert!(base.check().is_ok());
}

#[test]
fn state_that_it_cannot_have_saved_is_refused() {
    let (mut each, mut whole) =
        (settings().controller().unwrap(), Accordion { per_slot: false, ..settings() }.controller().unwrap());
    drop(step(&mut each, (0, None), &[1.0, 1.0]));
    let mut state = State::default();
    each.save(&mut state);
    assert!(whole.load(&state).unwrap_err().to_string().contains("regimes"));
}
