//! Data-parallel training for [Burn](https://burn.dev) with gradient compression, for any network.
//!
//! Each rank trains a replica of the model on its share of the data. Between `backward` and the optimizer's step the ranks
//! average their gradients, compressed if the configuration says so. The algorithms that most runs need are in [`briquette_core`], re-exported as
//! `core`; this crate connects them to Burn 0.22. Simulated networks are in [`briquette_sim`], re-exported as `sim`.
//!
//! # Difference from plain Burn
//!
//! ```diff
//!  let optim = SgdConfig::new().init();
//! +let mut optim = DistributedOptimizer::auto(optim, session, 42);
//! +let mut model = optim.join(model)?;
//!  for batch in shard {
//!      let loss = model.loss(batch);
//!      let grads = GradientsParams::from_grads(loss.backward(), &model);
//! -    model = optim.step(lr, model, grads);
//! +    model = optim.step(lr, model, grads)?;
//!  }
//! ```
//!
//! `session` is this rank's [`Session`](briquette_core::Session), its connection to the other ranks. [`run`] creates it:
//! `briquette::run(4, |session| …)` trains on four threads or, if a launcher started this process, on the processes of the launcher's world.
//! Configuration and seed must be the same on every rank.
//!
//! [`auto`](DistributedOptimizer::auto) chooses the compression ratio at run time ([`DistributedConfig::auto`]). It times one
//! or two compression ratios, predicts the times of the others, and reads the losses passed to [`record_loss`](DistributedOptimizer::record_loss). It also probes the optimizer that it
//! wraps. SGD with momentum gets momentum correction ([`inner-momentum`](briquette_core::wrapper::inner_momentum::InnerMomentum)), with its
//! own momentum and weight decay unchanged; any other optimizer gets error feedback. After training,
//! [`summary`](DistributedOptimizer::summary) reports in one line the traffic and the time saved. To choose the algorithm yourself, pass a
//! [`DistributedConfig`] to [`new`](DistributedOptimizer::new).
//!
//! # Overview
//!
//! - [`DistributedOptimizer`]: a `ModuleOptimizer`, including parameter groups, with a gradient exchange before each step.
//! - [`Synchronizer`]: the exchange without the optimizer, for code in which something else owns the optimizer. It also has
//!   collective stop requests, averages of BatchNorm's statistics, and the [`StepReport`] with traffic, gain, compression ratio
//!   and seconds.
//! - `DataParallel` (feature `train`): a strategy for Burn's own `SupervisedTraining`.
//! - [`ServerTraining`]: asynchronous training; rank 0 is the server and the other ranks are workers.
//! - [`Compressed`]: compression with error feedback in a single process, to measure its effect on accuracy.
//! - [`Checkpoint`], [`WorldChange`], [`SaveReport`]: saving (also [in the
//!   background](DistributedOptimizer::with_background_saving)) and resuming. A resumed run is bit-identical if it has the same number of ranks;
//!   with `auto`, only on a deterministic clock.
//! - [`Backend`]: the backend and device of a model, chosen by name at run time; ranks of one world [may use different
//!   backends](Synchronizer::with_rebroadcast).
//! - [`strategy`]: user-defined algorithms.
//! - [`optim`]: optimizers that Burn does not have; they also work without other ranks.
//! - [`DistributedConfig`]: the configuration: whether gradients or parameters are exchanged, their compression, and its
//!   controller.
//! - `ShardedDataLoaderBuilder` (feature `data`): a data loader for one rank's share of the data.
//! - [`prelude`]: the imports of most programs.
//! - [`run`]: starts ranks; [`run_elastic`]: starts the ranks of an elastic world, which continues when a rank is lost; [`Run`]: the same with
//!   timeouts and ports. To start ranks yourself, use [`Local`](briquette_core::comm::Local) for threads or `tcp` (feature
//!   `tcp`) for processes. Add a [`WallClock`] if seconds are needed, because `briquette_core` reads no clock.
//!
//! # Choosing a configuration
//!
//! | situation | use |
//! |---|---|
//! | no preference | [`auto`](DistributedOptimizer::auto), with [`record_loss`](DistributedOptimizer::record_loss) |
//! | a fast network, or a small model | [`DistributedConfig::dense`]: compression would cost more time than it saves |
//! | SGD with momentum and a slow network | [`DistributedConfig::top_k_momentum`], the inner optimizer without momentum, [`with_local_weight_decay`](DistributedOptimizer::with_local_weight_decay) |
//! | Adam, or any other optimizer, and a slow network | [`DistributedConfig::top_k_q8`]: top-k with error feedback |
//! | top-k at an unknown compression ratio | the controller `gravac` of `zoo`, [`record_loss`](DistributedOptimizer::record_loss) |
//! | many ranks | `power-sgd` or `shared-random-k`: the bytes per rank do not grow with the number of ranks |
//! | a very slow network | `DistributedConfig::local_sgd` averages parameters every `H` steps, `diloco` takes an outer step every 100 (fewer in short runs); call [`average_parameters`](DistributedOptimizer::average_parameters) before evaluating |
//! | uneven batches | [`record_samples`](DistributedOptimizer::record_samples) on every rank, 0 on a rank whose data has ended |
//! | ranks of different speed | [`ServerTraining`]: a server and workers that do not wait for each other |
//! | Burn's `SupervisedTraining` | `DataParallel` |
//! | slow exchanges and idle cores | [`during_backward`](briquette_core::config::Exchange::during_backward) and [`forward_model`](DistributedOptimizer::forward_model): buckets are sent while the backward pass computes the next ones |
//! | a prediction for another network | [`Simulated`](briquette_sim::Simulated) |
//! | one process | [`Compressed`] |
//!
//! # Cargo features
//!
//! By default only `flex` (Burn's CPU backend) and `tcp` (ranks that are processes) are enabled.
//!
//! | feature | adds |
//! |---|---|
//! | `data` | `ShardedDataLoaderBuilder` |
//! | `train` | `DataParallel` for Burn's `SupervisedTraining`; includes `data` |
//! | `overlap-backward` | exchanges during the backward pass; without it they start after the pass, with a warning |
//! | `rayon` | `Pool`, and the setting `threads` |
//! | `zoo` | `zoo`: further algorithms from the literature; configuration texts can name them after `zoo::install()` |
//! | `metrics` | `StepReport::record_metrics`, for the `metrics` facade |
//! | `wgpu`, `vulkan`, `metal`, `cuda`, `tch`, `ndarray` | other backends; `fusion` and `autotune` for GPUs |
//! | `testing` | the laws as functions, for tests of your own algorithms |
//! | `guide` | the book, as modules of this documentation |
//!
//! The book (getting started, coming from DDP, common mistakes, and measurements) is the module
#![cfg_attr(feature = "guide", doc = "[`guide`].")]
#![cfg_attr(
    not(feature = "guide"),
    doc = "`guide` under the feature of that name, and the folder `docs` of the repository."
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod best;
mod checkpoint;
mod clock;
mod compressed;
pub mod data;
#[cfg(feature = "train")]
pub mod data_parallel;
mod during_backward;
mod error;
mod flat;
#[cfg(feature = "guide")]
pub mod guide;
mod handshake;
mod momenta;
pub mod optim;
mod optimizer;
#[cfg(feature = "rayon")]
mod pool;
pub mod prelude;
mod probe;
mod randomness;
mod run;
mod server;
mod step_report;
pub mod strategy;
mod summary;
mod synchronizer;

pub use briquette_core as core;
pub use briquette_core::config::Config as DistributedConfig;
pub use briquette_sim as sim;
#[cfg(feature = "tcp")]
pub use briquette_tcp as tcp;
#[cfg(feature = "zoo")]
pub use briquette_zoo as zoo;

pub use backend::{Backend, BackendError, FoundDevice};
pub use best::BestModel;
pub use checkpoint::{Checkpoint, SaveReport, WorldChange};
pub use clock::WallClock;
pub use compressed::{Compressed, CompressedState};
#[cfg(feature = "train")]
pub use data_parallel::DataParallel;
pub use error::{Error, StepError};
pub use optimizer::DistributedOptimizer;
#[cfg(feature = "rayon")]
pub use pool::Pool;
pub use randomness::Randomness;
pub use run::{Run, RunError, run, run_elastic, was_stopped};
pub use server::ServerTraining;
pub use step_report::{Arrival, NewGeneration, StepReport};
pub use summary::RunSummary;
pub use synchronizer::{REBROADCAST_STEPS, REPLICA_CHECK_STEPS, Synchronizer};
