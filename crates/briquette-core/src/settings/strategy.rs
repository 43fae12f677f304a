//! Settings of a strategy: the properties that it declares, and its construction.

use std::any::Any;
use std::fmt;

use super::{Exchange, StrategyConfig};
use crate::Layout;
use crate::error::ConfigError;
use crate::seam::SyncStrategy;

/// Properties of a strategy that determine with which other parts it may be combined.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StrategyTraits {
    /// The keys of the [`Exchange`] that the strategy uses, and the reason why it would ignore the others, as a clause about "it".
    /// `None` if the strategy uses all.
    pub uses: Option<(&'static [&'static str], &'static str)>,
    /// The quantity that it exchanges.
    pub sends: Sends,
}

impl StrategyTraits {
    /// Traits of a strategy that exchanges differences which keep the part that was not sent, so that it needs no feedback. `why`
    /// is a clause about "it".
    pub const fn without_feedback(why: &'static str) -> Self {
        let uses = &["reducer", "aggregator", "controller", "bucket_values", "rules", "dense_below", "threads"];
        StrategyTraits { uses: Some((uses, why)), sends: Sends::AsTheyAre }
    }
}

/// Quantity that a strategy exchanges.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sends {
    /// Gradients or parameters, as they are.
    #[default]
    AsTheyAre,
    /// The change of parameters. It contains the optimizer's momentum and learning rates, so a feedback must not add them again.
    Progress,
    /// Gradients that the strategy accelerates, so a feedback must not add momentum.
    Accelerated,
}

/// Settings of a strategy.
pub trait StrategySettings: fmt::Debug + Any + Send + Sync {
    /// Builds the strategy of one of `world` ranks, with `exchange` as the settings of its exchanges. A strategy that uses only some
    /// keys of `exchange` declares them in its [traits](Self::traits).
    ///
    /// # Errors
    /// [`ConfigError`] for every setting that cannot work.
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError>;

    /// Returns the minimum number of ranks.
    fn min_ranks(&self, exchange: &Exchange) -> usize;

    /// Returns the properties that decide what it may be [combined](crate::config::combine) with.
    fn traits(&self) -> StrategyTraits {
        StrategyTraits::default()
    }

    /// Returns the number of channels used for background exchanges.
    fn channels(&self) -> usize {
        0
    }

    /// Returns whether the optimizer's input may have values in slots for which no rank has a gradient at that step.
    fn keeps_state(&self) -> bool {
        false
    }

    /// Returns the minimum number of slots of a model.
    fn fewest_slots(&self) -> usize {
        1
    }

    /// Returns the exchanges with which the laws test the strategy; none for all [`exchanges`](crate::config::exchanges).
    fn exchanges(&self) -> Vec<Exchange> {
        Vec::new()
    }

    /// Returns whether every optimizer step uses an average of gradients, and nothing else is exchanged.
    fn steps_with_averages(&self) -> bool {
        false
    }

    /// Returns whether its effect on the model is correct only for plain SGD, which steps by the learning rate times the average.
    fn requires_plain_sgd(&self) -> bool {
        false
    }

    /// Returns whether decisions depend on measured times. The session then needs a clock, and a recording (`briquette-sim`) of a run is
    /// valid only for its own network.
    fn reads_seconds(&self) -> bool {
        false
    }

    /// Returns the number of steps from one exchange to the next, if ranks take steps without an exchange; the largest one, if it varies.
    fn local_steps(&self) -> Option<u64> {
        None
    }

    /// Returns the settings for a run of this many steps, with the reason for them, if settings that depend on the number of steps were
    /// left open. If the number is unknown, these are the usual settings. `None` if nothing was left open.
    fn for_steps(&self, _steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        None
    }

    /// Returns why the strategy sends everything if no reducer is named, as a clause that follows the strategy's name. `None` if the
    /// compression is [left open](crate::config::Parts), by default where [seconds](Self::reads_seconds) decide.
    fn dense_reason(&self) -> Option<&'static str> {
        (!self.reads_seconds()).then_some("exchanges parameters, once in a period")
    }

    /// Returns the longest effective delay of a residual, in exchanges, that `auto` allows if no controller is named. `None` for that of the
    /// feedback.
    fn longest_delay(&self) -> Option<f64> {
        None
    }

    /// Returns why the strategy needs no feedback, as a clause that follows the strategy's name. `None` if the reducer determines this.
    fn no_feedback_because(&self) -> Option<&'static str> {
        None
    }
}
