//! Elastic worlds: a rank vanishes at any call, and the others continue without it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use briquette::core::Session;
use briquette::core::comm::{Faulty, Local};
use briquette::core::membership::{Generation, MembershipError, Policy, Regroup, Regrouped, Standing, Threads};
use briquette::{DistributedConfig, DistributedOptimizer, Error};
use burn::optim::{ModuleOptimizer, SgdConfig};

use crate::common::*;

const STEPS: u64 = 4;
pub(crate) const DILOCO: &str = r#"{"strategy": {"kind": "diloco", "period": 2}, "feedback": "error",
    "reducer": {"kind": "gather", "compressor": "topk:4x"}}"#;

pub(crate) const EARLY: &str = r#"{"strategy": "every-step", "feedback": "error", "during_backward": true, "bucket_values": 64,
    "reducer": {"kind": "gather", "compressor": "topk:4x"}}"#;

/// State of a rank at the end.
#[derive(Debug, Clone, PartialEq)]
struct End {
    bits: Vec<(String, Vec<u32>)>,
    /// The world of each step.
    worlds: Vec<usize>,
    /// The world after the last step, and whether all ranks are known to be at the same step of it.
    world: usize,
    settled: bool,
    /// Number of steps that were computed again.
    again: usize,
    /// Calls of the transport after the first exchange, when every rank has joined, and at the end.
    calls: [u64; 2],
}

/// Creates a world of threads, in which `victim` vanishes at `call`.
pub(crate) fn members(ranks: usize, fewest: usize, victim: Option<(usize, u64)>) -> Vec<(Session, Threads)> {
    members_until(ranks, fewest, 0, victim)
}

/// As [`members`], in this generation.
fn members_until(
    ranks: usize,
    fewest: usize,
    generation: usize,
    victim: Option<(usize, u64)>,
) -> Vec<(Session, Threads)> {
    let worlds = AtomicUsize::new(0);
    let policy = Policy { fewest, patience: 20.0 };
    Threads::world(ranks, policy, move |ranks| {
        let endpoints = Local::builder(ranks).deadline(Duration::from_secs(20)).endpoints().into_iter().enumerate();
        let is_due = worlds.fetch_add(1, Ordering::Relaxed) == generation;
        let victim = victim.filter(|_| is_due);
        let session = |(rank, inner)| match victim {
            Some((victim, call)) if victim == rank => Faulty::vanishing_at(inner, call).into(),
            _ => Faulty::never(inner).into(),
        };
        endpoints.map(session).collect()
    })
}

/// A membership that is asked to admit a candidate at every step, who never comes.
struct Asked(Threads);

impl Regroup for Asked {
    fn regroup(&mut self, standing: Standing, admits: bool) -> Result<Regrouped, MembershipError> {
        self.0.regroup(standing, admits)
    }

    fn generation(&self) -> &Generation {
        self.0.generation()
    }

    fn has_candidates(&self) -> bool {
        true
    }
}

