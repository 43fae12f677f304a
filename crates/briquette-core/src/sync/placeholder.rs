//! Placeholder left while a strategy is borrowed.

use crate::report::Report;
use crate::seam::{Plan, SyncStrategy};
use crate::state::Stateful;

/// Placeholder for a strategy that was moved to a [background job](crate::Session::start). It has the plan of the step, and
/// does nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placeholder(pub(crate) Plan);

impl Stateful for Placeholder {}

impl SyncStrategy for Placeholder {
    fn plan(&self, _step: u64) -> Plan {
        self.0
    }

    fn report(&self, _report: &mut Report) {}
}
