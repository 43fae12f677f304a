//! Settings of two levels.

use super::TwoLevel;
use crate::Layout;
use crate::comm::Places;
use crate::config::{Described, Exchange, StrategyConfig, StrategySettings, StrategyTraits};
use crate::error::ConfigError;
use crate::sync::{LocalSgdConfig, SgpConfig, SlowMoConfig, SyncStrategy};

/// Settings of [`TwoLevel`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TwoLevelConfig {
    /// Strategy of the first ranks of machines.
    pub between: Box<StrategyConfig>,
    /// Number of ranks of a machine. If absent, the ranks that share one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

impl Default for TwoLevelConfig {
    fn default() -> Self {
        TwoLevelConfig { between: Box::new(LocalSgdConfig::default().into()), group: None }
    }
}

impl Described for TwoLevelConfig {
    const NAME: &'static str = "two-level";
    const SETTINGS: &'static str = "(STRATEGY)[,group=RANKS]";
    const HELP: &'static str =
        "exact means of gradients inside each machine, STRATEGY (local-sgd) between one rank of each";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.group != Some(0), "group of two-level", "at least 1", 0)
    }

    fn representatives() -> Vec<Self> {
        let local = LocalSgdConfig { period: Some(2), ..LocalSgdConfig::default() };
        let slow = SlowMoConfig { period: Some(2), ..SlowMoConfig::default() };
        let of = |between: StrategyConfig, group| TwoLevelConfig { between: Box::new(between), group };
        vec![
            of(local.into(), None),
            of(slow.into(), None),
            of(local.into(), Some(1)),
            of(SgpConfig::default().into(), Some(1)),
        ]
    }
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
        Places::check_groups(Self::NAME, self.group, world)?;
        let between = self.build_between(exchange, layout, world)?;
        let plan = between.plan(0);
        let (why, instead) = match () {
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

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        self.between.get().fewest_ranks(exchange) * self.group.unwrap_or(1)
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
        Some((TwoLevelConfig { between: Box::new(between), ..self.clone() }.into(), why))
    }
}
