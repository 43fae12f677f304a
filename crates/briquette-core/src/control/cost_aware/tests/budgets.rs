//! Budgets of bytes and seconds.

use super::*;

const FAST: Machine = Machine { bits_a_second: 1e12, latency: 0.0, ..MACHINE };

fn with(settings: CostAwareConfig, limit: f64) -> CostAware<Schedule> {
    CostAware::new(settings, Schedule::constant(ratio(limit)), 4).unwrap()
}

fn settings(steps: u64, budget: Option<f64>, deadline: Option<f64>) -> CostAwareConfig {
    CostAwareConfig { steps: Some(steps), budget, deadline, ..CostAwareConfig::default() }
}

fn bytes(machine: Machine, sent: &[f64]) -> f64 {
    sent.iter().map(|rung| machine.last(*rung).traffic.sent as f64).sum()
}

/// Dense is the knee of this link, and takes 1.9 MB a step. Of 0.15 MB, 10x takes 0.21 and 20x 0.10.
#[test]
fn a_budget_of_bytes_is_kept_and_spent() {
    assert!(run(&mut controller(100.0), 40, |_| FAST).0.ends_with(&[1.0; 20]));
    let (sent, _) = run(&mut with(settings(1000, Some(150e6), None), 100.0), 1000, |_| FAST);
    let share = bytes(FAST, &sent) / 150e6;
    assert!((0.93..=1.0).contains(&share), "{share}");
    // The start times 100x, and the surplus goes into 4x at the end.
    assert!(sent[20..].iter().all(|rung| [4.0, 10.0, 20.0].contains(rung)), "{sent:?}");
}

/// A step of 100x takes 51.8 ms, of 10x 55.5, of 4x 65.8, of dense 93.8. The knee is 50x. 10x for most of the run leaves time for lower ratios at
/// its end.
#[test]
fn time_that_is_left_goes_into_less_compression() {
    let (sent, seconds) = run(&mut with(settings(1000, None, Some(60.0)), 100.0), 1000, |_| MACHINE);
    assert!((0.98..=1.0).contains(&(seconds / 60.0)), "{seconds}");
    assert!(sent[20..].iter().all(|rung| *rung <= 10.0), "{sent:?}");
    let (sent, _) = run(&mut with(settings(1000, None, Some(100.0)), 100.0), 1000, |_| MACHINE);
    assert_eq!(sent[20..], [1.0; 980]);
}

/// From step 100 on the link is slower by four.
#[test]
fn a_slower_link_raises_the_ratio_until_the_deadline_is_met_again() {
    let slow = Machine { bits_a_second: 25e6, ..MACHINE };
    let link = |step| if step < 100 { MACHINE } else { slow };
    let (sent, seconds) = run(&mut with(settings(500, None, Some(40.0)), 100.0), 500, link);
    let mean = |range: std::ops::Range<usize>| sent[range.clone()].iter().sum::<f64>() / range.len() as f64;
    assert!(seconds <= 40.0 && mean(20..100) < 3.0 && mean(120..480) > 3.0, "{seconds}, {sent:?}");
}

fn reasons<K: Controller>(controller: &mut CostAware<K>, machine: Machine) -> (f64, Vec<String>) {
    let (mut previous, mut reasons, mut last) = (None, Vec::new(), 0.0);
    let layout = Layout::flat(machine.values as usize);
    for step in 0..40 {
        let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
        controller.observe(&agreed_step);
        let decision = controller.decide(&Agreed::new(&agreed_step, layout.slots()));
        last = decision.ratio().unwrap().get();
        reasons.extend(decision.reason);
        previous = Some(machine.last(last));
    }
    (last, reasons)
}

