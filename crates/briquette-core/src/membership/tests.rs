//! Elections in a simulated network: delays, losses of members, and a divided network, from a seed.

use std::collections::{BTreeMap, BTreeSet};

use rand::Rng;

use super::*;
use crate::Key;

/// An event.
#[derive(Debug, Clone, PartialEq)]
enum Due {
    Deliver {
        to: usize,
        from: usize,
        message: Message,
    },
    Unreachable {
        to: usize,
        other: usize,
    },
    Look(usize),
    /// The member notices that another is lost.
    Notice(usize),
    Kill(usize),
    Split(BTreeSet<usize>),
    Heal,
    /// The deadline of a session that is not complete.
    Overdue {
        member: usize,
        name: (MemberId, u64, u64),
    },
}

/// A member's place in its process.
#[derive(Debug, Clone, PartialEq)]
enum Life {
    Trains,
    Elects,
    /// Waits for the other members of this announcement.
    Forms(Next),
    Ended(MembershipError),
    Dead,
}

struct Simulation {
    rng: Box<dyn FnMut() -> f64>,
    now: f64,
    events: Vec<(f64, u64, Due)>,
    count: u64,
    elections: Vec<Election>,
    lives: Vec<Life>,
    standings: Vec<Standing>,
    cut: BTreeSet<usize>,
    /// The time of the last requested look of each member.
    looks: Vec<f64>,
    /// Reports that wait in a listener's queue.
    queued: Vec<Vec<(usize, Message)>>,
    /// Numbers of the generations that at least one member formed.
    formed: Vec<u64>,
    log: String,
}

const MEMBERS: usize = 5;
const PATIENCE: f64 = 10.0;

fn id(member: usize) -> MemberId {
    MemberId(member as u64)
}

