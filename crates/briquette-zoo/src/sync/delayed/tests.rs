use std::time::Duration;

use super::*;
use briquette_core::aggregate::mean::Mean;
use briquette_core::comm::run_ranks;
use briquette_core::compress::top_k::TopK;
use briquette_core::config::Config;
use briquette_core::error::CommError;
use briquette_core::laws::train::{Sgd, loss, mean, noisy, train};
use briquette_core::reduce::{dense::Dense, gather::Gather};
use briquette_core::report::ExchangeSeconds;
use briquette_core::state::{State, Stateful};
use briquette_core::sync::every_step::EveryStep;
use briquette_core::wrapper::{error_feedback::ErrorFeedback, metered::Metered};
use briquette_sim::{Compute, Simulated};
use briquette_testkit::simulation::{Simulation, simulate};

const SGD: Sgd = Sgd { rate: 0.05, momentum: 0.0, steps: 24 };

/// Naive reference: the same ranks one after another, with a queue of one gradient.
#[test]
fn it_is_the_serial_recursion_to_the_bit() {
    for world in [1, 2, 4] {
        let ours = train(world, || Delayed::new(Dense), &[3.0; 10], (SGD, &noisy));
        let (mut x, mut under_way) = (vec![3.0_f32; 10], vec![0.0; 10]);
        for step in 0..SGD.steps {
            let mut sum = vec![0.0_f32; 10];
            for rank in 0..world {
                sum.iter_mut().zip(noisy(rank, step, &x)).for_each(|(sum, g)| *sum += g);
            }
            x.iter_mut().zip(&under_way).for_each(|(x, g)| *x -= SGD.rate * g);
            under_way = sum.into_iter().map(|sum| sum * (1.0 / world as f32)).collect();
        }
        assert_eq!(ours, vec![x; world], "{world} ranks");
    }
}

/// The result is that of the previous step's exchange, residuals included.
#[test]
fn the_averages_are_those_of_every_step() {
    let reducer = || ErrorFeedback::new(Gather::new(TopK::fraction(0.2).unwrap(), Mean));
    // The gradient does not depend on the parameters, so a delay of one step is one step less.
    let flat = |rank: usize, step: u64, x: &[f32]| noisy(rank, step, &vec![0.0; x.len()]);
    let late = train(3, || Delayed::new(reducer()), &[3.0; 20], (SGD, &flat));
    let early = train(3, || EveryStep::new(reducer()), &[3.0; 20], (Sgd { steps: SGD.steps - 1, ..SGD }, &flat));
    assert_eq!(late, early);
}

/// Follows from the roots of `z² − (1+β)z + β + γc`, whose absolute value is `√(β + γc)` where they are complex.
#[test]
fn the_largest_stable_rate_is_one_less_momentum() {
    let quadratic = |_: usize, _: u64, x: &[f32]| x.to_vec();
    let ends = |rate: f32, momentum: f32, late: bool| {
        // Few enough steps that a diverging run does not overflow.
        let task = (Sgd { rate, momentum, steps: if late { 400 } else { 100 } }, &quadratic as _);
        let x = match late {
            true => train(1, || Delayed::new(Dense), &[1.0], task),
            false => train(1, || EveryStep::new(Dense), &[1.0], task),
        };
        x[0][0].abs()
    };
    for (momentum, late, largest) in [(0.0, true, 1.0), (0.9, true, 0.1), (0.0, false, 2.0), (0.9, false, 3.8)] {
        let (below, above) = (ends(0.9 * largest, momentum, late), ends(1.1 * largest, momentum, late));
        assert!(below < 0.2 && above > 2.0, "momentum {momentum}, late {late}: {below}, {above}");
    }
    // |x| after 400 steps at γc = 0.81 is about 0.9⁴⁰⁰.
    assert!((ends(0.81, 0.0, true).ln() / 400.0 - 0.9_f32.ln()).abs() < 0.02);
}

/// Claim: a step takes the larger of computing and exchange; without overlap it takes their sum.
#[test]
fn an_exchange_is_hidden_behind_a_step_of_computing() {
    let compute = 0.050_f64;
    let seconds = |network: &str, late: bool| {
        let simulation =
            Simulation { world: 4, network: network.parse().unwrap(), compute: vec![Duration::from_secs_f64(compute)] };
        let (sgd, start) = (Sgd { steps: 40, ..SGD }, vec![0.0; 100_000]);
        let flat = |_: usize, _: u64, x: &[f32]| vec![1.0; x.len()];
        let total = match late {
            true => simulate(simulation, || Delayed::new(Dense), &start, (sgd, &flat)),
            false => simulate(simulation, || EveryStep::new(Dense), &start, (sgd, &flat)),
        };
        total / 40.0
    };
    // 6 rounds of 100 kB: 24, 48 and 96 ms.
    for (network, exchange) in [("200mbit", 0.024), ("100mbit", 0.048), ("50mbit", 0.096)] {
        let (late, sum) = (seconds(network, true), seconds(network, false));
        assert!(late <= 1.03 * compute.max(exchange), "{network}: {late}");
        assert!((sum / (exchange + compute) - 1.0).abs() < 0.02, "{network}: {sum}");
    }
}

#[test]
fn it_trains_as_well_at_a_small_rate() {
    let sgd = Sgd { steps: 600, ..SGD };
    let late = loss(&mean(&train(4, || Delayed::new(Dense), &[3.0; 10], (sgd, &noisy))));
    let early = loss(&mean(&train(4, || EveryStep::new(Dense), &[3.0; 10], (sgd, &noisy))));
    assert!(late < 1.02 * early, "{late} against {early}");
}

