//! Agreement on the next generation, as a state machine.
//!
//! ```text
//! every member   calls the members below it, lowest first, and reports its standing to the first that answers
//! the lowest     waits until every member above has reported, or cannot be reached, or its patience ends; then announces
//! every member   forms a session with the announced members
//! ```
//!
//! A generation is *formed* once all of its members have formed a session. A member that accepts an announcement takes the announced
//! generation as its own, and accepts no other of that number. If the generation cannot be formed, it begins again within it, so a
//! coordinator may be lost at any moment. The quorum is always counted in the last generation that was formed, because two
//! announcements of one number may each have been accepted by a minority. Members of different generations understand each
//! other: reports state both the accepted and the formed one.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::successor::successor;
use super::{Candidate, Generation, MemberId, MembershipError, Next, Policy, Standing};

/// A message between members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// To a member with a lower rank: the sender's generations and standing.
    Report {
        /// The last generation that it accepted.
        generation: Generation,
        /// The last generation that it formed.
        formed: Generation,
        /// Its standing.
        standing: Standing,
        /// Processes that have asked it to be admitted; `None` if it cannot hand over its state now.
        candidates: Option<Vec<Candidate>>,
    },
    /// From the coordinator: the next generation.
    Announce(Next),
    /// To a member that reported: it is not in the sender's generation.
    Refuse(String),
    /// From the coordinator, to a member that reported: it waits for others.
    Wait,
}

/// Number of times that the coordinator waits for another patience, if those that have reported are no quorum.
pub const EXTENSIONS: u32 = 3;

/// An input of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A message arrived.
    Heard {
        /// Its sender.
        from: MemberId,
        /// The message.
        message: Message,
    },
    /// A member cannot be reached: its address refuses connections, a connection to it broke, or it did not answer in time.
    Unreachable {
        /// The member.
        member: MemberId,
        /// Set if the last message to it may have arrived.
        may_have_arrived: bool,
    },
    /// Time has passed.
    Time,
}

/// An output of the state machine.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Send a message. If that fails, the caller inputs [`Event::Unreachable`].
    Send {
        /// The receiver.
        to: MemberId,
        /// The message.
        message: Message,
    },
    /// Find out whether a member can be reached. If not, the caller inputs [`Event::Unreachable`].
    Probe(MemberId),
    /// Form a session with these members. If that fails, the caller calls [`Election::begin_again`].
    Form(Next),
    /// End: this member cannot go on.
    End(MembershipError),
}

#[derive(Debug, Clone, PartialEq)]
enum Phase {
    /// Reported to this member, and waits for its announcement.
    Follows(MemberId),
    /// Waits for reports.
    Leads,
    /// Has announced, or received, the next generation; or has ended.
    Done,
}

/// The part of one member in the agreement on the next generation.
#[derive(Debug, Clone)]
pub struct Election {
    me: MemberId,
    policy: Policy,
    generation: Generation,
    formed: Generation,
    standing: Standing,
    phase: Phase,
    /// Members that could not be reached since the beginning.
    dead: Vec<MemberId>,
    /// Reports of members of this generation.
    reports: BTreeMap<MemberId, Standing>,
    /// Candidates of this member, and of those who reported, if all of them can hand over their state.
    candidates: Option<Vec<Candidate>>,
    /// When this phase began, or was extended.
    since: f64,
    extensions: u32,
    announcements: u64,
    actions: VecDeque<Action>,
}

impl Election {
    /// Creates the part of member `me` of `generation`, which has lost another member.
    ///
    /// # Panics
    /// If `me` is not a member.
    pub fn new(me: MemberId, generation: Generation, policy: Policy) -> Election {
        assert!(generation.rank_of(me).is_some(), "{me} is a member");
        Election {
            me,
            policy,
            formed: generation.clone(),
            generation,
            standing: Standing::default(),
            phase: Phase::Done,
            dead: Vec::new(),
            reports: BTreeMap::new(),
            candidates: None,
            since: 0.0,
            extensions: 0,
            announcements: 0,
            actions: VecDeque::new(),
        }
    }

    /// Returns the last generation that this member accepted.
    pub fn generation(&self) -> &Generation {
        &self.generation
    }

    /// Records that the session of the [accepted](Self::generation) generation has been formed.
    pub fn formed(&mut self) {
        self.formed.clone_from(&self.generation);
    }

