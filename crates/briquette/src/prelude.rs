//! Imports of most training programs: `use briquette::prelude::*`.
//!
//! It has no name in common with Burn's prelude. [`run`](crate::run()) and [`Error`](crate::Error) are not included, because many programs
//! have functions and types of these names.
//!
//! ```
//! use briquette::prelude::*;
//! use burn::nn::LinearConfig;
//! use burn::optim::{GradientsParams, SgdConfig};
//! use burn::prelude::*;
//!
//! fn train(session: Session) -> Result<f32, briquette::Error> {
//!     let device = Device::flex().autodiff();
//!     let batch = Tensor::<2>::full([4, 2], (session.rank() + 1) as f32, &device);
//!     let mut optim = DistributedOptimizer::new(SgdConfig::new().init(), session, DistributedConfig::dense(), 42);
//!     let mut model = optim.join(LinearConfig::new(2, 1).init(&device))?;
//!     let before = model.weight.val();
//!     let loss = model.forward(batch).mean();
//!     let gradients = GradientsParams::from_grads(loss.backward(), &model);
//!     model = optim.step(0.1, model, gradients)?;
//!     Ok((before - model.weight.val()).mean().into_scalar())
//! }
//!
//! // Gradients are 1 on one rank and 2 on the other: both step by 0.1 · 1.5.
//! let step = briquette::run(2, train)?;
//! assert!((step - 0.15).abs() < 1e-6);
//! # Ok::<_, briquette::RunError>(())
//! ```

pub use briquette_core::Session;

pub use crate::data::{Turn, next_batch};
pub use crate::{BestModel, DistributedConfig, DistributedOptimizer, StepReport, WorldChange};

#[cfg(feature = "train")]
pub use crate::DataParallel;
#[cfg(feature = "data")]
pub use crate::data::ShardedDataLoaderBuilder;
