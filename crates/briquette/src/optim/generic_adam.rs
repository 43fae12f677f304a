//! Adam with schedules for its rate and its second moment, and the condition under which it converges.
//!
//! **Why, and when not.** With constant decay rates Adam can diverge on convex problems, or converge only to a neighborhood. If
//! the second moment averages over a growing number of steps while the learning rate decreases, it converges on non-convex
//! losses. AdaGrad, RMSProp and Adam are cases of this scheme. [`sufficient_condition`](GenericAdamConfig::sufficient_condition)
//! checks whether convergence is proven for given settings. Not for short runs, for which Adam's constants are tuned and
//! asymptotic results do not apply.
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `β_t = β·λ^(t−1)` | `beta_1`, `beta_decay` |
//! | `α_t = η/t^s` | the learning rate is `η`; `rate_power` is `s` |
//! | `θ_t = 1 − α/max(t, K)^r` | `theta_scale` is `α`, `theta_from` `K`, `theta_power` `r` |
//! | `m = β_t·m + (1 − β_t)·g` | `m` |
//! | `v = θ_t·v + (1 − θ_t)·g²`, `v_0 = ε` | `v`; `epsilon` |
//! | `x ← x − α_t·m/√v` | the step |
//!
//! | setting | equivalent |
//! |---|---|
//! | `r = 0` | constant `θ = 1 − α`: RMSProp, Adam without bias correction |
//! | `α = 1`, `r = 1`, `K = 1`, `s = ½`, `β = 0` | AdaGrad, `x ← x − η·g/√Σg²` |
//!
//! **Properties.** With the mean gradient of `n` ranks, a step is that of one batch `n` times as large ("distributed Adam"),
//! with `1/n` of the variance.
//!
//! **State.** Two vectors and a counter.
//!
//! **Knobs.** By default `s = ½`, `α = 1`, `r = 1`, `K = 10`, `β = 0.9`: the condition holds, and the rate is `O(log T/√T)`. `epsilon`, above 0,
//! default 1e-8, is in the units of a squared gradient.
//!
//! **Deviations.** If `v` is 0 (`θ₁ = 0` and no gradient yet), the step is 0. Weight decay and clipping of the gradient, both off
//! by default, are Burn's and not the paper's.
//!
//! **Reference.** F. Zou, L. Shen, Z. Jie, W. Zhang, W. Liu, *A Sufficient Condition for Convergences of Adam and RMSProp*, CVPR 2019 (arXiv
//! 1811.09358); C. Chen, L. Shen, F. Zou, W. Liu, *Towards Practical Adam: Non-Convexity, Convergence Theory, and Mini-Batch
//! Acceleration*, JMLR 23, 2022 (arXiv 2101.05471).
//!
//! ```
//! use briquette::optim::GenericAdamConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let ada_grad = GenericAdamConfig::new().with_beta_1(0.0).with_theta_from(1);
//! assert!(ada_grad.sufficient_condition().is_ok());
//! let x = Tensor::<1>::from_floats([0.0], &Device::flex());
//! let (x, state) = ada_grad.build().step(0.5, x.clone(), x.ones_like().mul_scalar(3.0), None);
//! let (x, _) = ada_grad.build().step(0.5, x.clone(), x.ones_like().mul_scalar(4.0), state);
//! assert!((x.into_scalar::<f32>() + 0.5 * (3.0 / 3.0 + 4.0 / 5.0)).abs() < 1e-6); // √3², √(3² + 4²)
//! ```

mod condition;

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

pub use self::condition::Unmet;
use super::settings::{check, check_beta, check_decay, check_not_negative, decayed, moving_average, of_module, ratio};
use super::state::state;

/// Settings of [`GenericAdam`].
#[derive(Config, Debug)]
pub struct GenericAdamConfig {
    /// Decay rate of the first moment at the first step, in [0, 1).
    #[config(default = 0.9)]
    beta_1: f64,
    /// Factor of `beta_1` at each step, in (0, 1].
    #[config(default = 1.0)]
    beta_decay: f64,
    /// The learning rate is divided by the step to this power, at least 0.
    #[config(default = 0.5)]
    rate_power: f64,
    /// `1 − θ_t` times `max(t, theta_from)^theta_power`; above 0, and at most `theta_from^theta_power`.
    #[config(default = 1.0)]
    theta_scale: f64,
    /// Power of the decrease of `1 − θ_t`; 0 for a constant `θ_t`.
    #[config(default = 1.0)]
    theta_power: f64,
    /// Last step of the initial constant `θ_t`; at least 1.
    #[config(default = 10)]
    theta_from: u64,
    /// Initial value of the second moment, above 0.
    #[config(default = 1e-8)]
    epsilon: f64,
    /// Added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl GenericAdamConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> GenericAdam {
        check_beta("beta_1 of GenericAdam", self.beta_1);
        let decay = self.beta_decay;
        check(decay > 0.0 && decay <= 1.0, "beta_decay of GenericAdam", "in (0, 1]", decay);
        check_not_negative("rate_power of GenericAdam", self.rate_power);
        check_not_negative("theta_power of GenericAdam", self.theta_power);
        check(self.theta_from >= 1, "theta_from of GenericAdam", "at least 1", self.theta_from);
        let (scale, most) = (self.theta_scale, (self.theta_from as f64).powf(self.theta_power));
        let valid = format!("in (0, {most}], theta_from to the power of theta_power");
        check(scale > 0.0 && scale <= most, "theta_scale of GenericAdam", &valid, scale);
        check(
            self.epsilon >= 1e-37 && self.epsilon.is_finite(),
            "epsilon of GenericAdam",
            "at least 1e-37",
            self.epsilon,
        );
        check_decay("weight_decay of GenericAdam", self.weight_decay.as_ref());
        GenericAdam(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }

    /// `β_t`; steps count from 1.
    fn beta(&self, step: u64) -> f64 {
        self.beta_1 * self.beta_decay.powf((step - 1) as f64)
    }

    /// `α_t/η`.
    fn rate(&self, step: u64) -> f64 {
        (step as f64).powf(-self.rate_power)
    }

    /// `1 − θ_t`.
    fn off_theta(&self, step: u64) -> f64 {
        self.theta_scale / (step.max(self.theta_from) as f64).powf(self.theta_power)
    }
}

/// Adam with schedules; see the [module](self).
#[derive(Debug, Clone)]
pub struct GenericAdam(GenericAdamConfig);

state! {
    /// State of [`GenericAdam`] for one tensor.
    GenericAdamState, "generic-adam";
    tensors {
        /// The first moment.
        m,
        /// The second moment.
        v,
    }
    counts {
        /// Steps taken.
        time,
    }
}

impl Optimizer for GenericAdam {
    type State<const D: usize> = GenericAdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let (m, v, time) = match state {
            Some(state) => (Some(state.m), state.v, state.time + 1),
            None => (None, grad.zeros_like().add_scalar(config.epsilon), 1),
        };
        let m = moving_average(m, grad.clone(), config.beta(time));
        let off = config.off_theta(time);
        let v = v.mul_scalar(1.0 - off) + grad.square().mul_scalar(off);
        let delta = ratio(m.clone(), v.clone().sqrt());
        (tensor - delta.mul_scalar(lr * config.rate(time)), Some(GenericAdamState { m, v, time }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests;
