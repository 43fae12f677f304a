//! Which slots are exchanged how.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::{CompressorConfig, Exchange, ReducerConfig};
use crate::error::ConfigError;
use crate::text::serde_as_text;
use crate::wrapper::grouped::part;
use crate::{Layout, Slot};

/// Where every slot has a message of its own, those of fewer values are dense.
const DENSE_BELOW: usize = 1024;

/// Slots that are exchanged another way than the rest.
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
/// assert!(error.to_string().contains("`embedding.*` matches no slot"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Which slots.
    pub slots: SlotPattern,
    /// How they are combined. The feedback is that of the exchange; no controller turns it.
    pub reducer: ReducerConfig,
}

impl Rule {
    /// Slots that match this path use that compressor: one message for all of them.
    ///
    /// # Errors
    /// [`ConfigError`] for a text that is no pattern.
    pub fn compressor(slots: &str, compressor: CompressorConfig) -> Result<Self, ConfigError> {
        Ok(Rule { slots: slots.parse()?, reducer: ReducerConfig::gather(compressor) })
    }
}

/// A path in the module with `*` for any characters, `?` for one, `[ab]` for one of some.
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
    /// Whether a slot's path is meant.
    pub fn matches(&self, path: &str) -> bool {
        self.0.matches(path)
    }
}

impl FromStr for SlotPattern {
    type Err = ConfigError;
    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let wrong = |error: glob::PatternError| ConfigError::Conflict(format!("pattern `{text}` of slots: {error}"));
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
    /// Their numbers.
    pub(super) members: Vec<usize>,
    /// They alone.
    pub(super) layout: Layout,
    pub(super) reducer: &'a ReducerConfig,
}

impl Exchange {
    /// The groups that `layout` falls into: the main one, empty at worst, and those of the rules, none of them empty.
    ///
    /// # Errors
    /// [`ConfigError`] for a rule that matches nothing: a typing error, or another module's.
    pub(super) fn groups(&self, layout: &Layout) -> Result<(Group<'_>, Vec<Group<'_>>), ConfigError> {
        let main = self.reducer.get().traits();
        // All of it is dense already; or a dense average would let one rank decide its slots.
        let limit = match main.is_dense || !self.aggregator.get().is_mean() {
            true => 0,
            false => self.dense_below.unwrap_or(if main.is_per_slot { DENSE_BELOW } else { 0 }),
        };
        // The rule of each slot; one past the last is the dense threshold.
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
                return Err(ConfigError::Conflict(format!("rule `{}` matches no slot; there are {paths}", rule.slots)));
            }
        }
        let reducers = self.rules.iter().map(|rule| &rule.reducer).chain([&ReducerConfig::Dense]);
        let mut others: Vec<_> = reducers.enumerate().map(|(index, reducer)| group(Some(index), reducer)).collect();
        // A rule may find that all its slots have been taken by those before it.
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
        // Nothing is more than dense.
        assert_eq!(members(&Exchange { dense_below: Some(31), ..Exchange::default() }), [vec![0, 1, 2, 3]]);
        assert_eq!(members(&with(vec![], None)), [vec![0, 1, 2, 3]]);
        assert_eq!(members(&with(vec![], Some(31))), [vec![0], vec![1, 2, 3]]);
        let rules = vec![rule("fc.*"), rule("*.bias")];
        assert_eq!(members(&with(rules.clone(), None)), [vec![0], vec![2, 3], vec![1]]);
        assert_eq!(members(&with(rules, Some(1000))), [vec![], vec![2, 3], vec![1], vec![0]]);
        // Everything taken before it: no group.
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
        assert!("a**b".parse::<SlotPattern>().unwrap_err().to_string().contains("`a**b` of slots"));
        let says = |rule: Rule| {
            let exchange = Exchange { rules: vec![rule], ..Exchange::default() };
            exchange.build_reducer(&layout(), 2).map(drop).unwrap_err().to_string()
        };
        let missing = says(Rule::compressor("conv9.*", "sign".parse().unwrap()).unwrap());
        assert!(missing.contains("`conv9.*` matches no slot; there are conv.weight, conv.bias"), "{missing}");
    }
}
