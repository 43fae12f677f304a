//! Groups of slots that are exchanged in the same way, by the rules of a configuration.

use super::{Exchange, ReducerConfig};
use crate::error::Conflict;
use crate::wrapper::grouped::part;
use crate::{Layout, Slot};

/// Default of `Exchange::dense_below` if every slot has its own message.
const DENSE_BELOW: usize = 1024;

/// Slots that are exchanged together.
pub(super) struct Group {
    /// Indices of the slots.
    pub(super) members: Vec<usize>,
    /// Layout of these slots only.
    pub(super) layout: Layout,
    pub(super) reducer: ReducerConfig,
}

impl Exchange {
    /// Returns the groups into which `layout` is divided: the main group, which may be empty, and the nonempty groups of the
    /// rules.
    ///
    /// # Errors
    /// [`Conflict`] for a rule that matches no slot, because of a typing error or because it is for another model.
    pub(super) fn groups(&self, layout: &Layout) -> Result<(Group, Vec<Group>), Conflict> {
        let main = self.reducer.get().traits();
        // With a dense main reducer all slots are dense already. With an aggregator other than the mean, a dense average would let a
        // single rank determine these slots.
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
        let reducers = self.rules.iter().map(|rule| rule.reducer.clone()).chain([ReducerConfig::dense()]);
        let mut others: Vec<_> = reducers.enumerate().map(|(index, reducer)| group(Some(index), reducer)).collect();
        // Earlier rules may have taken all slots of a rule.
        others.retain(|group| !group.members.is_empty());
        Ok((group(None, self.reducer.clone()), others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Rule, SlotPattern};

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
