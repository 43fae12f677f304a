//! Local SGD: every rank trains alone, and parameters are averaged every `H` steps.
//!
//! **Why, and when not.** Bytes fall by a factor of `H`, and every optimizer works unchanged. Ranks drift apart between
//! averages, the more so the larger the learning rate and the more their data differ: at rate `γ` the bias is of the order of
//! `H²γ²`.
//!
//! **Method.** After steps `H−1, 2H−1, …` (counted from 0) the parameters are set to their mean over ranks, weighted by the samples of the
//! period. With a reducer that compresses, each rank instead sends its change since the last average, `x₀ − x_i`. All ranks then continue from
//! `x₀ − ρ·D`, with `D` the mean of the changes (Qsparse-local SGD, under error feedback). With `ρ ≠ 1` local steps and outer steps
//! have different rates: `ρ = η_out/η_in` in the analysis of minibatch and local SGD. The inner optimizer's momenta stay
//! rank-local, are reset, or are averaged as in PRSGD with momentum.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `H = 1`, plain SGD | synchronous SGD: exactly on dyadic inputs with a power-of-two world, otherwise to rounding |
//! | `H = 1`, momentum SGD, `momenta` kept or averaged | synchronous momentum SGD: velocities are linear in gradients |
//!
//! **On the wire.** Every `H` steps, the reducer's messages for `d` values; if dense, an all-reduce of the parameters.
//! Averaging momenta adds a dense all-reduce of the inner optimizer's state: `d` values for momentum SGD, `2d` for Adam.
//!
//! **Properties.** Replicas are equal after an average. Ranks may step with different learning rates.
//!
//! **State.** `x₀`, replicated, if ranks exchange changes; otherwise none.
//!
//! **Knobs.** `period` `H` in steps, by default 8, or less if the run is known to have fewer than 20 periods. `momenta`:
//! `keep` (the default), `reset` or `average`. `rate` `ρ` above 0, default 1. With `adapt`, the period [follows the link](super::pace), up to
//! `period` steps (32, or less in a short run), and `auto` chooses the ratio of each exchange if no reducer is named.
//!
//! **References.** S. U. Stich, *Local SGD Converges Fast and Communicates Little*, ICLR 2019 (arXiv 1805.09767), algorithm 1. H. Yu,
//! S. Yang, S. Zhu, *Parallel Restarted SGD with Faster Convergence and Less Communication*, AAAI 2019 (arXiv 1807.06629), algorithm 1. D. Basu,
//! D. Data, C. Karakus, S. Diggavi, *Qsparse-local-SGD*, NeurIPS 2019 (arXiv 1906.02367), algorithm 1. B. Woodworth, K. K. Patel, N. Srebro,
//! *Minibatch vs Local SGD for Heterogeneous Distributed Learning*, NeurIPS 2020 (arXiv 2006.04735), section 4, for the two rates.
//!
//! ```
//! use briquette_core::sync::{periodic::Periodic, Plan, SyncStrategy};
//! let strategy = Periodic::new(4)?;
//! let due: Vec<u64> = (0..9).filter(|&s| strategy.plan(s) == Plan::PARAMETERS).collect();
//! assert_eq!(due, [3, 7]);
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

use super::every_step::InPlace;
use super::outer::{self, Outer, OuterRule, OuterStep};
use super::pace::{in_adaptive_rounds, usual_or_longest};
use crate::error::{ConfigError, SyncError};
use crate::reduce::dense::Dense;
use crate::report::Report;
use crate::seam::{Context, Momenta, Plan, SyncStrategy};
use crate::settings::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use crate::state::Stateful;
use crate::wrapper::metered::Metered;
use crate::{Layout, Session};

/// Averages parameters every `H` steps; see the [module](self).
#[derive(Debug)]
pub struct Periodic {
    every: u64,
    momenta: Momenta,
    exchange: InPlace<Metered<Dense>>,
}

impl Periodic {
    /// Creates the strategy, which averages after every `every` steps.
    ///
    /// # Errors
    /// [`ConfigError`] when `every` is 0.
    pub fn new(every: u64) -> Result<Self, ConfigError> {
        if every == 0 {
            return Err(ConfigError::range("steps between averages", "at least 1", every));
        }
        Ok(Periodic { every, momenta: Momenta::Keep, exchange: InPlace::new(Metered::seconds_only(Dense)) })
    }

    /// Sets the treatment of the inner optimizer's momenta after an average; by default they are kept.
    #[must_use]
    pub fn with_momenta(self, momenta: Momenta) -> Self {
        Periodic { momenta, ..self }
    }
}

/// No state: the step alone determines which steps exchange.
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
        if cx.weight == 1.0 {
            self.exchange.reduce(parameters, cx, comm)?;
        } else {
            let mut weighed = parameters.iter().map(|x| cx.weight * x).collect();
            self.exchange.reduce(&mut weighed, cx, comm)?;
            *parameters = weighed;
        }
        Ok(self.momenta)
    }

    fn averages_momenta(&self) -> bool {
        self.momenta == Momenta::Average
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

/// Settings of Local SGD.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "local-sgd",
    help = "parameters, averaged after every PERIOD steps (8; adapt=true: 1 to 32 by the link): exactly, or as compressed differences",
    representatives("local-sgd:1", "local-sgd:5", "local-sgd:2,momenta=average,rate=0.5", "local-sgd:2,adapt=true"),
    check = Self::check_momenta
)]
pub struct LocalSgd {
    /// Steps between averages, at least 1. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Treatment of the inner optimizer's momenta after an average.
    #[setting(syntax = "keep|reset|average")]
    pub momenta: Momenta,
    /// Factor of the mean difference, above 0; 1 gives the mean itself.
    #[setting(default = 1.0, range = "(0, inf)")]
    pub rate: f32,
    /// Set if the period follows the link, up to `period`.
    pub adapt: bool,
}

/// The default period.
const USUAL: u64 = 8;

impl LocalSgd {
    /// The seconds of an average of momenta are no part of the exchange that a period follows.
    fn check_momenta(&self) -> Result<(), ConfigError> {
        let is_valid = !self.adapt || self.momenta != Momenta::Average;
        ConfigError::unless(is_valid, "momenta of local-sgd", "keep or reset where the period adapts", "average")
    }

    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(usual_or_longest(self.adapt, USUAL))
    }
}

impl StrategySettings for LocalSgd {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { sends: Sends::Progress, ..StrategyTraits::default() }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        // The mean of the parameters themselves needs no anchor.
        if self.rate == 1.0 && !self.adapt && *exchange == Exchange::default() {
            return Ok(Box::new(Periodic::new(self.steps())?.with_momenta(self.momenta)));
        }
        Ok(Box::new(Outer::new(*self, exchange.build_reducer(layout, world)?, None)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let with = |period| LocalSgd { period: Some(period), ..*self }.into();
        in_adaptive_rounds(self.adapt, (self.period, USUAL), steps, with)
    }

    fn reads_seconds(&self) -> bool {
        self.adapt
    }
}

impl OuterRule for LocalSgd {
    const HAS_MOMENTUM: bool = false;

    fn period(&self) -> u64 {
        self.steps()
    }

    fn adapts(&self) -> bool {
        self.adapt
    }

    fn momenta(&self, _step: u64) -> Momenta {
        self.momenta
    }

    fn advance(&self, anchor: f32, difference: f32, _: f32, _: &OuterStep) -> (f32, f32) {
        // A rate of 1 gives the mean itself.
        ((anchor - difference) + (1.0 - self.rate) * difference, 0.0)
    }
}

#[cfg(test)]
mod tests;
