//! Settings of LSGD.

use super::Lsgd;
use briquette_core::Layout;
use briquette_core::comm::MachineMap;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    SyncStrategy,
    rounds::{in_rounds, period_of},
};

/// Settings of [`Lsgd`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "lsgd",
    help = "ranks pulled to the one with the lowest loss, of their group and, each PERIOD steps (16), of the world",
    representatives("lsgd:4,local=2", "lsgd:2,local=1,group=1"),
    check = Self::check_local
)]
pub struct LsgdConfig {
    /// Steps between choices of the world's leader. If absent, it follows from the [number of
    /// steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// Steps between choices of a group's leader; divides `period`.
    #[setting(default = 4)]
    pub local: u64,
    /// Fraction of the distance to its group's leader by which a rank moves when the leader is chosen, and once more over the
    /// steps to the next choice; in [0, 1].
    #[setting(default = 0.1, range = "[0, 1]")]
    pub pull: f32,
    /// The same fraction for the world's leader.
    #[setting(default = 0.1, range = "[0, 1]")]
    pub global_pull: f32,
    /// Number of ranks of a group. If absent, the ranks of one machine form a group.
    #[setting(range = "[1, inf)", syntax = "RANKS")]
    pub group: Option<usize>,
}

/// The default period.
const USUAL: u64 = 16;

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
        Ok(MachineMap::check_groups(Self::NAME, self.group, world)?)
    }

    fn check_local(&self) -> Result<(), ConfigError> {
        let divides = self.local > 0 && self.steps().is_multiple_of(self.local);
        ConfigError::unless(divides, "local of lsgd", "a divisor of its period", self.local)
    }
}

impl StrategySettings for LsgdConfig {
    fn traits(&self) -> StrategyTraits {
        StrategyTraits { uses: Some((&[], "sends parameters uncompressed")), sends: Sends::AsTheyAre }
    }

    fn build(&self, _: &Exchange, _: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Lsgd::new(*self, world)?))
    }

    fn min_ranks(&self, _: &Exchange) -> usize {
        1
    }

    fn exchanges(&self) -> Vec<Exchange> {
        vec![Exchange::default()]
    }

    fn no_feedback_because(&self) -> Option<&'static str> {
        Some("sends parameters uncompressed")
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some("sends parameters uncompressed")
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
