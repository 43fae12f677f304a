//! SlowMo: slow momentum on the mean change of each period of local steps.
//!
//! **Why, and when not.** Local SGD saves bytes but loses accuracy as its period grows. A slow momentum on the mean change of
//! each period regains most of it, at the cost of two vectors of memory and no extra bytes. If every step is exchanged already,
//! it is the inner optimizer's momentum under another name.
//!
//! **Method.** All ranks start a period of `τ` steps at the same `x₀`. At its end, with the mean `x̄` over ranks and the
//! learning rate `γ` of that step:
//!
//! ```text
//! u ← β·u + (x₀ − x̄)/γ        x₀ ← x₀ − α·γ·u
//! ```
//!
//! Ranks exchange `x₀ − x_i` through any reducer: dense, or compressed with error feedback. The base that steps in between is
//! Local SGD (every rank alone), or another strategy such as [`Sgp`](crate::sync::sgp::Sgp), whose view is averaged and which restarts at
//! `x₀`. Without the average (`average`, over SGP) `x̄`, `x₀` and `u` are rank-local.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `α = 1`, `β = 0` | Local SGD |
//! | `τ = 1`, `α = 1`, plain SGD | momentum SGD with momentum `β` |
//! | one rank, `β = 0`, `α < 1` | Lookahead |
//!
//! **On the wire.** The reducer's messages for `d` values, every `τ` steps, and the base's messages.
//!
//! **Properties.** Replicas are equal at the end of a period with an average. All ranks must step with the same learning rate there.
//!
//! **State.** `x₀` and `u`, the same on every rank if there is an average; the base's state.
//!
//! **Knobs.** `period` `τ`, steps, by default 12 as in the paper (48 over SGP), or less if the run is known to have fewer than
//! 20 periods; `beta` in [0, 1), default 0.6 (the paper tunes 0.4 to 0.8); `alpha` above 0, default 1; `reset`, whether the
//! inner optimizer's momenta are reset at each period, default on, as the paper does for SGD; keep Adam's; `average`, default
//! on, off for the paper's `-noaverage`; `base`.
//!
//! **Deviations.** `x̄` is `x₀` minus the mean difference, which equals the mean of the parameters up to rounding. If the
//! learning rate is 0, `u ← β·u`. A base has no exchange settings: it uses its defaults.
//!
//! **Reference.** J. Wang, V. Tantia, N. Ballas, M. Rabbat, *SlowMo: Improving Communication-Efficient Distributed SGD with Slow
//! Momentum*, ICLR 2020 (arXiv 1910.00643), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::slow_mo::{SlowMo, SlowMoConfig};
//! use briquette_core::state::Stateful;
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let settings = SlowMoConfig { period: Some(1), beta: 0.5, ..SlowMoConfig::default() };
//! let mut slow_mo = SlowMo::new(settings, Dense, None)?;
//! let mut x = vec![1.0];
//! slow_mo.begin(&x);
//! for step in 0..2 {
//!     x[0] -= 0.1 * 2.0; // a gradient of 2 at rate 0.1
//!     let agreed_step = AgreedStep { step, learning_rate: Some(0.1), ..AgreedStep::default() };
//!     slow_mo.after_step(&mut x, &Context::new(Key::new(0), layout.slots(), &agreed_step), &mut comm)?;
//!     slow_mo.commit();
//! }
//! assert!((x[0] - 0.5).abs() < 1e-6); // u = 2, then 3: 1 − 0.2 − 0.3
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::Layout;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::ConfigError;
use briquette_core::sync::{
    Momenta, SyncStrategy,
    outer::{self, Outer, OuterRule, OuterStep},
    rounds::{in_rounds, period_of},
};

