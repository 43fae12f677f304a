use std::sync::Mutex;

use super::*;
use crate::sync::easgd::{Easgd, EasgdConfig};
use briquette_core::comm::{Local, run_ranks};
use briquette_core::config::Described;
use briquette_core::error::CommError;
use briquette_core::laws::train::{Gradient, Sgd, train, train_with_losses};
use briquette_core::reduce::{AgreedStep, dense::Dense};
use briquette_core::sync::{RankStep, every_step::EveryStep};
use briquette_core::{Key, Layout};

const STILL: Sgd = Sgd { rate: 0.0, momentum: 0.0, steps: 0 };

fn lsgd(settings: LsgdConfig, world: usize) -> impl Fn() -> Lsgd + Sync {
    move || Lsgd::new(settings, world).unwrap()
}

/// Zero gradient.
fn rest(_: usize, _: u64, _: &[f32]) -> Vec<f32> {
    vec![0.0]
}

/// Pulls only when a leader is chosen.
fn every_step(group: usize) -> LsgdConfig {
    LsgdConfig { period: Some(1), local: 1, group: Some(group), ..LsgdConfig::default() }
}

#[test]
fn the_best_rank_attracts_by_the_rest_of_the_pull_at_each_choice() {
    // Rank 1 is best and starts at 8, the others at 0. Nothing else moves.
    let settings = LsgdConfig { pull: 0.0, global_pull: 0.25, ..every_step(3) };
    let start = |rank: usize| vec![if rank == 1 { 8.0 } else { 0.0 }];
    let loss = |rank: usize, _: u64| if rank == 1 { 0.1 } else { 0.2 };
    let x = train_with_losses(3, lsgd(settings, 3), &start, (Sgd { steps: 3, ..STILL }, &rest), &loss);
    // A fraction (1 − ¼)³ of the distance remains.
    let there = 8.0 - 8.0 * 0.75_f32.powi(3);
    assert_eq!(x, [[there], [8.0], [there]]);
}

