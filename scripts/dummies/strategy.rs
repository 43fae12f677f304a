//! For `scripts/count-edits.sh`: settings of a strategy; what they build is there already.

use super::{EveryStep, SyncStrategy};
use crate::Layout;
use crate::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use crate::error::ConfigError;

/// Gradients, every step.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OtherEveryStep {
    /// Nothing depends on it.
    pub setting: usize,
}

impl Described for OtherEveryStep {
    const NAME: &'static str = "other-every-step";
    const SETTINGS: &'static str = "SETTING";
    const HELP: &'static str = "gradients, every step, by another name";
}

impl StrategySettings for OtherEveryStep {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&["reducer", "feedback"], "has few settings")), sends: Sends::AsTheyAre }
    }
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(EveryStep::new(exchange.build_reducer(layout, world)?)))
    }
    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        exchange.fewest_ranks()
    }
    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }
}
