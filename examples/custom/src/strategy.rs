//! A strategy of your own.

use briquette::core::error::SyncError;
use briquette::core::reduce::{Dense, Reducer, Round};
use briquette::core::report::Report;
use briquette::core::state::Stateful;
use briquette::core::sync::{Context, Momenta, Plan, SyncStrategy};
use briquette::core::{Session, Traffic};

/// Averages parameters after 1, 2, 4, 8, … steps, and then every `longest` steps.
#[derive(Debug, Clone)]
pub struct Doubling {
    longest: u64,
    reducer: Dense,
    average: Vec<f32>,
    traffic: Traffic,
}

impl Doubling {
    /// Creates a strategy whose periods double up to `longest` steps.
    pub fn new(longest: u64) -> Self {
        Doubling { longest: longest.max(1), reducer: Dense, average: Vec::new(), traffic: Traffic::default() }
    }
}

/// Has no state: the step alone determines when an average is due.
impl Stateful for Doubling {}

impl SyncStrategy for Doubling {
    fn plan(&self, step: u64) -> Plan {
        let done = step + 1;
        let is_due = if done < self.longest { done.is_power_of_two() } else { done.is_multiple_of(self.longest) };
        if is_due { Plan::PARAMETERS } else { Plan::ALONE }
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        self.average.resize(parameters.len(), 0.0);
        let (key, slots, agreed_step) = (cx.key.step(cx.agreed_step.step), cx.slots, cx.agreed_step);
        let round = Round { key, slots, agreed_step, input: parameters, average: &mut self.average, sent: None };
        let failed = |source| SyncError::Reduce { step: cx.agreed_step.step, source };
        self.traffic = self.reducer.reduce(round, comm).map_err(failed)?.traffic;
        // Only now, so that an error leaves the parameters unchanged.
        parameters.copy_from_slice(&self.average);
        Ok(Momenta::Keep)
    }

    fn report(&self, report: &mut Report) {
        self.reducer.report(report);
        report.traffic = Some(self.traffic);
    }
}