/// Settings of [`SlowMo`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "slowmo",
    help = "Local SGD, or another base, with momentum on what each PERIOD steps have come to (12)",
    representatives("slowmo:1,beta=0.5,alpha=0.5", "slowmo:3,base=sgp:exponential", "slowmo:3"),
    check = Self::check_average
)]
pub struct SlowMoConfig {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
    /// The slow momentum, in [0, 1).
    #[setting(default = 0.6, range = "[0, 1)")]
    pub beta: f32,
    /// The slow learning rate, above 0.
    #[setting(default = 1.0, range = "(0, inf)")]
    pub alpha: f32,
    /// Set if the inner optimizer's momenta are reset at each period.
    #[setting(default = true)]
    pub reset: bool,
    /// Set if a period ends with an average. If not, only the base exchanges, and each rank has its own slow momentum.
    #[setting(default = true)]
    pub average: bool,
    /// Strategy within a period. If absent, each rank steps alone.
    #[setting(syntax = "STRATEGY")]
    pub base: Option<StrategyConfig>,
}

/// The default period.
const USUAL: u64 = 12;

impl SlowMoConfig {
    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }

    fn check_average(&self) -> Result<(), ConfigError> {
        let is_valid = self.average || self.base.is_some();
        ConfigError::unless(is_valid, "average of slowmo", "true where there is no base", self.average)
    }
}

impl StrategySettings for SlowMoConfig {
    fn traits(&self) -> StrategyTraits {
        let uses = (!self.average).then_some((&[][..], "exchanges by its base alone (average=false)"));
        StrategyTraits { uses, sends: Sends::Progress }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let build = |base: &StrategyConfig| base.get().build(&Exchange::default(), layout, world);
        let base = self.base.as_ref().map(build).transpose()?;
        if let (Some(config), Some(base)) = (&self.base, &base)
            && (config.get().channels() > 0 || config.get().reads_seconds() || base.plan(0).gradients)
        {
            let why = "it exchanges gradients, in the background, or in periods that adapt";
            let instead = "use sgp without staleness, or local-sgd with a shorter period, or no base";
            return Err(ConfigError::conflict(format!("base {config} of slowmo"), "strategy slowmo", why, instead));
        }
        if !self.average && !self.base.as_ref().is_some_and(|base| base.is::<crate::sync::sgp::SgpConfig>()) {
            let base = self.base.as_ref().map_or("no base".to_owned(), |base| format!("base {base}"));
            let why = "it needs a base that mixes replicas: others would take the outer step away again";
            return Err(ConfigError::conflict("average=false of slowmo", base, why, "use base=sgp"));
        }
        Ok(Box::new(SlowMo::new(self.clone(), exchange.build_reducer(layout, world)?, base)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        let base = self.base.as_ref().map_or(1, |base| base.get().min_ranks(&Exchange::default()));
        base.max(exchange.min_ranks())
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }

    fn requires_plain_sgd(&self) -> bool {
        self.base.as_ref().is_some_and(|base| base.get().requires_plain_sgd())
    }

    fn local_steps(&self) -> Option<u64> {
        let base = self.base.as_ref().and_then(|base| base.get().local_steps());
        Some(base.map_or(self.steps(), |base| base.min(self.steps())))
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        let own = in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            SlowMoConfig { period: Some(period), ..self.clone() }.into()
        });
        let Some((base, why)) = self.base.as_ref().and_then(|base| base.get().for_steps(steps)) else { return own };
        let (period, why) = own.map_or((self.period, why), |(_, why)| (Some(period_of(USUAL, steps)), why));
        Some((SlowMoConfig { period, base: Some(base), ..self.clone() }.into(), why))
    }
}

/// Slow momentum over a base; see the [module](self).
pub type SlowMo<R> = Outer<SlowMoConfig, R>;

impl OuterRule for SlowMoConfig {
    const READS_RATE: bool = true;

    fn period(&self) -> u64 {
        self.steps()
    }

    fn averages(&self) -> bool {
        self.average
    }

    fn momenta(&self, _step: u64) -> Momenta {
        if self.reset { Momenta::Reset } else { Momenta::Keep }
    }

    fn advance(&self, anchor: f32, difference: f32, momentum: f32, at: &OuterStep) -> (f32, f32) {
        let (Self { alpha, beta, .. }, rate) = (self, at.rate);
        let per_rate = if rate == 0.0 { 0.0 } else { 1.0 / rate };
        // x₀ − α·γ·u, so that α = 1 and β = 0 give the mean itself.
        let next = (anchor - difference) + (1.0 - alpha) * difference - alpha * rate * beta * momentum;
        (next, beta * momentum + difference * per_rate)
    }
}

#[cfg(test)]
mod tests;
