//! Tests of elections: by hand, and in a [simulated](simulation) network; and of the failure detector.

mod detector;
mod simulation;

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use simulation::{Life, MEMBERS, simulate};

/// No hang, no two worlds, and members of a world at one step.
#[test]
fn elections_of_ten_thousand_seeds_end_and_never_make_two_worlds() {
    let (mut went_on, mut ended) = (0, 0);
    for seed in 0..10_000 {
        let simulation = simulate(seed);
        let log = &simulation.log;
        let mut living: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for member in 0..MEMBERS {
            match &simulation.lives[member] {
                Life::Trains => {
                    let number = simulation.elections[member].generation().number;
                    living.entry(number).or_default().push(member);
                }
                Life::Ended(_) => ended += 1,
                Life::Dead => {}
                life => panic!("seed {seed}: member {member} hangs: {life:?}\n{log}"),
            }
        }
        // A member that was cut off and noticed nothing may still believe in an earlier generation: it can make no step there.
        let whole = living.iter().filter(|(number, members)| {
            let generation = simulation.elections[members[0]].generation();
            **number == generation.number && generation.members.len() == members.len()
        });
        let whole: Vec<_> = whole.collect();
        assert!(whole.len() <= 1, "seed {seed}: two worlds {whole:?}\n{log}");
        went_on += whole.len();
        let is_new = |member: &usize| simulation.standings[*member].is_new;
        let later = whole.iter().filter(|(number, _)| **number > 0);
        assert!(
            later.flat_map(|(_, members)| members.iter()).all(|member| !is_new(member)),
            "seed {seed}: no state\n{log}"
        );
        let numbers: BTreeSet<u64> = simulation.formed.iter().copied().collect();
        assert_eq!(numbers.len(), simulation.formed.len(), "seed {seed}: one world of a number\n{log}");
        let steps = whole.iter().flat_map(|(_, members)| members.iter().map(|member| simulation.standings[*member]));
        assert!(steps.collect::<Vec<_>>().windows(2).all(|two| two[0] == two[1]), "seed {seed}: steps differ\n{log}");
    }
    assert!(went_on > 6_000 && ended > 100, "{went_on} went on, {ended} members ended");
}

#[test]
fn a_seed_replays_to_the_bit() {
    for seed in 0..100 {
        assert_eq!(simulate(seed).log, simulate(seed).log);
    }
}

fn generation(members: &[u64]) -> Generation {
    Generation { number: 4, members: members.iter().copied().map(MemberId).collect() }
}

fn next(standings: &[(u64, u64, bool)], members: &[u64], fewest: usize) -> Result<Next, MembershipError> {
    let reports = standings
        .iter()
        .map(|&(member, step, in_doubt)| (MemberId(member), Standing { step, in_doubt, is_new: false }));
    let (generation, policy) = (generation(members), Policy { fewest, patience: 1.0 });
    let coordinator = MemberId(standings[0].0);
    successor::successor((&generation, &generation), &reports.collect(), policy, (coordinator, 1))
}

#[test]
fn golden_a_member_in_doubt_commits_if_any_survivor_has() {
    let of = |standings: &[(u64, u64, bool)]| {
        let next = next(standings, &[1, 2, 3, 4], 1).unwrap();
        (next.step, next.commits, next.generation.members.iter().map(|member| member.0).collect::<Vec<_>>())
    };
    assert_eq!(of(&[(1, 8, false), (2, 7, true), (3, 8, false)]), (8, true, vec![1, 2, 3]));
    assert_eq!(of(&[(1, 7, false), (2, 7, true), (3, 7, true)]), (7, false, vec![1, 2, 3]));
    // Others have discarded the step that member 4 has committed.
    assert_eq!(of(&[(1, 7, false), (2, 7, true), (3, 7, true), (4, 8, false)]), (7, false, vec![1, 2, 3]));
}

#[test]
fn a_quorum_is_more_than_half_or_half_with_the_first_member() {
    let may = |living: &[u64], fewest| {
        let standings: Vec<_> = living.iter().map(|member| (*member, 7, false)).collect();
        next(&standings, &[1, 2, 3, 4], fewest).is_ok()
    };
    assert!(may(&[2, 3, 4], 1) && may(&[1, 4], 1) && !may(&[3, 4], 1) && !may(&[1], 1));
    assert!(may(&[2, 3, 4], 3) && !may(&[1, 4], 3));
    let text = next(&[(3, 7, false), (4, 7, false)], &[1, 2, 3, 4], 1).unwrap_err().to_string();
    assert!(text.starts_with("rank 2 of generation 4 reaches 2 of 4 members"), "{text}");
}

