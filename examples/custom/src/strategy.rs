//! A strategy of your own.

use briquette::core::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use briquette::core::error::{ConfigError, SyncError};
use briquette::core::reduce::{Reducer, Round, dense::Dense};
use briquette::core::report::Report;
use briquette::core::state::Stateful;
use briquette::core::sync::{Context, Momenta, Plan, SyncStrategy};
use briquette::core::{Layout, Session, Traffic};
use serde::{Deserialize, Serialize};

/// Averages parameters after 1, 2, 4, 8, … steps, and then every `longest` steps: `doubling:16`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "doubling",
    help = "averages parameters after 1, 2, 4, 8 … steps, then every LONGEST steps (64)",
    representatives("doubling:4")
)]
pub struct Doubling {
    /// The longest period, in steps.
    #[setting(default = 64, range = "[1, inf)")]
    pub longest: u64,
}

impl StrategySettings for Doubling {
    /// It uses no key of the exchange, so every key is refused.
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], "sends parameters uncompressed")), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, _: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Running { settings: *self, reducer: Dense, average: Vec::new(), traffic: Traffic::default() }))
    }

    fn min_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.longest)
    }
}

impl Doubling {
    /// Returns whether parameters are averaged after step `step`.
    pub fn is_due(&self, step: u64) -> bool {
        let done = step + 1;
        if done < self.longest { done.is_power_of_two() } else { done.is_multiple_of(self.longest) }
    }
}

#[derive(Debug)]
struct Running {
    settings: Doubling,
    reducer: Dense,
    average: Vec<f32>,
    traffic: Traffic,
}

/// Has no state: the step alone determines when an average is due.
impl Stateful for Running {}

impl SyncStrategy for Running {
    fn plan(&self, step: u64) -> Plan {
        if self.settings.is_due(step) { Plan::PARAMETERS } else { Plan::ALONE }
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
