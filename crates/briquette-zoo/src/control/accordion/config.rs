//! Settings of Accordion, and their valid ranges.

use super::Detector;
use briquette_core::CompressionRatio;
use briquette_core::config::{ControllerSettings, Described, Feedback};
use briquette_core::control::Controller;
use briquette_core::error::ConfigError;

/// Settings of Accordion; see the [module](super).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "accordion",
    help = "a low ratio (10x) where gradients change between intervals, a high one elsewhere",
    representatives(
        "accordion:4x,high=16x,interval=2,window=1,change=0.1",
        "accordion:4x,high=16x,interval=2,window=2,change=0.1,per-slot=false",
    )
)]
pub struct Accordion {
    /// The ratio while gradients change.
    #[setting(default = "10x")]
    pub low: CompressionRatio,
    /// The ratio while they do not change.
    #[setting(default = "100x", range = "(low, inf)")]
    pub high: CompressionRatio,
    /// Number of steps from one check to the next.
    #[setting(default = 1000, range = "[1, inf)")]
    pub interval: u64,
    /// Number of steps measured for a check, the first of each interval.
    #[setting(default = 100, range = "[1, interval]")]
    pub window: u64,
    /// The relative change of a norm from which a slot is critical.
    #[setting(default = 0.5, range = "(0, inf)")]
    pub change: f64,
    /// Share of its highest value at which the learning rate counts as fallen.
    #[setting(default = 0.5, range = "(0, 1)")]
    pub drop: f64,
    /// Set if each slot has its own ratio.
    #[setting(default = true)]
    pub per_slot: bool,
}

impl ControllerSettings for Accordion {
    fn build(&self, _feedback: &Feedback, _world: usize) -> Result<Option<Box<dyn Controller>>, ConfigError> {
        Ok(Some(Box::new(self.controller()?)))
    }

    fn per_slot(&self) -> bool {
        self.per_slot
    }

    fn ratios(&self) -> [CompressionRatio; 2] {
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
