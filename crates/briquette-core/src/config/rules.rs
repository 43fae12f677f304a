//! Rules: slots that are exchanged differently from the rest.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CompressorConfig, Exchange, ReducerConfig};
use crate::error::{ConfigError, Conflict};
use crate::text::serde_as_text;
use crate::wrapper::grouped::part;
use crate::{Layout, Slot};

/// Default of `Exchange::dense_below` if every slot has its own message.
const DENSE_BELOW: usize = 1024;

/// A rule: slots that match a pattern are exchanged with another reducer.
///
/// ```
/// use briquette_core::{Layout, config::Config};
/// let config: Config = toml::from_str(r#"
///     strategy = "every-step"
///     feedback = "error"
///     reducer = { kind = "power-sgd", rank = 4 }
///     dense_below = 1000
///     [[rules]]
///     slots = "embedding.*"
///     reducer = { kind = "gather", compressor = "topk:0.001" }
/// "#)?;
/// let layout = Layout::new([("embedding.weight", vec![5000, 64]), ("fc.weight", vec![64, 64]), ("fc.bias", vec![64])]);
/// config.build(&layout, 4)?;
/// let error = config.build(&Layout::new([("fc.weight", vec![64, 64])]), 4).map(drop).unwrap_err();
/// assert!(error.to_string().starts_with("rule `embedding.*` does not go with this model: it matches no slot"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The slots.
    pub slots: SlotPattern,
    /// The reducer of these slots. The feedback is that of the exchange. No controller sets the ratio of this reducer.
    pub reducer: ReducerConfig,
}

impl Rule {
    /// Creates a rule: slots whose path matches `slots` use this compressor, with one message for all of them.
    ///
    /// # Errors
    /// [`ConfigError`] if `slots` is not a valid pattern.
    pub fn compressor(slots: &str, compressor: CompressorConfig) -> Result<Self, ConfigError> {
        Ok(Rule { slots: slots.parse()?, reducer: ReducerConfig::gather(compressor) })
    }
}

/// A pattern for paths in the module: `*` matches any characters, `?` one character, `[ab]` one of those listed.
///
/// ```
/// use briquette_core::config::SlotPattern;
/// let biases: SlotPattern = "*.bias".parse()?;
/// assert!(biases.matches("block1.conv2.bias") && !biases.matches("block1.conv2.weight"));
/// # Ok::<(), briquette_core::error::ConfigError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SlotPattern(glob::Pattern);

impl SlotPattern {
    /// Returns whether the pattern matches a slot's path.
    pub fn matches(&self, path: &str) -> bool {
        self.0.matches(path)
    }
}

impl FromStr for SlotPattern {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: glob::PatternError| ConfigError::text("pattern of slots", text, error);
        glob::Pattern::new(text).map(SlotPattern).map_err(wrong)
    }
}

impl fmt::Display for SlotPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

serde_as_text!(SlotPattern);

/// Slots that are exchanged together.
pub(super) struct Group<'a> {
    /// Indices of the slots.
    pub(super) members: Vec<usize>,
    /// Layout of these slots only.
    pub(super) layout: Layout,
    pub(super) reducer: &'a ReducerConfig,
}