fn train_elastic<M: Model>(
    members: Vec<(Session, impl Regroup + 'static)>,
    (config, optimizer): (&DistributedConfig, fn() -> ModuleOptimizer),
    model: impl Fn() -> M + Sync,
) -> Vec<Result<End, Error>> {
    let model = &model;
    thread::scope(|threads| {
        let rank = |(session, member)| {
            threads.spawn(move || {
                let optim = DistributedOptimizer::new(optimizer(), session, config.clone(), 7).with_membership(member);
                // The digests of all steps are compared.
                let mut optim = optim.with_replica_check(1);
                let mut model = optim.join(model())?;
                let (mut start, mut worlds, mut again) = (0, Vec::new(), 0);
                let (mut world_at_end, mut settled) = (optim.world(), true);
                while optim.synchronizer().step() < STEPS {
                    let (step, rank, world) = (optim.synchronizer().step(), optim.rank(), optim.world());
                    optim.record_samples(4);
                    let forward = optim.forward_model(&model)?;
                    let gradients = grads(&model, &forward.loss(data(step, rank), 4));
                    drop(forward);
                    let plan = optim.synchronizer().plan()?;
                    model = match optim.try_step(0.02, model, gradients) {
                        Ok(next) => {
                            worlds.push(world);
                            if start == 0 && plan.exchanges() {
                                start = optim.synchronizer_mut().session().calls();
                            }
                            next
                        }
                        Err(failed) => {
                            again += 1;
                            optim.recover(failed)?
                        }
                    };
                    (world_at_end, settled) = (optim.world(), optim.synchronizer().is_settled());
                }
                while !optim.synchronizer_mut().leave(&model)? {}
                let calls = [start, optim.synchronizer_mut().session().calls()];
                Ok(End { bits: bits(&model), worlds, world: world_at_end, settled, again, calls })
            })
        };
        let running: Vec<_> = members.into_iter().map(rank).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Every rank, at every call of its transport.
#[test]
fn a_rank_that_vanishes_at_any_call_leaves_survivors_with_the_same_bits() {
    let (mut committed_in_doubt, mut runs) = (0, 0);
    let local = [r#"{"strategy": {"kind": "local-sgd", "period": 2}}"#, DILOCO].map(config);
    let every_step = DistributedConfig::dense().strategy;
    let early = config(EARLY);
    for config in [DistributedConfig::dense(), top_k(), DistributedConfig::auto(), early].into_iter().chain(local) {
        let undisturbed = train_elastic(members(3, 1, None), (&config, adam), || Mlp::new(5));
        for (victim, whole) in undisturbed.iter().enumerate() {
            let [start, end] = whole.as_ref().expect("no rank vanishes").calls;
            for call in start..end {
                runs += 1;
                let ends = train_elastic(members(3, 1, Some((victim, call))), (&config, adam), || Mlp::new(5));
                let what = format!("{:?}: rank {victim} vanishes at call {call}", config.strategy);
                assert!(ends[victim].is_err(), "{what}");
                let survivors: Vec<&End> = (0..3)
                    .filter(|rank| *rank != victim)
                    .map(|rank| ends[rank].as_ref().unwrap_or_else(|error| panic!("{what}: rank {rank}: {error}")))
                    .collect();
                assert_eq!(survivors[0].bits, survivors[1].bits, "{what}");
                // Ranks notice a loss at different local steps.
                let is_local = config.strategy != every_step;
                assert!(is_local || survivors[0].worlds == survivors[1].worlds, "{what}");
                assert!(survivors[0].worlds.is_sorted_by(|a, b| a >= b), "{what}: {survivors:?}");
                assert_eq!(survivors[0].worlds.len() as u64, STEPS, "{what}");
                let shrank = survivors[0].worlds.contains(&2);
                committed_in_doubt += usize::from(shrank && survivors.iter().any(|end| end.again == 0));
            }
        }
    }
    assert!(runs > 300 && committed_in_doubt > 0, "{runs} runs, {committed_in_doubt} with a commit in doubt");
}

/// Ranks agree on a candidate at every step, and form a generation at its end. A rank vanishes at every call of such a generation, also
/// between a survivor that has committed and one that is in doubt.
#[test]
fn a_rank_that_vanishes_while_a_candidate_is_awaited_leaves_survivors_with_the_same_bits() {
    let asked = |victim| {
        let members = members_until(3, 1, 2, victim).into_iter().map(|(session, member)| (session, Asked(member)));
        train_elastic(members.collect(), (&top_k(), adam), || Mlp::new(5))
    };
    let undisturbed = asked(None);
    let bits = |end: &Result<End, Error>| end.as_ref().unwrap_or_else(|error| panic!("{error}")).bits.clone();
    assert!(undisturbed.iter().all(|end| bits(end) == bits(&undisturbed[0])));
    let mut lost = 0;
    for victim in 0..3 {
        // The calls of the vote, from 8 to 11, again and again: it depends on the threads who has committed.
        for call in (0..20).chain([8, 9, 10, 11].repeat(25)) {
            let ends = asked(Some((victim, call)));
            let survivors: Vec<&Result<End, Error>> = ends.iter().filter(|end| end.is_ok()).collect();
            assert!(survivors.len() >= 2, "rank {victim} vanishes at call {call}: {ends:?}");
            assert!(survivors.iter().all(|end| bits(end) == bits(survivors[0])), "rank {victim}, call {call}");
            lost += usize::from(survivors.len() == 2);
        }
    }
    assert!(lost > 20, "{lost}");
}

/// A world that loses one rank of three trains as plain Burn does on the samples of the ranks that took part in each step.
#[test]
fn a_world_that_shrinks_trains_as_one_process_on_the_samples_of_its_steps() {
    let dense = DistributedConfig::dense();
    let undisturbed = train_elastic(members(3, 1, None), (&dense, sgd), || Net::new(5));
    let half_way = |ends: &[Result<End, Error>]| {
        let [start, end] = ends[1].as_ref().expect("no rank vanishes").calls;
        (start + end) / 2
    };
    let ends = train_elastic(members(3, 1, Some((1, half_way(&undisturbed)))), (&dense, sgd), || Net::new(5));
    let survivor = ends[0].as_ref().expect("two of three");
    assert!(survivor.worlds.contains(&3) && survivor.worlds.contains(&2), "{survivor:?}");
    let (mut model, mut optim) = (Mlp::new(5), SgdConfig::new().init());
    let undisturbed = train_elastic(members(3, 1, None), (&dense, sgd), || Mlp::new(5));
    let ends = train_elastic(members(3, 1, Some((1, half_way(&undisturbed)))), (&dense, sgd), || Mlp::new(5));
    let survivor = ends[0].as_ref().expect("two of three");
    for (step, world) in (0..).zip(&survivor.worlds) {
        let (x, y) = batch(&(0..*world).map(|rank| (data(step, rank), 4)).collect::<Vec<_>>());
        let gradients = grads(&model, &model.error(x, y));
        model = optim.step(0.02, model, gradients);
    }
    let bits_of = |bits: &[(String, Vec<u32>)]| bits.iter().flat_map(|(_, bits)| bits.clone()).collect::<Vec<_>>();
    let (alone, ours) = (bits_of(&bits(&model)), bits_of(&survivor.bits));
    let off = alone.iter().zip(&ours).map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs()).fold(0.0, f32::max);
    assert!(off < 1e-6, "{off}");
}

/// Local SGD with a period of two steps: the survivors keep the steps of the period in which a rank is lost, and average their own parameters.
#[test]
fn survivors_finish_a_period_of_local_steps_with_the_mean_of_their_own_parameters() {
    let local = config(r#"{"strategy": {"kind": "local-sgd", "period": 2}}"#);
    let run = |victim| train_elastic(members(3, 1, victim), (&local, sgd), || Mlp::new(5));
    let undisturbed = run(None);
    let [start, end] = undisturbed[2].as_ref().expect("no rank vanishes").calls;
    // Fixed worlds of these sizes, one after the other.
    let alone = |means: [usize; 2]| {
        (0..).zip(means).fold(Mlp::new(5), |model, (period, world)| {
            let ends = ranks(world, |comm| {
                let (rank, mut own) = (comm.rank(), model.clone());
                let mut optim = DistributedOptimizer::new(sgd(), comm, local.clone(), 7);
                own = optim.join(own)?;
                for step in [2 * period, 2 * period + 1] {
                    // Steps of a world begin at 0.
                    let gradients = grads(&own, &own.loss(data(step, rank), 4));
                    own = optim.step(0.02, own, gradients)?;
                }
                Ok(own)
            });
            ends.into_iter().next().expect("a rank")
        })
    };
    let (mut lost, mut unsettled) = (0, 0);
    // The last calls, those of the vote, again and again: it depends on the threads who has committed.
    for call in (start..end).chain((end - 8..end).cycle().take(80)) {
        let ends = run(Some((2, call)));
        let survivor = ends[0].as_ref().expect("two of three");
        assert_eq!(survivor.again, 0, "no step is computed again");
        // A mean that the lost rank took part in may have been committed before the world shrank.
        let means = [[3, 3], [3, survivor.world]];
        let found = means.iter().rposition(|means| bits(&alone(*means)) == survivor.bits);
        let found = found.unwrap_or_else(|| panic!("lost at call {call}: {survivor:?}"));
        lost += usize::from(means[found] == [3, 2]);
        // The world is settled by an exchange in it, and not by a commit of one in doubt.
        let settled = [0, 1].map(|rank| ends[rank].as_ref().expect("two of three").settled);
        assert!(settled == [true; 2] || means[found] == [3, 3], "lost at call {call}: {survivor:?}");
        unsettled += usize::from(settled != [true; 2]);
    }
    assert!(lost > 3 && unsettled > 0, "{lost} {unsettled}");
}

#[test]
fn too_few_survivors_end_by_name() {
    let top_k = top_k();
    let lose = |ranks: usize, fewest, victim: usize| {
        let undisturbed = train_elastic(members(ranks, fewest, None), (&top_k, adam), || Mlp::new(5));
        let [start, end] = undisturbed[victim].as_ref().expect("no rank vanishes").calls;
        train_elastic(members(ranks, fewest, Some((victim, (start + end) / 2))), (&top_k, adam), || Mlp::new(5))
    };
    let ends = lose(3, 3, 0);
    for end in &ends[1..] {
        let error = end.as_ref().expect_err("three are required");
        let Error::Membership(MembershipError::Minority { living: 2, members: 3, fewest: 3, .. }) = error else {
            panic!("{error}")
        };
    }
    // Half of two, without its first rank.
    let text = lose(2, 1, 0)[1].as_ref().expect_err("rank 0 may be alive elsewhere").to_string();
    assert!(text.contains("reaches 1 of 2 members"), "{text}");
    assert_eq!(lose(2, 1, 1)[0].as_ref().expect("half with its first rank").worlds.last(), Some(&1));
}

/// Nothing changes where no rank is lost.
#[test]
fn an_elastic_world_has_the_bits_of_a_fixed_one() {
    let config = top_k();
    let fixed = ranks(3, |comm| {
        let rank = comm.rank();
        let mut optim = DistributedOptimizer::new(adam(), comm, top_k(), 7);
        let mut model = optim.join(Mlp::new(5))?;
        for step in 0..STEPS {
            let gradients = grads(&model, &model.loss(data(step, rank), 4));
            optim.record_samples(4);
            model = optim.step(0.02, model, gradients)?;
        }
        Ok(bits(&model))
    });
    let elastic = train_elastic(members(3, 1, None), (&config, adam), || Mlp::new(5));
    assert!(elastic.iter().zip(&fixed).all(|(elastic, fixed)| elastic.as_ref().is_ok_and(|end| end.bits == *fixed)));
}
