//! Event loop of the simulation: incidents, interrupted steps and candidates.

use std::collections::{BTreeMap, BinaryHeap};

use briquette_core::Key;
use briquette_core::membership::{Candidate, Election, Event, Generation, MemberId, Next, Standing};

use super::process::{Due, Life, Name, Process, Timed};
use super::training::Training;
use super::{Change, Outcome, Record, Schedule, World, WorldEnd};

/// Pause between two looks at a member that has not reported, as in `briquette-tcp`.
const WATCH: f64 = 1.0;

pub(super) struct Engine<'a> {
    pub(super) world: World,
    schedule: &'a Schedule,
    /// End of the simulation.
    seconds: f64,
    pub(super) now: f64,
    queue: BinaryHeap<Timed>,
    count: u64,
    draws: usize,
    pub(super) processes: Vec<Process>,
    /// The last process of each machine; `None` while the machine is lost.
    pub(super) machines: Vec<Option<usize>>,
    /// Factors by machine.
    slow: Vec<f64>,
    /// Part of a divided network, by machine.
    cut: Option<Vec<bool>>,
    pub(super) trainings: Vec<Training>,
    pub(super) sessions: u64,
    /// Announcements whose members arrive, with the number of those that have.
    pub(super) forming: BTreeMap<Name, (Next, usize)>,
    /// Processes that ask to be admitted.
    pub(super) asking: Vec<usize>,
    /// Time since which no step was committed, and whether because of a loss.
    idle: Option<(f64, bool)>,
    pub(super) outcome: Outcome,
}

