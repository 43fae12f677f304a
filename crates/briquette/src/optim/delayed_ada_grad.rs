//! AdaGrad whose step size does not depend on the current gradient.
//!
//! **Why, and when not.** With the current gradient in the denominator, AdaGrad's step size depends on the noise of that
//! gradient, and proofs for non-convex losses fail. Without it the step size is independent of the noise, and with `ε > 0`
//! gradients converge to 0 almost surely. If there is no noise, the rate automatically becomes that of gradient descent. Not if
//! `β` is small relative to the first gradient: the first step is `α·g/β^(1/2 + ε)`, however large `g` is.
//!
//! **Method.** Coordinate by coordinate:
//!
//! | paper | here |
//! |---|---|
//! | `η_t = α/(β + Σ_{i<t} g_i²)^(1/2 + ε)` | `α` is the learning rate, `beta`, `epsilon`; `sum` |
//! | `x ← x − η_t·g_t` | the step |
//!
//! **Properties.** `η_t` never increases, and `g_t` affects it from step `t + 1` on. `ε` is in [0, ½]: above 0 for almost
//! sure convergence, 0 for rates that adapt to noise.
//!
//! **State.** One vector. In f32 the sum stops growing once a square is below 6e-8 of it.
//!
//! **Deviations.** Weight decay and clipping of the gradient, both off by default, are Burn's and not the paper's.
//!
//! **Reference.** X. Li, F. Orabona, *On the Convergence of Stochastic Gradient Descent with Adaptive Stepsizes*, AISTATS 2019
//! (arXiv 1805.08114), the coordinate-wise step size.
//!
//! ```
//! use briquette::optim::DelayedAdaGradConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = DelayedAdaGradConfig::new().with_beta(4.0).build();
//! let x = Tensor::<1>::from_floats([0.0], &Device::flex());
//! let g = x.ones_like().mul_scalar(12_f64.sqrt());
//! let (x, state) = optimizer.step(0.5, x, g.clone(), None);
//! let (next, _) = optimizer.step(0.5, x.clone(), g.clone(), state);
//! // 0.5/√4, then 0.5/√(4 + 12).
//! let rates = [x.clone(), next - x].map(|moved| -(moved / g.clone()).into_scalar::<f32>());
//! assert!((rates[0] - 0.25).abs() < 1e-6 && (rates[1] - 0.125).abs() < 1e-6);
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_decay, decayed, of_module};
use super::state::state;

/// Settings of [`DelayedAdaGrad`].
#[derive(Config, Debug)]
pub struct DelayedAdaGradConfig {
    /// Initial value of the sum of squares, above 0.
    #[config(default = 1.0)]
    beta: f64,
    /// Amount by which the power exceeds ½, in [0, ½].
    #[config(default = 0.0)]
    epsilon: f64,
    /// Added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl DelayedAdaGradConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> DelayedAdaGrad {
        check(self.beta >= 1e-37 && self.beta.is_finite(), "beta of DelayedAdaGrad", "at least 1e-37", self.beta);
        check((0.0..=0.5).contains(&self.epsilon), "epsilon of DelayedAdaGrad", "in [0, 0.5]", self.epsilon);
        check_decay("weight_decay of DelayedAdaGrad", self.weight_decay.as_ref());
        DelayedAdaGrad(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// AdaGrad without the current gradient in its step size; see the [module](self).
#[derive(Debug, Clone)]
pub struct DelayedAdaGrad(DelayedAdaGradConfig);

state! {
    /// State of [`DelayedAdaGrad`] for one tensor.
    DelayedAdaGradState, "delayed-ada-grad";
    tensors {
        /// The sum of squares of all gradients so far.
        sum,
    }
    counts {}
}

impl Optimizer for DelayedAdaGrad {
    type State<const D: usize> = DelayedAdaGradState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let before = state.map_or_else(|| grad.zeros_like(), |state| state.sum);
        let base = before.clone().add_scalar(config.beta).sqrt();
        // √b^(1 + 2ε) is b^(1/2 + ε), and exact for ε = 0.
        let power = if config.epsilon == 0.0 { base } else { base.powf_scalar(1.0 + 2.0 * config.epsilon) };
        let delta = grad.clone() / power;
        (tensor - delta.mul_scalar(lr), Some(DelayedAdaGradState { sum: before + grad.square() }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::walk::{assert_near, record, walk};
    use super::*;
    use burn::optim::AdamConfig;

    #[test]
    fn the_first_step_sees_beta_alone_and_a_gradient_shows_from_the_next_on() {
        let optimizer = DelayedAdaGradConfig::new().with_beta(16.0).with_epsilon(0.25).build();
        // 16^(3/4) = 8, then (16 + 9)^(3/4), then (25 + 0)^(3/4).
        let path = walk(&optimizer, 2.0, [0.0], &[[3.0], [0.0], [1.0]]);
        assert_near(&path[0], &[-2.0 * 3.0 / 8.0], 1e-6);
        assert_eq!(path[1], path[0]);
        assert_near(&path[2], &[-0.75 - 2.0 / 25_f64.powf(0.75)], 1e-6);
    }

    #[test]
    fn rates_never_rise_and_each_coordinate_has_its_own() {
        let gradients = [[1.0, 0.1], [1.0, -3.0], [1.0, 0.2], [1.0, 0.0], [1.0, 5.0], [1.0, 1.0]];
        let (mut x, mut last) = ([0.0_f32; 2], [1.0_f32; 2]);
        for (gradient, next) in gradients.iter().zip(walk(&DelayedAdaGradConfig::new().build(), 1.0, x, &gradients)) {
            for i in 0..2 {
                let rate = if gradient[i] == 0.0 { last[i] } else { (x[i] - next[i]) / gradient[i] };
                assert!(rate <= last[i] * 1.000_01, "{rate} after {}", last[i]);
                (last[i], x[i]) = (rate, next[i]);
            }
        }
        assert!(last[0] < 0.42 && last[1] < 0.18);
    }

    #[test]
    #[should_panic(expected = "epsilon of DelayedAdaGrad must be in [0, 0.5], got 0.6")]
    fn a_power_above_1_is_refused() {
        DelayedAdaGradConfig::new().with_epsilon(0.6).build();
    }

    #[test]
    #[should_panic(expected = "cannot be loaded into delayed-ada-grad: of parameter")]
    fn a_record_of_burns_adam_is_refused() {
        DelayedAdaGradConfig::new().init().load_record(record(AdamConfig::new().build()));
    }

    #[test]
    #[should_panic(expected = "it holds the state of comp-ams")]
    fn a_record_of_another_optimizer_here_is_named() {
        DelayedAdaGradConfig::new().init().load_record(record(super::super::CompAmsConfig::new().build()));
    }

    /// If panics are caught, as when a checkpoint is loaded, the result is an error.
    #[test]
    fn a_foreign_record_in_a_checkpoint_is_no_failure_of_the_device() {
        let foreign = record(super::super::CompAmsConfig::new().build());
        let load = || DelayedAdaGradConfig::new().init().load_record(foreign);
        let error = crate::checkpoint::by_the_default_device(load).err().unwrap().to_string();
        assert!(error.starts_with("this optimizer record cannot be loaded into delayed-ada-grad"), "{error}");
    }

    /// Documents Burn's behavior for a foreign record: no error, and no state.
    #[test]
    fn burns_own_optimizers_begin_anew_with_a_record_of_ours() {
        let adam = AdamConfig::new().init().load_record(record(DelayedAdaGradConfig::new().build()));
        assert!(adam.to_record().is_empty());
    }
}