impl Exchange {
    /// Returns the groups that `layout` is divided into: the main group, which may be empty, and the nonempty groups of the rules.
    ///
    /// # Errors
    /// [`Conflict`] for a rule that matches no slot: a typing error, or a rule for another module.
    pub(super) fn groups(&self, layout: &Layout) -> Result<(Group<'_>, Vec<Group<'_>>), Conflict> {
        let main = self.reducer.get().traits();
        // With a dense main reducer all slots are dense already. With an aggregator other than the mean, a dense average would let one
        // rank decide these slots.
        let limit = match main.is_dense || !self.aggregator.get().is_mean() {
            true => 0,
            false => self.dense_below.unwrap_or(if main.is_per_slot { DENSE_BELOW } else { 0 }),
        };
        // Index of the rule of each slot. The index after the last rule stands for the dense threshold.
        let rule = |slot: &Slot| {
            let matching = self.rules.iter().position(|rule| rule.slots.matches(slot.path()));
            matching.or((slot.len() < limit).then_some(self.rules.len()))
        };
        let choices: Vec<Option<usize>> = layout.slots().iter().map(rule).collect();
        let members = |choice| (0..choices.len()).filter(|&slot| choices[slot] == choice).collect::<Vec<_>>();
        let group = |choice, reducer| {
            let members = members(choice);
            Group { layout: part(layout, &members), members, reducer }
        };
        for rule in &self.rules {
            if !layout.slots().iter().any(|slot| rule.slots.matches(slot.path())) {
                let paths: Vec<&str> = layout.slots().iter().map(Slot::path).collect();
                let paths = paths.join(", ");
                let instead = format!("there are {paths}: correct the pattern, or leave the rule out");
                let rule = format!("rule `{}`", rule.slots);
                return Err(Conflict::new(rule, "this model", "it matches no slot", instead));
            }
        }
        let reducers = self.rules.iter().map(|rule| &rule.reducer).chain([&ReducerConfig::Dense]);
        let mut others: Vec<_> = reducers.enumerate().map(|(index, reducer)| group(Some(index), reducer)).collect();
        // Earlier rules may have taken all slots of a rule.
        others.retain(|group| !group.members.is_empty());
        Ok((group(None, &self.reducer), others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout() -> Layout {
        Layout::new([("conv.weight", vec![40]), ("conv.bias", vec![4]), ("fc.weight", vec![30]), ("fc.bias", vec![3])])
    }

    fn members(exchange: &Exchange) -> Vec<Vec<usize>> {
        let (main, others) = exchange.groups(&layout()).unwrap();
        [main].into_iter().chain(others).map(|group| group.members).collect()
    }

    #[test]
    fn the_first_rule_that_matches_decides_then_the_threshold_then_the_rest() {
        let rule = |slots| Rule::compressor(slots, "sign".parse().unwrap()).unwrap();
        let reducer = ReducerConfig::gather("sign".parse().unwrap());
        let with =
            |rules, dense_below| Exchange { reducer: reducer.clone(), rules, dense_below, ..Exchange::default() };
        // With a dense main reducer the threshold has no effect.
        assert_eq!(members(&Exchange { dense_below: Some(31), ..Exchange::default() }), [vec![0, 1, 2, 3]]);
        assert_eq!(members(&with(vec![], None)), [vec![0, 1, 2, 3]]);
        assert_eq!(members(&with(vec![], Some(31))), [vec![0], vec![1, 2, 3]]);
        let rules = vec![rule("fc.*"), rule("*.bias")];
        assert_eq!(members(&with(rules.clone(), None)), [vec![0], vec![2, 3], vec![1]]);
        assert_eq!(members(&with(rules, Some(1000))), [vec![], vec![2, 3], vec![1], vec![0]]);
        // A rule whose slots were all taken by earlier rules has no group.
        assert_eq!(members(&with(vec![rule("*"), rule("fc.*")], None)), [vec![], vec![0, 1, 2, 3]]);
    }

    #[test]
    fn with_a_message_a_slot_small_slots_are_dense_unless_told_otherwise() {
        let reducer = ReducerConfig::gather_per_slot("sign".parse().unwrap());
        let per_slot = Exchange { reducer, ..Exchange::default() };
        assert_eq!(members(&per_slot), [vec![], vec![0, 1, 2, 3]], "all have fewer than 1024 values");
        assert_eq!(members(&Exchange { dense_below: Some(0), ..per_slot }), [vec![0, 1, 2, 3]]);
    }

    #[test]
    fn impossible_rules_say_why() {
        assert!("a**b".parse::<SlotPattern>().unwrap_err().to_string().contains("pattern of slots `a**b`"));
        let says = |rule: Rule| {
            let exchange = Exchange { rules: vec![rule], ..Exchange::default() };
            exchange.build_reducer(&layout(), 2).map(drop).unwrap_err().to_string()
        };
        let missing = says(Rule::compressor("conv9.*", "sign".parse().unwrap()).unwrap());
        assert!(
            missing.contains(
                "`conv9.*` does not go with this model: it matches no slot; there are conv.weight, conv.bias"
            ),
            "{missing}"
        );
    }
}
