//! Local SGD: every rank trains alone, and parameters are averaged every `H` steps.
//!
//! **Why, and when not.** Bytes fall by `H` and every optimizer works unchanged; ranks drift apart in between, the more
//! the larger the learning rate and the less alike their data.
//!
//! **Method.** After steps `H−1, 2H−1, …` (counted from 0) parameters become their mean over ranks. The inner optimizer's
//! own state (momentum) stays with its rank. `H = 1` with plain SGD is synchronous SGD: exactly on dyadic inputs with a
//! power-of-two world, otherwise to rounding.
//!
//! **On the wire.** A dense all-reduce of the parameters every `H` steps.
//!
//! **Reference.** S. U. Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019 (arXiv 1805.09767),
//! algorithm 1.
//!
//! ```
//! use briquette_core::sync::{Periodic, Plan, SyncStrategy};
//! let strategy = Periodic::new(4)?;
//! let due: Vec<u64> = (0..9).filter(|&s| strategy.plan(s) == Plan::PARAMETERS).collect();
//! assert_eq!(due, [3, 7]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::every_step::InPlace;
use super::{Context, Momenta, Plan, SyncStrategy};
use crate::config::{Described, Exchange, StrategySettings};
use crate::error::{ConfigError, SyncError};
use crate::reduce::Dense;
use crate::report::Report;
use crate::state::Stateful;
use crate::wrapper::Metered;
use crate::{Layout, Session};

/// Parameters, every `H` steps; see the [module](self).
#[derive(Debug)]
pub struct Periodic {
    every: u64,
    exchange: InPlace<Metered<Dense>>,
}

impl Periodic {
    /// Averages after every `every` steps.
    ///
    /// # Errors
    /// [`ConfigError`] when `every` is 0.
    pub fn new(every: u64) -> Result<Self, ConfigError> {
        if every == 0 {
            return Err(ConfigError::range("steps between averages", "at least 1", every));
        }
        Ok(Periodic { every, exchange: InPlace::new(Metered::seconds_only(Dense)) })
    }
}

/// Nothing to save: which steps exchange follows from the step.
impl Stateful for Periodic {}

impl SyncStrategy for Periodic {
    fn plan(&self, step: u64) -> Plan {
        if (step + 1).is_multiple_of(self.every) { Plan::PARAMETERS } else { Plan::ALONE }
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        self.exchange.reduce(parameters, cx, comm)?;
        Ok(Momenta::Keep)
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

/// Settings of [`Periodic`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LocalSgdConfig {
    /// Steps between averages, at least 1.
    pub period: u64,
}

impl Default for LocalSgdConfig {
    fn default() -> Self {
        LocalSgdConfig { period: 8 }
    }
}

impl Described for LocalSgdConfig {
    const NAME: &'static str = "local-sgd";
    const SETTINGS: &'static str = "PERIOD";
    const HELP: &'static str = "parameters, averaged exactly after every PERIOD steps (8)";
    const OLD_NAME: &'static str = "periodic";

    fn check(&self) -> Result<(), ConfigError> {
        Periodic::new(self.period).map(drop)
    }

    fn representatives() -> Vec<Self> {
        [1, 5].map(|period| LocalSgdConfig { period }).to_vec()
    }
}

impl StrategySettings for LocalSgdConfig {
    fn build(&self, exchange: &Exchange, _: &Layout, _: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        exchange.refuse_all_but(&[], "strategy local-sgd averages parameters exactly")?;
        Ok(Box::new(Periodic::new(self.period)?))
    }

    fn fewest_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }
}
