//! What travels at an exchange, and how.

use serde::{Deserialize, Serialize};

use super::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, Rule};
use crate::error::ConfigError;
use crate::wrapper::Probing;

/// What travels at an exchange, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exchange {
    /// How vectors are combined.
    pub reducer: ReducerConfig,
    /// How gather makes one vector of the ranks' contributions.
    pub aggregator: AggregatorConfig,
    /// What becomes of what was not sent.
    pub feedback: Feedback,
    /// What decides the compression ratio.
    pub controller: ControllerConfig,
    /// When what the controller needs is agreed: `late`, with the next step's header, or `first`, in front of the exchange.
    pub probing: Probing,
    /// Values a bucket holds at least; one bucket when absent.
    pub bucket_values: Option<usize>,
    /// Exchange every other bucket in the background, on a second thread and channel: the same bits. Needs `bucket_values`, and
    /// the same setting on every rank.
    pub overlap: bool,
    /// Exchange each bucket as soon as the backward pass has computed it. `bucket_values` is then a quarter of the values, at least
    /// 16 384, where it is absent. Needs strategy `every-step`, and the same setting on every rank.
    #[serde(skip_serializing_if = "is_default")]
    pub during_backward: bool,
    /// Slots that are exchanged another way: the first rule that matches decides.
    pub rules: Vec<Rule>,
    /// Slots of fewer values, which no rule names, are exchanged dense. By default 1024 where every slot has a message of
    /// its own, since a message costs some 25 bytes however few values it holds, and 0 elsewhere.
    pub dense_below: Option<usize>,
    /// Threads a rank encodes and decodes with, the same bits with any number; its own alone when absent. Needs the cargo
    /// feature `rayon`.
    pub threads: Option<usize>,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

impl Exchange {
    /// The keys that do not have their defaults.
    fn given(&self) -> impl Iterator<Item = &'static str> {
        let Exchange {
            reducer,
            aggregator,
            feedback,
            controller,
            probing,
            bucket_values,
            overlap,
            during_backward,
            rules,
            dense_below,
            threads,
        } = self;
        let given = [
            ("reducer", !is_default(reducer)),
            ("aggregator", !is_default(aggregator)),
            ("feedback", !is_default(feedback)),
            ("controller", !is_default(controller)),
            ("probing", !is_default(probing)),
            ("bucket_values", bucket_values.is_some()),
            ("overlap", *overlap),
            ("during_backward", *during_backward),
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
