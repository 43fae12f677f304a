//! Adam with a smaller power of the second moment, and decoupled weight decay.
//!
//! **Why, and when not.** Between SGD with momentum (`p = 0`) and AdamW (`p = ½`): partially adaptive, with SGD's large learning
//! rates and a test error closer to SGD's. With an [`IterateAverage`](super::IterateAverage) of its iterates it is GadamX; AdamW
//! with one is Gadam. Not with AdamW's learning rate: at `p = ⅛` it needs a rate a hundred times as large (in the source: 0.1
//! instead of 5e-4).
//!
//! **Method.**
//!
//! | paper | here |
//! |---|---|
//! | `m = β₁·m + (1 − β₁)·g`, `v = β₂·v + (1 − β₂)·g²` | `m`, `v` |
//! | `θ ← (1 − η·λ)·θ` | `weight_decay` is `λ` |
//! | `θ ← θ − η·(√(1 − β₂ᵗ)/(1 − β₁ᵗ))·m/(v^p + ε)` | `power` is `p`; `t` |
//!
//! **Properties.** `p = ½` is AdamW. It equals Burn's AdamW except for the place of ε: Burn's has `ε·√(1 − β₂ᵗ)`.
//!
//! **State.** Two vectors and a counter.
//!
//! **Deviations.** Biases are corrected as in the source's code, by `√(1 − β₂ᵗ)` for every `p`; `v/(1 − β₂ᵗ)` to the power of `p`
//! would be another factor. No maximum of `v` (the source's option `amsgrad`).
//!
//! **Reference.** D. Granziol, X. Wan, S. Albanie, S. Roberts, *Iterate Averaging in the Quest for Best Test Error* (arXiv 2003.01247),
//! and its code; the power from J. Chen, D. Zhou, Y. Tang, Z. Yang, Y. Cao, Q. Gu, *Closing the Generalization Gap of Adaptive Gradient Methods
//! in Training Deep Neural Networks*, IJCAI 2020 (arXiv 1806.06763).
//!
//! ```
//! use briquette::optim::PAdamWConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = PAdamWConfig::new().with_beta_2(0.9375).with_power(0.25).with_weight_decay(0.5).with_epsilon(0.0).build();
//! let x = Tensor::<1>::from_floats([1.0], &Device::flex());
//! let (x, _) = optimizer.step(0.5, x.clone(), x.ones_like(), None);
//! // (1 − 0.5·0.5)·1, less 0.5·√(1/16)/(1/16)^¼ = 0.25.
//! assert!((x.into_scalar::<f32>() - 0.5).abs() < 1e-6);
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_beta, check_not_negative, moving_average, of_module, ratio};
use super::state::state;

/// Settings of [`PAdamW`].
#[derive(Config, Debug)]
pub struct PAdamWConfig {
    /// Decay rate of the first moment, in [0, 1).
    #[config(default = 0.9)]
    beta_1: f64,
    /// Decay rate of the second moment, in [0, 1).
    #[config(default = 0.999)]
    beta_2: f64,
    /// Power of the second moment in the denominator, in (0, ½]; ½ is AdamW.
    #[config(default = 0.125)]
    power: f64,
    /// Added outside the power, at least 0.
    #[config(default = 1e-8)]
    epsilon: f64,
    /// Decoupled weight decay, times the learning rate; at least 0.
    #[config(default = 0.0)]
    weight_decay: f64,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl PAdamWConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> PAdamW {
        check_beta("beta_1 of PAdamW", self.beta_1);
        check_beta("beta_2 of PAdamW", self.beta_2);
        check(self.power > 0.0 && self.power <= 0.5, "power of PAdamW", "in (0, 0.5]", self.power);
        check_not_negative("epsilon of PAdamW", self.epsilon);
        check_not_negative("weight_decay of PAdamW", self.weight_decay);
        PAdamW(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// Partially adaptive AdamW; see the [module](self).
#[derive(Debug, Clone)]
pub struct PAdamW(PAdamWConfig);

state! {
    /// State of [`PAdamW`] for one tensor.
    PAdamWState, "padam-w";
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

impl Optimizer for PAdamW {
    type State<const D: usize> = PAdamWState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let time = state.as_ref().map_or(0, |state| state.time) + 1;
        let [m, v] = state.map_or([const { None }; 2], |s| [s.m, s.v].map(Some));
        let m = moving_average(m, grad.clone(), config.beta_1);
        let v = moving_average(v, grad.square(), config.beta_2);
        let correction = (1.0 - config.beta_2.powf(time as f64)).sqrt() / (1.0 - config.beta_1.powf(time as f64));
        let power = if config.power == 0.5 { v.clone().sqrt() } else { v.clone().powf_scalar(config.power) };
        let delta = match config.epsilon {
            0.0 => ratio(m.clone(), power),
            epsilon => m.clone() / power.add_scalar(epsilon),
        };
        let decay = lr * config.weight_decay;
        let tensor = if decay == 0.0 { tensor } else { tensor.mul_scalar(1.0 - decay) };
        (tensor - delta.mul_scalar(lr * correction), Some(PAdamWState { m, v, time }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::walk::{assert_near, walk};
    use super::*;
    use burn::optim::AdamWConfig;

    const GRADIENTS: [[f32; 3]; 5] =
        [[1.0, -2.0, 0.01], [0.5, 3.0, 0.02], [-1.0, 1.0, 0.03], [2.0, -4.0, -1.0], [0.1, 0.0, 0.5]];

    /// Burn's AdamW rounds 1 − β to f32: 5e-5 of the second moment.
    #[test]
    fn half_a_power_is_burns_adam_w() {
        let ours = PAdamWConfig::new().with_power(0.5).with_epsilon(1e-12).with_weight_decay(0.1).build();
        let burns = AdamWConfig::new().with_epsilon(1e-12).with_weight_decay(0.1).build();
        let [ours, burns] =
            [walk(&ours, 0.1, [1.0, 2.0, 3.0], &GRADIENTS), walk(&burns, 0.1, [1.0, 2.0, 3.0], &GRADIENTS)];
        for (ours, burns) in ours.iter().zip(burns) {
            assert_near(ours, &burns.map(f64::from), 1e-4);
        }
    }

    /// m = .1, v = .001, t = 1: the corrections are √.001/.1, so the step is √.001/.001^⅛ = .001^⅜ = .0749894.
    #[test]
    fn the_default_power_by_hand() {
        let path = walk(&PAdamWConfig::new().with_epsilon(0.0).build(), 1.0, [0.0], &[[1.0]]);
        assert_near(&path[0], &[-0.074_989_42], 1e-5);
    }

    #[test]
    fn weight_decay_does_not_enter_the_moments() {
        let config = PAdamWConfig::new().with_weight_decay(0.5);
        assert_eq!(walk(&config.build(), 0.5, [4.0], &[[0.0], [0.0]]), [[3.0], [2.25]]);
    }

    #[test]
    #[should_panic(expected = "power of PAdamW must be in (0, 0.5], got 0")]
    fn a_power_of_0_is_refused() {
        PAdamWConfig::new().with_power(0.0).build();
    }
}
