//! Shared parts of the optimizers: checks of settings, weight decay, moving averages, gradient clipping.

use std::fmt::Display;

use burn::grad_clipping::GradientClippingConfig;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::{ModuleOptimizer, Optimizer};
use burn::tensor::Tensor;

/// Panics unless a setting is valid.
#[track_caller]
pub(super) fn check(is_valid: bool, setting: &str, valid: &str, got: impl Display) {
    assert!(is_valid, "{setting} must be {valid}, got {got}");
}

/// Panics unless a setting is the weight of a moving average.
#[track_caller]
pub(super) fn check_beta(setting: &str, beta: f64) {
    check((0.0..1.0).contains(&beta), setting, "in [0, 1)", beta);
}

/// Panics unless a setting is finite and not negative.
#[track_caller]
pub(super) fn check_not_negative(setting: &str, value: f64) {
    check(value.is_finite() && value >= 0.0, setting, "at least 0 and finite", value);
}

/// Panics unless a penalty is finite and not negative.
#[track_caller]
pub(super) fn check_decay(setting: &str, decay: Option<&WeightDecayConfig>) {
    decay.iter().for_each(|decay| check_not_negative(setting, decay.penalty.into()));
}

/// `g + λ·x`.
pub(super) fn decayed<const D: usize>(
    gradient: Tensor<D>,
    parameter: &Tensor<D>,
    decay: Option<&WeightDecayConfig>,
) -> Tensor<D> {
    match decay {
        Some(decay) => parameter.clone().mul_scalar(decay.penalty) + gradient,
        None => gradient,
    }
}

/// `β·old + (1 − β)·value`, with `old` being 0 at the start.
pub(super) fn moving_average<const D: usize>(old: Option<Tensor<D>>, value: Tensor<D>, beta: f64) -> Tensor<D> {
    let value = value.mul_scalar(1.0 - beta);
    match old {
        Some(old) => old.mul_scalar(beta) + value,
        None => value,
    }
}

/// `a/b`, or 0 if `b` is 0. With an ε of 0, this avoids a division by a root that is 0 or has underflowed.
pub(super) fn ratio<const D: usize>(a: Tensor<D>, b: Tensor<D>) -> Tensor<D> {
    let is_zero = b.clone().equal_scalar(0.0);
    (a / b).mask_fill(is_zero, 0.0)
}

/// Burn's optimizer of a whole module, which clips gradients as configured.
pub(super) fn of_module(optimizer: impl Optimizer, clipping: Option<&GradientClippingConfig>) -> ModuleOptimizer {
    let optimizer = ModuleOptimizer::from(optimizer);
    match clipping {
        Some(clipping) => optimizer.with_grad_clipping(clipping.init()),
        None => optimizer,
    }
}
