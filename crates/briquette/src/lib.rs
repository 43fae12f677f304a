//! Data-parallel training for [Burn](https://burn.dev) with gradient compression, for any network.
//!
//! Each rank trains a replica of the model on its share of the data. Between `backward` and the optimizer's step the ranks
//! average their gradients; they may compress what they send. The algorithms are in [`briquette_core`], re-exported as `core`;
//! this crate connects them to Burn 0.22.
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
//! `session` is this rank's [`Session`](briquette_core::Session), from [`run`]: `briquette::run(4, |session| …)` trains on four
//! threads, or, if a launcher started this process, on the processes of its world. [`auto`](DistributedOptimizer::auto) chooses
//! the compression ratio at run time ([`DistributedConfig::auto`]): it times dense and compressed steps, reads the losses given
//! to [`record_loss`](DistributedOptimizer::record_loss), and probes the optimizer that it wraps. SGD with momentum gets momentum
//! correction ([`Feedback::InnerMomentum`](briquette_core::config::Feedback)), with its own momentum and weight decay unchanged;
//! any other optimizer gets error feedback. After training, [`summary`](DistributedOptimizer::summary) reports in one line the
//! traffic and the time saved. To choose the algorithm yourself, pass a [`DistributedConfig`] to
//! [`new`](DistributedOptimizer::new). Configuration and seed must be the same on every rank.
//!
//! # Overview
//!
//! - [`DistributedOptimizer`]: a `ModuleOptimizer`, including parameter groups, with a gradient exchange before each step.
//! - [`Synchronizer`]: the exchange alone, for code in which something else owns the optimizer; also a collective stop request,
//!   averages of BatchNorm's statistics, and the [`StepReport`] with traffic, gain, compression ratio and seconds.
//! - `DataParallel` (feature `train`): a strategy for Burn's own `SupervisedTraining`.
//! - [`ServerTraining`]: asynchronous training; rank 0 is the server and the other ranks are workers.
//! - [`Compressed`]: compression with error feedback in a single process, to measure its effect on accuracy.
//! - [`Checkpoint`], [`WorldChange`], [`SaveReport`]: saving (also
//!   [in the background](DistributedOptimizer::with_background_saving)) and resuming, bit for bit in a world of the same size.
//! - [`Backend`]: the backend and device of a model, chosen by name at run time; ranks of one world
//!   [may use different backends](Synchronizer::with_rebroadcast).
//! - [`strategy`]: user-defined algorithms.
//! - [`optim`]: optimizers that Burn does not have; they also work without other ranks.
//! - [`DistributedConfig`]: the exchanged content (gradients or parameters), its compression, and its controller.
//! - `ShardedDataLoaderBuilder` (feature `data`): a data loader of a rank's share.
//! - [`prelude`]: the imports of most programs.
//! - [`run`]: starts ranks. To start them yourself: [`Local`](briquette_core::comm::Local) for threads, `tcp` (feature of that
//!   name) for processes, with [`WallClock`] where seconds are needed, because core reads no clock.
//!
//! # Choosing a configuration
//!
//! | situation | use |
//! |---|---|
//! | no preference | [`auto`](DistributedOptimizer::auto), [`record_loss`](DistributedOptimizer::record_loss) |
//! | a fast network, or a small model | [`DistributedConfig::dense`]: compression would cost more time than it saves |
//! | SGD with momentum and a slow network | [`DistributedConfig::top_k_momentum`], the inner optimizer without momentum, [`with_local_weight_decay`](DistributedOptimizer::with_local_weight_decay) |
//! | Adam, or any other optimizer, and a slow network | [`DistributedConfig::top_k_q8`]: error feedback |
//! | top-k at an unknown compression ratio | [`DistributedConfig::gravac`], [`record_loss`](DistributedOptimizer::record_loss) |
//! | many ranks | `power-sgd` or `shared-random-k`: their bytes do not grow with the world |
//! | a very slow network | Local SGD: `DistributedConfig::local_sgd`, parameters every `H` steps, or `diloco`, every few hundred steps; [`average_parameters`](DistributedOptimizer::average_parameters) before evaluating |
//! | uneven batches | [`record_samples`](DistributedOptimizer::record_samples) on every rank, 0 on a rank whose data has ended |
//! | ranks of different speed | [`ServerTraining`]: a server and workers that do not wait for each other |
//! | Burn's `SupervisedTraining` | `DataParallel` |
//! | slow exchanges and idle cores | [`during_backward`](briquette_core::config::Exchange::during_backward) and [`forward_model`](DistributedOptimizer::forward_model): buckets are sent while the backward pass computes the next ones |
//! | a prediction for another network | [`Simulated`](briquette_core::comm::Simulated) |
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
#[cfg(feature = "tcp")]
pub use briquette_tcp as tcp;

pub use backend::{Backend, BackendError, Found};
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
pub use run::{Run, RunError, run, was_stopped};
pub use server::ServerTraining;
pub use step_report::{Arrival, StepReport};
pub use summary::RunSummary;
pub use synchronizer::{REBROADCAST_STEPS, REPLICA_CHECK_STEPS, Synchronizer};
