//! Data-parallel training for [Burn](https://burn.dev) over the network you have.
//!
//! Each rank trains a replica of the model on its share of the data. Between `backward` and the optimizer's step the ranks
//! agree on an average of their gradients, and may compress what they tell each other. The algorithms are in
//! [`briquette_core`], here as `core`; this crate is the glue to Burn 0.22.
//!
//! # The difference to plain Burn
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
//! `session` is this rank's [`Session`](briquette_core::Session), from [`run`]: `briquette::run(4, |session| …)` trains on four threads, and
//! on the processes of a world where a launcher started this one. [`auto`](DistributedOptimizer::auto) decides by itself how much to
//! compress ([`DistributedConfig::auto`]): it times dense and compressed steps, reads the losses given to
//! [`record_loss`](DistributedOptimizer::record_loss), and tries what optimizer it wraps. SGD with momentum gets momentum correction
//! ([`Feedback::InnerMomentum`](briquette_core::config::Feedback)), with its own momentum and weight decay as they are; any other optimizer
//! error feedback. Afterwards [`summary`](DistributedOptimizer::summary) says in a line what was sent and saved. To decide yourself, give
//! [`new`](DistributedOptimizer::new) a [`DistributedConfig`]. Configuration and seed are the same on every rank.
//!
//! # The pieces
//!
//! - [`DistributedOptimizer`]: a `ModuleOptimizer`, parameter groups and all, with the exchange in front.
//! - [`Synchronizer`]: the exchange alone, when something else owns the optimizer; also stopping together, averaging
//!   BatchNorm's statistics, and the [`StepReport`] with traffic, gain, factor and seconds.
//! - `DataParallel` (feature `train`): a strategy for Burn's own `SupervisedTraining`.
//! - [`ServerTraining`]: without lock step, rank 0 serves and the others work.
//! - [`Compressed`]: compression with error feedback inside one process, to try what it costs.
//! - [`Checkpoint`], [`WorldChange`], [`SaveReport`]: saving (also [in the background](
//!   DistributedOptimizer::with_background_saving)) and resuming, to the bit in a world of the same size.
//! - [`Backend`]: where a model runs, by name at run time; a rank's part in a
//!   [world of several](Synchronizer::with_rebroadcast).
//! - [`strategy`]: algorithms of your own.
//! - [`optim`]: optimizers that Burn does not have, with or without other ranks.
//! - [`DistributedConfig`]: what travels and who decides.
//! - [`run`]: starts ranks. By hand: [`Local`](briquette_core::comm::Local) for threads, `tcp` (feature of that name) for processes, with
//!   [`WallClock`] where seconds are read, as core reads no clock.
//!
//! # What to use when
//!
//! | you have | use |
//! |---|---|
//! | no idea | [`auto`](DistributedOptimizer::auto), [`record_loss`](DistributedOptimizer::record_loss) |
//! | a fast network, or a small model | [`DistributedConfig::dense`]: compression would lose |
//! | SGD with momentum and a slow network | [`DistributedConfig::top_k_momentum`], the inner optimizer without momentum, [`with_local_weight_decay`](DistributedOptimizer::with_local_weight_decay) |
//! | Adam, or any other optimizer, and a slow network | [`DistributedConfig::top_k_q8`]: error feedback |
//! | no idea which compression ratio, and top-k in any case | [`DistributedConfig::gravac`], [`record_loss`](DistributedOptimizer::record_loss) |
//! | many ranks | `power-sgd` or `shared-random-k`: their bytes do not grow with the world |
//! | hardly any network | Local SGD: `DistributedConfig::local_sgd`, parameters every `H` steps, or `diloco` in hundreds, [`average_parameters`](DistributedOptimizer::average_parameters) before evaluating |
//! | uneven batches | [`record_samples`](DistributedOptimizer::record_samples) on every rank, 0 where data ran out |
//! | ranks of different speed | [`ServerTraining`]: a server and workers, each at its own pace |
//! | Burn's `SupervisedTraining` | `DataParallel` |
//! | exchanges that take a while, and cores to spare | [`during_backward`](briquette_core::config::Exchange::during_backward) and [`forward_model`](DistributedOptimizer::forward_model): buckets go while the backward pass computes the next ones |
//! | a question about another network | [`Simulated`](briquette_core::comm::Simulated) |
//! | one process | [`Compressed`] |
//!
//! The book (getting started, coming from DDP, what commonly goes wrong, and what was measured) is the module
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
