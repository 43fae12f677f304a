//! Outcome of a simulation.

use std::fmt;

/// Outcome of a simulated elastic world.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Simulated seconds.
    pub seconds: f64,
    /// Number of committed steps.
    pub steps: u64,
    /// Number of generations after the first one.
    pub generations: u64,
    /// Number of lost machines and processes.
    pub losses: u64,
    /// Number of new members that were admitted.
    pub joins: u64,
    /// Number of members that ended because they were in a minority.
    pub minorities: u64,
    /// Number of members and candidates that ended for another reason, such as a session that was not formed.
    pub failures: u64,
    /// Rank-seconds of members in committed steps.
    pub useful: f64,
    /// Rank-seconds of all machines, absent ones included.
    pub total: f64,
    /// Seconds from each loss to the next committed step.
    pub stalls: Vec<f64>,
    /// Seconds from the end of a step at which new members were admitted to the next committed step, without a loss in between.
    pub pauses: Vec<f64>,
    /// Largest number of worlds that trained at the same time. More than one is a violation.
    pub most_worlds: usize,
    /// Number of generations whose members were at different steps. Any is a violation.
    pub divergences: u64,
    /// Number of events that were simulated.
    pub events: u64,
    /// Digest of all events.
    pub digest: u64,
    /// The end of the world, if no member was left before the end of the simulation.
    pub end: Option<WorldEnd>,
    /// Losses, generations and ends, if [`World::records`](super::World::records) is set.
    pub record: Vec<Record>,
}

/// The end of a world.
#[derive(Debug, Clone, PartialEq)]
pub struct WorldEnd {
    /// Time at which the last member ended.
    pub seconds: f64,
    /// The error of the last member, or that all members were lost.
    pub cause: String,
}

/// An entry of the record.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Record {
    /// A machine or process was lost.
    Lost {
        /// Time in seconds.
        seconds: f64,
        /// The machine.
        machine: usize,
    },
    /// A generation was formed.
    Formed {
        /// Time in seconds.
        seconds: f64,
        /// Number of the generation.
        number: u64,
        /// Number of committed steps with which it begins.
        step: u64,
        /// Machines of its members, by rank.
        machines: Vec<usize>,
        /// Number of new members.
        new: usize,
    },
    /// A member ended.
    Ended {
        /// Time in seconds.
        seconds: f64,
        /// The machine.
        machine: usize,
        /// The error.
        cause: String,
    },
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Record::Lost { seconds, machine } => write!(f, "{seconds}s lost {machine}"),
            Record::Formed { seconds, number, step, machines, new } => {
                write!(f, "{seconds}s generation {number} at step {step}: machines {machines:?}, {new} new")
            }
            Record::Ended { seconds, machine, cause } => write!(f, "{seconds}s machine {machine} ended: {cause}"),
        }
    }
}

impl Outcome {
    /// Returns useful rank-seconds divided by all rank-seconds.
    pub fn goodput(&self) -> f64 {
        if self.total > 0.0 { self.useful / self.total } else { 0.0 }
    }

    /// Returns the median and the maximum of the stalls after a loss; `None` without a stall.
    pub fn stall(&self) -> Option<(f64, f64)> {
        median_and_maximum(&self.stalls)
    }

    /// Returns the median and the maximum of the pauses for new members; `None` without a pause.
    pub fn pause(&self) -> Option<(f64, f64)> {
        median_and_maximum(&self.pauses)
    }

    /// Adds an event to the digest.
    pub(super) fn digest(&mut self, words: [u64; 4]) {
        for word in words {
            // FNV-1a, by words instead of bytes.
            self.digest = (self.digest ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(29);
        }
        self.events += 1;
    }
}

fn median_and_maximum(seconds: &[f64]) -> Option<(f64, f64)> {
    let mut sorted = seconds.to_vec();
    sorted.sort_by(f64::total_cmp);
    Some((*sorted.get(sorted.len() / 2)?, *sorted.last()?))
}
