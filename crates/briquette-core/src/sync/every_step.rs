//! Synchronous data parallelism: exchanges gradients at every step.

use std::ops::Range;

use crate::error::{ConfigError, ReduceError, SyncError};
use crate::report::Report;
use crate::seam::{Arriving, Context, Plan, Reducer, Round, SyncStrategy};
use crate::settings::{Described, Exchange, StrategySettings};
use crate::{Layout, Session, Traffic, stateful};

/// Exchanges gradients at every step. Holds one vector: the average.
#[derive(Debug)]
pub struct EveryStep<R> {
    exchange: InPlace<R>,
    replicas_equal: bool,
}

impl<R: Reducer> EveryStep<R> {
    /// Exchanges gradients through `reducer`, whose result is the same on every rank.
    pub fn new(reducer: R) -> Self {
        EveryStep { exchange: InPlace::new(reducer), replicas_equal: true }
    }

    /// Classifies an error. A non-finite average has the same bits on every rank and is found after all messages are sent, so
    /// the process group may continue without this step.
    fn everyones(&self, error: SyncError) -> SyncError {
        match error {
            SyncError::Reduce { step, source: ReduceError::Overflow { slot } } if self.replicas_equal => {
                SyncError::Overflow { step, slot }
            }
            error => error,
        }
    }
}

stateful! {
    impl<R: Reducer> Stateful for EveryStep<R> { exchange: flatten() }
}

stateful! {
    impl<R: Reducer> Stateful for InPlace<R> { reducer: part("reducer") }
}

/// A reducer that works in place through a buffer that replaces the vector, so that the vector is unchanged when the exchange
/// fails.
#[derive(Debug)]
pub(super) struct InPlace<R> {
    pub(super) reducer: R,
    average: Vec<f32>,
    traffic: Traffic,
}

impl<R: Reducer> InPlace<R> {
    pub(super) fn new(reducer: R) -> Self {
        InPlace { reducer, average: Vec::new(), traffic: Traffic::default() }
    }

    pub(super) fn reduce(
        &mut self,
        local: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let (step, average) = (cx.agreed_step.step, &mut self.average);
        average.resize(local.len(), 0.0);
        let round = Round {
            key: cx.key.step(step),
            slots: cx.slots,
            agreed_step: cx.agreed_step,
            input: local,
            average,
            sent: None,
        };
        let exchanged = self.reducer.reduce(round, comm).map_err(|source| SyncError::Reduce { step, source })?;
        std::mem::swap(local, &mut self.average);
        self.traffic = exchanged.traffic;
        Ok(())
    }

    /// Reduces the vector while it is still being computed.
    fn reduce_arriving(
        &mut self,
        local: &mut dyn Arriving,
        average: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let (key, slots, step) = (cx.key, cx.slots, cx.agreed_step.step);
        let len = slots.last().map_or(0, |slot| slot.range().end);
        if average.is_empty() {
            // Pages that are never written, as by an average on a device, take no memory.
            *average = vec![0.0; len];
        }
        average.resize(len, 0.0);
        let round = Round { key: key.step(step), slots, agreed_step: cx.agreed_step, input: &[], average, sent: None };
        let exchanged = self.reducer.reduce_arriving(round, local, comm);
        self.traffic = exchanged.map_err(|source| SyncError::Reduce { step, source })?.traffic;
        Ok(())
    }

    pub(super) fn report(&self, report: &mut Report) {
        self.reducer.report(report);
        report.traffic = Some(self.traffic);
    }
}

impl<R: Reducer> SyncStrategy for EveryStep<R> {
    fn plan(&self, _step: u64) -> Plan {
        Plan { replicas_equal: self.replicas_equal, ..Plan::GRADIENTS }
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let exchanged = self.exchange.reduce(gradient, cx, comm);
        exchanged.map_err(|error| self.everyones(error))
    }

    fn during_backward(
        &mut self,
        gradient: &mut dyn Arriving,
        average: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let exchanged = self.exchange.reduce_arriving(gradient, average, cx, comm);
        exchanged.map_err(|error| self.everyones(error))
    }

    fn hold(&mut self, absent: &[Range<usize>]) -> bool {
        self.exchange.reducer.hold(absent);
        true
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

/// Settings of [`EveryStep`]: only those of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "every-step", help = "gradients, every step")]
pub struct EveryStepConfig;

impl StrategySettings for EveryStepConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let replicas_equal = exchange.reducers().all(|reducer| reducer.get().averages_equal());
        Ok(Box::new(EveryStep { replicas_equal, ..EveryStep::new(exchange.build_reducer(layout, world)?) }))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn steps_with_averages(&self) -> bool {
        true
    }

    fn dense_reason(&self) -> Option<&'static str> {
        None
    }
}
