//! Delayed AdaGrad with momentum: accumulates steps whose sizes do not depend on the current gradient.
//!
//! **Why, and when not.** Like [delayed AdaGrad](super::delayed_ada_grad), with the momentum that is usual for networks. Its
//! bound holds with high probability, and therefore for one run, not only for the mean of many. The step size adapts to noise
//! without measuring it. Not if `β` is small relative to the first gradient, as without momentum: the first step is
//! `α·g/β^(1/2 + ε)`.
//!
//! **Method.** Coordinate by coordinate:
//!
//! | paper | here |
//! |---|---|
//! | `η_t = α/(β + Σ_{i<t} g_i²)^(1/2 + ε)` | `α` is the learning rate, `beta`, `epsilon`; `sum` |
//! | `m_t = μ·m_{t−1} + η_t·g_t` | `momentum`; `velocity` |
//! | `x ← x − m_t` | the step |
//!
//! The step size is applied before the momentum: terms that were added with an older, larger step size keep it.
//!
//! | setting | equivalent |
//! |---|---|
//! | `μ = 0` | delayed AdaGrad, bit for bit |
//! | `β` large relative to all squares | SGD with momentum `μ` at the rate `α/β^(1/2 + ε)` |
//!
//! **Properties.** For a smooth loss, convex or not, and noise with light tails the mean of `‖∇f(x_t)‖²` over `T` steps is
//! `Õ(1/T + σ/√T)` with high probability, at one setting for every `σ`. On a non-convex loss the worst of 100 runs decreases as
//! `T^−1.00` without noise, and as `T^−.53` and `T^−.44` with noise of .5 and 1; it is 1.2 times the median (`claims optimizers`
//! in `benches/`).
//!
//! **State.** Two vectors. In f32 the sum stops growing once a square is below 6e-8 of it.
//!
//! **Knobs.** `momentum` in [0, 1), default 0.9; `beta`, default 1; `epsilon` in [0, ½], default 0.
//!
//! **Deviations.** Weight decay and clipping of the gradient, both off by default, are Burn's and not the paper's. Only the paper's abstract
//! was available: the form of the momentum is that of the authors' other papers.
//!
//! **Reference.** X. Li, F. Orabona, *A High Probability Analysis of Adaptive SGD with Momentum*, ICML workshop *Beyond First Order Methods in ML
//! Systems* 2020 (arXiv 2007.14294).
//!
//! ```
//! use briquette::optim::DelayedAdaGradMomentumConfig;
//! use burn::optim::Optimizer;
//! use burn::tensor::{Device, Tensor};
//! let optimizer = DelayedAdaGradMomentumConfig::new().with_beta(4.0).with_momentum(0.5).build();
//! let x = Tensor::<1>::from_floats([0.0], &Device::flex());
//! let g = x.ones_like().mul_scalar(12_f64.sqrt());
//! let (x, state) = optimizer.step(0.5, x, g.clone(), None);
//! let (next, _) = optimizer.step(0.5, x.clone(), g.clone(), state);
//! // 0.5/√4, then half of that and 0.5/√(4 + 12).
//! let moved = [x.clone(), next - x].map(|moved| -(moved / g.clone()).into_scalar::<f32>());
//! assert!((moved[0] - 0.25).abs() < 1e-6 && (moved[1] - 0.25).abs() < 1e-6);
//! ```

use burn::config::Config;
use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{LearningRate, ModuleOptimizer, Optimizer};
use burn::tensor::{Device, Tensor};

use super::settings::{check, check_beta, check_decay, decayed, of_module};
use super::state::state;

/// Settings of [`DelayedAdaGradMomentum`].
#[derive(Config, Debug)]
pub struct DelayedAdaGradMomentumConfig {
    /// Fraction of the velocity that is kept at each step, in [0, 1).
    #[config(default = 0.9)]
    momentum: f64,
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

impl DelayedAdaGradMomentumConfig {
    /// Builds the optimizer of one tensor, for a parameter group.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn build(&self) -> DelayedAdaGradMomentum {
        let (beta, epsilon) = (self.beta, self.epsilon);
        check_beta("momentum of DelayedAdaGradMomentum", self.momentum);
        check(beta >= 1e-37 && beta.is_finite(), "beta of DelayedAdaGradMomentum", "at least 1e-37", beta);
        check((0.0..=0.5).contains(&epsilon), "epsilon of DelayedAdaGradMomentum", "in [0, 0.5]", epsilon);
        check_decay("weight_decay of DelayedAdaGradMomentum", self.weight_decay.as_ref());
        DelayedAdaGradMomentum(self.clone())
    }

    /// Builds the optimizer of a module, which clips gradients.
    ///
    /// # Panics
    /// A setting is out of its range.
    pub fn init(&self) -> ModuleOptimizer {
        of_module(self.build(), self.grad_clipping.as_ref())
    }
}

