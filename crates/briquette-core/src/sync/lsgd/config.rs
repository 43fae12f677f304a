//! Settings of LSGD.

use super::Lsgd;
use crate::Layout;
use crate::comm::Places;
use crate::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use crate::error::ConfigError;
use crate::sync::SyncStrategy;
use crate::sync::rounds::{check_period, in_rounds, period_of};

/// Settings of [`Lsgd`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LsgdConfig {
    /// Steps between choices of the world's leader. If absent, it follows from the [number of
    /// steps](StrategySettings::for_steps).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Steps between choices of a group's leader; divides `period`.
    pub local: u64,
    /// Fraction of the distance to its group's leader by which a rank moves when the leader is chosen, and once more over the
    /// steps to the next choice; in [0, 1].
    pub pull: f32,
    /// The same fraction for the world's leader.
    pub global_pull: f32,
    /// Number of ranks of a group. If absent, the ranks of one machine form a group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
}

/// The default period.
const USUAL: u64 = 16;

impl Default for LsgdConfig {
    fn default() -> Self {
        LsgdConfig { period: None, local: 4, pull: 0.1, global_pull: 0.1, group: None }
    }
}

impl LsgdConfig {
    /// Returns the steps between choices of the world's leader. If no period is set, the default, or the next multiple of
    /// `local`.
    pub(super) fn steps(&self) -> u64 {
        let local = self.local.max(1);
        self.period.unwrap_or(USUAL.div_ceil(local) * local)
    }

    /// Checks that the settings are possible for a world of this size.
    pub(super) fn check_in(&self, world: usize) -> Result<(), ConfigError> {
        self.check()?;
        Ok(Places::check_groups(Self::NAME, self.group, world)?)
    }
}

impl Described for LsgdConfig {
    const NAME: &'static str = "lsgd";
    const SETTINGS: &'static str = "PERIOD[,local=4,pull=0.1,global-pull=0.1,group=RANKS]";
    const HELP: &'static str =
        "ranks pulled to the one with the lowest loss, of their group and, each PERIOD steps (16), of the world";

    fn check(&self) -> Result<(), ConfigError> {
        let Self { period, local, pull, global_pull, group } = *self;
        check_period("period of lsgd", period)?;
        let divides = local > 0 && self.steps().is_multiple_of(local);
        ConfigError::unless(divides, "local of lsgd", "a divisor of its period", local)?;
        ConfigError::unless((0.0..=1.0).contains(&pull), "pull of lsgd", "in [0, 1]", pull)?;
        ConfigError::unless((0.0..=1.0).contains(&global_pull), "global-pull of lsgd", "in [0, 1]", global_pull)?;
        ConfigError::unless(group != Some(0), "group of lsgd", "at least 1", 0)
    }

    fn representatives() -> Vec<Self> {
        let alone = LsgdConfig { period: Some(2), local: 1, group: Some(1), ..Self::default() };
        vec![LsgdConfig { period: Some(4), local: 2, ..Self::default() }, alone]
    }
}

impl StrategySettings for LsgdConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], "sends a leader's parameters as they are")), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Lsgd::new(*self, world)?))
    }

    fn fewest_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("sends parameters as they are")
    }

    fn dense_because(&self) -> Option<&'static str> {
        Some("sends parameters as they are")
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        // A multiple of `local`.
        let (usual, local) = (self.steps(), self.local.max(1));
        let period = (period_of(usual, steps) / local).max(1) * local;
        in_rounds(self.period, (usual, period), steps, |period| LsgdConfig { period: Some(period), ..*self }.into())
    }
}
