//! Simulated elastic worlds: single incidents calculated by hand, and invariants over many seeds.

use std::collections::BTreeSet;

use briquette_core::membership::Policy;
use briquette_sim::membership::{Change, Failures, Incident, Outcome, Record, Schedule, World, simulate};

fn run(world: &World, schedule: &str, seconds: f64) -> Outcome {
    simulate(world, &schedule.parse().unwrap(), seconds).unwrap()
}

/// Messages, detection and state take no noticeable time.
fn plain() -> World {
    World { latency: 1e-6, killed: 0.0, form: 0.5, state_bytes: 0.0, records: true, ..World::default() }
}

fn formed(outcome: &Outcome) -> Vec<(u64, u64, Vec<usize>, usize)> {
    let formed = |record: &Record| match record {
        Record::Formed { number, step, machines, new, .. } => Some((*number, *step, machines.clone(), *new)),
        _ => None,
    };
    outcome.record.iter().filter_map(formed).collect()
}

#[track_caller]
fn close(got: f64, expected: f64) {
    assert!((got - expected).abs() < 1e-3, "{got}, and not {expected}");
}

#[test]
fn a_world_without_incidents_wastes_nothing() {
    let outcome = run(&World { ranks: 3, ..plain() }, "", 10.0);
    assert_eq!((outcome.steps, outcome.generations, outcome.stalls.len()), (200, 0, 0));
    close(outcome.goodput(), 1.0);
}

/// Steps of 1 s. The loss at 10.4 s is noticed at 11 s, the session takes 0.5 s, and step 11 ends at 12.5 s: 2.1 s after the loss. Until
/// 20 s there are 8 steps of three ranks.
#[test]
fn a_loss_costs_the_step_under_way_and_the_new_session() {
    let outcome = run(&World { step: 1.0, ..plain() }, "10.4s lost 0", 20.0);
    assert_eq!(formed(&outcome), [(1, 10, vec![1, 2, 3], 0)]);
    assert_eq!((outcome.steps, outcome.losses), (18, 1));
    close(outcome.stalls[0], 2.1);
    close(outcome.useful, 10.0 * 4.0 + 8.0 * 3.0);
    assert_eq!(outcome.total, 80.0);
}

/// The return at 14 s falls into step 13 (11.5 s + 2 s to 14.5 s); it is admitted after step 14, at 15.5 s. The session takes 0.5 s, and
/// the state of 1 Gbit takes 1 s per copy.
#[test]
fn a_return_costs_the_session_and_the_transfer_of_the_state() {
    let world = World { step: 1.0, state_bytes: 1.25e8, ..plain() };
    for (broadcasts, transfer) in [(false, 1.0), (true, 3.0)] {
        let outcome = run(&World { broadcasts, ..world }, "10.4s lost 0;14s joins 0", 30.0);
        let generations = [(1, 10, vec![1, 2, 3], 0), (2, 14, vec![1, 2, 3, 0], 1)];
        assert_eq!(formed(&outcome), generations);
        assert_eq!((outcome.joins, outcome.stalls.len()), (1, 1));
        close(outcome.pauses[0], 0.5 + transfer + 1.0);
        assert_eq!(outcome.steps, 14 + (30.0_f64 - 15.5 - 0.5 - transfer - 1e-3) as u64);
    }
}

/// The loss during the transfer takes the state from the new member, which starts again after 10 s.
#[test]
fn a_loss_during_the_transfer_ends_the_new_member() {
    let world = World { step: 1.0, state_bytes: 3.75e8, ..plain() };
    let outcome = run(&world, "10.4s lost 0;14s joins 0;17.2s lost 3", 60.0);
    let generations =
        [(1, 10, vec![1, 2, 3], 0), (2, 14, vec![1, 2, 3, 0], 1), (3, 14, vec![1, 2], 0), (4, 25, vec![1, 2, 0], 1)];
    assert_eq!(formed(&outcome), generations, "{:?}", outcome.record);
    assert_eq!((outcome.failures, outcome.divergences), (1, 0));
}

