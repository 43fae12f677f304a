//! Asynchronous training with a parameter server: one rank, the server, holds the model. The other ranks, the workers,
//! compute contributions to it at their own speed.
//!
//! ```text
//! server:  model of version v ──assignment──► worker: gradient at it ──contribution──► judge ──► update: version v + 1
//! ```
//!
//! A [`Policy`] decides what a worker computes next, which contributions count, and how many of them make an update.
//! [`Server`] is the part that all policies share: a state machine without clock, threads or sockets that takes a contribution
//! and returns replies. [`serve`] and [`work`] drive server and workers over a [`Session`](crate::Session).
//!
//! Policies (all but the first are in `briquette-zoo`):
//!
//! | policy | content of an update | a contribution counts if |
//! |---|---|---|
//! | [`async_sgd`] | one gradient | always |
//! | `picky` | one gradient | the model has moved little since the version from which it was computed |
//! | `backup` | `N` of `N + b` gradients | it was computed from the current version |
//! | `async_local_sgd` | one rank's local steps | always |
//! | `decoupled_diloco` | local steps of at least `q` ranks, and of those that arrive in a grace window | always |
//! | `async_lsgd` | one rank's local steps from its own model | always |
//! | `synthesis` | one gradient difference, or all ranks' full gradients | it belongs to the current epoch and is not too late |
//! | `qsvrg` | all ranks' gradient differences, or their full gradients | it was computed from the current version |
//!
//! **Waiting.** A worker whose contribution is part of an update waits until the update is complete. It does not wait if
//! one contribution makes an update. Under `backup` and `qsvrg`, and at the start of an epoch of `synthesis`, it waits for
//! the slowest required worker. The server waits for workers that compute.
//!
//! **Determinism.** Updates depend on the order in which contributions arrive. Over TCP this order, and with it the result,
//! differs between runs. On a simulated network (`briquette-sim`) with given compute times the order follows from simulated
//! time, so a run is reproducible to the bit. Several contributions to one update are summed in rank order, whatever order they
//! arrived in.
//!
//! **Pauses and checkpoints.** [`serve`] ends at a given version, with every worker idle: all workers wait for the slowest,
//! and contributions that arrive after that version do not count. The state is then consistent: the server's model, optimizer
//! and policy, and each worker's residual and batch count. A pause changes the run, because all workers restart from one
//! version. This holds for every save, whether at the end of an epoch, after a fixed number of updates, or on Ctrl-C. A
//! resumed run is therefore bit-identical only to a run that paused at the same version and continued, and only on a simulated
//! network.
//!
//! **Residual.** A worker's error feedback ([`Uplink`]) keeps as the residual what compression omits from its messages. If a
//! message does not count, the policy decides what happens to it ([`Policy::puts_back`]). A message that was too late for its
//! update returns to the residual. A message that was rejected because the model has moved too far must not, because the next
//! message would contain it. `synthesis` and `qsvrg` allow no error feedback, because a difference is useful only in its epoch.
//!
//! **On the wire.** An assignment is 14 bytes and the model in f32; it has two models if gradients at two points are
//! requested. A contribution is 29 bytes and a [message](crate::Message). See `docs/wire.md`.
//!
//! **Failure.** If a rank fails, including the server, the process group stops, and the other ranks' errors name the failed
//! rank. If a worker disconnects silently, the server names it when the remaining workers cannot make an update, and at the
//! latest when all workers must become idle. If a worker hangs, the server names it after its timeout. Ranks that wait for the
//! server have a [longer timeout](PATIENCE).

pub mod async_sgd;
mod drive;
mod saved;
mod state;
mod uplink;
mod wire;

pub use drive::{Batch, Computed, PATIENCE, Trainer, serve, work};
pub use saved::ServerState;
pub use state::{Contribution, Reply, Served, Server};
pub use uplink::Uplink;

use std::sync::Arc;

use crate::error::{ConfigError, world_of};
use crate::settings::Described;

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

/// Decision of a policy about a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The contribution is part of an update, or will be.
    Accepted,
    /// The contribution was computed from an older version of the model.
    Late,
    /// The model has moved too far since the version from which the contribution was computed.
    Far,
}

