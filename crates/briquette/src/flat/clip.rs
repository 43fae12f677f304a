//! Clipping by the global norm of a module's gradients.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{DType, Tensor};

use super::transfer::{Pieces, as_f32};
use super::values::read_gradients;
use crate::error::Error;

/// Scales the gradients so that their global norm, `√(Σ g²)` over all tensors, is at most `max`. Returns them and the norm before.
pub(crate) fn clip<M: Module>(module: &M, grads: GradientsParams, max: f64) -> Result<(GradientsParams, f64), Error> {
    let norm = norm(module, &grads)?;
    if norm <= max {
        return Ok((grads, norm));
    }
    let mut walk = Scale { grads, scale: max / norm, scaled: GradientsParams::new() };
    module.visit(&mut walk);
    Ok((walk.scaled, norm))
}

/// Squares are summed where the gradients are: a number a tensor is read.
fn norm<M: Module>(module: &M, grads: &GradientsParams) -> Result<f64, Error> {
    let mut walk = Squares { grads, sums: Pieces::default() };
    module.visit(&mut walk);
    let mut sum = 0.0;
    walk.sums.read(|block| {
        sum += as_f32(&block)?.iter().map(|square| f64::from(*square)).sum::<f64>();
        Ok(())
    })?;
    if !sum.is_finite() {
        // Squares of finite values may exceed the largest f32.
        let mut values = Vec::new();
        read_gradients(module, grads, &mut values)?;
        sum = values.iter().map(|value| f64::from(*value).powi(2)).sum();
    }
    Ok(sum.sqrt())
}

struct Squares<'a> {
    grads: &'a GradientsParams,
    sums: Pieces,
}

impl ModuleVisitor for Squares<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.get::<D>(param.id) {
            let grad = if grad.dtype() == DType::F32 { grad } else { grad.cast(DType::F32) };
            self.sums.push(grad.square().sum());
        }
    }
}

struct Scale {
    grads: GradientsParams,
    scale: f64,
    scaled: GradientsParams,
}

impl ModuleVisitor for Scale {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(grad) = self.grads.remove::<D>(param.id) {
            self.scaled.register(param.id, grad.mul_scalar(self.scale));
        }
    }
}
