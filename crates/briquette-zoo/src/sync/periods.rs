//! Schedule of strategies that exchange parameters in the background.

use briquette_core::sync::{Agrees, HEADER_STEPS, Plan};

/// Schedule of parameter exchanges: after every `period` steps, starting `offset` steps later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Periods {
    pub(super) period: u64,
    pub(super) offset: u64,
}

impl Periods {
    /// Returns the number of periods that have ended with this step, if one ends with it.
    fn ended(self, step: u64) -> Option<u64> {
        let steps = (step + 1).checked_sub(self.offset).filter(|steps| *steps > 0)?;
        steps.is_multiple_of(self.period).then_some(steps / self.period)
    }

    /// Returns whether a period ends with this step.
    pub(super) fn ends(self, step: u64) -> bool {
        self.ended(step).is_some()
    }

    /// Returns the plan: parameters at the end of a period, and a header about every [`HEADER_STEPS`] steps.
    pub(super) fn plan(self, step: u64) -> Plan {
        let agrees = self.ended(step).is_some_and(|ended| ended.is_multiple_of(HEADER_STEPS.div_ceil(self.period)));
        let agrees = if agrees { Agrees::World } else { Agrees::NoRank };
        Plan::ALONE.agreeing(agrees).with_parameters(self.ends(step))
    }
}
