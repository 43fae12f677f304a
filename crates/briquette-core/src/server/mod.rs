//! Asynchronous training with a parameter server: one rank keeps the model, and workers compute contributions at their own
//! pace.
//!
//! ```text
//! server:  model of version v ──assignment──► worker: gradient at it ──contribution──► judge ──► update: version v + 1
//! ```
//!
//! A [`Policy`] decides what a worker computes next, which contributions count, and how many make an update. [`Server`] is the
//! part that policies share: a state machine without clock, threads or sockets that takes a contribution and returns replies.
//! [`serve`] and [`work`] drive it over a [`Session`](crate::Session).
//!
//! | policy | an update is made of | a contribution counts if |
//! |---|---|---|
//! | [`async_sgd`] | one gradient | always |
//! | [`picky`] | one gradient | the model has moved little since that version |
//! | [`backup`] | `N` of `N + b` gradients | it is of this version |
//! | [`async_local_sgd`] | one rank's local steps | always |
//! | [`async_lsgd`] | one rank's local steps from its own model | always |
//! | [`synthesis`] | one gradient difference, or all ranks' full gradients | it is of this epoch, and not too late |
//! | [`qsvrg`] | all ranks' gradient differences, or their full gradients | it is of this version |
//!
//! **Waiting.** A worker whose contribution is in an update waits for that update. It does not wait where one contribution
//! makes the update. It waits for the slowest required worker under [`backup`] and [`qsvrg`], and at the start of an epoch of
//! [`synthesis`]. The server waits for the workers that compute.
//!
//! **Determinism.** Updates depend on the order in which contributions arrive. Over TCP that order differs between runs, and so
//! do results. On a [simulated](crate::comm::Simulated) network with given compute times the order follows from simulated time,
//! so a run is reproducible to the bit. The sum of several contributions does not depend on their order: it is taken in rank
//! order.
//!
//! **Pauses and checkpoints.** [`serve`] ends at a version with every worker idle: all wait for the slowest, and contributions
//! that arrive after that version do not count. The state is then consistent: the server's model, optimizer and policy, and
//! each worker's residual and batch count. A pause changes the run, because all workers restart from one version; a run with a
//! pause therefore differs from a run without one. That holds for every save, at the end of an epoch, after a fixed number of
//! updates, or by Ctrl-C. So only a planned pause resumes to the bit, and only where the order of arrival is simulated: a run
//! that pauses at a version and continues equals the run that is resumed from what was saved there.
//!
//! **Residual.** A worker's error feedback ([`Uplink`]) keeps the residual that its messages omit. The policy decides what
//! happens to a message that did not count ([`Policy::puts_back`]). A message that was too late for its update goes back to the
//! residual. One that was rejected because of the model that it was computed at must not, as it would be sent with the next
//! message. [`synthesis`] and [`qsvrg`] allow no error feedback, because a difference is useful only in its epoch.
//!
//! **On the wire.** An assignment is 14 bytes and the model in f32, or the model twice if gradients at two points are
//! requested. A contribution is 29 bytes and a [message](crate::Message). See `docs/wire.md`.
//!
//! **Failure.** A failed rank, the server included, stops the process group as everywhere else, and the others' errors name it.
//! If a worker disconnects silently, the server names it when the remaining workers cannot make an update, and at the latest
//! when all workers are to be idle. If a worker hangs, the server names it at its deadline. Ranks that wait for the server have
//! a [longer timeout](PATIENCE).

pub mod async_local_sgd;
pub mod async_lsgd;
pub mod async_sgd;
pub mod backup;
mod drive;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod golden;
pub mod picky;
pub mod qsvrg;
mod saved;
mod state;
pub mod synthesis;
#[cfg(test)]
mod testkit;
#[cfg(test)]
mod tests;
mod uplink;
mod wire;

pub use async_local_sgd::AsyncLocalSgdConfig;
pub use async_lsgd::AsyncLsgdConfig;
pub use async_sgd::AsyncSgd;
pub use backup::BackupConfig;
pub use drive::{Batch, Computed, PATIENCE, Trainer, serve, work};
pub use picky::PickyConfig;
pub use qsvrg::QsvrgConfig;
pub use saved::ServerState;
pub use state::{Contribution, Reply, Served, Server};
pub use synthesis::SynthesisConfig;
pub use uplink::Uplink;

