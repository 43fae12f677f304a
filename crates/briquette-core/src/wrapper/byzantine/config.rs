//! Settings of attacks, for experiments from a command line.

use super::{Attack, Byzantine};
use crate::Layout;
use crate::compress::{Dense, ErrorBound, Spec};
use crate::config::{Described, DownlinkResidual, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use crate::error::{ConfigError, Conflict, world_of};
use crate::reduce::Reducer;

/// Settings of [`Byzantine`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ByzantineConfig {
    /// The reducer under attack.
    pub through: Box<ReducerConfig>,
    /// The attack of the last ranks.
    pub attack: Attack,
    /// The number of attacking ranks.
    pub ranks: usize,
}

impl Default for ByzantineConfig {
    fn default() -> Self {
        let through = Box::new(ReducerConfig::gather(Dense::representative().into()));
        ByzantineConfig { through, attack: Attack::SignFlip, ranks: 1 }
    }
}

impl Described for ByzantineConfig {
    const NAME: &'static str = "byzantine";
    const SETTINGS: &'static str = "(REDUCER)[,attack=ATTACK,ranks=1]";
    const HELP: &'static str = "for experiments: the last ranks send large, sign-flip, inner-product, little, mimic, crash, stale or not-finite vectors";

    fn check(&self) -> Result<(), ConfigError> {
        ConfigError::unless(self.ranks > 0, "ranks of byzantine", "at least 1", self.ranks)
    }

    fn representatives() -> Vec<Self> {
        vec![Self::default(), ByzantineConfig { attack: Attack::Little(1.0), ..Self::default() }]
    }
}

impl ByzantineConfig {
    fn attacked(&self, reducer: Box<dyn Reducer>) -> Box<dyn Reducer> {
        Box::new(Byzantine::new(reducer, self.attack, self.ranks))
    }
}

impl ReducerSettings for ByzantineConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        self.check()?;
        let through = self.through.get().build(exchange, layout)?;
        Ok(if self.attack.is_finite() { through } else { self.attacked(through) })
    }

    fn wrap_outer(&self, whole: Box<dyn Reducer>) -> Box<dyn Reducer> {
        if self.attack.is_finite() { self.attacked(whole) } else { whole }
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { is_dense: false, is_exact: false, ..self.through.get().traits() }
    }

    /// For vectors that are not finite the attack is between a controller and the reducer; otherwise it is around both.
    fn has_knob(&self) -> bool {
        self.attack.is_finite() && self.through.get().has_knob()
    }

    /// No bound holds relative to the true vector.
    fn error_bound(&self, _len: usize) -> Option<ErrorBound> {
        None
    }

    fn amplification(&self, len: usize) -> Option<f64> {
        self.through.get().amplification(len)
    }

    fn downlink(&self, len: usize) -> Option<ErrorBound> {
        self.through.get().downlink(len)
    }

    fn downlink_residual(&self, len: usize) -> Option<DownlinkResidual> {
        self.through.get().downlink_residual(len)
    }

    fn requires_plain_sgd(&self) -> bool {
        self.through.get().requires_plain_sgd()
    }

    fn averages_equal(&self) -> bool {
        self.through.get().averages_equal()
    }

    fn fewest_ranks(&self) -> usize {
        self.through.get().fewest_ranks()
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        // `wrap_outer` is only asked of the exchange's outermost reducer.
        if !matches!(&exchange.reducer, ReducerConfig::Byzantine(outermost) if outermost == self) {
            let why = "byzantine is around all that a rank exchanges";
            let instead = "use it as the main reducer: not in a rule, and in no other reducer";
            return Err(Conflict::new("reducer byzantine", format!("reducer {}", exchange.reducer), why, instead));
        }
        self.through.get().check_within(exchange)
    }

    fn check_world(&self, world: usize) -> Result<(), Conflict> {
        if self.ranks > world {
            let why = format!("ranks of byzantine must be at most the {world} ranks there are, got {}", self.ranks);
            return Err(Conflict::new("reducer byzantine", world_of(world), why, "lower ranks"));
        }
        self.through.get().check_world(world)
    }
}
