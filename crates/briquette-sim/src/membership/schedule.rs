//! Schedules of an elastic world: losses, returns, slow machines and divided networks.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use briquette_core::Key;
use briquette_core::error::ConfigError;

use super::bounded;
use crate::paces::seconds;

/// Maximum number of draws of a schedule.
const MOST: f64 = 1e7;
const FORM: &str =
    "incidents at seconds such as `12s lost 3;13s vanished 5;72s joins 3;100s slow 4x3;200s split 0-3,7;230s heals`";

/// A change at one moment. Machines are numbered like the ranks of the first generation.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// The process on this machine is killed. The system closes its connections.
    Lost(usize),
    /// This machine vanishes. Its connections stay open and silent.
    Vanished(usize),
    /// A new process on this machine asks to become a member.
    Joins(usize),
    /// Steps take this many times as long on this machine from now on, also after a return.
    Slow(usize, f64),
    /// The network between these machines and the others is down.
    Split(Vec<usize>),
    /// The network is whole again.
    Heals,
}

impl Change {
    /// Returns the machines that it names.
    fn machines(&self) -> &[usize] {
        match self {
            Change::Lost(machine) | Change::Vanished(machine) | Change::Joins(machine) | Change::Slow(machine, _) => {
                std::slice::from_ref(machine)
            }
            Change::Split(machines) => machines,
            Change::Heals => &[],
        }
    }
}

/// A change with its time.
#[derive(Debug, Clone, PartialEq)]
pub struct Incident {
    /// Seconds from the start of the simulation.
    pub seconds: f64,
    /// The change.
    pub change: Change,
}

/// Incidents in the order of their times.
///
/// As text they are separated by `;`. Times are in `s` or `ms`.
///
/// | part | meaning |
/// |---|---|
/// | `12s lost 3` | the process on machine 3 is killed |
/// | `12s vanished 3` | machine 3 vanishes, and its connections stay open |
/// | `72s joins 3` | a new process on machine 3 asks to become a member |
/// | `80s slow 4x2.5` | steps take 2.5 times as long on machine 4; `slow 4x1` ends this |
/// | `90s split 0-3,7` | machines 0 to 3 and 7 do not reach the others |
/// | `95s heals` | the network is whole again |
///
/// ```
/// use briquette_sim::membership::Schedule;
///
/// let schedule: Schedule = "12s lost 3;72s joins 3".parse()?;
/// assert_eq!(schedule.incidents()[1].seconds, 72.0);
/// assert_eq!(schedule.to_string(), "12s lost 3;72s joins 3");
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Schedule {
    incidents: Vec<Incident>,
}

/// Random losses of single machines, each of which returns after a delay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failures {
    /// Number of machines.
    pub ranks: usize,
    /// Mean seconds between two losses in the whole world; the time between two is exponentially distributed.
    pub mean_seconds: f64,
    /// Seconds from a loss until a new process on the machine asks to become a member.
    pub back_after: f64,
    /// Share of losses in which the machine vanishes. In the others the process is killed.
    pub vanished_share: f64,
    /// End of the schedule in seconds.
    pub seconds: f64,
    /// Seed of the draws.
    pub seed: u64,
}

impl Schedule {
    /// Creates a schedule.
    ///
    /// # Errors
    /// [`ConfigError::Range`] if a time is not a number from 0 to 10⁶ s or before the time of the previous incident, or a factor is
    /// not from 1 to 1000.
    pub fn new(incidents: Vec<Incident>) -> Result<Self, ConfigError> {
        let mut last = 0.0;
        for Incident { seconds, change } in &incidents {
            bounded("seconds of an incident", *seconds)?;
            ConfigError::unless(*seconds >= last, "seconds of incidents", "in ascending order", seconds)?;
            last = *seconds;
            if let Change::Slow(_, factor) = change {
                let is_bounded = (1.0..=1000.0).contains(factor);
                ConfigError::unless(is_bounded, "factor of a slow machine", "from 1 to 1000", factor)?;
            }
        }
        Ok(Schedule { incidents })
    }