#[test]
fn groups_follow_leaders_of_their_own_and_the_world_one() {
    let start = |rank: usize| vec![16.0 * rank as f32];
    let loss = |rank: usize, _: u64| [4.0, 3.0, 1.0, 2.0][rank];
    let once = (Sgd { steps: 1, ..STILL }, &rest as Gradient<'_>);
    let settings = LsgdConfig { pull: 0.5, global_pull: 0.0, ..every_step(2) };
    let x = train_with_losses(4, lsgd(settings, 4), &start, once, &loss);
    assert_eq!(x.concat(), [8.0, 16.0, 32.0, 40.0], "to ranks 1 and 2");
    let settings = LsgdConfig { pull: 0.0, global_pull: 0.5, ..every_step(2) };
    let x = train_with_losses(4, lsgd(settings, 4), &start, once, &loss);
    assert_eq!(x.concat(), [16.0, 24.0, 32.0, 40.0], "to rank 2");
}

#[test]
fn between_choices_the_pull_is_divided_among_the_steps() {
    // Chosen after two steps: half of the way, and then a quarter at each of the next two steps; the third of those is a
    // choice.
    let settings = LsgdConfig { period: Some(2), local: 2, pull: 0.5, global_pull: 0.0, group: Some(2) };
    let start = |rank: usize| vec![64.0 * rank as f32];
    let loss = |rank: usize, _: u64| 1.0 - rank as f64;
    let after = |steps| {
        let task = (Sgd { steps, ..STILL }, &rest as Gradient<'_>);
        train_with_losses(2, lsgd(settings, 2), &start, task, &loss)[0][0]
    };
    assert_eq!([1, 2, 3, 4].map(after), [0.0, 32.0, 40.0, 52.0]);
}

#[test]
fn losses_are_means_since_the_last_choice() {
    // Rank 0 is better at one of two steps, rank 1 on average.
    let settings = LsgdConfig { period: Some(2), local: 2, pull: 1.0, global_pull: 0.0, group: Some(2) };
    let start = |rank: usize| vec![rank as f32];
    let loss = |rank: usize, step: u64| [[9.0, 0.0], [4.0, 4.0]][rank][step as usize];
    let task = (Sgd { steps: 2, ..STILL }, &rest as Gradient<'_>);
    assert_eq!(train_with_losses(2, lsgd(settings, 2), &start, task, &loss), [[1.0], [1.0]]);
}

#[test]
fn ties_are_the_lowest_ranks_and_what_is_not_finite_never_leads() {
    assert_eq!(leader(&[1.0, 1.0]), Some(0));
    assert_eq!(leader(&[f64::NAN, -1.0, f64::NEG_INFINITY]), Some(1));
    assert_eq!(leader(&[f64::INFINITY, f64::NAN]), None);
    assert_eq!(leader(&[]), None);
    // If no rank leads, all stay where they are.
    let start = |rank: usize| vec![rank as f32];
    let task = (Sgd { steps: 2, ..STILL }, &rest as Gradient<'_>);
    assert_eq!(train_with_losses(2, lsgd(every_step(2), 2), &start, task, &|_, _| f64::NAN), [[0.0], [1.0]]);
}

/// The paper's section 3: a stationary point of the loss is stationary under leader gradient descent. Elastic averaging has
/// other stationary points, and leaves ranks in different valleys at points that are not stationary for the loss.
#[test]
fn stationary_points_stay_ones_which_they_do_not_under_elastic_averaging() {
    // (x² − 1)²/4 has minima at ±1: the first step puts one rank in each valley, or both in one.
    let slope = |x: f32| x.powi(3) - x;
    let sgd = Sgd { rate: 0.1, momentum: 0.0, steps: 400 };
    let ends = |to: [f32; 2], strategy: &(dyn Fn() -> Box<dyn SyncStrategy> + Sync)| {
        let last = Mutex::new([0.0; 2]);
        let gradient = |rank: usize, step: u64, x: &[f32]| {
            last.lock().unwrap()[rank] = x[0];
            vec![if step == 0 { -10.0 * to[rank] } else { slope(x[0]) }]
        };
        train_with_losses(2, strategy, &|_| vec![0.0], (sgd, &gradient), &|rank, _| rank as f64);
        last.into_inner().unwrap()
    };
    let led = || -> Box<dyn SyncStrategy> { Box::new(Lsgd::new(every_step(2), 2).unwrap()) };
    assert_eq!(ends([-1.0, -1.0], &led), [-1.0; 2], "a minimum that ranks share");
    assert_eq!(ends([1.0, 1.0], &led), [1.0; 2], "and another");
    let apart = ends([-1.0, 1.0], &led);
    assert!(apart[0] == -1.0 && (apart[1] + 1.0).abs() < 1e-6, "rank 0 leads, and stays: {apart:?}");
    let settings = EasgdConfig { period: Some(1), beta: 0.2, alpha: Some(0.01) };
    let elastic = || -> Box<dyn SyncStrategy> { Box::new(Easgd::new(settings, Dense).unwrap()) };
    let held = ends([-1.0, 1.0], &elastic);
    assert!(held.iter().all(|x| slope(*x).abs() > 0.05 && x.abs() > 0.5), "springs hold both off: {held:?}");
}

/// To the bit, also at all steps between choices.
#[test]
fn one_rank_alone_is_plain_sgd() {
    let gradient = |_: usize, _: u64, x: &[f32]| vec![x[0]];
    let sgd = Sgd { rate: 0.25, momentum: 0.5, steps: 40 };
    let task = (sgd, &gradient as Gradient<'_>);
    let alone = train(1, || EveryStep::new(Dense), &[1.0], task);
    for settings in [LsgdConfig::default(), every_step(1), LsgdConfig { pull: 1.0, ..LsgdConfig::default() }] {
        let x = train_with_losses(1, lsgd(settings, 1), &|_| vec![1.0], task, &|_, step| step as f64);
        assert_eq!(x, alone, "{settings:?}");
    }
}

/// Rank 0 leads from 0, and rank 1 is at 1. The world's pull is ⅘ when its leader is chosen, at every fourth step, and ⅕ in
/// between; the group's is ⅖ at every second step, and ⅕ in between.
#[test]
fn pulls_between_choices_are_shares_of_their_own_period_by_hand() {
    let ends = |pull, global_pull, steps| {
        let settings = LsgdConfig { period: Some(4), local: 2, pull, global_pull, group: Some(2) };
        let task = (Sgd { steps, ..STILL }, &rest as Gradient<'_>);
        let x = train_with_losses(2, lsgd(settings, 2), &|rank| vec![rank as f32], task, &|rank, _| rank as f64);
        assert_eq!(x[0], [0.0]);
        x[1][0]
    };
    // 1 − ⅘ = .2 after four steps, then three times ⅘ of it.
    for (steps, x) in [(3, 1.0), (4, 0.2), (5, 0.16), (6, 0.128), (7, 0.1024)] {
        assert!((ends(0.0, 0.8, steps) - x).abs() < 1e-6, "after {steps} steps: {}", ends(0.0, 0.8, steps));
    }
    // 1 − ⅖ = .6 after two steps, ⅘ of it, ⅗ of that.
    for (steps, x) in [(1, 1.0), (2, 0.6), (3, 0.48), (4, 0.288)] {
        assert!((ends(0.4, 0.0, steps) - x).abs() < 1e-6, "after {steps} steps: {}", ends(0.4, 0.0, steps));
    }
}

#[test]
fn a_leader_is_not_pulled_back_while_it_leads() {
    // A constant slope. Rank 0 leads after two steps, when it has moved by 2; rank 1 leads after four.
    let gradient = |_: usize, _: u64, _: &[f32]| vec![1.0];
    let sgd = Sgd { rate: 1.0, momentum: 0.0, steps: 3 };
    let settings = LsgdConfig { period: Some(2), local: 2, pull: 0.5, global_pull: 0.0, group: Some(2) };
    let loss = |rank: usize, _: u64| rank as f64;
    let x = train_with_losses(2, lsgd(settings, 2), &|_| vec![0.0], (sgd, &gradient), &loss);
    // Rank 1 is pulled by a quarter of the way from −3 back to −2.
    assert_eq!(x, [[-3.0], [-2.75]]);
}

/// Such a rank has no loss to record, and does not end the run.
#[test]
fn a_rank_whose_data_ran_out_follows_and_never_leads() {
    let ranks = run_ranks(Local::world(2), |mut comm| {
        let (mut lsgd, mut x, layout) = (lsgd(every_step(2), 2)(), vec![comm.rank() as f32], Layout::flat(1));
        lsgd.begin(&x);
        for step in 0..4 {
            // Rank 0 has a batch only at the first step. A loss of 0 that it records without samples has no meaning.
            let idle = comm.rank() == 0 && step > 0;
            let (samples, loss) = (u64::from(!idle), Some(if idle { -9.0 } else { comm.rank() as f64 }));
            let mut own = RankStep::default();
            (own.samples, own.loss) = (samples, loss.filter(|_| step != 2 || !idle));
            let agreed_step = AgreedStep { step, samples: own.samples, loss: own.loss, ..AgreedStep::default() };
            // With and without a header.
            let ranks = if step == 3 { [own; 2].to_vec() } else { Vec::new() };
            let cx = Context::new(Key::new(0), layout.slots(), &agreed_step).with_ranks(&ranks);
            lsgd.after_step(&mut x, &cx, &mut comm).unwrap();
            lsgd.commit();
        }
        Ok::<_, CommError>(x[0])
    });
    // Rank 1 moves 0.19 of the way to rank 0 at the first step, and leads at the next three.
    let ([x, y], led) = ([0, 1].map(|rank| *ranks[rank].as_ref().unwrap()), 0.81_f32);
    assert!((y - led).abs() < 1e-6 && (x - led * (1.0 - 0.81_f32.powi(3))).abs() < 1e-6, "{x} {y}");
}

#[test]
fn a_loss_that_is_not_recorded_and_groups_that_do_not_tile_are_said() {
    let (mut comm, layout) = (Local::world(1).remove(0), Layout::flat(1));
    let agreed_step = AgreedStep { samples: 1, ..AgreedStep::default() };
    let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
    let mut lsgd = Lsgd::new(LsgdConfig::default(), 1).unwrap();
    let error = lsgd.after_step(&mut vec![1.0], &cx, &mut comm).unwrap_err().to_string();
    assert!(error.contains("rank 0") && error.contains("record_loss"), "{error}");
    let error = |settings: LsgdConfig, world| Lsgd::new(settings, world).map(drop).unwrap_err().to_string();
    let good = LsgdConfig::default();
    assert!(error(LsgdConfig { group: Some(4), ..good }, 6).contains("does not go with a world of 6 ranks"));
    assert!(error(LsgdConfig { group: Some(0), ..good }, 6).contains("group of lsgd must be at least 1"));
    assert!(
        error(LsgdConfig { period: Some(16), local: 3, ..good }, 6)
            .contains("local of lsgd must be a divisor of its period")
    );
    assert!(error(LsgdConfig { period: Some(0), ..good }, 6).contains("period of lsgd must be at least 1"));
    assert!(error(LsgdConfig { global_pull: 1.5, ..good }, 6).contains("global-pull of lsgd"));
    assert_eq!(LsgdConfig::representatives().len(), 2);
}
