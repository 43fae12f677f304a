//! Elections in a simulated network: delays, losses of members, and a divided network, from a seed.

use std::collections::BTreeSet;

use rand::Rng;

use crate::Key;
use crate::membership::*;

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
        may_have_arrived: bool,
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
pub(super) enum Life {
    Trains,
    Elects,
    /// Waits for the other members of this announcement.
    Forms(Next),
    Ended(MembershipError),
    Dead,
}

pub(super) struct Simulation {
    rng: Box<dyn FnMut() -> f64>,
    now: f64,
    events: Vec<(f64, u64, Due)>,
    count: u64,
    pub(super) elections: Vec<Election>,
    pub(super) lives: Vec<Life>,
    pub(super) standings: Vec<Standing>,
    cut: BTreeSet<usize>,
    /// The time of the last requested look of each member.
    looks: Vec<f64>,
    /// Reports that wait in a listener's queue.
    queued: Vec<Vec<(usize, Message)>>,
    /// Numbers of the generations that at least one member formed.
    pub(super) formed: Vec<u64>,
    pub(super) log: String,
}

pub(super) const MEMBERS: usize = 5;
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
                        self.at(delay, Due::Unreachable { to: member, other, may_have_arrived: true });
                    } else if !self.reach(member, other) {
                        self.at(5.0, Due::Unreachable { to: member, other, may_have_arrived: true });
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
            let step = standing.step + u64::from(next.commits_for(standing));
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
                        self.at(0.001, Due::Unreachable { to: from, other: to, may_have_arrived: false });
                        continue;
                    }
                    if !self.reach(from, to) {
                        self.at(5.0, Due::Unreachable { to: from, other: to, may_have_arrived: false });
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
                Due::Unreachable { to, other, may_have_arrived } => {
                    (to, Event::Unreachable { member: id(other), may_have_arrived })
                }
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

pub(super) fn simulate(seed: u64) -> Simulation {
    let mut simulation = Simulation::new(seed);
    let lost = simulation.below(MEMBERS);
    simulation.lose_in_a_step(lost);
    // The last member has just been admitted, and has no state.
    if (simulation.rng)() < 0.3 {
        simulation.standings[MEMBERS - 1] = Standing { step: 0, in_doubt: false, is_new: true };
    }
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
