//! Optimizers from the literature that Burn does not have. They implement Burn's own [`Optimizer`](burn::optim::Optimizer)
//! trait, with records, gradient clipping and parameter groups. They do not need other ranks: use them in place of Burn's own,
//! alone or in a [`DistributedOptimizer`](crate::DistributedOptimizer).
//!
//! | optimizer | step | vectors of state |
//! |---|---|---|
//! | [`CompAms`] | `m/√(v̂ + ε)`, `v̂` the largest `v` so far | 3 |
//! | [`GeneralizedSignSgd`] | `m/(√v + ε)`, `v` of `m²` | 2 |
//! | [`GenericAdam`] | `m/√v`, with schedules for the rate and for `v` | 2 |
//! | [`DelayedAdaGrad`] | `g/(β + Σ g²)^(1/2 + ε)`, the sum without the current `g` | 1 |
//! | [`DelayedAdaGradMomentum`] | the same, accumulated with momentum | 2 |
//! | [`FtrlSgd`] | `1/(t + 1)` of the way to `x₁ − η_t·Σ g` | 2 |
//! | [`PAdamW`] | `m/(v^p + ε)`, decoupled weight decay | 2 |
//! | [`OneBitAdam`] | Adam, then `m̄/(√v + ε)` with `v` frozen and `m̄` received from the exchange | 2 |
//!
//! [`IterateAverage`] maintains the mean of a model's iterates (its parameters after each step) with any of them.
//! [`ExponentialStepsConfig`] and [`PlateauDecayConfig`] provide schedules of the learning rate. Burn's own
//! [`CosineAnnealingLrSchedulerConfig`](burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig) is the cosine step size of
//! the literature.
//!
//! **Settings** are checked by `build` and `init`, which panic and name the setting, as Burn's modules do.
//!
//! **Records.** State is resumed bit for bit. If a record belongs to another optimizer, Burn's optimizers leave the parameter
//! without state and silently continue. The optimizers here panic instead, and name the optimizer of the record. If one of
//! Burn's own optimizers loads a record from here, it silently restarts without state; only Burn can change that.

pub mod comp_ams;
pub mod delayed_ada_grad;
pub mod delayed_ada_grad_momentum;
pub mod ftrl_sgd;
pub mod generalized_sign_sgd;
pub mod generic_adam;
pub mod iterate_average;
pub mod one_bit_adam;
pub mod padam_w;
pub mod schedules;
mod settings;
mod state;
#[cfg(all(test, feature = "flex"))]
mod walk;

pub(crate) use state::REFUSED;

pub use comp_ams::{CompAms, CompAmsConfig, CompAmsState};
pub use delayed_ada_grad::{DelayedAdaGrad, DelayedAdaGradConfig, DelayedAdaGradState};
pub use delayed_ada_grad_momentum::{
    DelayedAdaGradMomentum, DelayedAdaGradMomentumConfig, DelayedAdaGradMomentumState,
};
pub use ftrl_sgd::{FtrlSgd, FtrlSgdConfig, FtrlSgdState};
pub use generalized_sign_sgd::{GeneralizedSignSgd, GeneralizedSignSgdConfig, GeneralizedSignSgdState};
pub use generic_adam::{GenericAdam, GenericAdamConfig, GenericAdamState, Unmet};
pub use iterate_average::{IterateAverage, IterateAverageConfig};
pub use one_bit_adam::{OneBitAdam, OneBitAdamConfig, OneBitAdamState};
pub use padam_w::{PAdamW, PAdamWConfig, PAdamWState};
pub use schedules::{ExponentialStepsConfig, PlateauDecayConfig};