fn place(member: MemberId) -> usize {
    member.0 as usize
}

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut rng = Key::new(seed).block(0);
        let generation = Generation { number: 0, members: (0..MEMBERS).map(id).collect() };
        let policy = Policy { fewest: 1, patience: PATIENCE };
        Simulation {
            rng: Box::new(move || rng.random()),
            now: 0.0,
            events: Vec::new(),
            count: 0,
            elections: (0..MEMBERS).map(|member| Election::new(id(member), generation.clone(), policy)).collect(),
            lives: vec![Life::Trains; MEMBERS],
            standings: vec![Standing { step: 7, in_doubt: false, is_new: false }; MEMBERS],
            cut: BTreeSet::new(),
            looks: vec![-1.0; MEMBERS],
            queued: vec![Vec::new(); MEMBERS],
            formed: vec![0],
            log: String::new(),
        }
    }

    fn at(&mut self, after: f64, due: Due) {
        self.count += 1;
        self.events.push((self.now + after, self.count, due));
    }

    fn below(&mut self, most: usize) -> usize {
        ((self.rng)() * most as f64) as usize
    }

    fn reach(&self, a: usize, b: usize) -> bool {
        self.cut.contains(&a) == self.cut.contains(&b)
    }

    /// A member is lost during a step: some survivors have committed it, and then all others are in doubt; or none has.
    fn lose_in_a_step(&mut self, lost: usize) {
        let committed = (self.rng)() < 0.5;
        let lives: Vec<usize> = (0..MEMBERS).filter(|member| self.lives[*member] == Life::Trains).collect();
        for &member in &lives {
            let coin = (self.rng)() < 0.5;
            let step = self.standings[member].step;
            self.standings[member] = match (committed, coin) {
                (true, true) => Standing { step: step + 1, in_doubt: false, is_new: false },
                (true, false) | (false, true) => Standing { step, in_doubt: true, is_new: false },
                (false, false) => Standing { step, in_doubt: false, is_new: false },
            };
            let after = (self.rng)() * 3.0;
            self.at(after, Due::Notice(member));
        }
        self.at(0.0, Due::Kill(lost));
    }

    fn act(&mut self, member: usize) {
        while let Some(action) = self.elections[member].next_action() {
            let now = self.now;
            self.log += &format!("{now:.6} {member} {action:?}\n");
            match action {
                Action::Send { to, message } => {
                    let (to, delay) = (place(to), 0.001 + 0.2 * (self.rng)());
                    self.at(delay, Due::Deliver { to, from: member, message });
                }
                Action::Probe(other) => {
                    let (other, delay) = (place(other), 0.001 + 0.2 * (self.rng)());
                    if self.lives[other] == Life::Dead || matches!(self.lives[other], Life::Ended(_)) {
                        self.at(delay, Due::Unreachable { to: member, other });
                    } else if !self.reach(member, other) {
                        self.at(5.0, Due::Unreachable { to: member, other });
                    }
                }
                Action::Form(next) => {
                    let name = (next.coordinator, next.attempt, next.generation.number);
                    self.lives[member] = Life::Forms(next);
                    self.at(PATIENCE, Due::Overdue { member, name });
                    self.form(name);
                }
                Action::End(error) => self.lives[member] = Life::Ended(error),
            }
        }
        if let (Life::Elects, Some(due)) = (&self.lives[member], self.elections[member].due())
            && self.looks[member] != due
        {
            self.looks[member] = due;
            let after = (due - self.now).max(0.0);
            self.at(after, Due::Look(member));
        }
    }

    /// A member begins an election, and reads the reports that arrived before.
    fn elect(&mut self, member: usize) {
        self.lives[member] = Life::Elects;
        for (from, message) in std::mem::take(&mut self.queued[member]) {
            self.at(0.001, Due::Deliver { to: member, from, message });
        }
    }

    /// Forms a session once all of its members are there. The last message of the rendezvous may not reach some of them.
    fn form(&mut self, name: (MemberId, u64, u64)) {
        let waits = |life: &Life| match life {
            Life::Forms(next) if (next.coordinator, next.attempt, next.generation.number) == name => Some(next.clone()),
            _ => None,
        };
        let Some(next) = self.lives.iter().find_map(waits) else { return };
        let members: Vec<usize> = next.generation.members.iter().map(|member| place(*member)).collect();
        let first = members[0];
        if !members.iter().all(|member| waits(&self.lives[*member]).is_some() && self.reach(first, *member)) {
            return;
        }
        let fails = (self.rng)() < 0.2;
        let mut steps = BTreeSet::new();
        for &member in &members {
            if fails && (self.rng)() < 0.5 {
                // It goes on waiting until its deadline; the others notice at their next exchange.
                continue;
            }
            self.elections[member].formed();
            self.lives[member] = Life::Trains;
            let standing = self.standings[member];
            let step = standing.step + u64::from(standing.in_doubt && next.commits);
            self.standings[member] = Standing { step, in_doubt: false, is_new: false };
            steps.insert(step);
        }
        assert!(steps.iter().all(|step| *step == next.step), "{steps:?} in {next:?}\n{}", self.log);
        self.formed.extend((!steps.is_empty()).then_some(next.generation.number));
        if fails {
            for member in members {
                if self.lives[member] == Life::Trains {
                    self.at(1.0, Due::Notice(member));
                }
            }
        }
    }

    fn run(mut self) -> Simulation {
        while let Some(first) = (0..self.events.len()).min_by(|a, b| {
            let key = |at: &usize| (self.events[*at].0, self.events[*at].1);
            key(a).0.total_cmp(&key(b).0).then(key(a).1.cmp(&key(b).1))
        }) {
            assert!(self.count < 2_000, "no end\n{}", self.log);
            let (now, _, due) = self.events.swap_remove(first);
            self.now = now;
            let elects = |life: &Life| *life == Life::Elects;
            let (member, event) = match due {
                Due::Kill(member) => {
                    self.lives[member] = Life::Dead;
                    continue;
                }
                Due::Split(part) => {
                    self.cut = part;
                    continue;
                }
                Due::Heal => {
                    self.cut.clear();
                    continue;
                }
                Due::Notice(member) => {
                    if self.lives[member] == Life::Trains {
                        self.elect(member);
                        let standing = self.standings[member];
                        self.elections[member].begin(standing, None, now);
                        self.act(member);
                    }
                    continue;
                }
                Due::Overdue { member, name } => {
                    let is_same = matches!(&self.lives[member], Life::Forms(next)
                        if (next.coordinator, next.attempt, next.generation.number) == name);
                    if is_same {
                        self.elect(member);
                        self.elections[member].begin_again(now);
                        self.act(member);
                    }
                    continue;
                }
                Due::Deliver { to, from, message } => {
                    if self.lives[to] == Life::Dead || matches!(self.lives[to], Life::Ended(_)) {
                        self.at(0.001, Due::Unreachable { to: from, other: to });
                        continue;
                    }
                    if !self.reach(from, to) {
                        self.at(5.0, Due::Unreachable { to: from, other: to });
                        continue;
                    }
                    if !elects(&self.lives[to]) {
                        // A reply that comes too late is dropped.
                        if matches!(message, Message::Report { .. }) {
                            self.queued[to].push((from, message));
                        }
                        continue;
                    }
                    (to, Event::Heard { from: id(from), message })
                }
                Due::Unreachable { to, other } => (to, Event::Unreachable(id(other))),
                Due::Look(member) => (member, Event::Time),
            };
            if elects(&self.lives[member]) {
                self.elections[member].handle(event, now);
                self.act(member);
            }
        }
        self
    }
}

fn simulate(seed: u64) -> Simulation {
    let mut simulation = Simulation::new(seed);
    let lost = simulation.below(MEMBERS);
    simulation.lose_in_a_step(lost);
    // A second member, often the coordinator, is lost during the election, and the network may be divided for a while.
    if (simulation.rng)() < 0.6 {
        let (other, after) = (simulation.below(MEMBERS), 6.0 * (simulation.rng)());
        simulation.at(after, Due::Kill(other));
    }
    if (simulation.rng)() < 0.4 {
        let part: BTreeSet<usize> = (0..MEMBERS).filter(|_| (simulation.rng)() < 0.5).collect();
        let (after, until) = (4.0 * (simulation.rng)(), 30.0 * (simulation.rng)());
        simulation.at(after, Due::Split(part));
        simulation.at(after + until, Due::Heal);
    }
    simulation.run()
}

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
    election::successor((&generation, &generation), &reports.collect(), policy, (coordinator, 1))
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
    let next = |first| election::successor((&all, &all), &reports(first), policy, (MemberId(first), 1)).unwrap();
    assert_eq!((next(2).generation.members, next(2).step), (vec![MemberId(2), MemberId(3)], 7));
    assert_eq!(next(1).generation.members, [MemberId(1), MemberId(3)]);
}

/// A coordinator is lost after one of three members has heard its announcement.
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
        second.handle(Event::Unreachable(MemberId(lost)), 2.1);
    }
    let actions: Vec<_> = std::iter::from_fn(|| second.next_action()).collect();
    assert!(
        matches!(actions.last(), Some(Action::End(MembershipError::Minority { living: 1, members: 5, .. }))),
        "{actions:?}"
    );
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
}
