//! Settings of two levels.

use super::TwoLevel;
use briquette_core::Layout;
use briquette_core::comm::MachineMap;
use briquette_core::config::{Described, Exchange, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::SyncStrategy;

/// Settings of [`TwoLevel`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "two-level",
    help = "exact means of gradients inside each machine, STRATEGY (local-sgd) between one rank of each",
    representatives(
        "two-level:local-sgd:2",
        "two-level:slowmo:2",
        "two-level:local-sgd:2,group=1",
        "two-level:sgp:exponential,group=1",
    )
)]
pub struct TwoLevelConfig {
    /// Strategy of the first ranks of machines.
    #[setting(default = "local-sgd", syntax = "(STRATEGY)")]
    pub between: StrategyConfig,
    /// Number of ranks of a machine. If absent, the ranks that share one.
    #[setting(range = "[1, inf)", syntax = "RANKS")]
    pub group: Option<usize>,
}

impl TwoLevelConfig {
    /// Builds the strategy between machines. Without a group their number is known only when ranks have joined, so any number
    /// must be possible.
    fn build_between(
        &self,
        exchange: &Exchange,
        layout: &Layout,
        world: usize,
    ) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let build = |machines| self.between.get().build(exchange, layout, machines);
        if let Some(size) = self.group {
            return build(world / size);
        }
        let of_all = build(world);
        for machines in 1..=world {
            let Err(error) = build(machines) else { continue };
            // Errors that occur for any number of machines.
            if of_all.as_ref().is_err_and(|other| *other == error) {
                return Err(error);
            }
            let (left, right) = ("strategy two-level without a group", format!("strategy {}", self.between));
            let why = match error {
                ConfigError::Conflict(conflict) => conflict.why,
                error => error.to_string(),
            };
            let why = format!("it may find {machines} machines, and {why}");
            return Err(ConfigError::conflict(left, right, why, "set its group"));
        }
        of_all
    }
}

impl StrategySettings for TwoLevelConfig {
    fn traits(&self) -> StrategyTraits {
        self.between.get().traits()
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        MachineMap::check_groups(Self::NAME, self.group, world)?;
        let between = self.build_between(exchange, layout, world)?;
        let plan = between.plan(0);
        let (why, instead) = match () {
            () if self.between.get().reads_seconds() => {
                ("adapts its period to seconds that only one rank of a machine knows", "leave adapt out")
            }
            () if plan.gradients => ("exchanges gradients", "use it alone, or with reducer hierarchical"),
            () if plan.replicas_equal => ("exchanges at every step", "use every-step and reducer hierarchical"),
            () if self.between.get().channels() > 0 => {
                ("exchanges in the background", "leave overlap and staleness out")
            }
            () => {
                let weighs = exchange.aggregator.get().is_mean();
                return Ok(Box::new(TwoLevel::new(between, self.group).weighed(weighs)));
            }
        };
        let between = format!("strategy {}", self.between);
        Err(ConfigError::conflict(
            "strategy two-level",
            between,
            format!("the strategy between machines {why}"),
            instead,
        ))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        self.between.get().min_ranks(exchange) * self.group.unwrap_or(1)
    }

    fn exchanges(&self) -> Vec<Exchange> {
        self.between.get().exchanges()
    }

    fn requires_plain_sgd(&self) -> bool {
        self.between.get().requires_plain_sgd()
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        self.between.get().no_feedback_because()
    }

    fn local_steps(&self) -> Option<u64> {
        self.between.get().local_steps()
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let (between, why) = self.between.get().for_steps(steps)?;
        Some((TwoLevelConfig { between, ..self.clone() }.into(), why))
    }
}