/// Delayed AdaGrad with momentum; see the [module](self).
#[derive(Debug, Clone)]
pub struct DelayedAdaGradMomentum(DelayedAdaGradMomentumConfig);

state! {
    /// State of [`DelayedAdaGradMomentum`] for one tensor.
    DelayedAdaGradMomentumState, "delayed-ada-grad-momentum";
    tensors {
        /// The sum of squares of all gradients so far.
        sum,
        /// The last step.
        velocity,
    }
    counts {}
}

impl Optimizer for DelayedAdaGradMomentum {
    type State<const D: usize> = DelayedAdaGradMomentumState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let Self(config) = self;
        let grad = decayed(grad, &tensor, config.weight_decay.as_ref());
        let (before, velocity) = match state {
            Some(state) => (state.sum, Some(state.velocity)),
            None => (grad.zeros_like(), None),
        };
        let base = before.clone().add_scalar(config.beta).sqrt();
        // √b^(1 + 2ε) is b^(1/2 + ε), and exact for ε = 0.
        let power = if config.epsilon == 0.0 { base } else { base.powf_scalar(1.0 + 2.0 * config.epsilon) };
        let delta = (grad.clone() / power).mul_scalar(lr);
        let velocity = match velocity {
            Some(velocity) => velocity.mul_scalar(config.momentum) + delta,
            None => delta,
        };
        (tensor - velocity.clone(), Some(DelayedAdaGradMomentumState { sum: before + grad.square(), velocity }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moved_to(device)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::super::DelayedAdaGradConfig;
    use super::super::walk::{assert_near, record, walk};
    use super::*;
    use burn::optim::SgdConfig;
    use burn::optim::momentum::MomentumConfig;

    /// Steps 2·3/16^(3/4) = .75, then .75/2 + 2·5/25^(3/4), then half of that with no new term.
    #[test]
    fn three_steps_by_hand() {
        let optimizer = DelayedAdaGradMomentumConfig::new().with_momentum(0.5).with_beta(16.0).with_epsilon(0.25);
        let path = walk(&optimizer.build(), 2.0, [0.0], &[[3.0], [5.0], [0.0]]);
        let second = 0.375 + 10.0 / 25_f64.powf(0.75);
        assert_near(&path[0], &[-0.75], 1e-6);
        assert_near(&path[1], &[-0.75 - second], 1e-6);
        assert_near(&path[2], &[-0.75 - 1.5 * second], 1e-6);
    }

    fn gradients() -> Vec<[f32; 2]> {
        (0..40).map(|t| [(t as f32 * 1.3).sin(), (t as f32 * 0.4).cos() * 3.0]).collect()
    }

    #[test]
    fn without_momentum_it_is_delayed_ada_grad_to_the_bit() {
        let ours = DelayedAdaGradMomentumConfig::new().with_momentum(0.0).with_epsilon(0.125).build();
        let plain = DelayedAdaGradConfig::new().with_epsilon(0.125).build();
        assert_eq!(walk(&ours, 0.3, [1.0, -1.0], &gradients()), walk(&plain, 0.3, [1.0, -1.0], &gradients()));
    }

    #[test]
    fn under_a_beta_that_no_sum_moves_it_is_sgd_with_momentum() {
        let ours = DelayedAdaGradMomentumConfig::new().with_beta(1e12).build();
        let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
        let sgd = SgdConfig::new().with_momentum(Some(momentum)).build();
        let (ours, sgd) = (walk(&ours, 1e5, [1.0, -1.0], &gradients()), walk(&sgd, 0.1, [1.0, -1.0], &gradients()));
        for (ours, sgd) in ours.iter().zip(&sgd) {
            assert!(ours.iter().zip(sgd).all(|(a, b)| (a - b).abs() < 1e-4), "{ours:?}, {sgd:?}");
        }
    }

    #[test]
    #[should_panic(expected = "momentum of DelayedAdaGradMomentum must be in [0, 1), got 1")]
    fn a_momentum_of_1_is_refused() {
        DelayedAdaGradMomentumConfig::new().with_momentum(1.0).build();
    }

    #[test]
    #[should_panic(expected = "it holds the state of delayed-ada-grad")]
    fn a_record_without_momentum_is_refused() {
        DelayedAdaGradMomentumConfig::new().init().load_record(record(DelayedAdaGradConfig::new().build()));
    }

    /// The longer name begins with the shorter one.
    #[test]
    #[should_panic(expected = "cannot be loaded into delayed-ada-grad: of parameter")]
    fn a_record_with_momentum_is_refused_without() {
        DelayedAdaGradConfig::new().init().load_record(record(DelayedAdaGradMomentumConfig::new().build()));
    }
}
