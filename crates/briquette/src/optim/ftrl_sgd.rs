//! SGD by FTRL (follow-the-regularized-leader): increasing momentum and shrinking updates, for a last iterate with the
//! optimal rate.
//!
//! **Why, and when not.** On a convex loss with a Lipschitz constant the mean of SGD's iterates is within `O(1/√T)` of the
//! minimum. The last iterate, which is used in practice, is not: for every constant momentum there is such a loss on which its
//! error is `ln T/√T`. Here the last iterate has the optimal rate, without a projection, without keeping an average, and without
//! knowing `T`. For convex losses, or the end of a run. Not for networks that must move far from their initial parameters,
//! because every update is pulled back towards these.
//!
//! **Method.** Follow-the-regularized-leader chooses a target, and the iterate moves a share `1/(t + 1)` of the way to it. Steps
//! count from 1.
//!
//! | paper | here |
//! |---|---|
//! | `m_t = β_t·m_{t−1} + (1 − β_t)·g_t`, `β_t = (t − 1)/t` | `mean`, of all gradients so far |
//! | `η_t = c/√t` | the learning rate over `t^rate_power` |
//! | `x_{t+1} = t/(t + 1)·x_t + 1/(t + 1)·(x₁ − η_t·t·m_t)`; with `x₁ = 0`: `t/(t + 1)·(x_t − η_t·m_t)` | the step; `start` is `x₁` |
//!
//! The iterate is therefore the mean of FTRL's targets. No gradients are taken at the targets.
//!
//! **Properties.** For a convex loss whose stochastic gradients have a second moment of at most `G²`, with `rate_power` ½:
//! `E f(x_T) − f* ≤ (‖x₁ − x*‖²/(2c) + c·G²)/√T`. On the worst case for constant momentum .9, of length `T`, the last iterate's excess loss
//! times `√T` is .107, .174, .241, .308 for `T` of 64, 256, 1024, 4096, and here .037, .039, .039, .039 (`claims optimizers` in `benches/`).
//!
//! **State.** Two vectors: the first parameters and the mean of gradients.
//!
//! **Knobs.** `rate_power` in [0, 1], default ½; 0 for a rate that was tuned for a known `T`.
//!
//! **Deviations.** All gradients have equal weights; the paper allows others, and AdaGrad's step sizes. The sum of gradients is
//! scaled with the current learning rate, so a schedule also rescales the contribution of earlier gradients: keep the rate
//! constant. Gradients must be exchanged at every step: if a strategy averages parameters, the pull towards a rank's own sum
//! works against the average. Weight decay and clipping of the gradient, both off by default, are Burn's and not the paper's.
//! Only the paper's abstract was available. The step is the one that has the properties in the abstract (increasing momentum,
//! shrinking updates, FTRL), and the bound is derived from it.
//!
//! **Reference.** X. Li, M. Liu, F. Orabona, *On the Last Iterate Convergence of Momentum Methods*, ALT 2022 (arXiv 2102.07002); X. Li's thesis,
//! Boston University 2022.
//!
//! ```
//! use briquette::optim::FtrlSgdConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = FtrlSgdConfig::new().build();
//! let x = Tensor::<1>::from_floats([3.0], &Device::flex());
//! let (x, state) = optimizer.step(2.0, x.clone(), x.ones_like(), None);
//! assert_eq!(x.clone().into_scalar::<f32>(), 2.0); // half of the way from 3 to 3 − 2·1
//! let (x, _) = optimizer.step(2.0, x.clone(), x.ones_like(), state);
//! assert!((x.into_scalar::<f32>() - (2.0 / 3.0 * 2.0 + (3.0 - 2.0 * 2_f32.sqrt()) / 3.0)).abs() < 1e-6);
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_decay, decayed, of_module};
use super::state::state;

/// Settings of [`FtrlSgd`].
#[derive(Config, Debug)]
pub struct FtrlSgdConfig {
    /// The learning rate is divided by the step to this power, in [0, 1].
    #[config(default = 0.5)]
    rate_power: f64,
    /// Added to the gradient.
    weight_decay: Option<WeightDecayConfig>,
    /// Clips each tensor's gradient.
    grad_clipping: Option<GradientClippingConfig>,
}