    /// Begins at `now` seconds, when a member is lost, or candidates are to be admitted. They are admitted if all members bring a list.
    pub fn begin(&mut self, standing: Standing, candidates: Option<Vec<Candidate>>, now: f64) {
        self.standing = standing;
        self.start(candidates, now);
    }

    /// Begins again at `now` seconds, when the announced generation could not be formed. Candidates have to ask again.
    pub fn begin_again(&mut self, now: f64) {
        self.start(None, now);
    }

    fn start(&mut self, candidates: Option<Vec<Candidate>>, now: f64) {
        self.candidates = candidates;
        self.dead.clear();
        self.reports.clear();
        self.actions.clear();
        self.report(now);
    }

    /// Handles an input. Its actions are then [returned](Self::next_action) one by one.
    pub fn handle(&mut self, event: Event, now: f64) {
        match event {
            Event::Heard { from, message } => self.receive(from, message, now),
            Event::Unreachable { member, may_have_arrived } => self.lose(member, may_have_arrived, now),
            Event::Time => {}
        }
        self.look(now);
    }

    /// Returns the next action.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns the time at which this member wants [`Event::Time`]; `None` once it is done.
    pub fn due(&self) -> Option<f64> {
        match self.phase {
            // The coordinator's patience ends first: it answers a report.
            Phase::Follows(_) => Some(self.since + 2.0 * self.policy.patience),
            Phase::Leads => Some(self.since + self.policy.patience),
            Phase::Done => None,
        }
    }

    fn rank(&self) -> usize {
        self.generation.rank_of(self.me).unwrap_or(usize::MAX)
    }

    /// Reports to the lowest member that may be reached, or leads.
    fn report(&mut self, now: f64) {
        (self.since, self.extensions) = (now, 0);
        let below = &self.generation.members[..self.rank()];
        match below.iter().find(|member| !self.dead.contains(member)) {
            Some(&to) => {
                let (generation, formed) = (self.generation.clone(), self.formed.clone());
                let candidates = self.candidates.clone();
                let message = Message::Report { generation, formed, standing: self.standing, candidates };
                self.phase = Phase::Follows(to);
                self.actions.push_back(Action::Send { to, message });
            }
            None => {
                self.phase = Phase::Leads;
                let above = &self.generation.members[self.rank() + 1..];
                self.actions.extend(above.iter().map(|member| Action::Probe(*member)));
            }
        }
    }

    fn receive(&mut self, from: MemberId, message: Message, now: f64) {
        match message {
            Message::Report { generation, formed, standing, candidates } => {
                self.receive_report(from, (generation, formed), (standing, candidates), now);
            }
            Message::Announce(next) if self.phase == Phase::Follows(from) => {
                if next.generation.rank_of(self.me).is_none() {
                    return self.fence(format!("{from} does not count it among the survivors"));
                }
                self.form(next);
            }
            Message::Refuse(reason) if self.phase == Phase::Follows(from) => self.fence(reason),
            Message::Wait if self.phase == Phase::Follows(from) => self.since = now,
            // Of an earlier attempt.
            Message::Announce(_) | Message::Refuse(_) | Message::Wait => {}
        }
    }

    fn receive_report(
        &mut self,
        from: MemberId,
        (theirs, formed): (Generation, Generation),
        (standing, candidates): (Standing, Option<Vec<Candidate>>),
        now: f64,
    ) {
        if theirs.number > self.generation.number {
            // An announcement did not reach this member.
            if theirs.rank_of(self.me).is_none() {
                return self.fence(format!("{from} is in generation {} without it", theirs.number));
            }
            self.generation = theirs;
            self.begin_again(now);
        }
        if self.generation.rank_of(from).is_none() {
            let reason = format!("generation {} is without it", self.generation.number);
            self.actions.push_back(Action::Send { to: from, message: Message::Refuse(reason) });
            return;
        }
        if formed.number > self.formed.number {
            self.formed = formed;
        }
        // It may have been out of reach for a moment.
        self.dead.retain(|dead| *dead != from);
        self.reports.insert(from, standing);
        if self.phase == Phase::Leads {
            // It may have waited for this member for a while.
            self.actions.push_back(Action::Send { to: from, message: Message::Wait });
        }
        self.candidates = self.candidates.take().zip(candidates).map(|(own, theirs)| [own, theirs].concat());
    }

