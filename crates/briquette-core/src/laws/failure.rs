//! Laws of interrupted runs: failure leaves no trace, resume, non-finite input.

use super::driver::{Outcome, Rank, Setup, each_pair, each_rank, local, same_bits};
use super::{Reduces, Synchronizes, long};
use crate::comm::{Faulty, Session};
use crate::error::SyncError;
use crate::seam::{Agrees, HEADER_STEPS, Reducer};
use crate::state::State;

/// Checks law 4: fails at every call of every rank in a step, and each time continues from the start of the step in a fresh
/// world. The rank that failed continues as it is, and the others load their state.
///
/// # Panics
/// If a continuation differs, or if several ranks make no call at that step.
pub fn leaves_no_trace<C: Synchronizes + Clone>(setup: &Setup<C>, step: u64) {
    let (clean, calls) = (setup.run(step as usize + 2), calls_of_step(setup, step));
    assert!(calls > 0 || setup.world == 1, "law 4 is not tried: {setup}: no calls at step {step}");
    for failing in 0..setup.world {
        for call in 0..calls {
            check_failure(setup, step, (failing, call), &clean);
        }
    }
}

/// Returns the steps to [fail](leaves_no_trace) at with several ranks: the first at which a rank makes a call, before any rank
/// has state, and the first such step from step 2 on.
///
/// # Panics
/// If there are none among many steps.
pub fn steps_to_fail_at<C: Synchronizes + Clone>(setup: &Setup<C>) -> Vec<u64> {
    // Includes at least one header, whatever the strategy's period.
    let most = setup.exchange_from(2) + 2 * HEADER_STEPS;
    let mut tried = 8;
    loop {
        let steps = tried.min(most);
        let calls = calls_of_steps(setup, steps);
        let from = |first: u64| (first..steps).find(|step| calls[*step as usize] > 0);
        if let (Some(first), Some(second)) = (from(0), from(2)) {
            return if first == second { vec![first] } else { vec![first, second] };
        }
        assert!(steps < most, "law 4 cannot be tried: {setup}: no rank makes calls in {steps} steps");
        tried *= 4;
    }
}

/// Returns, for each of the first steps, the maximum number of calls of a rank.
fn calls_of_steps<C: Synchronizes + Clone>(setup: &Setup<C>, steps: u64) -> Vec<u64> {
    let counts = each_rank(local(setup.world).build(), |mut comm, rank| {
        let mut state = Rank::new(setup, rank);
        let each = |_| {
            let before = comm.calls();
            state.step(&mut comm).unwrap();
            comm.calls() - before
        };
        (0..steps).map(each).collect::<Vec<_>>()
    });
    (0..steps as usize).map(|step| counts.iter().map(|calls| calls[step]).max().unwrap_or_default()).collect()
}

/// Returns the maximum number of sends and receives of a rank in a step.
pub fn calls_of_step<C: Synchronizes + Clone>(setup: &Setup<C>, step: u64) -> u64 {
    let counts = each_rank(local(setup.world).build(), |mut comm, _| {
        let mut state = Rank::after(setup, step, &mut comm);
        let before = comm.calls();
        state.step(&mut comm).unwrap();
        comm.calls() - before
    });
    *counts.iter().max().unwrap()
}

