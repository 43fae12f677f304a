//! Optimizer of 1-bit Adam: Adam during the warm-up, then averaged momenta over a frozen second moment.
//!
//! **Why, and when not.** Adam's step is not linear in the gradient, so error feedback does not apply to it. After about a
//! thousand steps the second moment hardly changes. With the second moment frozen, the remaining method is momentum SGD with
//! a rate per coordinate, and momenta can be sent as signs with error feedback. Not without a sufficiently long warm-up: a
//! second moment that is frozen too early stays wrong.
//!
//! **Method.** This module exchanges nothing: its input is the result of the exchange. For the first `T_w` steps (`warm_up`) that
//! is the average gradient, afterwards the average `m̄` of the ranks' `mᵢ = β₁·m̄ + (1 − β₁)·gᵢ`, compressed or not.
//!
//! | paper | here |
//! |---|---|
//! | Adam, `t ≤ T_w` | Burn's [`Adam`], bit for bit |
//! | `v_Tw` | `v`, which no longer changes |
//! | `m̄` | the gradient passed to the step; kept as `m` |
//! | `x ← x − γ·m̄/(√v_Tw + ε)` | the step, with bias corrections |
//!
//! **Properties.** If its input is `β₁·m + (1 − β₁)·g`, the first step after `T_w` is Adam's step with an unchanged
//! `v`.
//!
//! **State.** Two vectors and two counters. Once frozen, `v` stays frozen, even if the state is loaded with another `warm_up`.
//!
//! **Deviations.** Bias correction: the paper's Adam and DeepSpeed's code have none. Here the warm-up is Burn's Adam, which has
//! it. Afterwards `m̄` is still corrected by `1 − β₁ᵗ`, and `v` by its factor at the time of freezing, `1 − β₂^T_w`. Rates
//! therefore do not jump at `T_w`; DeepSpeed's are larger by `1/√(1 − β₂^T_w)`, 1.26 at `T_w` = 1000. There is no weight decay
//! (its gradient would have to be in `mᵢ`: see [`with_local_weight_decay`](crate::DistributedOptimizer::with_local_weight_decay))
//! and no clipping.
//!
//! **Reference.** H. Tang, S. Gan, A. A. Awan, S. Rajbhandari, C. Li, X. Lian, J. Liu, C. Zhang, Y. He, *1-bit Adam: Communication Efficient
//! Large-Scale Training with Adam's Convergence Speed*, ICML 2021 (arXiv 2102.02888).
//!
//! ```
//! use briquette::optim::OneBitAdamConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = OneBitAdamConfig::new(1).with_beta_1(0.5).with_beta_2(0.75).with_epsilon(0.0).build();
//! let x = Tensor::<1>::from_floats([0.0], &Device::flex());
//! let (x, state) = optimizer.step(0.25, x.clone(), x.ones_like().mul_scalar(2.0), None);
//! assert_eq!(x.clone().into_scalar::<f32>(), -0.25); // Adam's first step
//! let (x, _) = optimizer.step(0.25, x.clone(), x.ones_like().mul_scalar(3.0), state);
//! // m̄ = 3 over 1 − 0.5², and √v = 1 over √(1 − 0.75): 4/2.
//! assert_eq!(x.into_scalar::<f32>(), -0.25 - 0.25 * 4.0 / 2.0);
//! ```

use burn::config::Config;
use burn::optim::{Adam, AdamConfig, AdamState, AdaptiveMomentumState, LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_beta, check_not_negative};
use super::state::state;

/// Settings of [`OneBitAdam`].
#[derive(Config, Debug)]
pub struct OneBitAdamConfig {
    /// Steps of Adam, at least 1; the source uses about 15 % of all steps.
    warm_up: u64,
    /// Decay rate of the first moment, in [0, 1).
    #[config(default = 0.9)]
    beta_1: f32,
    /// Decay rate of the second moment, in [0, 1).
    #[config(default = 0.999)]
    beta_2: f32,
    /// Added outside the root, at least 0; Burn's default.
    #[config(default = 1e-5)]
    epsilon: f32,
}

impl OneBitAdamConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// If a setting is out of its range.
    pub fn build(&self) -> OneBitAdam {
        check(
            (1..=i32::MAX as u64).contains(&self.warm_up),
            "warm_up of OneBitAdam",
            "in 1..=2147483647",
            self.warm_up,
        );
        check_beta("beta_1 of OneBitAdam", self.beta_1.into());
        check_beta("beta_2 of OneBitAdam", self.beta_2.into());
        check_not_negative("epsilon of OneBitAdam", self.epsilon.into());
        let adam = AdamConfig::new().with_beta_1(self.beta_1).with_beta_2(self.beta_2).with_epsilon(self.epsilon);
        OneBitAdam { config: self.clone(), adam: adam.build() }
    }

    /// Builds the optimizer of a module.
    ///
    /// # Panics
    /// If a setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        self.build().into()
    }
}

/// Adam, then steps of averaged momenta; see the [module](self).
#[derive(Clone)]
pub struct OneBitAdam {
    config: OneBitAdamConfig,
    adam: Adam,
}

