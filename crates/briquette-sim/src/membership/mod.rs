//! Simulated elastic worlds: losses, elections, new members and goodput over simulated time.
//!
//! [`simulate`] runs the [`Election`](briquette_core::membership::Election) of every member on simulated messages and seconds. Training
//! itself is only counted: a step takes as long as its slowest member. Steps between two incidents cost no computing, so a
//! week of training takes seconds to minutes.
//!
//! # Model
//! - **Loss.** The step under way is lost. Survivors notice at the end of their part of it, or after [`World::killed`] or
//!   [`World::vanished`] seconds if that is later. If the loss falls into the vote at the end of a step, some survivors may have committed.
//! - **Election.** Messages take one to two latencies. A call to a killed process is refused, and one to a vanished machine fails after
//!   [`World::unreachable`].
//! - **New session.** It takes [`World::form`] from the arrival of its last member. If a member is lost meanwhile, the others give up after
//!   [`World::form_timeout`].
//! - **New members** are admitted at the end of the next step, and the others wait for the transfer of the state. A process that
//!   cannot go on starts again after [`World::rejoin`].
//! - **Divided network.** A step that needs both parts is interrupted. It continues if the network heals before a member notices.
//!
//! Not simulated: members that are suspended, messages that arrive after a division of the network, and shares of a link.

mod elections;
mod engine;
mod outcome;
mod process;
mod schedule;
mod training;

use briquette_core::error::ConfigError;
use briquette_core::membership::Policy;

pub use outcome::{Outcome, Record, WorldEnd};
pub use schedule::{Change, Failures, Incident, Schedule};

/// Maximum seconds of a simulation and of each setting.
const LONGEST: f64 = 1e6;

/// Settings of a simulated elastic world. All times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct World {
    /// Number of machines, and of ranks of the first generation.
    pub ranks: usize,
    /// Time of a step.
    pub step: f64,
    /// Latency of a message, also of the vote at the end of a step.
    pub latency: f64,
    /// Time after which survivors notice a killed process.
    pub killed: f64,
    /// Time after which survivors notice a vanished machine, or a divided network, by missing heartbeats.
    pub vanished: f64,
    /// Connect timeout: time after which a call to a vanished machine fails.
    pub unreachable: f64,
    /// Time to form the session of a generation.
    pub form: f64,
    /// Time after which a session that is not complete is given up.
    pub form_timeout: f64,
    /// Bytes of the state that a new member receives.
    pub state_bytes: f64,
    /// Bits per second of a link.
    pub bandwidth: f64,
    /// Set if rank 0 sends the state to all other members, one after another; otherwise to new members only, as `briquette-tcp` does.
    pub broadcasts: bool,
    /// Time from the end of a process that cannot go on until its machine asks to be admitted again.
    pub rejoin: f64,
    /// Time after which a candidate that was not admitted asks again.
    pub ask_again: f64,
    /// Minimum number of members, and patience of elections.
    pub policy: Policy,
    /// Seed of delays, and of the survivors that have committed when a vote is interrupted.
    pub seed: u64,
    /// Set to keep the [record](Outcome::record).
    pub records: bool,
}

impl Default for World {
    /// Four ranks with steps of 50 ms, the timeouts of `briquette-tcp`, and 64 MiB of state at 1 Gbit/s.
    fn default() -> Self {
        World {
            ranks: 4,
            step: 0.05,
            latency: 1e-4,
            killed: 1e-3,
            vanished: 30.0,
            unreachable: 5.0,
            form: 0.065,
            form_timeout: 15.0,
            state_bytes: 64.0 * 1024.0 * 1024.0,
            bandwidth: 1e9,
            broadcasts: false,
            rejoin: 10.0,
            ask_again: 10.0,
            policy: Policy::default(),
            seed: 0,
            records: false,
        }
    }
}

impl World {
    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.ranks > 0, "ranks of a simulated world", "at least 1", self.ranks)?;
        let positive = |what, seconds: f64| {
            let is_bounded = seconds > 0.0 && seconds <= LONGEST;
            ConfigError::unless(is_bounded, what, "above 0 s, and at most 1000000 s", seconds)
        };
        let is_step = (1e-3..=LONGEST).contains(&self.step);
        ConfigError::unless(is_step, "step", "from 0.001 s to 1000000 s", self.step)?;
        positive("latency", self.latency)?;
        ConfigError::unless(self.latency <= self.step, "latency", "at most the time of a step", self.latency)?;
        positive("patience", self.policy.patience)?;
        positive("seconds until a candidate asks again", self.ask_again)?;
        bounded("seconds to notice a killed process", self.killed)?;
        bounded("seconds to notice a vanished machine", self.vanished)?;
        bounded("connect timeout", self.unreachable)?;
        bounded("seconds to form a session", self.form)?;
        bounded("seconds until a process starts again", self.rejoin)?;
        let is_later = self.form_timeout > self.form && self.form_timeout <= LONGEST;
        let range = "above the seconds to form a session, and at most 1000000 s";
        ConfigError::unless(is_later, "timeout of forming a session", range, self.form_timeout)?;
        let is_size = (0.0..=1e15).contains(&self.state_bytes);
        ConfigError::unless(is_size, "bytes of the state", "from 0 to 10^15", self.state_bytes)?;
        let is_speed = self.bandwidth > 0.0;
        ConfigError::unless(is_speed, "bandwidth", "above 0 bit/s", self.bandwidth)?;
        let fewest = self.policy.fewest;
        ConfigError::unless(
            (1..=self.ranks).contains(&fewest),
            "minimum number of members",
            "from 1 to the ranks",
            fewest,
        )
    }

    /// Returns the seconds of a hand-over to `new` of `members`.
    fn transfer(&self, new: usize, members: usize) -> f64 {
        let copies = match (new, self.broadcasts) {
            (0, _) => 0,
            (_, true) => members - 1,
            (new, false) => new,
        };
        8.0 * self.state_bytes * copies as f64 / self.bandwidth
    }
}

/// Checks a time.
fn bounded(what: &'static str, seconds: f64) -> Result<(), ConfigError> {
    ConfigError::unless((0.0..=LONGEST).contains(&seconds), what, "from 0 s to 1000000 s", seconds)
}

/// Simulates an elastic world for the given number of seconds. The same arguments give the same outcome, bit for bit.
///
/// # Errors
/// [`ConfigError::Range`] for settings outside their ranges, or a schedule that does not fit the world: an unknown machine, a loss of an
/// absent machine, a return of a present one, or a division of a divided network.
///
/// ```
/// use briquette_sim::membership::{World, simulate};
///
/// let world = World { ranks: 4, step: 0.05, ..World::default() };
/// let outcome = simulate(&world, &"10.02s lost 3;70.02s joins 3".parse()?, 100.0)?;
/// assert_eq!((outcome.generations, outcome.losses, outcome.joins), (2, 1, 1));
/// // Without losses there were 2000 steps.
/// assert_eq!(outcome.steps, 1985);
/// assert_eq!((1e3 * outcome.goodput()).round(), 843.0);
/// # Ok::<_, briquette_core::error::ConfigError>(())
/// ```
pub fn simulate(world: &World, schedule: &Schedule, seconds: f64) -> Result<Outcome, ConfigError> {
    world.check()?;
    let is_bounded = seconds > 0.0 && seconds <= LONGEST;
    ConfigError::unless(is_bounded, "seconds of a simulation", "above 0 s, and at most 1000000 s", seconds)?;
    schedule.check(world.ranks)?;
    Ok(engine::Engine::new(*world, schedule, seconds).run())
}