/// Five members admit two of three candidates, which receive their state for 20 s. If rank 0, which has it, is lost meanwhile, four of
/// seven are left. Of two members and a new one, the other member continues after the loss of either, because the new one votes.
#[test]
fn a_loss_of_rank_0_during_a_hand_over_leaves_a_quorum() {
    let world = World { step: 1.0, state_bytes: 1.25e9, ..plain() };
    let eight = World { ranks: 8, ..world };
    let events = "2.5s lost 5;4.9s lost 6;7.5s lost 7;20s joins 5;20s joins 6;20s joins 7;30s lost 0";
    let outcome = run(&eight, events, 100.0);
    assert_eq!(outcome.end, None, "{:?}", outcome.record);
    assert!(
        formed(&outcome).iter().any(|(_, _, machines, new)| machines.len() == 7 && *new == 2),
        "{:?}",
        outcome.record
    );
    let of = |lost| run(&world, &format!("2.5s lost 2;4.9s lost 3;20s joins 2;30s lost {lost}"), 100.0);
    for outcome in [of(0), of(1)] {
        assert_eq!(outcome.end, None, "{:?}", outcome.record);
        assert!(formed(&outcome).iter().any(|(_, _, machines, _)| machines.len() == 1), "{:?}", outcome.record);
    }
}

/// A vanished machine is noticed after 30 s, and a call to it fails after 5 s.
#[test]
fn a_vanished_machine_costs_its_heartbeats_and_one_call() {
    for lost in [0, 3] {
        let outcome = run(&World { step: 1.0, ..plain() }, &format!("10.4s vanished {lost}"), 60.0);
        close(outcome.stalls[0], 30.0 + 5.0 + 0.5 + 1.0);
    }
}

/// The last 0.1 s of a step take 0.3 s. Steps of 3 s then end at 14.2 s and 17.2 s. The next one has half of its work left at 18.7 s, and
/// ends at 19.2 s; five steps of 1 s follow.
#[test]
fn a_step_takes_as_long_as_its_slowest_member() {
    let outcome = run(&World { step: 1.0, ..plain() }, "10.9s slow 2x3;18.7s slow 2x1", 25.0);
    assert_eq!(outcome.steps, 11 + 2 + 1 + 5);
    close(outcome.useful, 4.0 * 24.2);
}

/// Five machines: two of them are cut off. They end after 30 s of missing heartbeats, start again after 10 s, and are admitted one after
/// the other when the network is whole.
#[test]
fn the_minority_of_a_divided_network_ends_and_returns() {
    let world = World { ranks: 5, step: 1.0, ..plain() };
    let outcome = run(&world, "10.5s split 1,4;100s heals", 130.0);
    let generations = formed(&outcome);
    assert_eq!(generations[0], (1, 10, vec![0, 2, 3], 0));
    assert_eq!((generations.len(), generations[1].3, generations[2].3), (3, 1, 1), "{generations:?}");
    assert_eq!((outcome.minorities, outcome.joins, outcome.most_worlds, outcome.end), (2, 2, 1, None));
}

/// The division ends before a heartbeat is missed.
#[test]
fn a_short_division_only_delays_the_step() {
    let outcome = run(&World { step: 1.0, ..plain() }, "10.5s split 0,1;14.5s heals", 20.0);
    assert_eq!((outcome.steps, outcome.generations), (16, 0));
    close(outcome.stalls[0], 4.5);
    close(outcome.goodput(), 0.8);
}

#[test]
fn a_world_below_its_minimum_ends_by_name() {
    let world = World { policy: Policy { fewest: 3, ..Policy::default() }, ..plain() };
    let end = run(&world, "10s lost 1;20s lost 2", 60.0).end.unwrap();
    assert!(end.seconds < 21.0 && end.cause.contains("at least 3"), "{end:?}");
    let all: String = (0..4).map(|rank| format!("{}10s lost {rank}", if rank == 0 { "" } else { ";" })).collect();
    assert_eq!(run(&world, &all, 60.0).end.unwrap().cause, "all members were lost");
}

/// The loss falls into the vote at the end of step 10, from 10.9 s to 11 s. All survivors commit it, or none.
#[test]
fn a_step_in_doubt_is_committed_by_all_or_none() {
    let steps: BTreeSet<u64> = (0..20)
        .map(|seed| {
            let world = World { step: 1.0, latency: 0.1, seed, ..plain() };
            let outcome = run(&world, "10.95s lost 3", 20.0);
            assert_eq!((outcome.failures, outcome.divergences), (0, 0), "seed {seed}: {:?}", outcome.record);
            formed(&outcome)[0].1
        })
        .collect();
    assert_eq!(steps, BTreeSet::from([10, 11]));
}