/// Members 2 and 3 are most of a generation that was announced and never formed, and not of the one before.
#[test]
fn golden_a_quorum_is_of_the_last_generation_that_was_formed() {
    let (announced, formed) = (generation(&[1, 2, 3]), generation(&[1, 2, 3, 4, 5]));
    let reports = [2, 3].map(|member| (MemberId(member), Standing { step: 7, in_doubt: false, is_new: false })).into();
    let policy = Policy { fewest: 1, patience: 1.0 };
    let next = |formed| successor::successor((&announced, formed), &reports, policy, (MemberId(2), 1));
    assert!(matches!(next(&formed), Err(MembershipError::Minority { living: 2, members: 5, .. })));
    assert_eq!(next(&announced).unwrap().generation.members, [MemberId(2), MemberId(3)]);
}

/// Members 1 and 2 of four are alive, and a new one without state, which counts for the quorum and does not go on.
#[test]
fn golden_a_new_member_counts_and_cannot_go_on() {
    let reports = |first: u64| {
        let standing = |is_new| Standing { step: if is_new { 0 } else { 7 }, in_doubt: false, is_new };
        BTreeMap::from([
            (MemberId(first), standing(false)),
            (MemberId(3), standing(false)),
            (MemberId(4), standing(true)),
        ])
    };
    let (all, policy) = (generation(&[1, 2, 3, 4]), Policy { fewest: 1, patience: 1.0 });
    let next = |first| successor::successor((&all, &all), &reports(first), policy, (MemberId(first), 1)).unwrap();
    assert_eq!((next(2).generation.members, next(2).step), (vec![MemberId(2), MemberId(3)], 7));
    assert_eq!(next(1).generation.members, [MemberId(1), MemberId(3)]);
}

/// Member 3 has not passed the vote on exchange 7, which the others have committed. They are in doubt about exchange 8, which it does not know: it commits 7,
/// and they discard 8.
#[test]
fn golden_doubts_about_two_exchanges_are_resolved_one_by_one() {
    let standings = [(1, 8, true), (2, 8, true), (3, 7, true)];
    let next = next(&standings, &[1, 2, 3], 1).unwrap();
    let commits = standings.map(|(_, step, in_doubt)| next.commits_for(Standing { step, in_doubt, is_new: false }));
    assert_eq!((next.step, commits), (8, [false, false, true]));
}

/// A coordinator is lost after one of three members has received its announcement.
#[test]
fn an_announcement_that_was_heard_by_a_minority_binds_no_one() {
    let (all, policy) = (generation(&[1, 2, 3, 4, 5]), Policy { fewest: 1, patience: 1.0 });
    let mut second = Election::new(MemberId(2), all.clone(), policy);
    second.begin(Standing::default(), None, 0.0);
    let accepted = Generation { number: 5, members: vec![MemberId(1), MemberId(2), MemberId(3)] };
    let announced = Next {
        generation: accepted,
        candidates: Vec::new(),
        coordinator: MemberId(1),
        attempt: 1,
        step: 0,
        commits: false,
    };
    second.handle(Event::Heard { from: MemberId(1), message: Message::Announce(announced) }, 0.1);
    second.begin_again(2.0);
    for lost in [1, 3] {
        second.handle(Event::Unreachable { member: MemberId(lost), may_have_arrived: false }, 2.1);
    }
    let actions: Vec<_> = std::iter::from_fn(|| second.next_action()).collect();
    assert!(
        matches!(actions.last(), Some(Action::End(MembershipError::Minority { living: 1, members: 5, .. }))),
        "{actions:?}"
    );
}

