//! Clipping of the gradient that the optimizer steps with, by its global norm.

use burn::module::Module;
use burn::optim::GradientsParams;

use super::Synchronizer;
use crate::error::Error;
use crate::flat;
use crate::strategy::InnerOptimizer;

/// The largest norm, and the norm of the last gradient.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clip {
    max: Option<f64>,
    norm: Option<f64>,
}

impl Synchronizer {
    /// Scales the gradient that the optimizer steps with so that its global norm, over all parameters, is at most `max`: after the exchange, so that
    /// all ranks clip the same average by the same factor. Where a strategy exchanges parameters, each rank clips its own gradient. The same on every
    /// rank: [`join`](Self::join) compares.
    ///
    /// A feedback that is [left open](briquette_core::config::Feedback::ByOptimizer) is then error feedback, as momentum correction in addition to the
    /// optimizer's own momentum needs an optimizer that is linear in the gradient.
    ///
    /// # Panics
    /// If `max` is not above 0.
    #[must_use]
    pub fn with_clip_norm(mut self, max: f64) -> Self {
        assert!(max > 0.0, "with_clip_norm: the largest norm must be above 0, got {max}");
        self.clip.max = Some(max);
        self.with_run_setting("largest gradient norm", max.to_string())
    }

    /// The global norm of the gradient of the last step, before it was clipped; `None` without [`with_clip_norm`](Self::with_clip_norm).
    pub fn gradient_norm(&self) -> Option<f64> {
        self.clip.norm
    }

    /// Clips an average before it becomes Burn's gradients: on the host, so that its bits are the same on every rank.
    pub(super) fn clip_average(&mut self, average: &mut [f32]) {
        let Some(max) = self.clip.max else { return };
        let norm = flat::energy(average).sqrt();
        self.clip.norm = Some(norm);
        if norm > max {
            let scale = (max / norm) as f32;
            average.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// Clips this rank's own gradients, which no rank exchanges.
    pub(super) fn clip_own<M: Module>(&mut self, module: &M, grads: GradientsParams) -> Result<GradientsParams, Error> {
        let Some(max) = self.clip.max else { return Ok(grads) };
        let (grads, norm) = flat::clip(module, grads, max)?;
        self.clip.norm = Some(norm);
        Ok(grads)
    }

    /// Returns whether gradients are clipped.
    pub(crate) fn clips(&self) -> bool {
        self.clip.max.is_some()
    }
}

impl Clip {
    /// The optimizer as the exchange sees it: clipping is not linear.
    pub(super) fn seen(self, optimizer: InnerOptimizer) -> InnerOptimizer {
        match (self.max, optimizer) {
            (Some(_), InnerOptimizer::Sgd) => InnerOptimizer::Other,
            (Some(_), InnerOptimizer::HeavyBall { .. }) => InnerOptimizer::OtherMomentum,
            _ => optimizer,
        }
    }
}