/// A random world: losses of both kinds, slow machines and divisions.
fn random(seed: u64) -> (World, Schedule) {
    let ranks = 3 + seed as usize % 7;
    let failures = Failures { ranks, mean_seconds: 15.0, back_after: 5.0, vanished_share: 0.3, seconds: 300.0, seed };
    let mut incidents = Schedule::drawn(&failures).unwrap().incidents().to_vec();
    let part: Vec<usize> = (0..ranks).filter(|rank| (seed >> 3 >> rank) % 2 == 1).collect();
    for (round, (from, length)) in [(40.3, 3.0), (90.7, 30.0), (150.1, 60.0)].into_iter().enumerate() {
        if !part.is_empty() && (seed >> round) % 2 == 1 {
            incidents.push(Incident { seconds: from, change: Change::Split(part.clone()) });
            incidents.push(Incident { seconds: from + length, change: Change::Heals });
        }
        let (machine, factor) = (round % ranks, 1.0 + (seed % 4) as f64);
        incidents.push(Incident { seconds: from + 1.0, change: Change::Slow(machine, factor) });
    }
    incidents.sort_by(|one, other| one.seconds.total_cmp(&other.seconds));
    // The vote takes a fifth of a step, so that many losses fall into it.
    let policy = Policy { patience: 4.0, ..Policy::default() };
    let world = World { ranks, latency: 0.01, vanished: 2.0, policy, seed, records: true, ..World::default() };
    (
        World { state_bytes: 1e7, broadcasts: seed.is_multiple_of(2), form_timeout: 3.0, ..world },
        Schedule::new(incidents).unwrap(),
    )
}

/// Generations follow each other, each with a quorum of the one before, and steps never fall behind.
#[test]
fn one_world_trains_at_a_time_and_its_members_are_at_the_same_step() {
    let (mut generations, mut joins, mut ends) = (0, 0, 0);
    for seed in 0..200 {
        let (world, schedule) = random(seed);
        let outcome = simulate(&world, &schedule, 300.0).unwrap();
        assert_eq!((outcome.most_worlds, outcome.divergences), (1, 0), "seed {seed}");
        assert!(outcome.events < 100_000, "seed {seed}: {} events", outcome.events);
        assert!((0.0..=1.0).contains(&outcome.goodput()), "seed {seed}: {}", outcome.goodput());
        let formed = formed(&outcome);
        for pair in formed.windows(2) {
            let [(number, step, before, stateless), (next, later, after, new)] = pair else { unreachable!() };
            assert!(number < next && step <= later, "seed {seed}: {pair:?}");
            // New members without a state count, and do not go on.
            assert!(2 * (after.len() - new + stateless) >= before.len(), "seed {seed}: {pair:?}");
        }
        generations += outcome.generations;
        joins += outcome.joins;
        ends += u64::from(outcome.end.is_some());
    }
    assert!(generations > 2000 && joins > 1000 && ends < 150, "{generations} {joins} {ends}");
}

#[test]
fn a_seed_gives_the_same_bits_and_another_one_gives_others() {
    let outcome = |seed| {
        let (world, schedule) = random(seed);
        simulate(&world, &schedule, 300.0).unwrap()
    };
    for seed in 0..20 {
        let [first, second] = [outcome(seed), outcome(seed)];
        assert_eq!(first, second);
        assert_eq!(first.useful.to_bits(), second.useful.to_bits());
        assert_ne!(first.digest, outcome(seed + 1).digest);
    }
    // Delays alone also differ.
    let (world, schedule) = random(1);
    let other = simulate(&World { seed: 2, ..world }, &schedule, 300.0).unwrap();
    assert_ne!(other.digest, outcome(1).digest);
}

/// A step costs nothing: the same schedule with 50 times as many steps has the same number of events.
#[test]
fn steps_without_an_incident_are_not_events() {
    let events = |step| {
        let world = World { step, latency: 1e-4, ..plain() };
        run(&world, "5000.5s lost 3;6000.5s joins 3", 10_000.0).events
    };
    assert!(events(0.02).abs_diff(events(1.0)) < 5 && events(0.02) < 100);
}

