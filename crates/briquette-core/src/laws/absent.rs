//! Law of absent slots, for which no rank has a gradient.

use super::Synchronizes;
use super::driver::{Outcome, Rank, STEPS_ABSENT, Setup, each_rank, local, same_bits};
use crate::state::{State, Value};

/// Checks that a slot for which no rank has a gradient is not moved and that its stored state is unchanged to the bit, as if
/// the step had skipped the slot. A strategy that [does not hold](crate::seam::SyncStrategy::hold) such slots is not tested.
///
/// # Panics
/// If the slot is moved, if a vector of the state with a value for each parameter changes there, or if nothing else moves.
pub fn holds_absent_slots<C: Synchronizes + Clone>(setup: &Setup<C>) {
    let runs = each_rank(local(setup.world).build(), |mut comm, rank| {
        let mut rank = Rank::new(setup, rank);
        (rank.holds() && rank.exchanges_gradients_alone()).then(|| {
            // One of each is absent once.
            (0..2 * STEPS_ABSENT + 3).for_each(|_| drop(rank.step(&mut comm).unwrap()));
            (0..setup.layout.slots().len())
                .map(|slot| {
                    let before = rank.save();
                    rank.absent = vec![slot];
                    let outcome = rank.step(&mut comm).unwrap();
                    rank.absent.clear();
                    (before, outcome)
                })
                .collect::<Vec<_>>()
        })
    });
    // A rank that takes no part in a step may receive nothing, but some rank does.
    let moves = |slot: usize| runs.iter().flatten().any(|run| run[slot].1.average.iter().any(|value| *value != 0.0));
    let is_held = runs.iter().any(Option::is_some);
    let still = (0..setup.layout.slots().len()).find(|slot| is_held && !moves(*slot));
    assert_eq!(still, None, "held slots broken: {setup}: without this slot nothing else is moved");
    for (rank, run) in runs.iter().enumerate() {
        for (slot, (before, outcome)) in run.iter().flatten().enumerate() {
            let named = format!("{setup}, rank {rank}, slot {slot}");
            check(setup, (slot, &named), before, outcome);
        }
    }
}

fn check<C: Synchronizes + Clone>(setup: &Setup<C>, (slot, named): (usize, &str), before: &State, outcome: &Outcome) {
    let (len, place) = (setup.layout.len(), setup.layout.slots()[slot].range());
    let moved = &outcome.average[place.clone()];
    assert!(moved.iter().all(|value| *value == 0.0), "held slots broken: {named}: moved by {moved:?}");
    for (name, after) in outcome.state.iter() {
        let Value::F32s(after) = after else { continue };
        // By name: an entry may have been added by the step.
        let Ok(before) = before.f32s(name, Some(after.len())) else { continue };
        if after.len() == len {
            let (after, before) = (&after[place.clone()], &before[place.clone()]);
            assert!(same_bits(after, before), "held slots broken: {named}: {name} was {before:?}, is {after:?}");
        }
    }
}
