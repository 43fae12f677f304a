//! Settings of attacks, for experiments from a command line.

use super::{Attack, Byzantine};
use briquette_core::Layout;
use briquette_core::compress::ErrorBound;
use briquette_core::config::{Described, DownlinkResidual, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict, world_of};
use briquette_core::reduce::Reducer;

/// Settings of [`Byzantine`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "byzantine",
    help = "for experiments: the last ranks send large, sign-flip, inner-product, little, mimic, crash, stale or not-finite vectors",
    representatives("byzantine:gather:dense", "byzantine:gather:dense,attack=little:1")
)]
pub struct ByzantineConfig {
    /// The reducer under attack.
    #[setting(default = "gather:dense", syntax = "(REDUCER)")]
    pub through: ReducerConfig,
    /// The attack of the last ranks.
    #[setting(default = Attack::SignFlip)]
    pub attack: Attack,
    /// The number of attacking ranks.
    #[setting(default = 1, range = "[1, inf)")]
    pub ranks: usize,
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

    fn min_ranks(&self) -> usize {
        self.through.get().min_ranks()
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        // `wrap_outer` is only asked of the exchange's outermost reducer.
        if exchange.reducer.downcast_ref() != Some(self) {
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

    fn changes_contributions(&self) -> bool {
        true
    }
}
