//! Settings of an exchange: the reducer, aggregator, feedback and controller, and the cutting into buckets.

use serde::{Deserialize, Serialize};

use super::{AggregatorConfig, ControllerConfig, Feedback, ReducerConfig, Rule};

/// Settings of an exchange: how vectors are compressed, combined and sent.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Exchange {
    /// The reducer, which combines vectors.
    pub reducer: ReducerConfig,
    /// The aggregator, by which a gather combines the contributions of the ranks.
    pub aggregator: AggregatorConfig,
    /// The feedback, which handles the residual.
    pub feedback: Feedback,
    /// The controller, which chooses the compression ratio.
    pub controller: ControllerConfig,
    /// Time at which ranks agree on the controller's inputs: `late`, with the next step's header, or `first`, before the exchange.
    pub probing: Probing,
    /// Minimum number of values per bucket. If absent, there is one bucket.
    pub bucket_values: Option<usize>,
    /// Exchanges each bucket as soon as the backward pass has computed it. The default of `bucket_values` is then a quarter of the
    /// values, at least 16 384. Needs strategy `every-step`, and the same setting on every rank.
    #[serde(skip_serializing_if = "is_default")]
    pub during_backward: bool,
    /// Rules for slots that are exchanged differently. The first matching rule applies.
    pub rules: Vec<Rule>,
    /// Slots with fewer values than this are exchanged dense, unless a rule names them. The default is 1024 if every slot has its own
    /// message, because a message has an overhead of about 25 bytes. Otherwise it is 0.
    pub dense_below: Option<usize>,
    /// Number of threads with which a rank encodes and decodes. The result has the same bits with any number. If absent, the rank uses
    /// only its own thread. Needs the cargo feature `rayon`.
    pub threads: Option<usize>,
    /// Compression of gradients on a GPU: `auto`, on the GPU if it has kernels, or `host`. Both have the same bits, and ranks may differ.
    #[serde(skip_serializing_if = "is_default")]
    pub device: CompressionDevice,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Returns the text of a setting that differs from its default.
fn given<T: Default + PartialEq + std::fmt::Display>(value: &T) -> Option<String> {
    (!is_default(value)).then(|| value.to_string())
}

impl Exchange {
    /// Returns the first key that differs from its default and is not among `used`: the key, and the setting as text.
    pub(crate) fn unused(&self, used: &[&str]) -> Option<(&'static str, String)> {
        let Exchange {
            reducer,
            aggregator,
            feedback,
            controller,
            probing,
            bucket_values,
            during_backward,
            rules,
            dense_below,
            threads,
            // It changes no result.
            device: _,
        } = self;
        let given = [
            ("reducer", given(reducer)),
            ("aggregator", given(aggregator)),
            ("feedback", given(feedback)),
            ("controller", given(controller)),
            ("probing", (!is_default(probing)).then_some(String::new())),
            ("bucket_values", bucket_values.map(|values| values.to_string())),
            ("during_backward", during_backward.then_some(String::new())),
            ("rules", (!rules.is_empty()).then_some(String::new())),
            ("dense_below", dense_below.map(|values| values.to_string())),
            ("threads", threads.map(|threads| threads.to_string())),
        ];
        let unused = given.into_iter().find(|(key, given)| given.is_some() && !used.contains(key));
        unused.map(|(key, value)| (key, format!("{key} {}", value.unwrap_or_default()).trim_end().to_owned()))
    }

    /// Returns all reducers: the main one, then those of the rules.
    pub fn reducers(&self) -> impl Iterator<Item = &ReducerConfig> {
        [&self.reducer].into_iter().chain(self.rules.iter().map(|rule| &rule.reducer))
    }

    /// Returns the minimum number of ranks.
    pub fn min_ranks(&self) -> usize {
        let reducers = self.reducers().map(|reducer| reducer.get().min_ranks());
        reducers.chain([self.aggregator.get().min_ranks()]).max().unwrap_or(1)
    }
}

/// The device that compresses gradients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum CompressionDevice {
    /// The device of the gradients if it has kernels, otherwise the host.
    #[default]
    Auto,
    /// The host.
    Host,
}

/// Time at which ranks agree on the controller's inputs; see [`adaptive`](crate::wrapper::adaptive).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Probing {
    /// With the next step's header: decisions use the numbers of the previous step.
    #[default]
    Late,
    /// In an all-reduce before the exchange, as published.
    First,
}
