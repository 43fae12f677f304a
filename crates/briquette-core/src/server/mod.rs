//! Training without lock step: one rank keeps the model, the others compute for it at their own pace.
//!
//! ```text
//! server:  model of version v ──assignment──► worker: gradient at it ──contribution──► judge ──► update: version v + 1
//! ```
//!
//! A [`Policy`] decides what a worker computes next, which contributions count, and how many make an update. [`Server`] is what policies have
//! in common, a state machine without clock, threads or sockets: a contribution in, replies out. [`serve`] and [`work`] drive it over a
//! [`Session`](crate::Session).
//!
//! | policy | an update is made of | a contribution counts if |
//! |---|---|---|
//! | [`async_sgd`] | one gradient | always |
//! | [`picky`] | one gradient | the model has not moved far since |
//! | [`backup`] | `N` of `N + b` gradients | it is of this version |
//! | [`async_local_sgd`] | one rank's local steps | always |
//! | [`async_lsgd`] | one rank's local steps, of a model of its own | always |
//! | [`synthesis`] | one difference of gradients, or all ranks' full gradients | it is of this epoch, and not too late |
//! | [`qsvrg`] | all ranks' differences of gradients, or their full gradients | it is of this version |
//!
//! **Who waits.** A worker whose contribution is in an update waits for that update: for nobody where one contribution makes it, and for the
//! slowest of those that are needed under [`backup`] and [`qsvrg`], and at the start of an epoch of [`synthesis`]. The server waits for those that
//! compute.
//!
//! **Determinism.** What is made of contributions depends on the order in which they arrive. Over TCP that order differs between runs, and so do
//! results. On a [simulated](crate::comm::Simulated) network with given compute times it follows from simulated seconds: a run is
//! reproducible to the bit. The sum of several contributions does not depend on their order: it is taken by rank.
//!
//! **Pauses and checkpoints.** [`serve`] ends at a version with every worker idle: all wait for the slowest, and contributions that come after
//! that version do not count. What there is then is a consistent world: the server's model, optimizer and policy, and each worker's residual
//! and count of batches. A pause is part of what happens in a run: all workers begin anew at one version, so a run that pauses is another run
//! than one that does not. That is true of every save, be it at an epoch's end, every so many updates or by Ctrl-C. So only a pause that was
//! planned resumes to the bit, and only where the order of arrival is simulated: the run that pauses at a version and goes on, and the one that is
//! resumed from what was saved there, are the same.
//!
//! **A memory** of a worker ([`Uplink`]) keeps what its messages left out. What becomes of a message that did not count is the policy's to say
//! ([`Policy::puts_back`]): one that came too late for its update waits in the memory; one that was refused for where it was taken must
//! not, as it would travel with the next. [`synthesis`] and [`qsvrg`] allow no memory: a difference is of use in its epoch alone.
//!
//! **On the wire.** An assignment is 14 bytes and the model in f32, twice that where gradients at two points are asked for; a contribution is 29
//! bytes and a [message](crate::Message): `docs/wire.md`.
//!
//! **Failure.** A rank that fails, the server included, stops the world as everywhere: the others' errors name it. A worker that leaves without a
//! word is named by the server when what is left cannot make an update, and at the latest when all are to be idle. One that hangs is
//! named by the server at its deadline; those that wait for the server have [more patience](PATIENCE).

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
mod shelf;
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
pub use shelf::Shelf;
pub use state::{Contribution, Reply, Served, Server};
pub use synthesis::SynthesisConfig;
pub use uplink::Uplink;

use std::sync::Arc;

use crate::config::Described;
use crate::error::ConfigError;

/// Local steps of a worker between two contributions: the server waits for them, and a worker that is asked to stop takes them all.
const MOST_STEPS: u32 = 10_000;

/// What a worker computes from the model that it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// The gradient of its next batch.
    Gradient,
    /// So many steps of its own optimizer: how far they led, `x − x_end`.
    Steps(u32),
    /// The gradient of its next batch at the model, less that of the same batch at the model before.
    Difference,
    /// The gradient of all its data.
    Full,
    /// The same, which its message says exactly, whatever the compressor.
    Exact,
}

/// What became of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is in an update, or will be.
    Accepted,
    /// The model is of another version by now.
    Late,
    /// The model has moved too far since.
    Far,
}

/// A contribution, as far as it is judged.
pub struct Arrival<'a> {
    /// Of the model that it was computed from.
    pub version: u64,
    /// Of the model by now.
    pub now: u64,
    /// `‖x_now − x_version‖`.
    pub distance: &'a dyn Fn() -> f64,
}

impl std::fmt::Debug for Arrival<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Arrival(of version {} at {})", self.version, self.now)
    }
}

/// How an update is applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Update {
    /// The server's optimizer steps with it, as with a gradient.
    Optimizer,
    /// It is subtracted, times this.
    Subtract(f32),
    /// Workers have models of their own, and [`Policy::follow`] says where they go on from. A quorum of one.
    Follow,
}

/// What a server does with what comes. Versions count updates from 0.
pub trait Policy: std::fmt::Debug + Send {
    /// What a worker computes from the model of this version.
    fn task(&self, _version: u64) -> Task {
        Task::Gradient
    }

    /// Whether a contribution counts.
    fn judge(&self, arrival: &Arrival<'_>) -> Verdict;

    /// How many contributions make the update of this version. A worker whose contribution is in it waits for it.
    fn quorum(&self, _version: u64) -> usize {
        1
    }

    /// All workers begin at the server's model: at the start of a run, and after a pause.
    fn begin(&mut self) {}

    /// A worker whose model is its own has come to `own`, with this mean loss on its way. `own` becomes where it goes on from; the answer is the
    /// server's model then.
    fn follow(&mut self, _worker: usize, own: &mut Vec<f32>, _loss: f64) -> Arc<Vec<f32>> {
        Arc::new(own.clone())
    }

    /// Makes what is applied at this version of the mean of the contributions, weighed by their samples.
    fn direct(&mut self, _mean: &mut [f32], _version: u64) {}

    /// How it is applied.
    fn update(&self) -> Update {
        Update::Optimizer
    }

    /// Whether a worker that remembers is to send what did not count once more, with its next contribution.
    fn puts_back(&self) -> bool {
        false
    }

    /// Whether it asks for differences from the model before, which is saved then.
    fn looks_back(&self) -> bool {
        false
    }

    /// Returns whether the next differences are taken from the model of this version. Otherwise they are taken from the same one as before.
    fn marks(&self, _version: u64) -> bool {
        true
    }

    /// What it remembers between updates, one vector, empty at first.
    fn memory(&mut self) -> Option<&mut Vec<f32>> {
        None
    }
}

/// Settings of a policy.
pub trait PolicySettings: std::fmt::Debug {
    /// For a server of this many workers.
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, workers: usize) -> Result<Box<dyn Policy>, ConfigError>;

    /// Whether workers may remember what their messages leave out.
    fn allows_memory(&self) -> bool {
        true
    }

    /// Returns whether workers compute gradients over all their data, which must therefore be a finite set of samples.
    fn takes_all_data(&self) -> bool {
        false
    }

    /// Batches that an update with `workers` workers takes, but for what it takes of all data.
    fn batches_of_an_update(&self, _workers: usize) -> u64 {
        1
    }
}

/// That settings are in their ranges, and that there is a worker.
fn check<S: Described>(settings: &S, workers: usize) -> Result<(), ConfigError> {
    settings.check()?;
    if workers == 0 {
        let why = format!("server {} has one rank that does not train: use at least 2 ranks", S::NAME);
        return Err(ConfigError::Conflict(why));
    }
    Ok(())
}