    /// Draws a schedule. A machine that is absent is not lost again. The same settings give the same schedule.
    ///
    /// # Errors
    /// [`ConfigError::Range`] for no machine, seconds that are not from 0 to 10⁶, a mean of 0 s, a share that is not from 0 to 1, or
    /// more than 10⁷ losses.
    pub fn drawn(failures: &Failures) -> Result<Self, ConfigError> {
        let Failures { ranks, mean_seconds, back_after, vanished_share, seconds, seed } = *failures;
        ConfigError::unless(ranks > 0, "ranks of a simulated world", "at least 1", ranks)?;
        bounded("seconds of a schedule", seconds)?;
        bounded("seconds until a lost machine returns", back_after)?;
        let is_drawable = mean_seconds > 0.0 && mean_seconds.is_finite() && seconds / mean_seconds <= MOST;
        let what = "mean seconds between failures";
        ConfigError::unless(is_drawable, what, "above 0 s, with at most 10000000 failures", mean_seconds)?;
        let is_share = (0.0..=1.0).contains(&vanished_share);
        ConfigError::unless(is_share, "share of vanished machines", "from 0 to 1", vanished_share)?;
        let key = Key::new(seed).purpose("failures");
        // In (0, 1).
        let uniform = |index| ((key.word(index) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        let mut present: Vec<usize> = (0..ranks).collect();
        let (mut away, mut incidents, mut now) = (VecDeque::new(), Vec::new(), 0.0);
        for draw in 0.. {
            now -= mean_seconds * uniform(3 * draw).ln();
            while let Some((back, machine)) = away.pop_front_if(|(back, _): &mut (f64, usize)| *back < now.min(seconds))
            {
                incidents.push(Incident { seconds: back, change: Change::Joins(machine) });
                present.push(machine);
            }
            if now >= seconds {
                break;
            }
            if present.is_empty() {
                continue;
            }
            let machine = present.swap_remove((uniform(3 * draw + 1) * present.len() as f64) as usize);
            let vanishes = uniform(3 * draw + 2) < vanished_share;
            let change = if vanishes { Change::Vanished(machine) } else { Change::Lost(machine) };
            incidents.push(Incident { seconds: now, change });
            away.push_back((now + back_after, machine));
        }
        Schedule::new(incidents)
    }

    /// Returns the incidents in order.
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// Checks the incidents in a world of `machines` machines.
    pub(super) fn check(&self, ranks: usize) -> Result<(), ConfigError> {
        let (mut away, mut is_split) = (BTreeSet::new(), false);
        for incident in &self.incidents {
            let Incident { change, .. } = incident;
            let got = || incident.to_string();
            let is_known = change.machines().iter().all(|machine| *machine < ranks);
            ConfigError::unless(is_known, "machine of an incident", "below the number of ranks", got())?;
            match change {
                Change::Lost(machine) | Change::Vanished(machine) => {
                    let was_present = away.insert(*machine);
                    ConfigError::unless(was_present, "lost machine", "one that is present", got())?;
                }
                Change::Joins(machine) => {
                    let was_away = away.remove(machine);
                    ConfigError::unless(was_away, "joining machine", "one that was lost", got())?;
                }
                Change::Slow(..) => {}
                Change::Split(part) => {
                    let is_whole = !std::mem::replace(&mut is_split, true);
                    ConfigError::unless(is_whole, "split", "of a network that is whole", got())?;
                    ConfigError::unless(!part.is_empty(), "part of a split", "at least one machine", got())?;
                }
                Change::Heals => {
                    let was_split = std::mem::replace(&mut is_split, false);
                    ConfigError::unless(was_split, "heals", "after a split", got())?;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Incident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}s ", self.seconds)?;
        match &self.change {
            Change::Lost(machine) => write!(f, "lost {machine}"),
            Change::Vanished(machine) => write!(f, "vanished {machine}"),
            Change::Joins(machine) => write!(f, "joins {machine}"),
            Change::Slow(machine, factor) => write!(f, "slow {machine}x{factor}"),
            Change::Split(part) => {
                let part: Vec<String> = part.iter().map(usize::to_string).collect();
                write!(f, "split {}", part.join(","))
            }
            Change::Heals => f.write_str("heals"),
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.incidents.iter().enumerate().try_for_each(|(at, incident)| {
            let separator = if at == 0 { "" } else { ";" };
            write!(f, "{separator}{incident}")
        })
    }
}

impl FromStr for Schedule {
    type Err = ConfigError;

    /// Parses the text form; an empty text has no incident.
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let parts = text.split(';').filter(|_| !text.trim().is_empty());
        let parse = |part: &str| incident(part).ok_or_else(|| ConfigError::range("schedule", FORM, part));
        Schedule::new(parts.map(parse).collect::<Result<_, _>>()?)
    }
}

fn incident(text: &str) -> Option<Incident> {
    let mut words = text.split_whitespace();
    let time = seconds(words.next()?)?;
    let (name, value) = (words.next()?, words.next());
    let machine = || value?.parse::<usize>().ok();
    let change = match name {
        "lost" => Change::Lost(machine()?),
        "vanished" => Change::Vanished(machine()?),
        "joins" => Change::Joins(machine()?),
        "slow" => {
            let (machine, factor) = value?.split_once('x')?;
            Change::Slow(machine.parse().ok()?, factor.parse().ok()?)
        }
        "split" => Change::Split(part(value?)?),
        "heals" if value.is_none() => Change::Heals,
        _ => return None,
    };
    words.next().is_none().then_some(Incident { seconds: time, change })
}

/// Parses machines such as `0-3,7`.
fn part(text: &str) -> Option<Vec<usize>> {
    let mut machines = BTreeSet::new();
    for range in text.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // A range from a text must not take all memory.
        if first > last || last > 1_000_000 {
            return None;
        }
        machines.extend(first..=last);
    }
    Some(machines.into_iter().collect())
}
