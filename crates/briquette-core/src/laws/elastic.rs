//! Laws of elastic worlds: histories of a loss, new members, conservation of residuals.

use super::driver::{Outcome, Rank, Setup, each_pair, each_rank, local, same_bits};
use super::{Synchronizes, learning_rate};
use crate::comm::{Faulty, Session};
use crate::error::ConfigError;
use crate::membership::{Policy, Regroup, Standing, Threads};
use crate::state::OnResize;
use crate::step::check_elastic;

/// Returns whether the world of a strategy may be [elastic](check_elastic), also with `lost` ranks fewer.
pub fn is_elastic<C: Synchronizes + Clone>(setup: &Setup<C>, lost: usize) -> bool {
    let survives = |ranks| setup.config.strategy(&setup.layout, ranks).is_ok_and(|s| check_elastic(&*s).is_ok());
    setup.world > lost && survives(setup.world) && survives(setup.world - lost)
}

impl<'a, C: Synchronizes + Clone> Rank<'a, C> {
    /// Continues in a world of `after` ranks instead of `before`, as a survivor.
    ///
    /// # Errors
    /// [`ConfigError`] if the strategy cannot be built for that world; nothing has changed.
    fn survive(&mut self, before: usize, after: usize) -> Result<(), ConfigError> {
        let mut fresh = self.setup.config.strategy(&self.setup.layout, after)?;
        let state = self.save();
        fresh.begin(&self.parameters);
        self.driver.survive(fresh, before, after).unwrap();
        self.driver.resume(self.driver.step(), None, None);
        let now = self.save();
        now.clone().for_each_own(&now, |name, resize, kept| {
            let before = state.f32s(name, None).unwrap();
            assert!(
                resize != OnResize::Keep || same_bits(kept, before),
                "law 11 broken: {}: {name} is not kept",
                self.setup
            );
        });
        Ok(())
    }

    /// Creates a new member of an elastic world with the state of `other`.
    fn entering(setup: &'a Setup<C>, rank: usize, other: &Rank<'_, C>) -> Self {
        let mut new = Rank::new(setup, rank);
        new.driver.strategy_mut().load(&other.save().shared()).unwrap();
        new.parameters.clone_from(&other.parameters);
        new.driver.resume(other.driver.step(), None, None);
        new
    }
}

/// Outcomes of a survivor's steps, and its parameters at the end.
struct History {
    outcomes: Vec<Outcome>,
    parameters: Vec<f32>,
}

/// Checks law 11. The ranks `lost` vanish at the same call of their transports, for every call of step `step`. The survivors then have, to
/// the bit, one of two histories without a fault: all ranks complete the step and the survivors continue without the lost ones, or the
/// survivors compute the step without them. In both histories, as many new members then enter, and all ranks agree. Returns the numbers of calls
/// after which the step was completed by all ranks, and without the lost ones.
///
/// # Panics
/// If survivors have another history, or not all the same one; if no call of the step was tried.
pub fn continues_without_lost<C: Synchronizes + Clone>(setup: &Setup<C>, step: u64, lost: &[usize]) -> [usize; 2] {
    let end = setup.exchange_from(setup.exchange_from(step) + 1) + 1;
    let starts = || each_rank(local(setup.world).build(), |mut comm, _| Rank::after(setup, step, &mut comm));
    let histories = [true, false].map(|commits| without_fault(setup, starts(), (step, end), lost, commits));
    let calls = each_rank(local(setup.world).build(), |mut comm, _| {
        let mut rank = Rank::after(setup, step, &mut comm);
        rank.driver.set_votes(true);
        let before = comm.calls();
        rank.step(&mut comm).unwrap();
        comm.calls() - before
    });
    let most = lost.iter().map(|rank| calls[*rank]).max().unwrap_or_default();
    assert!(most > 0, "law 11 is not tried: {setup}: no calls at step {step}");
    let (saved, mut counts) = (starts(), [0; 2]);
    for call in 0..most {
        let what = format!("{setup}: ranks {lost:?} vanish at call {call} of step {step}");
        let starts = saved.iter().map(Rank::clone_saved).collect();
        // A rank that makes fewer calls vanishes at its last one.
        let vanishing: Vec<_> = lost.iter().map(|rank| (*rank, call.min(calls[*rank] - 1))).collect();
        let survivors = with_fault(setup, starts, end, &vanishing);
        assert_eq!(survivors.len(), setup.world - lost.len(), "law 11 broken: {what}");
        let is_equal = |history: &&Vec<History>| survivors.iter().zip(*history).all(|(a, b)| is_same(a, b));
        let found = histories.iter().rposition(|history| is_equal(&history));
        counts[found.unwrap_or_else(|| panic!("law 11 broken: {what}: another history"))] += 1;
        assert!(call > 0 || counts[0] == 0, "law 11 broken: {what}: a step is completed that one rank has not begun");
    }
    counts
}

