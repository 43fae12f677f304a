//! Tests of schedules.

use super::*;
use crate::seam::AgreedStep;
use crate::state::{State, Stateful};

fn ratio(value: f64) -> CompressionRatio {
    CompressionRatio::new(value).unwrap()
}

fn decide(schedule: &mut Schedule, step: u64) -> Decision<'_> {
    let agreed_step = AgreedStep { step, ..AgreedStep::default() };
    schedule.decide(&Agreed::new(&agreed_step, &[]))
}

#[test]
fn dgc_goes_through_the_papers_sparsities_epoch_by_epoch() {
    let schedule = Schedule::dgc(100).unwrap();
    for (step, sparsity) in
        [(0, 0.75), (99, 0.75), (100, 0.9375), (299, 0.984_375), (300, 0.996), (400, 0.999), (9999, 0.999)]
    {
        let got = 1.0 - 1.0 / schedule.ratio(step).get();
        assert!((got - sparsity).abs() < 1e-12, "step {step}: {got}");
    }
}

#[test]
fn warm_up_multiplies_by_the_same_ratio_each_step() {
    // 4 → 64 in 4 steps: 16^(1/4) = 2 per step.
    let schedule = Schedule::warm_up(ratio(4.0), ratio(64.0), 4).unwrap();
    for (step, want) in [4.0, 8.0, 16.0, 32.0, 64.0, 64.0].into_iter().enumerate() {
        assert!((schedule.ratio(step as u64).get() - want).abs() < 1e-12, "step {step}");
    }
    let flat = Schedule::warm_up(ratio(10.0), ratio(10.0), 7).unwrap();
    assert!((0..9).all(|step| flat.ratio(step).get() == 10.0));
}

/// 2^2, 2^4, 2^6, 2^8 in the four epochs, then 2^10: the paper's percentages, as it prints them.
#[test]
fn four_stages_from_4x_to_1024x_are_the_papers_warm_up() {
    let schedule = Schedule::staged(ratio(4.0), ratio(1024.0), 400, 4).unwrap();
    let sparsity = |step| 100.0 - 100.0 / schedule.ratio(step).get();
    assert_eq!([0, 99, 100, 299].map(sparsity), [75.0, 75.0, 93.75, 98.4375]);
    assert_eq!([300, 399, 400].map(|step| format!("{:.1}", sparsity(step))), ["99.6", "99.6", "99.9"]);
    assert_eq!(schedule.ratio(u64::MAX).get(), 1024.0);
}

/// The authors' program: `0.001^((e+1)/5)` of all values in epoch `e` of four.
#[test]
fn stages_are_those_of_the_authors_program() {
    let text = "schedule:3.9810717055349722x,to=1000x,steps=7,stages=4";
    let controller: crate::settings::ControllerConfig = text.parse().unwrap();
    let schedule = controller.downcast_ref::<ScheduleConfig>().unwrap().schedule().unwrap();
    // Seven steps do not divide by four: stages begin at steps 0, 2, 4 and 6.
    for (step, epoch) in [0, 0, 1, 1, 2, 2, 3, 4, 4].into_iter().enumerate() {
        let expected = 1.0 / 0.001_f64.powf(f64::from(epoch + 1) / 5.0);
        let got = schedule.ratio(step as u64).get();
        assert!((got / expected - 1.0).abs() < 1e-12, "step {step}: {got} and {expected}");
    }
}

#[test]
fn reasons_come_at_the_start_of_each_stage_only() {
    let mut ramp = Schedule::warm_up(ratio(4.0), ratio(10.0), 3).unwrap();
    let reasons: Vec<_> = (0..6).filter_map(|step| decide(&mut ramp, step).reason).collect();
    assert_eq!(reasons, ["warming up from 4x to 10x over 3 steps", "warm-up over: sending 10x"]);
    let mut staged = Schedule::staged(ratio(4.0), ratio(64.0), 4, 2).unwrap();
    let reasons: Vec<_> = (0..6).filter_map(|step| decide(&mut staged, step).reason).collect();
    let stage = |i, ratio| format!("stage {i} of 2 of the warm-up: sending {ratio}");
    assert_eq!(reasons, [stage(1, "4.0000x"), stage(2, "16.0000x"), "warm-up over: sending 64x".into()]);
    let mut stairs = Schedule::steps(vec![(0, ratio(4.0)), (2, ratio(8.0))]).unwrap();
    let told: Vec<_> = (0..4).map(|step| decide(&mut stairs, step).reason).collect();
    assert_eq!(told[2].as_deref(), Some("stage 2 of 2 of the schedule: sending 8x"));
    assert!(told[0].is_some() && told[1].is_none() && told[3].is_none());
}

#[test]
fn a_schedule_of_one_ratio_never_moves_reports_nothing_and_keeps_no_state() {
    let text: crate::settings::ControllerConfig = "schedule:8x".parse().unwrap();
    assert_eq!((text.to_string().as_str(), text.get().ratios()), ("schedule:8x", [ratio(8.0); 2]));
    let mut schedule = Schedule::constant(ratio(8.0));
    for step in [0, 1, 999, u64::MAX] {
        assert_eq!(decide(&mut schedule, step), Decision::all(ratio(8.0), None));
    }
    let mut state = State::default();
    schedule.save(&mut state);
    assert_eq!(state, State::default());
    for text in ["schedule:8x,steps=5", "schedule:stages=2"] {
        let error = text.parse::<crate::settings::ControllerConfig>().unwrap_err().to_string();
        assert!(error.contains("without `to`"), "{text}: {error}");
    }
    let error = "constant:8x".parse::<crate::settings::ControllerConfig>().unwrap_err().to_string();
    assert!(error.contains("`constant:8x`") && error.contains("schedule"), "{error}");
}

#[test]
fn impossible_schedules_are_refused() {
    assert!(matches!(Schedule::warm_up(ratio(4.0), ratio(8.0), 0), Err(ConfigError::Range { .. })));
    assert!(matches!(Schedule::warm_up(ratio(8.0), ratio(4.0), 5), Err(ConfigError::Conflict(_))));
    assert!(matches!(Schedule::steps(vec![]), Err(ConfigError::Range { .. })));
    assert!(matches!(Schedule::steps(vec![(1, ratio(4.0))]), Err(ConfigError::Range { .. })));
    for stages in [0, 6] {
        let error = Schedule::staged(ratio(4.0), ratio(8.0), 5, stages).unwrap_err().to_string();
        assert!(error.contains("stages of a warm-up") && error.contains(&stages.to_string()), "{error}");
    }
    let twice = vec![(0, ratio(4.0)), (5, ratio(8.0)), (5, ratio(9.0))];
    assert!(matches!(Schedule::steps(twice), Err(ConfigError::Conflict(_))));
    assert!(Schedule::dgc(0).is_err());
    assert!(Schedule::dgc(u64::MAX).is_err()); // the last stages would begin at the same step
}

#[test]
fn resumed_schedule_continues_without_repeating_its_reason() {
    let mut whole = Schedule::dgc(2).unwrap();
    (0..3).for_each(|step| drop(decide(&mut whole, step)));
    let (mut state, mut resumed) = (State::default(), Schedule::dgc(2).unwrap());
    whole.save(&mut state);
    resumed.load(&state).unwrap();
    assert!((3..12).all(|step| decide(&mut whole, step) == decide(&mut resumed, step)));
}
