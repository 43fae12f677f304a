//! In the place of a strategy that is elsewhere.

use super::{Plan, SyncStrategy};
use crate::report::Report;
use crate::state::Stateful;

/// Stands in for a strategy that a [job in the background](crate::Session::start) has taken with it: it knows the plan of the step, and
/// does nothing.
#[derive(Debug, Clone, Copy)]
pub struct Away(pub Plan);

impl Stateful for Away {}

impl SyncStrategy for Away {
    fn plan(&self, _step: u64) -> Plan {
        self.0
    }

    fn report(&self, _report: &mut Report) {}
}