impl FtrlSgdConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> FtrlSgd {
        check((0.0..=1.0).contains(&self.rate_power), "rate_power of FtrlSgd", "in [0, 1]", self.rate_power);
        check_decay("weight_decay of FtrlSgd", self.weight_decay.as_ref());
        FtrlSgd(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// SGD by follow-the-regularized-leader; see the [module](self).
#[derive(Debug, Clone)]
pub struct FtrlSgd(FtrlSgdConfig);

state! {
    /// State of [`FtrlSgd`] for one tensor.
    FtrlSgdState, "ftrl-sgd";
    tensors {
        /// The parameters before the first step.
        start,
        /// The mean of all gradients so far.
        mean,
    }
    counts {
        /// Steps taken.
        time,
    }
}

impl Optimizer for FtrlSgd {
    type State<const D: usize> = FtrlSgdState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let (start, mean, time) = match state {
            Some(state) => (state.start, state.mean, state.time + 1),
            None => (tensor.clone(), grad.zeros_like(), 1),
        };
        let steps = time as f64;
        let mean = mean.clone() + (grad - mean).div_scalar(steps);
        let leader = start.clone() - mean.clone().mul_scalar(lr * steps.powf(1.0 - config.rate_power));
        let next = tensor.clone() + (leader - tensor).div_scalar(steps + 1.0);
        (next, Some(FtrlSgdState { start, mean, time }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::walk::{assert_near, record, walk};
    use super::*;

    /// Means 4, 1, 2; leaders 1 − ½·1·4, 1 − ½·2/√2·1, 1 − ½·3/√3·2; halves, thirds and quarters of the way to them.
    #[test]
    fn three_steps_by_hand() {
        let path = walk(&FtrlSgdConfig::new().build(), 0.5, [1.0], &[[4.0], [-2.0], [4.0]]);
        let leaders = [-1.0, 1.0 - 0.5 * 2_f64.sqrt(), 1.0 - 3_f64.sqrt()];
        let first = (1.0 + leaders[0]) / 2.0;
        let second = (2.0 * first + leaders[1]) / 3.0;
        let third = (3.0 * second + leaders[2]) / 4.0;
        assert_near(&path[0], &[first], 1e-6);
        assert_near(&path[1], &[second], 1e-6);
        assert_near(&path[2], &[third], 1e-6);
    }

    /// The form that the method is named for.
    #[test]
    fn from_0_it_is_momentum_that_grows_and_updates_that_shrink() {
        let gradients: Vec<[f32; 2]> = (0..30).map(|t| [(t as f32 * 0.7).sin(), (t as f32).cos() + 0.3]).collect();
        let path = walk(&FtrlSgdConfig::new().build(), 0.3, [0.0; 2], &gradients);
        let (mut x, mut m) = ([0.0_f64; 2], [0.0_f64; 2]);
        for (t, (gradient, got)) in (1..).zip(gradients.iter().zip(&path)) {
            let t = f64::from(t);
            for i in 0..2 {
                m[i] = (t - 1.0) / t * m[i] + f64::from(gradient[i]) / t;
                x[i] = t / (t + 1.0) * (x[i] - 0.3 / t.sqrt() * m[i]);
            }
            assert_near(got, &x, 1e-4);
        }
    }

    #[test]
    #[should_panic(expected = "rate_power of FtrlSgd must be in [0, 1], got 1.5")]
    fn a_power_above_1_is_refused() {
        FtrlSgdConfig::new().with_rate_power(1.5).build();
    }

    #[test]
    #[should_panic(expected = "it holds the state of delayed-ada-grad-momentum")]
    fn a_record_of_another_optimizer_here_is_named() {
        let other = super::super::DelayedAdaGradMomentumConfig::new().build();
        FtrlSgdConfig::new().init().load_record(record(other));
    }
}
