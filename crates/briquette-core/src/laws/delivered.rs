//! Strategies whose gradients are delivered in other ways than as complete vectors on the host.

use std::ops::Range;

use crate::Session;
use crate::error::{StateError, SyncError};
use crate::report::Report;
use crate::seam::{Context, Plan, SyncStrategy};
use crate::state::{State, Stateful};

/// A strategy of gradients, to which `deliver` passes each of them, and writes the result back. The laws then hold as for the strategy itself.
pub struct Delivered<D> {
    strategy: Box<dyn SyncStrategy>,
    deliver: D,
}

impl<D> Delivered<D>
where
    D: FnMut(&mut dyn SyncStrategy, &mut Vec<f32>, &Context<'_>, &mut Session) -> Result<(), SyncError> + Send,
{
    /// Creates the strategy.
    pub fn new(strategy: Box<dyn SyncStrategy>, deliver: D) -> Self {
        Delivered { strategy, deliver }
    }
}

impl<D> std::fmt::Debug for Delivered<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delivered")
    }
}

impl<D> Stateful for Delivered<D> {
    fn save(&self, state: &mut State) {
        self.strategy.save(state);
    }
    fn load(&mut self, state: &State) -> Result<(), StateError> {
        self.strategy.load(state)
    }
    fn commit(&mut self) {
        self.strategy.commit();
    }
    fn discard(&mut self) {
        self.strategy.discard();
    }
}

impl<D> SyncStrategy for Delivered<D>
where
    D: FnMut(&mut dyn SyncStrategy, &mut Vec<f32>, &Context<'_>, &mut Session) -> Result<(), SyncError> + Send,
{
    fn plan(&self, step: u64) -> Plan {
        self.strategy.plan(step)
    }
    fn after_backward(&mut self, own: &mut Vec<f32>, cx: &Context<'_>, comm: &mut Session) -> Result<(), SyncError> {
        (self.deliver)(&mut *self.strategy, own, cx, comm)
    }
    fn hold(&mut self, absent: &[Range<usize>]) -> bool {
        self.strategy.hold(absent)
    }
    fn report(&self, report: &mut Report) {
        self.strategy.report(report);
    }
}