fn check_failure<C: Synchronizes + Clone>(
    setup: &Setup<C>,
    step: u64,
    (failing, call): (usize, u64),
    clean: &[Vec<Outcome>],
) {
    let starts = each_rank(local(setup.world).build(), |mut comm, _| Rank::after(setup, step, &mut comm));
    let faulty = Faulty::world(local(setup.world).endpoints(), failing, call);
    let starts = each_pair(faulty, starts, |mut comm, mut state, rank| {
        let start = state.clone_saved();
        let before = state.save();
        if state.step(&mut comm).is_ok() {
            state.restore(&start);
            return state;
        }
        comm.abort("the step failed");
        assert_eq!(
            state.save(),
            before,
            "law 4 broken: {setup}: rank {rank} changed when rank {failing} failed at call {call}"
        );
        state
    });
    let after = each_pair(local(setup.world).build(), starts, |mut comm, mut state, _| {
        (0..2).map(|_| state.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (rank, outcomes) in after.iter().enumerate() {
        for (outcome, expected) in outcomes.iter().zip(&clean[rank][step as usize..]) {
            assert!(
                same_bits(&outcome.average, &expected.average),
                "law 4 broken: {setup}: rank {rank} after call {call}"
            );
            assert_eq!(outcome.state, expected.state, "law 4 broken: {setup}: rank {rank} after call {call}");
        }
    }
}

/// Checks law 4 of a reducer: an exchange changes no saved state until it is committed, and a discarded exchange leaves no
/// trace even though it succeeded.
///
/// # Panics
/// If it does.
pub fn stages_until_committed<C: Reduces + Clone>(setup: &Setup<C>) {
    let clean = setup.reduce_steps(3);
    let tried = each_rank(local(setup.world).build(), |mut comm, rank| {
        let mut reducer = setup.config.reducer(&setup.layout, setup.world).unwrap();
        let each = |step| {
            let before = saved(&*reducer);
            // An exchange of another step, so that its staged state differs from what would be staged anyway.
            setup.stage(&mut *reducer, step + 3, (&mut comm, rank));
            assert_eq!(saved(&*reducer), before, "law 4 broken: {setup}, rank {rank}: saved before it was committed");
            reducer.discard();
            assert_eq!(saved(&*reducer), before, "law 4 broken: {setup}, rank {rank}: discarded");
            setup.reduce(&mut *reducer, step, (&mut comm, rank))
        };
        (0..3).map(each).collect::<Vec<_>>()
    });
    for (a, b) in tried.iter().flatten().zip(clean.iter().flatten()) {
        assert!(same_bits(&a.average, &b.average), "law 4 broken: {setup}: average after a discarded exchange");
        assert!(same_bits(&a.sent, &b.sent), "law 4 broken: {setup}: sent after a discarded exchange");
        assert_eq!(a.state, b.state, "law 4 broken: {setup}: state after a discarded exchange");
    }
}

fn saved(reducer: &dyn Reducer) -> State {
    let mut state = State::default();
    reducer.save(&mut state);
    state
}

/// Checks law 5: some steps, a save and load by fresh ranks, and more steps give the bits of an uninterrupted run.
///
/// # Panics
/// If they do not.
pub fn resumes_to_the_bit<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let half = if setup.layout == long() { 2 } else { 4 };
    let whole = setup.run(2 * half);
    let resumed = each_rank(local(setup.world).build(), |mut comm, _| {
        let first = Rank::after(setup, half as u64, &mut comm);
        let mut second = first.clone_saved();
        drop(first);
        (0..half).map(|_| second.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (rank, outcomes) in resumed.iter().enumerate() {
        for (a, b) in outcomes.iter().zip(&whole[rank][half..]) {
            assert!(same_bits(&a.average, &b.average), "law 5 broken: {setup}, rank {rank}: average");
            assert_eq!(a.state, b.state, "law 5 broken: {setup}, rank {rank}: state");
            assert_eq!(a.ratio, b.ratio, "law 5 broken: {setup}, rank {rank}: ratio");
        }
    }
}

/// Checks laws 5 and 8 over checkpoints. Ranks that wait for the exchange in flight after every step, as a save does, take the
/// steps of an uninterrupted run, to the bit and with the same bytes at each step. So do fresh ranks in a fresh world that
/// continue from saved state.
///
/// # Panics
/// If they do not.
pub fn accounts_over_a_resume<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let half = 4;
    let whole = setup.run(2 * half);
    let steps = |rank: &mut Rank<'_, C>, comm: &mut Session| -> Vec<Outcome> {
        let each = |_| {
            let outcome = rank.step(comm).unwrap();
            rank.settle(comm).unwrap();
            outcome
        };
        (0..half).map(each).collect()
    };
    let saved = each_rank(local(setup.world).build(), |mut comm, rank| {
        let mut first = Rank::new(setup, rank);
        let outcomes = steps(&mut first, &mut comm);
        (outcomes, first.clone_saved())
    });
    let runs = each_pair(local(setup.world).build(), saved, |mut comm, (mut outcomes, mut second), _| {
        outcomes.extend(steps(&mut second, &mut comm));
        outcomes
    });
    for (rank, outcomes) in runs.iter().enumerate() {
        for (step, (a, b)) in outcomes.iter().zip(&whole[rank]).enumerate() {
            let place = format!("{setup}, rank {rank}, step {step} of a run that resumes at step {half}");
            assert!(same_bits(&a.average, &b.average), "law 5 broken: {place}: average");
            assert_eq!(a.state, b.state, "law 5 broken: {place}: state");
            assert_eq!(a.reported, b.reported, "law 8 broken: {place}: bytes as reported");
            assert_eq!(a.counted, b.counted, "law 8 broken: {place}: bytes as the transport counted them");
            assert_eq!(a.reported, a.counted, "law 8 broken: {place}");
        }
    }
}

/// Checks law 5: an object that has taken some steps and loads the state of step 0 continues like a fresh one.
///
/// # Panics
/// If it does not.
pub fn restores_state_of_step_0<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let again = each_rank(local(setup.world).build(), |mut comm, rank| {
        let fresh = Rank::new(setup, rank);
        let mut trained = Rank::after(setup, 3, &mut comm);
        trained.restore(&fresh);
        assert_eq!(trained.save(), fresh.save(), "law 5 broken: {setup}: state of step 0");
        (0..3).map(|_| trained.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (a, b) in again.iter().flatten().zip(setup.run(3).iter().flatten()) {
        assert!(same_bits(&a.average, &b.average), "law 5 broken: {setup}: average after state of step 0");
        assert_eq!(a.state, b.state, "law 5 broken: {setup}: state after state of step 0");
    }
}

/// Checks law 10: a non-finite value reaches no rank's state. If ranks agree on a header, every rank rejects it and the run
/// continues; otherwise only the rank that has it rejects it. Requires more than one rank.
///
/// # Panics
/// If it does.
pub fn refuses_what_is_not_finite<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let step = setup.exchange_from(2);
    let agrees = setup.plan(step).agrees == Agrees::World;
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let together = std::sync::Barrier::new(setup.world);
        let results = each_rank(local(setup.world).build(), |mut comm, rank| {
            let mut state = Rank::after(setup, step, &mut comm);
            let before = state.save();
            // Without a header, ranks may be at different steps.
            together.wait();
            if rank == 1 {
                state.poison = Some((70, bad));
            }
            let outcome = state.step(&mut comm).map(|outcome| outcome.average);
            let kept = outcome.is_ok() || state.save() == before;
            assert!(kept, "law 10 broken: {setup}: state of rank {rank}");
            state.poison = None;
            // The run continues.
            let next = agrees.then(|| state.step(&mut comm).unwrap().average);
            (outcome, next)
        });
        let expected = SyncError::NonFinite { step, rank: 1, slot: "conv.bias".into() };
        for (rank, (outcome, next)) in results.into_iter().enumerate() {
            // Without a header another rank may have what it needs for its step, or it learns that this rank stopped.
            if agrees || rank == 1 {
                assert_eq!(outcome.as_ref().err(), Some(&expected), "law 10 broken: {setup}, rank {rank}");
            }
            for average in outcome.into_iter().chain(next) {
                assert!(average.iter().all(|v| v.is_finite()), "law 10 broken: {setup}, rank {rank}: average");
            }
        }
    }
}
