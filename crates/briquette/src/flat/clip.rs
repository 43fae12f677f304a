//! Clipping by the global norm of a module's gradients.

use std::collections::HashSet;

use briquette_core::math::norm2;
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

use super::transfer::{Pieces, as_f32};
use crate::error::Error;

/// Scales the gradients so that their global norm, `√(Σ g²)` over all tensors, is at most `max`. Returns them and the norm before scaling. The
/// gradient of a parameter that is used in several places counts once.
pub(crate) fn clip<M: Module>(module: &M, grads: GradientsParams, max: f64) -> Result<(GradientsParams, f64), Error> {
    let mut walk = Collect { grads: &grads, seen: HashSet::new(), pieces: Pieces::default() };
    module.visit(&mut walk);
    let mut sum = 0.0;
    walk.pieces.read(|block| {
        sum += norm2(as_f32(&block)?);
        Ok(())
    })?;
    let norm = sum.sqrt();
    if norm <= max {
        return Ok((grads, norm));
    }
    let mut walk = Scale { grads, scale: max / norm, scaled: GradientsParams::new() };
    module.visit(&mut walk);
    Ok((walk.scaled, norm))
}

struct Collect<'a> {
    grads: &'a GradientsParams,
    seen: HashSet<ParamId>,
    pieces: Pieces,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let (true, Some(grad)) = (self.seen.insert(param.id), self.grads.get::<D>(param.id)) {
            self.pieces.push(grad);
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
