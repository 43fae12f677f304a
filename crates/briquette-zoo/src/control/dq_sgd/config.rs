//! Settings of DQ-SGD, and their valid ranges.

use super::plan::{Budget, Dual};
use super::trend::Trend;
use super::{Goal, Planner};
use briquette_core::CompressionRatio;
use briquette_core::config::{ControllerSettings, Described, Feedback};
use briquette_core::control::Controller;
use briquette_core::error::ConfigError;

/// Settings of DQ-SGD; see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "dqsgd",
    help = "bits a value from the gradient's norm and the steps that remain, BITS (4) in the mean",
    representatives("dqsgd:3,steps=8,contraction=0.8", "dqsgd:steps=8,error=0.5,smoothness=1,rate=0.1"),
    check = Self::check_together
)]
pub struct DqSgd {
    /// Mean bits per value over the run; 4 if neither this nor `error` is given.
    pub bits: Option<f64>,
    /// Number of optimizer steps of the run, if known.
    #[setting(range = "[1, inf)")]
    pub steps: Option<u64>,
    /// `α`: the share that a step leaves of the squared distance to the minimum. 1 is the rule for deep networks.
    #[setting(default = 1.0, range = "(0, 1]")]
    pub contraction: f64,
    /// Minimum bits per value.
    #[setting(default = 2, range = "[2, 8]")]
    pub min: u8,
    /// Maximum bits per value.
    #[setting(default = 8, range = "[min, 8]")]
    pub max: u8,
    /// `ε_Q`: the loss that quantization may add to the final loss, in place of `bits`.
    #[setting(range = "(0, inf)")]
    pub error: Option<f64>,
    /// `L`, the largest curvature of the loss.
    #[setting(range = "(0, inf)")]
    pub smoothness: Option<f64>,
    /// `η`, the learning rate.
    #[setting(range = "(0, inf)")]
    pub rate: Option<f64>,
    /// Number of values that share a scale in the quantizer.
    #[setting(default = 512, range = "[1, inf)")]
    pub bucket: u64,
}

impl ControllerSettings for DqSgd {
    fn build(&self, _feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller(world)?)))
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
        [self.max, self.min].map(CompressionRatio::of_bits)
    }
}

impl DqSgd {
    /// Creates the controller of one of `world` ranks.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range, and for settings that need others or exclude them.
    pub fn controller(&self, world: usize) -> Result<impl Controller + use<>, ConfigError> {
        self.check()?;
        let DqSgd { steps, contraction, min, max, bucket, .. } = *self;
        let (decay, ranks) = (contraction.log2() / 2.0, world.max(1) as f64);
        let goal = match (self.error, self.smoothness, self.rate, steps) {
            (Some(error), Some(smoothness), Some(rate), Some(steps)) => {
                let squared = [steps as f64, smoothness, rate, rate].map(f64::log2).iter().sum::<f64>();
                let constant = (squared - [12.0, error, ranks].map(f64::log2).iter().sum::<f64>()) / 2.0;
                Goal::Error(Dual { constant, steps, decay, bucket })
            }
            _ => Goal::Mean(Budget { mean: self.mean(), steps, decay }),
        };
        Ok(Planner { goal, ranks, min, max, spent: [0.0; 2], norms: [0.0; 2], trend: Trend::default(), last: 0 })
    }

    /// Returns the mean bits per step to be spent. The default is 4, limited to the allowed range.
    fn mean(&self) -> f64 {
        self.bits.unwrap_or(4.0_f64.max(self.min.into()).min(self.max.into()))
    }

    fn check_together(&self) -> Result<(), ConfigError> {
        let (mean, allowed) = (self.mean(), f64::from(self.min)..=f64::from(self.max));
        ConfigError::unless(allowed.contains(&mean), "bits of dqsgd", "in [min, max]", mean)?;
        let conflict = |left: &str, right: &str, why: &str, instead: &str| {
            Err(ConfigError::conflict(format!("{left} of dqsgd"), right, why, instead))
        };
        let parts = [self.steps.is_some(), self.smoothness.is_some(), self.rate.is_some()];
        match self.error {
            Some(_) if self.bits.is_some() => conflict("bits", "error", "they exclude each other", "give one"),
            Some(_) if parts.contains(&false) => conflict(
                "error",
                "missing settings",
                "it needs steps, smoothness and rate",
                "give all, or bits instead",
            ),
            None if parts[1] || parts[2] => {
                conflict("smoothness or rate", "bits", "only error uses them", "give error, or omit them")
            }
            None if self.contraction < 1.0 && self.steps.is_none() => {
                let why = "a contraction below 1 needs the number of steps";
                conflict("contraction", "an unknown number of steps", why, "give steps, or contraction 1")
            }
            _ => Ok(()),
        }
    }
}