/// Properties of a contribution on which a policy decides.
pub struct Arrival<'a> {
    /// Version of the model from which it was computed.
    pub version: u64,
    /// Current version of the model.
    pub now: u64,
    /// Computes `‖x_now − x_version‖` on request.
    pub distance: &'a dyn Fn() -> f64,
}

impl std::fmt::Debug for Arrival<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arrival(of version {} at {})", self.version, self.now)
    }
}

/// Method of applying an update.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// The server's optimizer steps with the update as the gradient.
    Optimizer,
    /// The update is multiplied by this factor and subtracted.
    Subtract(f32),
    /// Workers have their own models, and [`Policy::follow`] returns the parameters from which they continue. The
    /// quorum must be one.
    Follow,
}

/// Rules by which a server treats contributions. A version is the number of updates so far.
pub trait Policy: std::fmt::Debug + Send {
    /// Returns the task of a worker that receives the model of this version.
    fn task(&self, _version: u64) -> Task {
        Task::Gradient
    }

    /// Returns whether a contribution counts.
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict;

    /// Returns how many contributions make the update of this version, at least. A worker whose contribution is part of the update
    /// waits for it.
    fn quorum(&self, _version: u64) -> usize {
        1
    }

    /// Returns how long the server waits for contributions beyond the quorum, in seconds since the last update. It waits for no worker that does not
    /// compute, and without a clock for none.
    fn grace(&self) -> f64 {
        0.0
    }

    /// Observes the seconds between a worker's assignment and its contribution, which counts.
    fn observe(&mut self, _seconds: f64) {}

    /// Runs when all workers start from the server's model: at the start of a run, and after a pause.
    fn begin(&mut self) {}

    /// Handles a contribution of a worker with its own model. The worker has reached the parameters `own`, with this
    /// mean loss on the way. Sets `own` to the parameters from which the worker continues, and returns the server's new
    /// model.
    fn follow(&mut self, _worker: usize, own: &mut Vec<f32>, _loss: f64) -> Arc<Vec<f32>> {
        Arc::new(own.clone())
    }

    /// Turns the mean of the contributions, weighted by samples, into the update of this version.
    fn direct(&mut self, _mean: &mut [f32], _version: u64) {}

    /// Returns how the update is applied.
    fn update(&self) -> Update {
        Update::Optimizer
    }

    /// Returns whether a worker with error feedback adds a contribution that did not count to its next one.
    fn puts_back(&self) -> bool {
        false
    }

    /// Returns whether the policy requests gradient differences from a previous model. The server then saves that
    /// model.
    fn looks_back(&self) -> bool {
        false
    }

    /// Returns whether the model of this version becomes the one from which later differences are taken. Otherwise the
    /// earlier model stays.
    fn marks(&self, _version: u64) -> bool {
        true
    }

    /// Returns the state that the policy keeps between updates: one vector, empty at first.
    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        None
    }
}

/// Settings of a policy.
pub trait PolicySettings: std::fmt::Debug + std::any::Any + Send + Sync {
    /// Builds the policy for a server with this many workers.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that is not valid.
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError>;

    /// Returns the required number of workers, if only one number works.
    fn workers(&self) -> Option<usize> {
        None
    }

    /// Returns whether workers may use error feedback.
    fn allows_residual(&self) -> bool {
        true
    }

    /// Returns whether workers compute gradients over all their data, which must therefore be a finite set of samples.
    fn requires_all_data(&self) -> bool {
        false
    }

    /// Returns the number of batches that workers compute for an update with `workers` workers, without passes over all
    /// data.
    fn batches_of_an_update(&self, _workers: usize) -> u64 {
        1
    }
}

/// Checks that settings are in their ranges, and that there is at least one worker.
///
/// # Errors
/// [`ConfigError`] for a setting that is out of range, or without workers.
pub fn check<S: Described>(settings: &S, workers: usize) -> Result<(), ConfigError> {
    settings.check()?;
    if workers == 0 {
        let why = "it has one rank that does not train";
        return Err(ConfigError::conflict(format!("server {}", S::NAME), world_of(1), why, "use at least 2 ranks"));
    }
    Ok(())
}