#[test]
fn what_a_controller_would_read_is_refused() {
    crate::install();
    let exchange = Exchange { controller: "gravac".parse().unwrap(), ..compressed() };
    let config = Config { strategy: DelayedConfig.into(), exchange };
    let error = config.build(&Layout::flat(10), 2).map(drop).unwrap_err().to_string();
    assert!(error.contains("strategy delayed") && error.contains("controller"), "{error}");
    assert!(DelayedConfig.build(&compressed(), &Layout::flat(10), 2).is_ok());
}

fn compressed() -> Exchange {
    DelayedConfig.exchanges().swap_remove(1)
}

#[test]
fn what_was_hidden_is_reported() {
    let seconds = |network: &str| {
        let world = Simulated::world(4, network.parse().unwrap(), Compute::Fixed(Duration::from_millis(50)));
        let each = |mut comm: Session| {
            let (mut delayed, layout) = (Delayed::new(Metered::new(Dense)), Layout::flat(100_000));
            for step in 0..4 {
                comm.begin_step(step);
                let agreed_step = AgreedStep { step, ..AgreedStep::default() };
                let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
                delayed.after_backward(&mut vec![1.0; 100_000], &cx, &mut comm).expect("no rank fails");
                delayed.commit();
                delayed.after_commit(&cx, &mut comm);
            }
            let mut report = Report::default();
            delayed.report(&mut report);
            delayed.settle(&mut comm).map(|()| report.seconds.unwrap()).map_err(|error| panic!("{error}"))
        };
        let seconds: Result<Vec<ExchangeSeconds>, CommError> = run_ranks(world, each).into_iter().collect();
        seconds.unwrap().swap_remove(0)
    };
    // 6 rounds of 100 kB: 48 ms, completely overlapped; 96 ms, of which 50 are overlapped.
    let (all, part) = (seconds("100mbit"), seconds("50mbit"));
    assert!((all.exchange - 0.048).abs() < 1e-3 && (all.exchange - all.overlapped).abs() < 1e-9, "{all:?}");
    assert!((part.exchange - 0.096).abs() < 2e-3 && (part.overlapped - 0.050).abs() < 1e-3, "{part:?}");
}

/// Gradients (3, 2) at rates ½, ¼, 1 and ½. Each exchange sends one value. The other stays in the residual, in units that
/// include the rate of its gradient's step: e = γ·(fed − sent), and g + e/γ is fed.
///
/// | gradient of step | γ | fed | sent | e |
/// |---|---|---|---|---|
/// | 0 | ½ | (3, 2) | (3, 0) | (0, 1) |
/// | 1 | ¼ | (3, 2 + 4) | (0, 6) | (¾, 0) |
/// | 2 | 1 | (3 + ¾, 2) | (3¾, 0) | (0, 2) |
///
/// Each result arrives one step later, both when the run is saved and resumed at every step and when it is not.
#[test]
fn what_is_under_way_keeps_the_rate_of_its_own_step_over_a_resume() {
    let new = || Delayed::new(ErrorFeedback::inside_learning_rate(Gather::new(TopK::fraction(0.5).unwrap(), Mean)));
    let layout = Layout::flat(2);
    for is_resumed in [false, true] {
        let (mut comm, mut delayed, mut arrived) = (briquette_core::comm::Local::world(1).remove(0), new(), Vec::new());
        delayed.begin(&[0.0; 2]);
        for (step, rate) in (0..).zip([0.5, 0.25, 1.0, 0.5]) {
            let agreed_step = AgreedStep { step, learning_rate: Some(rate), ..AgreedStep::default() };
            let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
            let mut gradient = vec![3.0, 2.0];
            delayed.after_backward(&mut gradient, &cx, &mut comm).unwrap();
            delayed.commit();
            arrived.push(gradient);
            if is_resumed {
                let mut state = State::default();
                delayed.save(&mut state);
                delayed = new();
                delayed.load(&state).unwrap();
            } else {
                delayed.after_commit(&cx, &mut comm);
            }
        }
        assert_eq!(arrived, [[0.0, 0.0], [3.0, 0.0], [0.0, 6.0], [3.75, 0.0]], "resumed: {is_resumed}");
    }
}

/// If the world size changes and rank-local state is dropped, the first step has no mean.
#[test]
fn without_a_mean_the_optimizer_does_not_step() {
    let (mut comm, mut delayed, layout) =
        (briquette_core::comm::Local::world(1).remove(0), Delayed::new(Dense), Layout::flat(2));
    delayed.begin(&[0.0; 2]);
    let (mut own, mut after) = (State::default(), Delayed::new(Dense));
    let mut step = |delayed: &mut Delayed<Dense>, step| {
        let agreed_step = AgreedStep { step, ..AgreedStep::default() };
        let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
        let (optimizes, mut gradient) = (delayed.plan(step).optimizes, vec![step as f32 + 1.0; 2]);
        delayed.after_backward(&mut gradient, &cx, &mut comm).unwrap();
        delayed.commit();
        delayed.after_commit(&cx, &mut comm);
        (optimizes, gradient[0])
    };
    assert_eq!([0, 1, 2].map(|at| step(&mut delayed, at)), [(false, 0.0), (true, 1.0), (true, 2.0)]);
    delayed.save(&mut own);
    let mut state = own.clone();
    state.for_each_own(&own, |_, _, vector| vector.clear());
    after.load(&state).unwrap();
    assert_eq!([3, 4].map(|at| step(&mut after, at)), [(false, 0.0), (true, 4.0)]);
}

#[test]
fn marks_of_another_type_are_refused() {
    let mut state = State::default();
    Delayed::new(Dense).save(&mut state);
    assert_eq!(Delayed::new(Dense).load(&state), Ok(()));
    state.put("absent", vec![1.0_f32]);
    let error = Delayed::new(Dense).load(&state).unwrap_err().to_string();
    assert!(error.contains("absent"), "{error}");
}