#[test]
fn budgets_that_cannot_be_met_are_stated_once() {
    let cases = [
        // 50x sends 0.04 MB, and leaves enough for 20x, which sends 0.10, at the end.
        (
            settings(40, Some(2.5e6), None),
            10.0,
            20.0,
            "2.5 MB are left for 40 steps: only a ratio above the limit is enough",
        ),
        (settings(40, Some(1e3), None), 10.0, 100.0, "0.0 MB are left for 40 steps: not enough for any ratio"),
        // 20x takes 53.4 ms, 50x 52.2, which leaves enough for 10x in the last step.
        (
            settings(40, None, Some(2.1)),
            20.0,
            10.0,
            "1.9 s are left for 37 steps: only a ratio above the limit is enough",
        ),
        (settings(40, None, Some(1.0)), 100.0, 50.0, "0.8 s are left for 37 steps: not enough for any ratio"),
    ];
    for (settings, limit, expected, text) in cases {
        let (last, reasons) = reasons(&mut with(settings, limit), MACHINE);
        assert_eq!(last, expected, "{reasons:?}");
        let stated = reasons.iter().filter(|reason| reason.contains("are left for")).collect::<Vec<_>>();
        let is_over = |reason: &&&String| !reason.contains("enough again");
        assert!(stated.iter().filter(is_over).count() == 1 && stated[0].contains(text), "{stated:?}");
    }
}

#[test]
fn a_resumed_run_goes_on_with_what_is_left() {
    let make = || with(settings(200, Some(20e6), None), 100.0);
    let (whole, _) = run(&mut make(), 200, |_| FAST);
    let mut first = make();
    run(&mut first, 100, |_| FAST);
    let mut state = State::default();
    first.save(&mut state);
    let mut second = make();
    second.load(&state).unwrap();
    let (rest, _) = run_from(&mut second, 100..200, Some(FAST.last(whole[99])), |_| FAST);
    assert_eq!(rest, whole[100..]);
    assert!((0.93..=1.0).contains(&(bytes(FAST, &whole) / 20e6)));
}

/// Times that vary by 1 %, and a deadline that no ratio meets.
#[test]
fn noise_moves_no_ratio_when_the_deadline_is_out_of_reach() {
    let noisy = |step: u64| Machine { compute: 0.050 * (1.0 + 0.01 * (step as f64 * 2.4).sin()), ..MACHINE };
    let (sent, _) = run(&mut with(settings(400, None, Some(4.0)), 100.0), 400, noisy);
    let changes = sent[20..].windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes <= 2 * 400 / 25, "{changes}: {sent:?}");
    assert!(sent[20..].iter().all(|rung| *rung >= 20.0), "{sent:?}");
}

/// A budget goes above the limit inside, not above what an outer controller sends.
#[test]
fn an_outer_controller_has_the_last_word() {
    let mut controller = with(settings(100, Some(2.5e6), None), 10.0);
    let (layout, mut previous, mut asked) = (Layout::flat(78_000), None, Vec::new());
    for step in 0..60 {
        let agreed_step = AgreedStep { step, previous, ..AgreedStep::default() };
        controller.observe(&agreed_step);
        let decided = controller.decide(&Agreed::new(&agreed_step, layout.slots())).ratio().unwrap();
        asked.push(decided.get());
        let sent = if decided.get() > 20.0 { ratio(20.0) } else { decided };
        if sent != decided {
            controller.overruled(Ratios::All(sent));
        }
        previous = Some(MACHINE.last(sent.get()));
    }
    assert!(asked.iter().filter(|asked| **asked > 20.0).count() <= 4, "{asked:?}");
}

#[test]
fn a_budget_needs_the_length_of_the_run() {
    for text in ["cost-aware:100x,budget=1000", "auto:100x,deadline=60"] {
        let settings: crate::settings::ControllerConfig = text.parse().unwrap();
        let error = settings.get().build(&crate::settings::Feedback::error(), 4).map(drop).unwrap_err();
        assert!(error.to_string().contains("set steps to the number of steps of the run"), "{error}");
    }
    assert!(
        "auto:100x,steps=10,budget=0"
            .parse::<crate::settings::ControllerConfig>()
            .and_then(|c| c.get().build(&crate::settings::Feedback::error(), 4).map(drop))
            .is_err()
    );
}
