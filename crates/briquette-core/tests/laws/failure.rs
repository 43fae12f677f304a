//! Laws of runs that are cut short: failure leaves no trace, resume, non-finite input.

use briquette_core::comm::{Communicator, Faulty, Local};
use briquette_core::config::{Config, Exchange, Feedback, ReducerConfig, representatives};
use briquette_core::error::SyncError;

use crate::driver::{Outcome, Rank, Setup, each_pair, each_rank, long};
use crate::same_bits;

#[test]
fn law_4_a_failure_leaves_no_trace() {
    for config in representatives() {
        let setup = Setup::short(&config, 3);
        // The very first exchange, before anybody remembers anything, and a later one.
        let mut steps = vec![setup.due(0), setup.due(2)];
        steps.dedup();
        steps.into_iter().for_each(|step| check_failures(&setup, step));
    }
}

#[test]
fn law_4_a_failure_inside_a_ring_leaves_no_trace() {
    let sketched = |r: &ReducerConfig| matches!(r, ReducerConfig::SketchedSgd(_));
    let every_step = |config| match config {
        Config::EveryStep(exchange) => Some(exchange),
        Config::Periodic(_) => None,
    };
    let sketched = representatives().into_iter().filter_map(every_step).find(|e| sketched(&e.reducer)).unwrap();
    let dense = |feedback| Exchange { feedback, ..Exchange::default() };
    let power = Exchange { reducer: ReducerConfig::PowerSgd { rank: 2 }, ..dense(Feedback::Error) };
    for exchange in [dense(Feedback::None), dense(Feedback::Error), sketched, power] {
        let setup = Setup { config: Config::EveryStep(exchange), layout: long(), world: 3 };
        let calls = calls_of_step(&setup, 1);
        // The header's gather is 2 sends and 2 receives, a ring of three ranks 4 and 4.
        assert!(calls >= 12, "{setup}: {calls} calls, no ring");
        check_failures(&setup, 1);
    }
}

/// Fails at every call of every rank in a step, and each time goes on from its start on a fresh world.
pub(crate) fn check_failures(setup: &Setup<Config>, step: u64) {
    let clean = setup.run(step as usize + 2);
    for failing in 0..setup.world {
        for call in 0..calls_of_step(setup, step) {
            check_failure(setup, step, (failing, call), &clean);
        }
    }
}

/// The most sends and receives of a rank in a step.
fn calls_of_step(setup: &Setup<Config>, step: u64) -> u64 {
    let counts = each_rank(Local::world(setup.world), |comm, _| {
        let mut comm = Faulty::never(comm);
        let mut state = Rank::after(setup, step, &mut comm);
        let before = comm.calls();
        state.step(&mut comm).unwrap();
        comm.calls() - before
    });
    *counts.iter().max().unwrap()
}

fn check_failure(setup: &Setup<Config>, step: u64, (failing, call): (usize, u64), clean: &[Vec<Outcome>]) {
    let starts = each_rank(Local::world(setup.world), |mut comm, _| Rank::after(setup, step, &mut comm));
    let starts = each_pair(Local::world(setup.world), starts, |comm, mut state, rank| {
        let start = state.clone_saved();
        let at = if rank == failing { call } else { u64::MAX };
        let mut comm = Faulty::at(comm, at);
        let before = state.save();
        if state.step(&mut comm).is_err() {
            comm.abort("the step failed");
            assert_eq!(state.save(), before, "{setup}: rank {rank} changed when rank {failing} failed at call {call}");
        }
        // Whether it failed or not, it goes back to the start: by loading, into what it has become.
        state.restore(&start);
        state
    });
    let after = each_pair(Local::world(setup.world), starts, |mut comm, mut state, _| {
        (0..2).map(|_| state.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (rank, outcomes) in after.iter().enumerate() {
        for (outcome, expected) in outcomes.iter().zip(&clean[rank][step as usize..]) {
            assert!(same_bits(&outcome.average, &expected.average), "{setup}: rank {rank} after call {call}");
            assert_eq!(outcome.state, expected.state, "{setup}: rank {rank} after call {call}");
        }
    }
}

#[test]
fn law_5_a_resumed_run_continues_to_the_bit() {
    for config in representatives() {
        for setup in Setup::<Config>::all(&config) {
            let half = if setup.layout == long() { 2 } else { 4 };
            let whole = setup.run(2 * half);
            let resumed = each_rank(Local::world(setup.world), |mut comm, _| {
                let first = Rank::after(&setup, half as u64, &mut comm);
                let mut second = first.clone_saved();
                drop(first);
                (0..half).map(|_| second.step(&mut comm).unwrap()).collect::<Vec<_>>()
            });
            for (rank, outcomes) in resumed.iter().enumerate() {
                for (a, b) in outcomes.iter().zip(&whole[rank][half..]) {
                    assert!(same_bits(&a.average, &b.average), "{setup}, rank {rank}");
                    assert_eq!(a.state, b.state, "{setup}, rank {rank}");
                    assert_eq!(a.factor, b.factor, "{setup}, rank {rank}");
                }
            }
        }
    }
}

#[test]
fn law_5_a_trained_optimizer_takes_back_the_state_of_step_0() {
    for config in representatives() {
        let setup = Setup::short(&config, 2);
        let again = each_rank(Local::world(setup.world), |mut comm, rank| {
            let fresh = Rank::new(&setup, rank);
            let mut trained = Rank::after(&setup, 3, &mut comm);
            trained.restore(&fresh);
            assert_eq!(trained.save(), fresh.save(), "{setup}");
            (0..3).map(|_| trained.step(&mut comm).unwrap()).collect::<Vec<_>>()
        });
        for (a, b) in again.iter().flatten().zip(setup.run(3).iter().flatten()) {
            assert!(same_bits(&a.average, &b.average), "{setup}");
            assert_eq!(a.state, b.state, "{setup}");
        }
    }
}

#[test]
fn law_10_a_value_that_is_not_finite_is_refused_everywhere_before_it_reaches_any_state() {
    for config in representatives() {
        let setup = Setup::short(&config, 3);
        let step = setup.due(2);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let results = each_rank(Local::world(setup.world), |mut comm, rank| {
                let mut state = Rank::after(&setup, step, &mut comm);
                let before = state.save();
                if rank == 1 {
                    state.poison = Some((70, bad));
                }
                let error = state.step(&mut comm).map(drop).unwrap_err();
                assert_eq!(state.save(), before);
                state.poison = None;
                // The world goes on.
                (error, state.step(&mut comm).unwrap().average)
            });
            for (error, average) in results {
                let expected = SyncError::NonFinite { step, rank: 1, slot: "conv.bias".into() };
                assert_eq!(error, expected, "{setup}");
                assert!(average.iter().all(|v| v.is_finite()));
            }
        }
    }
}
