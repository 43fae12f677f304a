//! Processes and events of the simulation.

use std::cmp::Ordering;

use briquette_core::membership::{Election, Message, Next, Standing};

/// Name of an announcement: number, coordinator and attempt.
pub(super) type Name = (u64, u64, u64);

pub(super) fn name_of(next: &Next) -> Name {
    (next.generation.number, next.coordinator.0, next.attempt)
}

/// State of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// It waits to be admitted.
    Asks,
    Trains,
    Elects,
    /// It waits for the session of this announcement.
    Forms(Name),
    /// It has ended or was killed: calls are refused.
    Gone,
    /// Its machine has vanished: calls are not answered.
    Vanished,
}

/// A process; its identity as a member is its place in the list of all processes.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) machine: usize,
    pub(super) life: Life,
    pub(super) election: Option<Box<Election>>,
    pub(super) standing: Standing,
    /// Time of the last look that was asked for.
    pub(super) look: f64,
    /// Reports that wait in its listener's queue.
    pub(super) queued: Vec<(usize, Message)>,
    /// Processes with a connection of this election.
    pub(super) lines: Vec<usize>,
    /// Members that it looks at again and again, until they report.
    pub(super) watches: Vec<usize>,
    /// The member that has noted it as a candidate.
    pub(super) noted_by: Option<usize>,
    /// Number of times it has asked.
    pub(super) asks: u64,
    /// Set if it reaches no member that trains.
    pub(super) is_blocked: bool,
    /// Number of its last session; `None` before the first one.
    pub(super) session: Option<u64>,
}

impl Process {
    pub(super) fn new(machine: usize, life: Life) -> Self {
        Process {
            machine,
            life,
            election: None,
            standing: Standing { step: 0, in_doubt: false, is_new: life == Life::Asks },
            look: -1.0,
            queued: Vec::new(),
            lines: Vec::new(),
            watches: Vec::new(),
            noted_by: None,
            asks: 0,
            is_blocked: false,
            session: None,
        }
    }

    /// Returns whether it is a member, or about to be.
    pub(super) fn is_member(&self) -> bool {
        matches!(self.life, Life::Trains | Life::Elects | Life::Forms(_))
    }

    pub(super) fn trains_in(&self, session: u64) -> bool {
        self.life == Life::Trains && self.session == Some(session)
    }
}

/// An event.
#[derive(Debug)]
pub(super) enum Due {
    Incident(usize),
    Deliver {
        to: usize,
        from: usize,
        message: Box<Message>,
    },
    Unreachable {
        to: usize,
        other: usize,
        may_have_arrived: bool,
    },
    Look {
        member: usize,
        due: f64,
    },
    /// Members of a session notice its interruption; those that reached this machine, or all.
    Notice {
        training: u64,
        breaks: u64,
        of: Option<usize>,
    },
    /// The end of a step at which candidates are admitted.
    Admission {
        training: u64,
    },
    /// The coordinator calls a candidate.
    Call {
        candidate: usize,
        next: Box<Next>,
    },
    Formed(Name),
    Overdue {
        member: usize,
        name: Name,
    },
    Ask {
        candidate: usize,
        asks: u64,
    },
    Restart {
        process: usize,
    },
}

impl Due {
    /// Returns its kind and the processes or numbers that it names.
    pub(super) fn words(&self) -> [u64; 3] {
        match self {
            Due::Incident(at) => [1, *at as u64, 0],
            Due::Deliver { to, from, .. } => [2, *to as u64, *from as u64],
            Due::Unreachable { to, other, .. } => [3, *to as u64, *other as u64],
            Due::Look { member, due } => [4, *member as u64, due.to_bits()],
            Due::Notice { training, breaks, .. } => [5, *training, *breaks],
            Due::Admission { training } => [6, *training, 0],
            Due::Call { candidate, next } => [7, *candidate as u64, next.generation.number],
            Due::Formed((number, coordinator, attempt)) => [8, *number, coordinator ^ attempt.rotate_left(32)],
            Due::Overdue { member, name } => [9, *member as u64, name.0],
            Due::Ask { candidate, asks } => [10, *candidate as u64, *asks],
            Due::Restart { process } => [11, *process as u64, 0],
        }
    }
}

/// An event with its time. The earliest is the greatest, as a heap wants it; events of one time are in the order of their creation.
#[derive(Debug)]
pub(super) struct Timed {
    pub(super) seconds: f64,
    pub(super) count: u64,
    pub(super) due: Due,
}

impl Ord for Timed {
    fn cmp(&self, other: &Self) -> Ordering {
        other.seconds.total_cmp(&self.seconds).then(other.count.cmp(&self.count))
    }
}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timed {}
