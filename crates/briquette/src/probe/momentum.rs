//! Momentum detection: identifies heavy-ball SGD, or another kind of momentum, from an optimizer's steps.
//!
//! A copy steps small parameters with gradients of three sizes. For a gradient `g`, SGD computes `v ← m·v + (1−d)·g`,
//! `x ← x − γ·v` (the first `v` is `g`), for each value separately and linearly in `g`. Two steps determine `m` and the dampening `d`,
//! and the other steps must agree with them. They do not agree for Adam, Nesterov momentum, clipping, and parameter groups that
//! differ. For these, the probe only determines whether they have any momentum. The learning rate is so small relative to the
//! gradients that weight decay, which adds `λ·x` to `g`, has no effect. The optimizer keeps its weight decay.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::module::Module;
use burn::optim::ModuleOptimizer;

use super::{Shrink, fresh, gradients};
use crate::error::Error;
use crate::flat::{self, Part};
use crate::strategy::InnerOptimizer;

/// A power of two, so that steps are exact.
const RATE: f32 = 1.0 / (1 << 20) as f32;
/// Scales of the gradients.
const SIZES: [f32; 3] = [1.0, (1 << 20) as f32, 1.0 / (1 << 14) as f32];
/// The gradient of each step, in scales; from step [`TURNED`] on, the values are rotated.
const STEPS: [f32; 8] = [1.0, 0.0, 0.0, 1.0, -0.5, 0.75, 0.0, 2.0];
const TURNED: usize = 4;
/// The gradient's values, and those of the parameters at the start: the first step leaves 0, and the second `−m` of them.
const PATTERN: [f32; 4] = [1.0, -0.5, 2.0, 0.25];
/// Tolerance of steps, in scales.
const TOLERANCE: f64 = 1e-4;

/// The name of the records of 1-bit Adam's optimizer.
const ONE_BIT_ADAM: &[u8] = b"one-bit-adam";

/// Returns the kind of the optimizer. If it cannot be probed, the kind is [`Other`](InnerOptimizer::Other).
pub(crate) fn inner_optimizer<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> InnerOptimizer {
    match catch_unwind(AssertUnwindSafe(|| momentum(optimizer, module))) {
        Ok(Ok(Some(0.0))) => InnerOptimizer::Sgd,
        Ok(Ok(Some(momentum))) => InnerOptimizer::HeavyBall { momentum },
        _ => match catch_unwind(AssertUnwindSafe(|| momentum_kind(optimizer, module))) {
            Ok(Ok(Some(kind))) => kind,
            _ => InnerOptimizer::Other,
        },
    }
}

/// Returns the kind of an optimizer with momentum. With momentum, a step without a gradient moves a parameter differently
/// if another step precedes it.
fn momentum_kind<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<Option<InnerOptimizer>, Error> {
    let Some(fresh) = fresh(optimizer) else { return Ok(None) };
    let mut used = fresh.clone();
    let module = module.clone().map(&mut Shrink { size: RATE, pattern: PATTERN, keeps_type: false });
    let first = gradients(&module, 1.0, PATTERN);
    let module = used.step(f64::from(RATE), module, first);
    let record = used.into_bytes().map(|bytes| bytes.to_vec()).unwrap_or_default();
    let second = |mut optimizer: ModuleOptimizer| {
        let module = module.clone();
        let none = gradients(&module, 0.0, PATTERN);
        let mut values = Vec::new();
        flat::read_values(&optimizer.step(f64::from(RATE), module, none), Part::Trainable, &mut values)?;
        Ok::<_, Error>(values)
    };
    let (after, without) = (second(used)?, second(fresh)?);
    let kind = match record.windows(ONE_BIT_ADAM.len()).any(|name| name == ONE_BIT_ADAM) {
        true => InnerOptimizer::OneBitAdam,
        false => InnerOptimizer::OtherMomentum,
    };
    Ok(after.iter().zip(without).any(|(a, b)| (a - b).abs() > 1e-3 * RATE).then_some(kind))
}

/// Returns the momentum of SGD; `None` for any other optimizer.
fn momentum<M: Module>(optimizer: &ModuleOptimizer, module: &M) -> Result<Option<f32>, Error> {
    let Some(fresh) = fresh(optimizer) else { return Ok(None) };
    let mut found: Option<f32> = None;
    for size in SIZES {
        let mut shrink = Shrink { size: RATE * size, pattern: PATTERN, keeps_type: false };
        let (mut optimizer, mut module) = (fresh.clone(), module.clone().map(&mut shrink));
        let (mut paths, lens) = (Vec::new(), super::lens(&module));
        for step in 0..STEPS.len() {
            let gradients = gradients(&module, size, at(step));
            module = optimizer.step(f64::from(RATE), module, gradients);
            let mut values = Vec::new();
            flat::read_values(&module, Part::Trainable, &mut values)?;
            paths.push(values);
        }
        let places = lens.iter().flat_map(|len| 0..*len).enumerate();
        let mut fits = |(index, value): (usize, usize)| {
            let path: Vec<f64> = paths.iter().map(|values| f64::from(values[index]) / f64::from(RATE * size)).collect();
            heavy_ball(&path, value).is_some_and(|momentum| *found.get_or_insert(momentum) == momentum)
        };
        if !{ places }.all(&mut fits) {
            return Ok(None);
        }
    }
    Ok(found)
}

/// The gradient's values at a step, in scales.
fn at(step: usize) -> [f32; 4] {
    let mut values = PATTERN.map(|value| STEPS[step] * value);
    values.rotate_left(usize::from(step >= TURNED));
    values
}

/// Returns the momentum that explains this path of one value. The path begins at the value's gradient. The momentum is
/// rounded to millionths, so that devices with different rounding agree.
fn heavy_ball(path: &[f64], value: usize) -> Option<f32> {
    let gradient = |step: usize| f64::from(at(step)[value]);
    let (first, begin) = (gradient(0), f64::from(PATTERN[value]));
    let momentum = (-path[1] / first * 1e6).round() / 1e6;
    let velocity = |step: usize| if step == 0 { begin - path[0] } else { path[step - 1] - path[step] };
    let dampening = 1.0 - (velocity(3) - momentum * velocity(2)) / gradient(3);
    let mut v = first;
    let follows = (0..path.len()).all(|step| {
        if step > 0 {
            v = momentum * v + (1.0 - dampening) * gradient(step);
        }
        (velocity(step) - v).abs() <= TOLERANCE
    });
    let is_valid = (0.0..1.0).contains(&momentum) && dampening > -TOLERANCE && dampening < 1.0;
    (follows && is_valid).then_some(momentum.abs() as f32)
}
