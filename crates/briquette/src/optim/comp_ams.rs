//! AMSGrad of Comp-AMS's server: ε inside the root, no bias correction.
//!
//! **Why, and when not.** Comp-AMS compresses gradients with error feedback on every rank and passes their average to AMSGrad.
//! It behaves like Adam at a hundredth of the bytes, and exchanges no moments. Use this optimizer in a
//! [`DistributedOptimizer`](crate::DistributedOptimizer) whose configuration compresses (top-k, or signs by block). Alone it is
//! AMSGrad, for problems on which Adam does not converge. Not for few steps: without bias correction the first steps have length
//! `(1 − β₁)/√(1 − β₂)`, three times the learning rate.
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `m = β₁·m + (1 − β₁)·ḡ` | `m` |
//! | `v = β₂·v + (1 − β₂)·ḡ²` | `v` |
//! | `v̂ = max(v, v̂)` | `v_max` |
//! | `θ ← θ − η·m/√(v̂ + ε)` | the step |
//!
//! **Properties.** `v̂` never decreases. With an uncompressed gradient this is distributed AMSGrad. Theorem 1 allows compressors
//! with `‖C(x) − x‖ ≤ q·‖x‖`, `q < 1`.
//!
//! **State.** Three vectors.
//!
//! **Deviations.** Weight decay and clipping of the gradient, both off by default, are Burn's and not the paper's. Burn's own
//! AMSGrad ([`AdamConfig::with_amsgrad`](burn::optim::AdamConfig::with_amsgrad)) corrects biases and has ε outside the root.
//!
//! **Reference.** X. Li, B. Karimi, P. Li, *On Distributed Adaptive Optimization with Gradient Compression*, ICLR 2022 (arXiv 2205.05632),
//! algorithm 2.
//!
//! ```
//! use briquette::optim::CompAmsConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = CompAmsConfig::new().with_beta_1(0.5).with_beta_2(0.75).with_epsilon(0.75).build();
//! let x = Tensor::<1>::from_floats([1.0], &Device::flex());
//! let (x, _) = optimizer.step(0.5, x.clone(), x.ones_like(), None);
//! // m = 0.5, v = 0.25: 0.5/√(0.25 + 0.75). Outside the root ε would make it 0.5/(0.5 + 0.75).
//! assert_eq!(x.into_scalar::<f32>(), 1.0 - 0.5 * 0.5);
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_beta, check_decay, decayed, moving_average, of_module};
use super::state::state;

/// Settings of [`CompAms`].
#[derive(Config, Debug)]
pub struct CompAmsConfig {
    /// Decay rate of the first moment, in [0, 1).
    #[config(default = 0.9)]
    beta_1: f64,
    /// Decay rate of the second moment, in [0, 1).
    #[config(default = 0.999)]
    beta_2: f64,
    /// Added under the root, above 0.
    #[config(default = 1e-8)]
    epsilon: f64,
    /// Added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl CompAmsConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> CompAms {
        check_beta("beta_1 of CompAms", self.beta_1);
        check_beta("beta_2 of CompAms", self.beta_2);
        // Below, f32 underflows.
        check(self.epsilon >= 1e-37 && self.epsilon.is_finite(), "epsilon of CompAms", "at least 1e-37", self.epsilon);
        check_decay("weight_decay of CompAms", self.weight_decay.as_ref());
        CompAms(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// AMSGrad with ε inside the root; see the [module](self).
#[derive(Debug, Clone)]
pub struct CompAms(CompAmsConfig);

state! {
    /// State of [`CompAms`] for one tensor.
    CompAmsState, "comp-ams";
    tensors {
        /// The first moment.
        m,
        /// The second moment.
        v,
        /// The largest second moment so far.
        v_max,
    }
    counts {}
}

impl Optimizer for CompAms {
    type State<const D: usize> = CompAmsState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let [m, v, v_max] = state.map_or([const { None }; 3], |s| [s.m, s.v, s.v_max].map(Some));
        let m = moving_average(m, grad.clone(), config.beta_1);
        let v = moving_average(v, grad.square(), config.beta_2);
        let v_max = match v_max {
            Some(v_max) => v_max.max_pair(v.clone()),
            None => v.clone(),
        };
        let delta = m.clone() / v_max.clone().add_scalar(config.epsilon).sqrt();
        (tensor - delta.mul_scalar(lr), Some(CompAmsState { m, v, v_max }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::walk::{assert_near, walk};
    use super::*;

    /// ε = .75. g = 1: m = .5, v = .25, step .5/√1 = .5. g = 0: m = .25, v = .1875, v̂ = .25, step .25/√1. g = 3: m = 1.625,
    /// v = .140625 + 2.25 = 2.390625, step 1.625/√3.140625 = .9169567.
    #[test]
    fn steps_by_hand_tell_where_epsilon_is_and_that_the_maximum_stays() {
        let optimizer = CompAmsConfig::new().with_beta_1(0.5).with_beta_2(0.75).with_epsilon(0.75).build();
        let path = walk(&optimizer, 1.0, [0.0], &[[1.0], [0.0], [3.0]]);
        assert_eq!(path[..2], [[-0.5], [-0.75]]);
        assert_near(&path[2], &[-0.75 - 1.625 / 3.140_625_f64.sqrt()], 1e-6);
    }

    /// By default, at g = 1e-4: v = 1e-11 is far below ε, and the step is 1e-5/√(1e-11 + 1e-8) = .0999501. With ε outside it
    /// would be 3.15.
    #[test]
    fn small_gradients_make_small_steps() {
        let path = walk(&CompAmsConfig::new().build(), 1.0, [0.0], &[[1e-4]]);
        assert_near(&path[0], &[-1e-5 / 1.001e-8_f64.sqrt()], 1e-5);
    }

    #[test]
    fn weight_decay_is_added_to_the_gradient() {
        let config = CompAmsConfig::new();
        let decayed = config.clone().with_weight_decay(Some(WeightDecayConfig::new(0.5))).build();
        assert_eq!(walk(&decayed, 0.1, [2.0], &[[0.0]]), walk(&config.build(), 0.1, [2.0], &[[1.0]]));
    }

    #[test]
    #[should_panic(expected = "epsilon of CompAms must be at least 1e-37, got 0")]
    fn an_epsilon_of_0_is_refused() {
        CompAmsConfig::new().with_epsilon(0.0).build();
    }
}