/// Members 2, 3 and 4 of five compute longer than the patience. The first waits for a quorum, and those that have reported wait for it.
#[test]
fn golden_a_coordinator_waits_longer_for_a_quorum() {
    let (all, policy) = (generation(&[1, 2, 3, 4, 5]), Policy { fewest: 1, patience: 1.0 });
    let begun = || {
        let mut first = Election::new(MemberId(1), all.clone(), policy);
        first.begin(Standing::default(), None, 0.0);
        first.handle(Event::Unreachable { member: MemberId(5), may_have_arrived: false }, 0.1);
        first
    };
    let report = |from: u64| {
        let (generation, formed) = (all.clone(), all.clone());
        let message = Message::Report { generation, formed, standing: Standing::default(), candidates: None };
        Event::Heard { from: MemberId(from), message }
    };
    let actions = |election: &mut Election| -> Vec<Action> {
        std::iter::from_fn(|| election.next_action()).filter(|action| !matches!(action, Action::Probe(_))).collect()
    };
    let mut first = begun();
    first.handle(report(2), 0.5);
    first.handle(Event::Time, 1.0);
    let wait = || Action::Send { to: MemberId(2), message: Message::Wait };
    assert_eq!(actions(&mut first), [wait(), wait()], "an answer, and an extension");
    assert_eq!(first.due(), Some(2.0));
    // Three of five are a quorum; the fourth is not waited for beyond this patience.
    first.handle(report(3), 1.5);
    first.handle(Event::Time, 2.0);
    assert!(matches!(actions(&mut first).last(), Some(Action::Form(next)) if next.generation.members.len() == 3));
    // Without it, the first ends after four patiences.
    let mut first = begun();
    for now in [1.0, 2.0, 3.0] {
        first.handle(Event::Time, now);
        assert_eq!((actions(&mut first), first.due()), (vec![], Some(now + 1.0)));
    }
    first.handle(Event::Time, 4.0);
    assert!(matches!(&actions(&mut first)[..], [Action::End(MembershipError::Minority { living: 1, .. })]));
    // A member that receives this does not give the coordinator up.
    let mut second = Election::new(MemberId(2), all.clone(), policy);
    second.begin(Standing::default(), None, 0.0);
    second.handle(Event::Heard { from: MemberId(1), message: Message::Wait }, 1.0);
    assert_eq!(second.due(), Some(3.0));
    // Nor does one that cannot go on without it, for four times as long.
    for lost in [3, 4, 5] {
        second.handle(Event::Unreachable { member: MemberId(lost), may_have_arrived: false }, 1.5);
    }
    for due in [3.0, 5.0, 7.0] {
        second.handle(Event::Time, due);
        assert_eq!(second.due(), Some(due + 2.0));
    }
    // Then it leads, without any other member.
    second.handle(Event::Time, 9.0);
    second.handle(Event::Time, 9.1);
    assert!(matches!(actions(&mut second).last(), Some(Action::End(MembershipError::Minority { living: 1, .. }))));
}

/// A new member without state votes once: for the next coordinator if its report cannot have reached the first.
#[test]
fn golden_a_new_member_votes_for_one_coordinator() {
    let policy = Policy { fewest: 1, patience: 10.0 };
    for may_have_arrived in [false, true] {
        let mut new = Election::new(MemberId(4), generation(&[1, 2, 3, 4]), policy);
        new.begin(Standing { is_new: true, ..Standing::default() }, None, 0.0);
        assert!(matches!(new.next_action(), Some(Action::Send { to: MemberId(1), .. })));
        new.handle(Event::Unreachable { member: MemberId(1), may_have_arrived }, 0.1);
        match new.next_action() {
            Some(Action::Send { to: MemberId(2), message: Message::Report { standing, .. } }) => {
                assert!(!may_have_arrived && standing.is_new);
            }
            Some(Action::End(MembershipError::Fenced { .. })) => assert!(may_have_arrived),
            other => panic!("{other:?}"),
        }
    }
}

/// A candidate asked the second of three members, which reports it to the first. It is not admitted while the third is in the middle of
/// a step.
#[test]
fn golden_a_candidate_becomes_the_last_member() {
    let candidate = Candidate { member: MemberId(9), address: "there".to_owned() };
    let elect = |third: Option<Vec<Candidate>>| {
        let (all, policy) = (generation(&[1, 2, 3]), Policy { fewest: 1, patience: 1.0 });
        let mut members: Vec<_> =
            all.members.iter().map(|member| Election::new(*member, all.clone(), policy)).collect();
        for (member, candidates) in members.iter_mut().zip([Some(vec![]), Some(vec![candidate.clone()]), third]) {
            member.begin(Standing { step: 5, in_doubt: false, is_new: false }, candidates, 0.0);
        }
        for rank in [1, 2] {
            let Some(Action::Send { to: MemberId(1), message }) = members[rank].next_action() else {
                panic!("a report")
            };
            members[0].handle(Event::Heard { from: all.members[rank], message }, 0.1);
        }
        let formed = |action| if let Action::Form(next) = action { Some(next) } else { None };
        std::iter::from_fn(|| members[0].next_action()).find_map(formed).expect("every member has reported")
    };
    let next = elect(Some(vec![]));
    assert_eq!(next.generation.members, [1, 2, 3, 9].map(MemberId));
    assert_eq!((next.candidates, next.step, next.commits), (vec![candidate.clone()], 5, false));
    assert_eq!(elect(None).generation.members, [1, 2, 3].map(MemberId));
    // Of two candidates with one identity, one becomes a member; one with the identity of a member does not.
    let same = |member| Candidate { member: MemberId(member), address: "elsewhere".to_owned() };
    let next = elect(Some(vec![same(9), same(2)]));
    assert_eq!(next.generation.members, [1, 2, 3, 9].map(MemberId));
    assert_eq!(next.candidates.len(), 1);
}
