//! Settings of DQ-SGD, and their valid ranges.

use super::plan::{Budget, Dual};
use super::trend::Trend;
use super::{Goal, Planner};
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::control::Controller;
use crate::error::ConfigError;

/// Settings of DQ-SGD; see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DqSgd {
    /// Mean bits per value over the run; 4 if neither this nor `error` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<f64>,
    /// Number of optimizer steps of the run, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// `α`: the share that a step leaves of the squared distance to the minimum. 1 is the rule for deep networks.
    pub contraction: f64,
    /// Minimum bits per value.
    pub min: u8,
    /// Maximum bits per value.
    pub max: u8,
    /// `ε_Q`: the loss that quantization may add to the final loss, in place of `bits`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// `L`, the largest curvature of the loss.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub smoothness: Option<f64>,
    /// `η`, the learning rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// Number of values that share a scale in the quantizer.
    pub bucket: u64,
}

impl Default for DqSgd {
    fn default() -> Self {
        let (bits, steps, error, smoothness, rate) = (None, None, None, None, None);
        DqSgd { bits, steps, contraction: 1.0, min: 2, max: 8, error, smoothness, rate, bucket: 512 }
    }
}

impl Described for DqSgd {
    const NAME: &'static str = "dqsgd";
    const SETTINGS: &'static str = "BITS[,steps=N,contraction=1]";
    const HELP: &'static str = "bits a value from the gradient's norm and the steps that remain, BITS (4) in the mean";

    fn check(&self) -> Result<(), ConfigError> {
        let DqSgd { steps, contraction, min, max, bucket, .. } = *self;
        let contracts = contraction > 0.0 && contraction <= 1.0;
        ConfigError::unless((2..=8).contains(&min), "min of dqsgd", "2 to 8", min)?;
        ConfigError::unless((min..=8).contains(&max), "max of dqsgd", "from min to 8", max)?;
        let (mean, allowed) = (self.mean(), f64::from(min)..=f64::from(max));
        ConfigError::unless(allowed.contains(&mean), "bits of dqsgd", "from min to max", mean)?;
        ConfigError::unless(steps != Some(0), "steps of dqsgd", "at least 1", 0)?;
        ConfigError::unless(contracts, "contraction of dqsgd", "above 0 and at most 1", contraction)?;
        ConfigError::unless(bucket > 0, "bucket of dqsgd", "at least 1 value", bucket)?;
        let numbers = [("error of dqsgd", self.error), ("smoothness of dqsgd", self.smoothness)];
        for (what, number) in numbers.into_iter().chain([("rate of dqsgd", self.rate)]) {
            let number = number.unwrap_or(1.0);
            ConfigError::unless(number.is_finite() && number > 0.0, what, "finite and above 0", number)?;
        }
        self.check_together()
    }

    fn representatives() -> Vec<Self> {
        let convex = DqSgd { bits: Some(3.0), steps: Some(8), contraction: 0.8, ..DqSgd::default() };
        let (smoothness, rate) = (Some(1.0), Some(0.1));
        let dual = DqSgd { bits: None, contraction: 1.0, error: Some(0.5), smoothness, rate, ..convex };
        vec![convex, dual]
    }
}

impl ControllerSettings for DqSgd {
    fn build(&self, _feedback: &Feedback, world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller(world)?)))
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [self.max, self.min].map(CompressionFactor::of_bits)
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