use std::sync::Arc;

use crate::config::Described;
use crate::error::{ConfigError, world_of};

/// Maximum number of local steps of a worker between two contributions. The server waits for them, and a worker that is asked
/// to stop finishes them.
const MOST_STEPS: u32 = 10_000;

/// Computation that a worker performs on the model that it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// The gradient of its next batch.
    Gradient,
    /// This many steps of the worker's own optimizer; the result is the change `x − x_end`.
    Steps(u32),
    /// The gradient of the next batch at the model, minus that of the same batch at the previous model.
    Difference,
    /// The gradient over all of the worker's data.
    Full,
    /// The gradient over all of the worker's data, sent exactly, whatever the compressor.
    Exact,
}

/// Verdict on a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The contribution is in an update, or will be.
    Accepted,
    /// The model is of a newer version.
    Late,
    /// The model has moved too far since that version.
    Far,
}

/// A contribution, reduced to the values it is judged by.
pub struct Arrival<'a> {
    /// Version of the model that it was computed from.
    pub version: u64,
    /// Current version of the model.
    pub now: u64,
    /// `‖x_now − x_version‖`.
    pub distance: &'a dyn Fn() -> f64,
}

impl std::fmt::Debug for Arrival<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arrival(of version {} at {})", self.version, self.now)
    }
}

/// Application of an update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The server's optimizer steps with the update, as with a gradient.
    Optimizer,
    /// The update is multiplied by this factor and subtracted.
    Subtract(f32),
    /// Workers have their own models, and [`Policy::follow`] returns where they continue from. The quorum is one.
    Follow,
}

/// Rules by which a server treats contributions. Versions count updates from 0.
pub trait Policy: std::fmt::Debug + Send {
    /// Returns what a worker computes from the model of this version.
    fn task(&self, _version: u64) -> Task {
        Task::Gradient
    }

    /// Returns whether a contribution counts.
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict;

    /// Returns how many contributions make the update of this version. A worker whose contribution is in it waits for it.
    fn quorum(&self, _version: u64) -> usize {
        1
    }

    /// Runs when all workers start from the server's model: at the start of a run, and after a pause.
    fn begin(&mut self) {}

    /// Handles a worker with its own model, which has reached `own` with this mean loss on the way. Sets `own` to the
    /// parameters that the worker continues from, and returns the server's model at that point.
    fn follow(&mut self, _worker: usize, own: &mut Vec<f32>, _loss: f64) -> Arc<Vec<f32>> {
        Arc::new(own.clone())
    }

    /// Turns the mean of the contributions, weighted by their samples, into the update that is applied at this version.
    fn direct(&mut self, _mean: &mut [f32], _version: u64) {}

    /// Returns how the update is applied.
    fn update(&self) -> Update {
        Update::Optimizer
    }

    /// Returns whether a worker with error feedback adds a contribution that did not count to its next one.
    fn puts_back(&self) -> bool {
        false
    }

    /// Returns whether the policy requests differences from the previous model, which is then saved.
    fn looks_back(&self) -> bool {
        false
    }

    /// Returns whether the next differences are taken from the model of this version. Otherwise they are taken from the same
    /// one as before.
    fn marks(&self, _version: u64) -> bool {
        true
    }

    /// State that the policy keeps between updates: one vector, empty at first.
    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        None
    }
}

/// Settings of a policy.
pub trait PolicySettings: std::fmt::Debug {
    /// Builds the policy for a server with this many workers.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that is not valid.
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError>;

    /// Returns whether workers may use error feedback.
    fn allows_residual(&self) -> bool {
        true
    }

    /// Returns whether workers compute gradients over all their data, which must therefore be a finite set of samples.
    fn requires_all_data(&self) -> bool {
        false
    }

    /// Returns the number of batches that an update with `workers` workers takes, not counting passes over all data.
    fn batches_of_an_update(&self, _workers: usize) -> u64 {
        1
    }
}

/// Checks that settings are in their ranges, and that there is a worker.
fn check<S: Described>(settings: &S, workers: usize) -> Result<(), ConfigError> {
    settings.check()?;
    if workers == 0 {
        let why = "it has one rank that does not train";
        return Err(ConfigError::conflict(format!("server {}", S::NAME), world_of(1), why, "use at least 2 ranks"));
    }
    Ok(())
}
