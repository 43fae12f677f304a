//! Generalized SignSGD: momentum divided by the root of its own mean square.
//!
//! **Why, and when not.** If curvature grows with the gradient, as in recurrent networks and transformers, SGD needs clipping.
//! Generalized SignSGD converges at the rate of clipped SGD, without a threshold to tune. It ranges from sign momentum
//! (`β₂ = 0`) to an approximation of Adam (`β₂` near 1). Not with `β₂` near 1 and a learning rate tuned for SignSGD: the first step
//! is `1/√(1 − β₂)` times the learning rate.
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `m = β₁·m + (1 − β₁)·g` | `m` |
//! | `v = β₂·v + (1 − β₂)·m²`, of `m`, not of `g` | `v` |
//! | `x ← x − η·m/(√v + ε)` | the step |
//!
//! **Properties.** Each coordinate moves by at most `η/√(1 − β₂)`. With `β₂ = 0` and `ε = 0` the step is `η·sign(m)`: Signum, exactly.
//! No bias correction: the first step is `η/√(1 − β₂)·sign(g)`.
//!
//! **State.** Two vectors.
//!
//! **Deviations.** If `√v + ε` is 0, the step is 0. Weight decay is added to the gradient, as in the authors' experiments, or
//! decoupled (`x ← (1 − η·λ)·x`), which is not in the paper.
//!
//! **Reference.** M. Crawshaw, M. Liu, F. Orabona, W. Zhang, Z. Zhuang, *Robustness to Unbounded Smoothness of Generalized SignSGD*,
//! NeurIPS 2022 (arXiv 2208.11195), and the authors' code.
//!
//! ```
//! use briquette::optim::GeneralizedSignSgdConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = GeneralizedSignSgdConfig::new().with_beta_2(0.75).with_epsilon(0.0).build();
//! let x = Tensor::<1>::from_floats([1.0], &Device::flex());
//! let (x, _) = optimizer.step(0.25, x.clone(), x.mul_scalar(1000.0), None);
//! assert!((x.into_scalar::<f32>() - 0.5).abs() < 1e-6); // 1 − 0.25/√0.25, whatever the gradient's size
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check_beta, check_decay, check_not_negative, decayed, moving_average, of_module, ratio};
use super::state::state;

/// Settings of [`GeneralizedSignSgd`].
#[derive(Config, Debug)]
pub struct GeneralizedSignSgdConfig {
    /// Decay rate of the momentum, in [0, 1).
    #[config(default = 0.9)]
    beta_1: f64,
    /// Decay rate of the momentum's mean square, in [0, 1).
    #[config(default = 0.999)]
    beta_2: f64,
    /// Added outside the root, at least 0.
    #[config(default = 1e-8)]
    epsilon: f64,
    /// Added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Decoupled weight decay, times the learning rate; at least 0.
    #[config(default = 0.0)]
    decoupled_weight_decay: f64,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl GeneralizedSignSgdConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> GeneralizedSignSgd {
        check_beta("beta_1 of GeneralizedSignSgd", self.beta_1);
        check_beta("beta_2 of GeneralizedSignSgd", self.beta_2);
        check_not_negative("epsilon of GeneralizedSignSgd", self.epsilon);
        check_decay("weight_decay of GeneralizedSignSgd", self.weight_decay.as_ref());
        check_not_negative("decoupled_weight_decay of GeneralizedSignSgd", self.decoupled_weight_decay);
        GeneralizedSignSgd(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// Momentum over the root of its own mean square; see the [module](self).
#[derive(Debug, Clone)]
pub struct GeneralizedSignSgd(GeneralizedSignSgdConfig);

state! {
    /// State of [`GeneralizedSignSgd`] for one tensor.
    GeneralizedSignSgdState, "generalized-sign-sgd";
    tensors {
        /// The momentum.
        m,
        /// Its mean square.
        v,
    }
    counts {}
}

impl Optimizer for GeneralizedSignSgd {
    type State<const D: usize> = GeneralizedSignSgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let [m, v] = state.map_or([const { None }; 2], |s| [s.m, s.v].map(Some));
        let m = moving_average(m, grad, config.beta_1);
        let v = moving_average(v, m.clone().square(), config.beta_2);
        // For a small m the square would underflow to 0.
        let root = if config.beta_2 == 0.0 { m.clone().abs() } else { v.clone().sqrt() };
        let delta = match config.epsilon {
            0.0 => ratio(m.clone(), root),
            epsilon => m.clone() / root.add_scalar(epsilon),
        };
        let decay = lr * config.decoupled_weight_decay;
        let tensor = if decay == 0.0 { tensor } else { tensor.mul_scalar(1.0 - decay) };
        (tensor - delta.mul_scalar(lr), Some(GeneralizedSignSgdState { m, v }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests;