impl std::fmt::Debug for OneBitAdam {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OneBitAdam").field("config", &self.config).finish_non_exhaustive()
    }
}

state! {
    /// State of [`OneBitAdam`] for one tensor.
    OneBitAdamState, "one-bit-adam";
    tensors {
        /// The first moment; once frozen, the last average received.
        m,
        /// The second moment.
        v,
    }
    counts {
        /// Steps taken.
        time,
        /// The step at which the second moment froze; 0 before.
        frozen,
    }
}

impl Optimizer for OneBitAdam {
    type State<const D: usize> = OneBitAdamState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        match state {
            Some(state) if state.frozen > 0 => self.step_of_momentum(lr, tensor, grad, state),
            state => self.step_of_adam(lr, tensor, grad, state),
        }
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

type Stepped<const D: usize> = (Tensor<D>, Option<OneBitAdamState<D>>);

impl OneBitAdam {
    fn step_of_adam<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<OneBitAdamState<D>>,
    ) -> Stepped<D> {
        let state = state.map(|s| AdamState::new(AdaptiveMomentumState::new(s.time as usize, s.m, s.v)));
        let (tensor, state) = self.adam.step(lr, tensor, grad, state);
        let state = state.map(|AdamState { momentum }| {
            let AdaptiveMomentumState { time, moment_1: m, moment_2: v, .. } = momentum;
            let time = time as u64;
            OneBitAdamState { m, v, time, frozen: if time >= self.config.warm_up { time } else { 0 } }
        });
        (tensor, state)
    }

    fn step_of_momentum<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        averaged: Tensor<D>,
        state: OneBitAdamState<D>,
    ) -> Stepped<D> {
        let OneBitAdamConfig { beta_1, beta_2, epsilon, .. } = self.config;
        let (time, frozen) = (state.time.saturating_add(1), state.frozen);
        let root = (1.0 - beta_2.powf(frozen as f32)).sqrt();
        let correction = root / (1.0 - beta_1.powf(time as f32));
        let denominator = state.v.clone().sqrt().add_scalar(epsilon * root);
        let delta = averaged.clone().mul_scalar(correction).div(denominator);
        (tensor - delta.mul_scalar(lr), Some(OneBitAdamState { m: averaged, v: state.v, time, frozen }))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::walk::walk;
    use super::*;

    const GRADIENTS: [[f32; 3]; 6] =
        [[1.0, -2.0, 0.01], [0.5, 3.0, 0.02], [-1.0, 1.0, 0.03], [2.0, -4.0, -1.0], [0.1, 0.0, 0.5], [0.3, -0.2, 0.1]];

    #[test]
    fn the_warm_up_is_burns_adam_to_the_bit() {
        let settings = AdamConfig::new().with_beta_1(0.8).with_epsilon(1e-6);
        let ours = OneBitAdamConfig::new(6).with_beta_1(0.8).with_epsilon(1e-6).build();
        let start = [1.0, 2.0, 3.0];
        assert_eq!(walk(&ours, 0.1, start, &GRADIENTS), walk(&settings.build(), 0.1, start, &GRADIENTS));
    }

    /// Its v is that of steps 1 to 4: Adam over the momenta, with v unchanged.
    #[test]
    fn afterwards_momenta_step_over_a_second_moment_that_stays() {
        let (b1, b2, rate) = (0.9_f64, f64::from(0.999_f32), 0.1);
        let path = walk(&OneBitAdamConfig::new(4).build(), rate, [0.0; 3], &GRADIENTS);
        for i in 0..3 {
            let gradient = |step: usize| f64::from(GRADIENTS[step][i]);
            let v = (0..4).fold(0.0, |v, step| b2 * v + (1.0 - b2) * gradient(step).powi(2)) / (1.0 - b2.powi(4));
            for step in [4, 5] {
                let momentum = gradient(step) / (1.0 - b1.powi(step as i32 + 1));
                let expected = -rate * momentum / (v.sqrt() + 1e-5);
                let moved = f64::from(path[step][i]) - f64::from(path[step - 1][i]);
                assert!((moved - expected).abs() < 1e-6 + 1e-4 * expected.abs(), "{moved}, expected {expected}");
            }
        }
    }

    /// If Adam's second moment does not change either, nothing changes at T_w.
    #[test]
    fn a_constant_gradient_does_not_show_when_the_second_moment_freezes() {
        let gradients = [[2.0_f32]; 6];
        let adam = walk(&AdamConfig::new().build(), 0.1, [0.0], &gradients);
        let momenta: Vec<[f32; 1]> =
            (1..=6).map(|t| if t <= 3 { [2.0] } else { [2.0 * (1.0 - 0.9_f32.powi(t))] }).collect();
        let ours = walk(&OneBitAdamConfig::new(3).build(), 0.1, [0.0], &momenta);
        assert!(ours.iter().zip(adam).all(|(ours, adam)| (ours[0] - adam[0]).abs() < 1e-5));
    }

    #[test]
    #[should_panic(expected = "warm_up of OneBitAdam must be in 1..=2147483647, got 0")]
    fn no_warm_up_is_refused() {
        OneBitAdamConfig::new(0).build();
    }
}
