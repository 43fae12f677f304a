//! Gradient clipping by global norm, after the exchange.

use briquette_core::math::norm2;
use burn::module::Module;
use burn::optim::GradientsParams;

use super::Synchronizer;
use crate::error::Error;
use crate::flat;
use crate::strategy::InnerOptimizer;

/// The maximum norm, and the norm of the last gradient.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Clip {
    max: Option<f64>,
    norm: Option<f64>,
}

impl Synchronizer {
    /// Sets the maximum global norm, over all parameters, of the gradient that the optimizer steps with. A longer gradient is scaled down after the
    /// exchange, so all ranks clip the same average by the same factor. If the strategy exchanges parameters instead, each rank clips its own
    /// gradient. `max` must be the same on every rank: [`join`](Self::join) compares it.
    ///
    /// Clipping turns a feedback that is [left open](briquette_core::wrapper::by_optimizer::ByOptimizer) into error feedback: momentum correction
    /// with the optimizer's own momentum needs an optimizer that is linear in the gradient.
    ///
    /// # Panics
    /// If `max` is not above 0.
    #[must_use]
    pub fn with_clip_norm(mut self, max: f64) -> Self {
        assert!(max > 0.0, "with_clip_norm: the largest norm must be above 0, got {max}");
        self.clip.max = Some(max);
        self.with_run_setting("largest gradient norm", max.to_string())
    }

    /// The global norm of the last step's gradient before clipping; `None` without [`with_clip_norm`](Self::with_clip_norm).
    pub fn gradient_norm(&self) -> Option<f64> {
        self.clip.norm
    }

    /// Clips an average before it is converted to Burn's gradients, so the bits are the same on every rank.
    pub(super) fn clip_average(&mut self, average: &mut [f32]) {
        let Some(max) = self.clip.max else { return };
        let norm = norm2(average).sqrt();
        self.clip.norm = Some(norm);
        if norm > max {
            let scale = (max / norm) as f32;
            average.iter_mut().for_each(|value| *value *= scale);
        }
    }

    /// As [`clip_average`](Self::clip_average), on the device, to the same bits.
    #[cfg(feature = "device")]
    pub(super) fn clip_on_device(&mut self, vector: &briquette_device::Gradient) -> Result<(), Error> {
        let Some(max) = self.clip.max else { return Ok(()) };
        self.clip.norm = Some(vector.clip_average(max).map_err(Error::device)?);
        Ok(())
    }

    /// Clips this rank's own gradients, at a step at which gradients are not exchanged.
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
    /// Returns the optimizer as it appears to the exchange: with clipping it is not linear in the gradient.
    pub(super) fn seen(self, optimizer: InnerOptimizer) -> InnerOptimizer {
        match (self.max, optimizer) {
            (Some(_), InnerOptimizer::Sgd) => InnerOptimizer::Other,
            (Some(_), InnerOptimizer::HeavyBall { .. }) => InnerOptimizer::OtherMomentum,
            _ => optimizer,
        }
    }
}
