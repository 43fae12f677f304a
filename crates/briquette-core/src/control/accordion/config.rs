//! Settings of Accordion, and their valid ranges.

use super::Detector;
use crate::CompressionFactor;
use crate::config::{ControllerSettings, Described, Feedback};
use crate::control::Controller;
use crate::error::ConfigError;

/// Settings of Accordion; see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Accordion {
    /// The ratio while gradients change.
    pub low: CompressionFactor,
    /// The ratio while they do not change.
    pub high: CompressionFactor,
    /// Number of steps from one check to the next.
    pub interval: u64,
    /// Number of steps measured for a check, the first of each interval.
    pub window: u64,
    /// The relative change of a norm from which a slot is critical.
    pub change: f64,
    /// Share of its highest value at which the learning rate counts as fallen.
    pub drop: f64,
    /// Set if each slot has its own ratio.
    pub per_slot: bool,
}

impl Default for Accordion {
    fn default() -> Self {
        let (low, high) = (CompressionFactor::constant(10.0), CompressionFactor::constant(100.0));
        Accordion { low, high, interval: 1000, window: 100, change: 0.5, drop: 0.5, per_slot: true }
    }
}

impl Described for Accordion {
    const NAME: &'static str = "accordion";
    const SETTINGS: &'static str = "LOWx[,high=HIGHx,interval=N,window=N,per_slot=true]";
    const HELP: &'static str = "a low ratio (10x) where gradients change between intervals, a high one elsewhere";

    fn check(&self) -> Result<(), ConfigError> {
        let Accordion { low, high, interval, window, change, drop, .. } = *self;
        ConfigError::unless(high > low, "high of accordion", "above low", high)?;
        ConfigError::unless(interval > 0, "interval of accordion", "at least 1 step", interval)?;
        ConfigError::unless((1..=interval).contains(&window), "window of accordion", "1 to interval", window)?;
        ConfigError::unless(change.is_finite() && change > 0.0, "change of accordion", "finite and above 0", change)?;
        ConfigError::unless(drop > 0.0 && drop < 1.0, "drop of accordion", "above 0 and below 1", drop)
    }

    fn representatives() -> Vec<Self> {
        let (low, high) = (CompressionFactor::constant(4.0), CompressionFactor::constant(16.0));
        let each = Accordion { low, high, interval: 2, window: 1, change: 0.1, ..Accordion::default() };
        vec![each, Accordion { window: 2, per_slot: false, ..each }]
    }
}

impl ControllerSettings for Accordion {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller()?)))
    }

    fn per_slot(&self) -> bool {
        self.per_slot
    }

    fn ratios(&self) -> [CompressionFactor; 2] {
        [self.low, self.high]
    }
}

impl Accordion {
    /// Creates the controller.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting outside its range.
    pub fn controller(&self) -> Result<impl Controller + use<>, ConfigError> {
        self.check()?;
        Ok(Detector::new(*self))
    }
}