fn is_same(a: &History, b: &History) -> bool {
    // A survivor that has committed notices a loss at its next exchange, and converts its state then.
    let exchanges = |outcome: &Outcome| outcome.plan.is_some_and(|plan| plan.exchanges());
    let same =
        |(a, b): (&Outcome, &Outcome)| same_bits(&a.average, &b.average) && (a.state == b.state || !exchanges(a));
    a.outcomes.len() == b.outcomes.len()
        && a.outcomes.iter().zip(&b.outcomes).all(same)
        && same_bits(&a.parameters, &b.parameters)
}

/// Takes the steps up to `end` with the survivors, after `step` with all ranks if it commits; then lets new members enter.
fn without_fault<C: Synchronizes + Clone>(
    setup: &Setup<C>,
    starts: Vec<Rank<'_, C>>,
    (step, end): (u64, u64),
    lost: &[usize],
    commits: bool,
) -> Vec<History> {
    let (before, after) = (setup.world, setup.world - lost.len());
    let common = if commits { setup.exchange_from(step) + 1 } else { step };
    let all = each_pair(local(before).build(), starts, |mut comm, mut rank, _| {
        let outcomes: Vec<Outcome> = (step..common).map(|_| rank.step(&mut comm).unwrap()).collect();
        (outcomes, rank)
    });
    let survivors = all.into_iter().enumerate().filter(|(rank, _)| !lost.contains(rank)).map(|(_, own)| own).collect();
    let ended = each_pair(local(after).build(), survivors, |mut comm, (mut outcomes, mut rank), _| {
        rank.survive(before, after).unwrap();
        outcomes.extend((common..end).map(|_| rank.step(&mut comm).unwrap()));
        (outcomes, rank)
    });
    let (mut outcomes, mut ranks): (Vec<_>, Vec<_>) = ended.into_iter().unzip();
    let parameters: Vec<_> = ranks.iter().map(|rank| rank.parameters.clone()).collect();
    ranks.iter_mut().for_each(|rank| rank.survive(after, before).unwrap());
    let new: Vec<_> = lost.iter().map(|own| Rank::entering(setup, *own, &ranks[0])).collect();
    ranks.extend(new);
    let regained = setup.exchange_from(setup.exchange_from(end) + 1) + 1;
    let steps = each_pair(local(before).build(), ranks, |mut comm, mut rank, _| {
        (end..regained).map(|_| rank.step(&mut comm).unwrap()).collect::<Vec<_>>()
    });
    for (rank, own) in steps.iter().enumerate() {
        for (own, first) in own.iter().zip(&steps[0]) {
            let what = format!("{setup}: {lost:?} are lost and regained");
            let exchanges = own.plan.is_some_and(|plan| plan.exchanges());
            let agrees = !exchanges || same_bits(&own.average, &first.average);
            assert!(agrees, "law 11 broken: {what}: average of rank {rank}");
            let is_replicated = own.state.replicated().eq(first.state.replicated());
            assert!(!exchanges || is_replicated, "law 11 broken: {what}: replicated state of rank {rank}");
        }
    }
    let histories = outcomes.drain(..).zip(parameters);
    histories.map(|(outcomes, parameters)| History { outcomes, parameters }).collect()
}

/// Takes the steps up to `end`, and returns the histories of the survivors.
fn with_fault<C: Synchronizes + Clone>(
    setup: &Setup<C>,
    starts: Vec<Rank<'_, C>>,
    end: u64,
    vanishing: &[(usize, u64)],
) -> Vec<History> {
    let endpoints = local(setup.world).endpoints().into_iter().enumerate();
    let session = |(rank, inner)| match vanishing.iter().find(|(victim, _)| *victim == rank) {
        Some((_, call)) => Faulty::vanishing_at(inner, *call).into(),
        None => Faulty::never(inner).into(),
    };
    let sessions: Vec<Session> = endpoints.map(session).collect();
    let first = std::sync::Mutex::new(Some(sessions));
    let world = move |ranks| first.lock().unwrap().take().unwrap_or_else(|| local(ranks).build());
    let (sessions, members): (Vec<_>, Vec<_>) =
        Threads::world(setup.world, Policy::default(), world).into_iter().unzip();
    let own = starts.into_iter().zip(members).collect();
    let ended = each_pair(sessions, own, |mut comm, (mut rank, mut member): (Rank<'_, C>, Threads), _| {
        rank.driver.set_votes(true);
        // One of several may notice that another has vanished, and ends as well.
        let is_victim = vanishing.iter().any(|(victim, _)| *victim == rank.rank);
        let (mut outcomes, mut exchanges) = (Vec::new(), 0);
        while rank.driver.step() < end {
            let (mut world, exchanging) = (comm.world(), rank.driver.plan().exchanges());
            let before = world;
            let outcome = rank.step_or(&mut comm, |driver, comm, error| {
                let in_doubt = driver.in_doubt();
                if is_victim {
                    driver.resolve(false);
                    return Err(error);
                }
                let regrouped = member.regroup(Standing { step: exchanges, in_doubt, is_new: false }, false).unwrap();
                *comm = regrouped.session;
                world = comm.world();
                driver.resolve(regrouped.commits).ok_or(error)
            });
            if world != before {
                rank.survive(before, world).unwrap();
            }
            match outcome {
                Ok(outcome) => {
                    exchanges += u64::from(exchanging);
                    outcomes.push(outcome);
                }
                Err(_) if world != before => {}
                Err(error) => {
                    assert!(is_victim, "law 11 broken: {setup}: {error}");
                    return None;
                }
            }
        }
        assert!(!is_victim, "law 11 is not tried: {setup}: no rank has vanished");
        Some(History { outcomes, parameters: rank.parameters })
    });
    ended.into_iter().flatten().collect()
}