impl<'a> Engine<'a> {
    pub(super) fn new(world: World, schedule: &'a Schedule, seconds: f64) -> Self {
        let ranks = world.ranks;
        let generation = Generation { number: 0, members: (0..ranks as u64).map(MemberId).collect() };
        let first = |rank| {
            let election = Election::new(MemberId(rank as u64), generation.clone(), world.policy);
            Process { election: Some(Box::new(election)), session: Some(0), ..Process::new(rank, Life::Trains) }
        };
        let training = Training::new(0, ((0..ranks).collect(), 0), (0.0, world.step), 0);
        Engine {
            world,
            schedule,
            seconds,
            now: 0.0,
            queue: BinaryHeap::new(),
            count: 0,
            draws: 0,
            processes: (0..ranks).map(first).collect(),
            machines: (0..ranks).map(Some).collect(),
            slow: vec![1.0; ranks],
            cut: None,
            trainings: vec![training],
            sessions: 1,
            forming: BTreeMap::new(),
            asking: Vec::new(),
            idle: None,
            outcome: Outcome { seconds, total: ranks as f64 * seconds, most_worlds: 1, ..Outcome::default() },
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        self.schedule_incident(0);
        while let Some(Timed { seconds, due, .. }) = self.queue.pop() {
            if seconds > self.seconds || self.outcome.end.is_some() {
                break;
            }
            self.now = seconds;
            let [kind, one, other] = due.words();
            self.outcome.digest([seconds.to_bits(), kind, one, other]);
            self.handle(due);
        }
        self.now = self.seconds;
        (0..self.trainings.len()).for_each(|at| self.advance(at));
        self.outcome
    }

    pub(super) fn after(&mut self, seconds: f64, due: Due) {
        self.at(self.now + seconds, due);
    }

    fn at(&mut self, seconds: f64, due: Due) {
        self.count += 1;
        self.queue.push(Timed { seconds, count: self.count, due });
    }

    /// Draws a number from 0 to below 1.
    pub(super) fn draw(&mut self) -> f64 {
        self.draws += 1;
        let word = Key::new(self.world.seed).purpose("membership").word(self.draws);
        (word >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn schedule_incident(&mut self, at: usize) {
        if let Some(incident) = self.schedule.incidents().get(at) {
            self.at(incident.seconds, Due::Incident(at));
        }
    }

    fn handle(&mut self, due: Due) {
        match due {
            Due::Incident(at) => {
                self.schedule_incident(at + 1);
                self.change(&self.schedule.incidents()[at].change);
            }
            Due::Deliver { to, from, message } => self.deliver(to, from, *message),
            Due::Unreachable { to, other, may_have_arrived } => {
                self.input(to, Event::Unreachable { member: MemberId(other as u64), may_have_arrived });
            }
            Due::Look { member, due } => {
                let election = self.processes[member].election.as_ref();
                if election.and_then(|election| election.due()) == Some(due) {
                    self.input(member, Event::Time);
                }
            }
            Due::Notice { training, breaks, of } => self.notice(training, breaks, of),
            Due::Admission { training } => self.admit(training),
            Due::Call { candidate, next } => self.call(candidate, *next),
            Due::Formed(name) => self.formed(name),
            Due::Overdue { member, name } => self.overdue(member, name),
            Due::Ask { candidate, asks } => self.ask(candidate, asks),
            Due::Restart { process } => {
                let machine = self.processes[process].machine;
                if self.machines[machine] == Some(process) {
                    self.start(machine);
                }
            }
        }
    }

    fn change(&mut self, change: &Change) {
        match change {
            Change::Lost(machine) => self.lose(*machine, false),
            Change::Vanished(machine) => self.lose(*machine, true),
            Change::Joins(machine) => self.start(*machine),
            Change::Slow(machine, factor) => {
                self.slow[*machine] = *factor;
                self.retime();
            }
            Change::Split(part) => self.split(part),
            Change::Heals => self.heal(),
        }
    }

    fn lose(&mut self, machine: usize, vanishes: bool) {
        self.outcome.losses += 1;
        if self.world.records {
            self.outcome.record.push(Record::Lost { seconds: self.now, machine });
        }
        let Some(process) = self.machines[machine].take() else { return };
        let detection = if vanishes { self.world.vanished } else { self.world.killed };
        let is_trained = |training: &Training| self.processes[process].trains_in(training.id);
        if let Some(at) = self.trainings.iter().position(is_trained) {
            self.interrupt(at);
            self.trainings[at].may_heal = false;
            self.notice_later(at, detection, Some(machine));
        }
        // After the steps before it are counted.
        if self.processes[process].is_member() {
            self.set_idle();
        }
        self.gone(process, if vanishes { Life::Vanished } else { Life::Gone });
        self.check_end(|| "all members were lost".to_owned());
    }

    fn set_idle(&mut self) {
        if !matches!(self.idle, Some((_, true))) {
            self.idle = Some((self.now, true));
        }
    }

    /// Ends a process. The system closes its connections, unless the machine has vanished.
    pub(super) fn gone(&mut self, process: usize, life: Life) {
        let gone = &mut self.processes[process];
        (gone.life, gone.election) = (life, None);
        gone.queued.clear();
        let lines = std::mem::take(&mut gone.lines);
        self.asking.retain(|asking| *asking != process);
        let present: Vec<usize> = self.machines.iter().flatten().copied().collect();
        for at in present {
            if self.processes[at].life == Life::Elects && self.processes[at].watches.contains(&process) {
                let timeout = if life == Life::Gone { 0.0 } else { self.world.unreachable };
                let delay = timeout + WATCH * self.draw();
                self.after(delay, Due::Unreachable { to: at, other: process, may_have_arrived: true });
            }
        }
        for to in lines.into_iter().filter(|_| life == Life::Gone) {
            if self.processes[to].lines.contains(&process) {
                self.after(self.world.latency, Due::Unreachable { to, other: process, may_have_arrived: true });
            }
        }
    }

    /// Ends the world if no member is left.
    pub(super) fn check_end(&mut self, cause: impl FnOnce() -> String) {
        let is_member = |process: &usize| self.processes[*process].is_member();
        if !self.machines.iter().flatten().any(is_member) {
            self.outcome.end = Some(WorldEnd { seconds: self.now, cause: cause() });
        }
    }

    /// Starts a process that asks to become a member.
    fn start(&mut self, machine: usize) {
        let candidate = self.processes.len();
        self.processes.push(Process::new(machine, Life::Asks));
        self.machines[machine] = Some(candidate);
        self.asking.push(candidate);
        self.after(self.world.latency, Due::Ask { candidate, asks: 0 });
    }

    fn advance(&mut self, at: usize) {
        let Some((useful, first)) = self.trainings[at].advance(self.now) else { return };
        self.outcome.useful += useful;
        self.outcome.steps = self.trainings[at].step;
        if let Some((since, is_loss)) = self.idle.take() {
            let Outcome { stalls, pauses, .. } = &mut self.outcome;
            if is_loss { stalls } else { pauses }.push(first - since);
        }
    }

    /// Interrupts the step under way. In its vote, either some members have committed and the others are in doubt, or some are in doubt.
    fn interrupt(&mut self, at: usize) {
        self.advance(at);
        let Training { step, ready, new, broken, .. } = self.trainings[at];
        if broken.is_some() {
            return;
        }
        let is_vote = self.now >= ready && self.trainings[at].end_of(step + 1) - self.now <= self.world.latency;
        let is_committed = is_vote && self.draw() < 0.5;
        let old = self.trainings[at].members.len() - new;
        for (rank, member) in self.trainings[at].members.clone().into_iter().enumerate() {
            let is_first = is_vote && self.draw() < 0.5;
            self.processes[member].standing = Standing {
                step: step + u64::from(is_committed && is_first),
                in_doubt: is_vote && is_committed != is_first,
                is_new: self.now < ready && rank >= old,
            };
        }
        self.trainings[at].interrupt(self.now);
        self.set_idle();
    }

    /// Lets the members of an interrupted session notice it, at the end of their part of the step at the earliest.
    fn notice_later(&mut self, at: usize, detection: f64, of: Option<usize>) {
        let training = &self.trainings[at];
        let (id, breaks) = (training.id, training.breaks);
        let end = if self.now < training.ready { self.now } else { training.end_of(training.step + 1) };
        self.at(end.max(self.now + detection), Due::Notice { training: id, breaks, of });
    }

    fn notice(&mut self, id: u64, breaks: u64, of: Option<usize>) {
        let is_meant =
            |training: &Training| training.id == id && training.breaks == breaks && training.broken.is_some();
        let Some(at) = self.trainings.iter().position(is_meant) else { return };
        let members = self.trainings[at].members.clone();
        let reached =
            |engine: &Self, member: usize| of.is_none_or(|of| engine.reach(of, engine.processes[member].machine));
        for &member in &members {
            if self.processes[member].trains_in(id) && reached(self, member) {
                self.elect(member, None);
            }
        }
        if !members.iter().any(|member| self.processes[*member].trains_in(id)) {
            self.trainings.remove(at);
        }
    }

    /// Lets all members regroup at the end of a step, with the candidates that they have noted.
    fn admit(&mut self, id: u64) {
        let Some(at) = self.trainings.iter().position(|training| training.id == id) else { return };
        self.advance(at);
        let Some(target) = self.trainings[at].admits_at else { return };
        if self.trainings[at].step < target {
            return self.at(self.trainings[at].end_of(target), Due::Admission { training: id });
        }
        let Training { members, step, .. } = self.trainings.remove(at);
        self.idle.get_or_insert((self.now, false));
        for member in members {
            self.processes[member].standing = Standing { step, in_doubt: false, is_new: false };
            let noted = self.asking.iter().filter(|asking| self.processes[**asking].noted_by == Some(member));
            let candidate = |at: &usize| Candidate { member: MemberId(*at as u64), address: String::new() };
            let candidates = noted.map(candidate).collect();
            self.elect(member, Some(candidates));
        }
    }

    /// Asks a member that trains and can be reached. Without one, it asks again when there is one.
    fn ask(&mut self, candidate: usize, asks: u64) {
        let Process { life, asks: last, machine, .. } = self.processes[candidate];
        if life != Life::Asks || asks != last {
            return;
        }
        let draw = self.draw();
        let trains = |training: &&Training, member: usize| {
            self.processes[member].trains_in(training.id) && self.reach(machine, self.processes[member].machine)
        };
        let open = self.trainings.iter().enumerate().find_map(|(at, training)| {
            let open: Vec<usize> =
                training.members.iter().copied().filter(|member| trains(&training, *member)).collect();
            open.get((draw * open.len() as f64) as usize).map(|member| (at, *member))
        });
        let process = &mut self.processes[candidate];
        process.asks += 1;
        (process.noted_by, process.is_blocked) = (open.map(|(_, member)| member), open.is_none());
        let Some((at, _)) = open else { return };
        self.after(self.world.ask_again, Due::Ask { candidate, asks: asks + 1 });
        self.advance(at);
        let now = self.now;
        let training = &mut self.trainings[at];
        if training.broken.is_none() && training.admits_at.is_none() {
            let target = training.after_next(now);
            training.admits_at = Some(target);
            let (end, id) = (training.end_of(target), training.id);
            self.at(end, Due::Admission { training: id });
        }
    }

    /// Lets candidates ask again that have reached no member.
    pub(super) fn unblock(&mut self) {
        let is_blocked = |candidate: &usize| self.processes[*candidate].is_blocked;
        for candidate in self.asking.iter().copied().filter(is_blocked).collect::<Vec<_>>() {
            self.processes[candidate].is_blocked = false;
            self.after(self.world.latency, Due::Ask { candidate, asks: self.processes[candidate].asks });
        }
    }

    pub(super) fn reach(&self, one: usize, other: usize) -> bool {
        self.cut.as_ref().is_none_or(|cut| cut[one] == cut[other])
    }

    /// Returns the seconds of a step of these members.
    pub(super) fn pace(&self, members: &[usize]) -> f64 {
        let factors = members.iter().map(|member| self.slow[self.processes[*member].machine]);
        self.world.step * factors.fold(1.0, f64::max)
    }

    fn retime(&mut self) {
        for at in 0..self.trainings.len() {
            let seconds = self.pace(&self.trainings[at].members);
            self.advance(at);
            let now = self.now;
            let training = &mut self.trainings[at];
            if training.broken.is_none() && training.seconds != seconds {
                training.retime(now, seconds);
                if let Some(target) = training.admits_at {
                    let (end, id) = (training.end_of(target), training.id);
                    self.at(end, Due::Admission { training: id });
                }
            }
        }
    }

    fn split(&mut self, part: &[usize]) {
        self.cut = Some((0..self.world.ranks).map(|machine| part.contains(&machine)).collect());
        for at in 0..self.trainings.len() {
            let machines = |member: &usize| self.processes[*member].machine;
            let members = &self.trainings[at].members;
            let is_divided = members.iter().any(|member| !self.reach(machines(&members[0]), machines(member)));
            if is_divided && self.trainings[at].broken.is_none() {
                self.interrupt(at);
                self.trainings[at].may_heal = true;
                self.notice_later(at, self.world.vanished, None);
            }
        }
    }

    fn heal(&mut self) {
        self.cut = None;
        for at in 0..self.trainings.len() {
            let training = &self.trainings[at];
            let trains = |member: &usize| self.processes[*member].trains_in(training.id);
            if training.may_heal && training.broken.is_some() && training.members.iter().all(trains) {
                let now = self.now;
                self.trainings[at].heal(now);
            }
        }
        self.retime();
        self.unblock();
    }
}