    fn lose(&mut self, member: MemberId, may_have_arrived: bool, now: f64) {
        if self.phase == Phase::Done || self.dead.contains(&member) {
            return;
        }
        self.dead.push(member);
        self.reports.remove(&member);
        if self.phase == Phase::Follows(member) {
            if self.standing.is_new && may_have_arrived {
                // It counted for that coordinator, and may not count for another one.
                return self.fence(format!("it had no state yet, and {member} was lost"));
            }
            self.report(now);
        }
    }

    /// Goes on if everything is known, or has been waited for.
    fn look(&mut self, now: f64) {
        let overdue = self.due().is_some_and(|due| now >= due);
        match self.phase {
            // Without it, this member would end.
            Phase::Follows(leader) if overdue && self.extensions < EXTENSIONS && !self.may_go_on_without(leader) => {
                (self.since, self.extensions) = (now, self.extensions + 1);
            }
            Phase::Follows(leader) if overdue => self.lose(leader, true, now),
            Phase::Leads => {
                let above = &self.generation.members[self.rank() + 1..];
                let known = |member| self.reports.contains_key(member) || self.dead.contains(member);
                let is_known = above.iter().all(known);
                if overdue && !is_known && self.extensions < EXTENSIONS && !self.has_quorum() {
                    self.extend(now);
                } else if overdue || is_known {
                    self.announce();
                }
            }
            _ => {}
        }
    }

    /// Returns whether this member and those that have reported can go on.
    fn has_quorum(&self) -> bool {
        let mut reports = self.reports.clone();
        reports.insert(self.me, self.standing);
        let next = successor((&self.generation, &self.formed), &reports, self.policy, (self.me, self.announcements));
        !matches!(next, Err(MembershipError::Minority { .. }))
    }

    /// Returns whether the members that may be reached, this one included, could go on without `leader`.
    fn may_go_on_without(&self, leader: MemberId) -> bool {
        let is_left = |member: &&MemberId| !self.dead.contains(member) && **member != leader;
        let left: Vec<MemberId> = self.generation.members.iter().filter(is_left).copied().collect();
        left.len() >= self.policy.fewest && self.formed.is_quorum(&left)
    }

    /// Waits for another patience: without the members that can be reached and have not reported, this one would end.
    fn extend(&mut self, now: f64) {
        (self.since, self.extensions) = (now, self.extensions + 1);
        let wait = |to: &MemberId| Action::Send { to: *to, message: Message::Wait };
        self.actions.extend(self.reports.keys().filter(|to| **to != self.me).map(wait));
    }

    fn announce(&mut self) {
        self.reports.insert(self.me, self.standing);
        self.announcements += 1;
        let generations = (&self.generation, &self.formed);
        match successor(generations, &self.reports, self.policy, (self.me, self.announcements)) {
            Ok(mut next) => {
                next.admit(self.candidates.take().unwrap_or_default());
                // Candidates have not reported.
                let is_other = |to: &&MemberId| **to != self.me && self.reports.contains_key(to);
                let others = next.generation.members.iter().filter(is_other);
                let announce = |to: &MemberId| Action::Send { to: *to, message: Message::Announce(next.clone()) };
                self.actions.extend(others.map(announce));
                self.form(next);
            }
            Err(error) => self.end(error),
        }
    }

    /// Accepts the announced generation.
    fn form(&mut self, next: Next) {
        self.phase = Phase::Done;
        self.generation = next.generation.clone();
        // Members that reported and do not go on.
        let misled = self.reports.keys().filter(|member| next.generation.rank_of(**member).is_none());
        let reason = || Message::Refuse(format!("generation {} is without it", next.generation.number));
        self.actions.extend(misled.map(|to| Action::Send { to: *to, message: reason() }));
        self.actions.push_back(Action::Form(next));
    }

    fn fence(&mut self, reason: String) {
        let (rank, generation) = (self.rank(), self.generation.number);
        self.end(MembershipError::Fenced { rank, generation, reason });
    }

    fn end(&mut self, error: MembershipError) {
        self.phase = Phase::Done;
        let reason = error.to_string();
        let refused = self.reports.keys().filter(|member| **member != self.me);
        self.actions.extend(refused.map(|to| Action::Send { to: *to, message: Message::Refuse(reason.clone()) }));
        self.actions.push_back(Action::End(error));
    }
}
