//! What travels at an exchange, and how.

use serde::{Deserialize, Serialize};

use super::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, Rule};
use crate::error::ConfigError;

/// What travels at an exchange, and how. What has its default is not written.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exchange {
    /// How vectors are combined.
    #[serde(skip_serializing_if = "is_default")]
    pub reducer: ReducerConfig,
    /// How gather makes one vector of the ranks' contributions.
    #[serde(skip_serializing_if = "is_default")]
    pub aggregator: AggregatorConfig,
    /// What becomes of what was not sent.
    #[serde(skip_serializing_if = "is_default")]
    pub feedback: Feedback,
    /// What decides the compression ratio.
    #[serde(skip_serializing_if = "is_default")]
    pub controller: ControllerConfig,
    /// Values a bucket holds at least; one bucket when absent.
    #[serde(skip_serializing_if = "is_default")]
    pub bucket_values: Option<usize>,
    /// Exchange a bucket while the one before is decoded and the one after encoded, on a second thread: the same bits. Needs
    /// `bucket_values`. Ranks may differ in it, but should not: should a sum overflow, they stop at different calls.
    #[serde(skip_serializing_if = "is_default")]
    pub overlap: bool,
    /// Slots that are exchanged another way: the first rule that matches decides.
    #[serde(skip_serializing_if = "is_default")]
    pub rules: Vec<Rule>,
    /// Slots of fewer values, which no rule names, are exchanged dense. By default 1024 where every slot has a message of
    /// its own, since a message costs some 25 bytes however few values it holds, and 0 elsewhere.
    #[serde(skip_serializing_if = "is_default")]
    pub dense_below: Option<usize>,
    /// Threads a rank encodes and decodes with, the same bits with any number; its own alone when absent. Needs the cargo
    /// feature `rayon`.
    #[serde(skip_serializing_if = "is_default")]
    pub threads: Option<usize>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Exchange {
    /// The keys that do not have their defaults.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let Exchange { reducer, aggregator, feedback, controller, bucket_values, overlap, rules, dense_below, threads } =
            self;
        let given = [
            ("reducer", !is_default(reducer)),
            ("aggregator", !is_default(aggregator)),
            ("feedback", !is_default(feedback)),
            ("controller", !is_default(controller)),
            ("bucket_values", bucket_values.is_some()),
            ("overlap", *overlap),
            ("rules", !rules.is_empty()),
            ("dense_below", dense_below.is_some()),
            ("threads", threads.is_some()),
        ];
        given.into_iter().filter_map(|(key, given)| given.then_some(key))
    }

    /// For a strategy that uses some of the keys: that no other is given.
    ///
    /// # Errors
    /// [`ConfigError::Conflict`] names the key, and gives the reason.
    pub fn refuse_all_but(&self, used: &[&str], reason: &str) -> Result<(), ConfigError> {
        match self.given().find(|key| !used.contains(key)) {
            None => Ok(()),
            Some(key) => Err(ConfigError::Conflict(format!("{reason}: {key} would be ignored, leave it out"))),
        }
    }

    /// Every reducer there is: the main one, then those of the rules.
    pub fn reducers(&self) -> impl Iterator<Item = &ReducerConfig> {
        [&self.reducer].into_iter().chain(self.rules.iter().map(|rule| &rule.reducer))
    }

    /// The fewest ranks that it works with.
    pub fn fewest_ranks(&self) -> usize {
        let reducers = self.reducers().map(|reducer| reducer.get().fewest_ranks());
        reducers.chain([self.aggregator.get().fewest_ranks()]).max().unwrap_or(1)
    }
}
