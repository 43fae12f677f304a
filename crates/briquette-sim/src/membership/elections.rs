//! Elections of the simulated members: messages, announcements and sessions.

use briquette_core::membership::{
    Action, Candidate, Election, Event, MemberId, MembershipError, Message, Next, Standing,
};

use super::Record;
use super::engine::Engine;
use super::process::{Due, Life, Name, name_of};
use super::training::Training;

fn process_of(member: MemberId) -> usize {
    member.0 as usize
}

impl Engine<'_> {
    /// Begins the election of a member. Candidates that it has noted ask again, unless they are admitted.
    pub(super) fn elect(&mut self, member: usize, candidates: Option<Vec<Candidate>>) {
        for at in self.asking.clone() {
            let noted_by = &mut self.processes[at].noted_by;
            *noted_by = noted_by.filter(|by| *by != member);
        }
        self.listen(member);
        let (now, process) = (self.now, &mut self.processes[member]);
        let standing = process.standing;
        if let Some(election) = &mut process.election {
            election.begin(standing, candidates, now);
        }
        self.act(member);
    }

    /// Reads the reports that have waited in the queue of a member.
    fn listen(&mut self, member: usize) {
        let process = &mut self.processes[member];
        process.life = Life::Elects;
        process.watches.clear();
        let queued = std::mem::take(&mut process.queued);
        process.lines = queued.iter().map(|(from, _)| *from).collect();
        for (from, message) in queued {
            self.after(self.world.latency, Due::Deliver { to: member, from, message: Box::new(message) });
        }
    }

    /// Inputs an event, if the member takes part in an election.
    pub(super) fn input(&mut self, member: usize, event: Event) {
        let (now, process) = (self.now, &mut self.processes[member]);
        if process.life == Life::Elects
            && let Some(election) = &mut process.election
        {
            election.handle(event, now);
            self.act(member);
        }
    }

    fn act(&mut self, member: usize) {
        while let Some(action) = self.processes[member].election.as_mut().and_then(|election| election.next_action()) {
            match action {
                Action::Send { to, message } => self.send(member, process_of(to), message),
                Action::Probe(other) => {
                    let other = process_of(other);
                    self.processes[member].watches.push(other);
                    if let Some(seconds) = self.fails_after(member, other) {
                        self.after(seconds, Due::Unreachable { to: member, other, may_have_arrived: true });
                    }
                }
                Action::Form(next) => self.form(member, next),
                Action::End(error) => self.end(member, &error),
            }
        }
        let process = &mut self.processes[member];
        let due = process.election.as_ref().and_then(|election| election.due());
        if let (Life::Elects, Some(due)) = (process.life, due)
            && process.look != due
        {
            process.look = due;
            self.after((due - self.now).max(0.0), Due::Look { member, due });
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if matches!(message, Message::Report { .. }) {
            self.processes[from].lines.push(to);
            self.processes[to].lines.push(from);
        }
        let delay = self.world.latency * (1.0 + self.draw());
        self.after(delay, Due::Deliver { to, from, message: Box::new(message) });
    }

    pub(super) fn deliver(&mut self, to: usize, from: usize, message: Message) {
        let is_report = matches!(message, Message::Report { .. });
        match self.fails_after(from, to) {
            // The sender of a reply does not wait for anything.
            Some(seconds) if is_report => {
                self.after(seconds, Due::Unreachable { to: from, other: to, may_have_arrived: false })
            }
            Some(_) => {}
            None if self.processes[to].life == Life::Elects => {
                self.input(to, Event::Heard { from: MemberId(from as u64), message });
            }
            // A reply that arrives too late is dropped.
            None if is_report => self.processes[to].queued.push((from, message)),
            None => {}
        }
    }

    /// Returns the time after which a call fails; `None` if it does not.
    fn fails_after(&self, from: usize, to: usize) -> Option<f64> {
        let [from, to] = [from, to].map(|process| &self.processes[process]);
        let is_down = to.life == Life::Vanished && self.machines[to.machine].is_none();
        match to.life {
            _ if is_down || !self.reach(from.machine, to.machine) => Some(self.world.unreachable),
            Life::Gone | Life::Vanished => Some(self.world.latency),
            _ => None,
        }
    }

    fn end(&mut self, member: usize, error: &MembershipError) {
        if matches!(error, MembershipError::Minority { .. }) {
            self.outcome.minorities += 1;
        } else {
            self.outcome.failures += 1;
        }
        if self.world.records {
            let (seconds, machine) = (self.now, self.processes[member].machine);
            self.outcome.record.push(Record::Ended { seconds, machine, cause: error.to_string() });
        }
        self.give_up(member);
        self.check_end(|| error.to_string());
    }

    /// Ends a process on a machine that is there. It is started again.
    fn give_up(&mut self, process: usize) {
        self.gone(process, Life::Gone);
        self.after(self.world.rejoin, Due::Restart { process });
    }

    fn form(&mut self, member: usize, next: Next) {
        if next.coordinator == MemberId(member as u64) {
            for candidate in &next.candidates {
                let call = Due::Call { candidate: process_of(candidate.member), next: Box::new(next.clone()) };
                self.after(self.world.latency, call);
            }
        }
        self.arrive(member, next);
    }

    /// Lets a candidate form the generation that admits it.
    pub(super) fn call(&mut self, candidate: usize, next: Next) {
        let coordinator = process_of(next.coordinator);
        if self.processes[candidate].life != Life::Asks || self.fails_after(coordinator, candidate).is_some() {
            return;
        }
        self.asking.retain(|asking| *asking != candidate);
        let election = Election::new(MemberId(candidate as u64), next.generation.clone(), self.world.policy);
        self.processes[candidate].election = Some(Box::new(election));
        self.arrive(candidate, next);
    }

    /// Lets a member wait for the others of its generation.
    fn arrive(&mut self, member: usize, next: Next) {
        let (name, members) = (name_of(&next), next.generation.members.len());
        self.processes[member].life = Life::Forms(name);
        self.after(self.world.form_timeout, Due::Overdue { member, name });
        let (_, arrived) = self.forming.entry(name).or_insert((next, 0));
        *arrived += 1;
        if *arrived == members {
            self.after(self.world.form, Due::Formed(name));
        }
    }

    /// Gives up a session that was not formed in time. A candidate ends, and a member begins the election again.
    pub(super) fn overdue(&mut self, member: usize, name: Name) {
        if self.processes[member].life != Life::Forms(name) {
            return;
        }
        self.forming.remove(&name);
        if self.processes[member].session.is_none() {
            self.outcome.failures += 1;
            return self.give_up(member);
        }
        self.listen(member);
        let now = self.now;
        if let Some(election) = &mut self.processes[member].election {
            election.begin_again(now);
        }
        self.act(member);
    }

    /// Forms a session, if all of its members are still there.
    pub(super) fn formed(&mut self, name: Name) {
        let Some((next, _)) = self.forming.remove(&name) else { return };
        let members: Vec<usize> = next.generation.members.iter().copied().map(process_of).collect();
        let machine = |member: usize| self.processes[member].machine;
        let waits = |member: &usize| {
            self.processes[*member].life == Life::Forms(name) && self.reach(machine(members[0]), machine(*member))
        };
        if !members.iter().all(waits) {
            return;
        }
        let id = self.sessions;
        self.sessions += 1;
        let (new, mut is_divergent) = (next.candidates.len(), false);
        for (rank, &member) in members.iter().enumerate() {
            let process = &mut self.processes[member];
            let step = process.standing.step + u64::from(next.commits_for(process.standing));
            is_divergent |= step != next.step && rank < members.len() - new;
            process.standing = Standing { step: next.step, in_doubt: false, is_new: false };
            (process.life, process.session) = (Life::Trains, Some(id));
            if let Some(election) = &mut process.election {
                election.formed();
            }
        }
        self.outcome.divergences += u64::from(is_divergent);
        self.train(id, members, &next);
    }

    /// Begins the training of a session, with the transfer of the state to new members.
    fn train(&mut self, id: u64, members: Vec<usize>, next: &Next) {
        let (new, pace) = (next.candidates.len(), self.pace(&members));
        // Steps in doubt that are committed.
        let steps = next.step.saturating_sub(self.outcome.steps);
        self.outcome.useful += steps as f64 * pace * (members.len() - new) as f64;
        self.outcome.steps = next.step;
        self.outcome.generations += 1;
        self.outcome.joins += new as u64;
        if self.world.records {
            let machines = members.iter().map(|member| self.processes[*member].machine).collect();
            let Next { generation, step, .. } = next;
            let (seconds, number) = (self.now, generation.number);
            self.outcome.record.push(Record::Formed { seconds, number, step: *step, machines, new });
        }
        let ready = self.now + self.world.transfer(new, members.len());
        self.trainings.push(Training::new(id, (members, new), (ready, pace), next.step));
        let worlds = self.trainings.iter().filter(|training| training.broken.is_none()).count();
        self.outcome.most_worlds = self.outcome.most_worlds.max(worlds);
        self.unblock();
    }
}
