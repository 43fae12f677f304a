//! For `scripts/count-edits.sh`: settings of a strategy; what they build is there already.

use super::{SyncStrategy, every_step::EveryStep};
use crate::Layout;
use crate::settings::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use crate::error::ConfigError;

/// Gradients, every step.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(name = "other-every-step", help = "gradients, every step, by another name")]
pub struct OtherEveryStep {
    /// Nothing depends on it.
    pub setting: usize,
}

impl StrategySettings for OtherEveryStep {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&["reducer", "feedback"], "has few settings")), sends: Sends::AsTheyAre }
    }
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(EveryStep::new(exchange.build_reducer(layout, world)?)))
    }
    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }
    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }
}