/// Checks conservation over a loss and a new member in its place: the sum of the averages, plus the mean residual of the ranks, is
/// the sum of the mean gradients of all steps, less the lost rank's residual. All gradients are multiplied by the learning rates of their steps
/// if `by_rate`. For strategies that average gradients, and keep for each rank only what [waits](OnResize::Waits); returns whether `setup` is one.
///
/// # Panics
/// If the difference exceeds 1e-4 of the largest value.
pub fn conserves_over_survivors<'a, C: Synchronizes + Clone>(
    setup: &'a Setup<C>,
    (steps, by_rate): (u64, bool),
    lost: usize,
) -> bool {
    let (before, after) = (setup.world, setup.world - 1);
    let zeros = || vec![0.0; setup.layout.len()];
    let take = |rank: &mut Rank<'_, C>, comm: &mut Session| {
        let mut sums = Sums { computed: zeros(), applied: zeros() };
        for _ in 0..steps {
            let step = rank.driver.step();
            let rate = if by_rate { learning_rate(step) } else { 1.0 };
            add(&mut sums.computed, &rank.gradient(rank.driver.plan()).0, rate);
            add(&mut sums.applied, &rank.step(comm).unwrap().average, rate);
        }
        sums
    };
    let (mut expected, mut applied) = (zeros(), zeros());
    let mut count = |ends: Vec<(Sums, Rank<'a, C>)>, expected: &mut [f64]| -> Vec<Rank<'a, C>> {
        ends.iter().for_each(|(sums, _)| add(expected, &sums.computed, 1.0 / ends.len() as f64));
        add(&mut applied, &ends[0].0.applied, 1.0);
        ends.into_iter().map(|(_, rank)| rank).collect()
    };
    let ends = each_rank(local(before).build(), |mut comm, rank| {
        let mut rank = Rank::new(setup, rank);
        (take(&mut rank, &mut comm), rank)
    });
    let has_residual =
        |(_, rank): &(_, Rank<'_, C>)| residual(rank).is_some_and(|waits| waits.iter().any(|v| *v != 0.0));
    if !ends.iter().any(has_residual) || !ends[0].1.exchanges_gradients_alone() {
        return false;
    }
    let mut ranks = count(ends, &mut expected);
    add(&mut expected, &residual(&ranks.remove(lost)).unwrap(), -1.0 / before as f64);
    let ends = each_pair(local(after).build(), ranks, |mut comm, mut rank, _| {
        rank.survive(before, after).unwrap();
        (take(&mut rank, &mut comm), rank)
    });
    let mut ranks = count(ends, &mut expected);
    ranks.iter_mut().for_each(|rank| rank.survive(after, before).unwrap());
    ranks.push(Rank::entering(setup, lost, &ranks[0]));
    let ends = each_pair(local(before).build(), ranks, |mut comm, mut rank, _| (take(&mut rank, &mut comm), rank));
    let ranks = count(ends, &mut expected);
    ranks.iter().for_each(|rank| add(&mut applied, &residual(rank).unwrap(), 1.0 / before as f64));
    let largest = expected.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
    let off = applied.iter().zip(&expected).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
    assert!(off <= 1e-4 * largest, "law 11 broken: {setup}: {off} of {largest} is not conserved");
    true
}

/// Sums over a rank's steps: of its gradients, and of the averages.
struct Sums {
    computed: Vec<f64>,
    applied: Vec<f64>,
}

fn add<T: Copy + Into<f64>>(sum: &mut [f64], values: &[T], weight: f64) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * (*value).into());
}

/// Returns the sum of the rank-local vectors of the layout's length that wait, if there is nothing else in rank-local state.
fn residual<C: Synchronizes + Clone>(rank: &Rank<'_, C>) -> Option<Vec<f32>> {
    let (state, len) = (rank.save(), rank.parameters.len());
    let (mut sum, mut is_all) = (vec![0.0; len], true);
    state.clone().for_each_own(&state, |_, resize, values| {
        is_all &= resize == OnResize::Waits && (values.is_empty() || values.len() == len);
        sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += *value);
    });
    is_all.then_some(sum)
}