#[test]
fn drawn_schedules_have_their_mean_and_go_back_and_forth_as_text() {
    let failures =
        Failures { ranks: 64, mean_seconds: 15.0, back_after: 60.0, vanished_share: 0.25, seconds: 150_000.0, seed: 3 };
    let schedule = Schedule::drawn(&failures).unwrap();
    let count = |is_counted: fn(&Change) -> bool| {
        schedule.incidents().iter().filter(|incident| is_counted(&incident.change)).count()
    };
    let killed = count(|change| matches!(change, Change::Lost(_)));
    let vanished = count(|change| matches!(change, Change::Vanished(_)));
    let joins = count(|change| matches!(change, Change::Joins(_)));
    // 10 000 losses with a standard deviation of 100; a quarter vanishes, with a standard deviation of 43.
    assert!((killed + vanished).abs_diff(10_000) < 400 && vanished.abs_diff(2500) < 200, "{killed} {vanished}");
    assert!((killed + vanished - joins) < 20);
    assert_eq!(schedule, Schedule::drawn(&failures).unwrap());
    assert_ne!(schedule, Schedule::drawn(&Failures { seed: 4, ..failures }).unwrap());
    assert_eq!(schedule.to_string().parse::<Schedule>().unwrap(), schedule);
    let text = "1s lost 3;2s vanished 0;3s joins 3;3s slow 4x2.5;4s split 1,2,5;5s heals";
    assert_eq!(
        "1s lost 3; 2s vanished 0;3000ms joins 3;3s slow 4x2.5;4s split 1-2,5;5s heals"
            .parse::<Schedule>()
            .unwrap()
            .to_string(),
        text
    );
    assert_eq!("".parse::<Schedule>().unwrap(), Schedule::default());
}

#[test]
fn impossible_settings_and_schedules_are_refused() {
    let world = World::default();
    let none = Schedule::default();
    for (wrong, part) in [
        (World { ranks: 0, ..world }, "ranks of a simulated world"),
        (World { step: 0.0, ..world }, "step"),
        (World { step: f64::NAN, ..world }, "step"),
        (World { latency: -1.0, ..world }, "latency"),
        (World { latency: 1.0, ..world }, "latency"),
        (World { killed: f64::NAN, ..world }, "killed process"),
        (World { vanished: -1.0, ..world }, "vanished machine"),
        (World { unreachable: f64::INFINITY, ..world }, "connect timeout"),
        (World { form: -0.1, ..world }, "form a session"),
        (World { form_timeout: 0.01, ..world }, "timeout of forming"),
        (World { state_bytes: -1.0, ..world }, "bytes of the state"),
        (World { bandwidth: 0.0, ..world }, "bandwidth"),
        (World { bandwidth: f64::NAN, ..world }, "bandwidth"),
        (World { rejoin: 1e7, ..world }, "starts again"),
        (World { ask_again: 0.0, ..world }, "asks again"),
        (World { policy: Policy { fewest: 5, ..Policy::default() }, ..world }, "minimum number of members"),
        (World { policy: Policy { fewest: 0, ..Policy::default() }, ..world }, "minimum number of members"),
        (World { policy: Policy { patience: f64::NAN, ..Policy::default() }, ..world }, "patience"),
    ] {
        let error = simulate(&wrong, &none, 10.0).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    for seconds in [0.0, -1.0, f64::NAN, 1e7] {
        assert!(simulate(&world, &none, seconds).unwrap_err().to_string().contains("seconds of a simulation"));
    }
    for (text, part) in [
        ("1s lost 4", "below the number of ranks"),
        ("1s split 3-4", "below the number of ranks"),
        ("1s lost 3;2s lost 3", "lost machine"),
        ("1s lost 3;2s vanished 3", "lost machine"),
        ("1s joins 3", "joining machine"),
        ("1s heals", "after a split"),
        ("1s split 1;2s split 2", "of a network that is whole"),
    ] {
        let error = simulate(&world, &text.parse().unwrap(), 10.0).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    for text in [
        "lost 3",
        "1s",
        "1s lost",
        "1s lost x",
        "1s slow 3",
        "1s split 3-1",
        "1s heals 3",
        "nans lost 1",
        "1s lost 1 2",
    ] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains("12s lost 3"), "{text}: {error}");
    }
    for (text, part) in [
        ("2s lost 1;1s lost 2", "ascending order"),
        ("1s slow 1x0.5", "from 1 to 1000"),
        ("1s slow 1xNaN", "from 1 to"),
    ] {
        let error = text.parse::<Schedule>().unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
    let failures =
        Failures { ranks: 4, mean_seconds: 1.0, back_after: 1.0, vanished_share: 0.0, seconds: 9.0, seed: 0 };
    for (wrong, part) in [
        (Failures { ranks: 0, ..failures }, "ranks"),
        (Failures { mean_seconds: 0.0, ..failures }, "mean seconds"),
        (Failures { mean_seconds: f64::NAN, ..failures }, "mean seconds"),
        (Failures { mean_seconds: 1e-9, ..failures }, "mean seconds"),
        (Failures { back_after: -1.0, ..failures }, "machine returns"),
        (Failures { vanished_share: 1.5, ..failures }, "share"),
        (Failures { seconds: f64::NAN, ..failures }, "seconds of a schedule"),
    ] {
        let error = Schedule::drawn(&wrong).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
