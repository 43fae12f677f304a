//! SlowMo: momentum on what a period of local steps has come to.
//!
//! **Why, and when not.** Local SGD saves bytes and loses accuracy as its period grows; a slow momentum on the mean of each period
//! wins most of it back, for two vectors of memory and no byte more. Not where every step is exchanged already: there it is the
//! inner optimizer's momentum by another name.
//!
//! **Method.** All ranks begin a period of `τ` steps at the same `x₀`. At its end, with the mean `x̄` over ranks and the learning
//! rate `γ` of that step:
//!
//! ```text
//! u ← β·u + (x₀ − x̄)/γ        x₀ ← x₀ − α·γ·u
//! ```
//!
//! What travels is `x₀ − x_i`, by any reducer: dense, or compressed with error feedback. The base that steps in between is Local
//! SGD (every rank alone), or another strategy such as [`Sgp`](super::Sgp), whose view is averaged and which begins anew at `x₀`.
//!
//! | setting | is then |
//! |---|---|
//! | `α = 1`, `β = 0` | Local SGD |
//! | `τ = 1`, `α = 1`, plain SGD | momentum SGD with momentum `β` |
//! | one rank, `β = 0`, `α < 1` | Lookahead |
//!
//! **On the wire.** What the reducer sends of `d` values, every `τ` steps, and what the base does.
//!
//! **Properties.** Replicas are equal at the end of a period. All ranks must step with the same learning rate there.
//!
//! **State.** `x₀` and `u`, the same on every rank; the base's.
//!
//! **Knobs.** `period` `τ`, steps, default 12 as in the paper (48 over SGP); `beta` in [0, 1), default 0.6 (the paper tunes 0.4 to
//! 0.8); `alpha` above 0, default 1; `reset`, whether the inner optimizer's momenta begin anew at each period, default on, as the
//! paper does for SGD; keep Adam's.
//!
//! **Deviations.** `x̄` is `x₀` less the mean difference, equal to the mean of the parameters to rounding. Where the learning rate is
//! 0, `u ← β·u`. A base has no settings of an exchange: it sends what it does by default.
//!
//! **Reference.** J. Wang, V. Tantia, N. Ballas, M. Rabbat, *SlowMo: Improving Communication-Efficient Distributed SGD with Slow
//! Momentum*, ICLR 2020 (arXiv 1910.00643), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout, comm::Local, reduce::{Dense, AgreedStep}, sync::{Context, SlowMo, SlowMoConfig, SyncStrategy}};
//! use briquette_core::state::Stateful;
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let settings = SlowMoConfig { period: 1, beta: 0.5, ..SlowMoConfig::default() };
//! let mut slow_mo = SlowMo::new(settings, Dense, None)?;
//! let mut x = vec![1.0];
//! slow_mo.begin(&x);
//! for step in 0..2 {
//!     x[0] -= 0.1 * 2.0; // a gradient of 2 at rate 0.1
//!     let agreed_step = AgreedStep { step, learning_rate: Some(0.1), ..AgreedStep::default() };
//!     slow_mo.after_step(&mut x, &Context { key: Key::new(0), slots: layout.slots(), agreed_step: &agreed_step, ranks: &[] }, &mut comm)?;
//!     slow_mo.commit();
//! }
//! assert!((x[0] - 0.5).abs() < 1e-6); // u = 2, then 3: 1 − 0.2 − 0.3
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{Agrees, Context, Momenta, Plan, SgpConfig, SyncStrategy};
use crate::config::{Described, Exchange, Feedback, ReducerConfig, StrategyConfig, StrategySettings};
use crate::error::{ConfigError, ReduceError, StateError, SyncError};
use crate::reduce::{Reducer, Round, check_average};
use crate::report::Report;
use crate::state::{Staged, State, Stateful};
use crate::{Layout, Session};

/// Settings of [`SlowMo`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SlowMoConfig {
    /// Steps of a period.
    pub period: u64,
    /// The slow momentum, in [0, 1).
    pub beta: f32,
    /// The slow learning rate, above 0.
    pub alpha: f32,
    /// Whether the inner optimizer's momenta begin anew at each period.
    pub reset: bool,
    /// What ranks do within a period; absent, each steps alone.
    pub base: Option<Box<StrategyConfig>>,
}

impl Default for SlowMoConfig {
    fn default() -> Self {
        SlowMoConfig { period: 12, beta: 0.6, alpha: 1.0, reset: true, base: None }
    }
}

impl Described for SlowMoConfig {
    const NAME: &'static str = "slowmo";
    const SETTINGS: &'static str = "PERIOD[,beta=0.6,alpha=1,reset=true,base=sgp]";
    const HELP: &'static str = "Local SGD, or another base, with momentum on what each PERIOD steps have come to (12)";

    fn check(&self) -> Result<(), ConfigError> {
        match *self {
            Self { period: 0, .. } => Err(ConfigError::range("period of slowmo", "at least 1", 0)),
            Self { beta, .. } if !(0.0..1.0).contains(&beta) => {
                Err(ConfigError::range("beta of slowmo", "in [0, 1)", beta))
            }
            Self { alpha, .. } if !(alpha.is_finite() && alpha > 0.0) => {
                Err(ConfigError::range("alpha of slowmo", "above 0", alpha))
            }
            _ => Ok(()),
        }
    }

    fn representatives() -> Vec<Self> {
        let (local, alpha, beta) = (SlowMoConfig { period: 3, ..Self::default() }, 0.5, 0.5);
        let gossip = Some(Box::new(SgpConfig::default().into()));
        vec![
            SlowMoConfig { period: 1, alpha, beta, ..local.clone() },
            SlowMoConfig { base: gossip, ..local.clone() },
            local,
        ]
    }
}

impl StrategySettings for SlowMoConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let build = |base: &StrategyConfig| base.get().build(&Exchange::default(), layout, world);
        let base = self.base.as_deref().map(build).transpose()?;
        if let (Some(config), Some(base)) = (&self.base, &base)
            && (config.get().channels() > 0 || base.plan(0).gradients)
        {
            let why =
                "exchanges gradients, or in the background: use sgp, or local-sgd with a shorter period, or no base";
            return Err(ConfigError::Conflict(format!("base {config} of slowmo {why}")));
        }
        Ok(Box::new(SlowMo::new(self.clone(), exchange.build_reducer(layout, world)?, base)?))
    }

    fn fewest_ranks(&self, exchange: &Exchange) -> usize {
        let base = self.base.as_ref().map_or(1, |base| base.get().fewest_ranks(&Exchange::default()));
        base.max(exchange.fewest_ranks())
    }

    /// Dense, and compressed with a memory.
    fn exchanges(&self) -> Vec<Exchange> {
        let reducer = ReducerConfig::gather("topk:8x".parse().expect("a compressor's text"));
        vec![Exchange::default(), Exchange { reducer, feedback: Feedback::Error, ..Exchange::default() }]
    }
}

/// Slow momentum over a base; see the [module](self).
pub struct SlowMo<R> {
    settings: SlowMoConfig,
    reducer: R,
    base: Option<Box<dyn SyncStrategy>>,
    /// `x₀`.
    anchor: Staged<Vec<f32>>,
    /// `u`.
    momentum: Staged<Vec<f32>>,
    /// `x₀ − x_i`, while it is sent.
    difference: Vec<f32>,
    report: Report,
    ends: bool,
}

impl<R: std::fmt::Debug> std::fmt::Debug for SlowMo<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlowMo")
            .field("settings", &self.settings)
            .field("reducer", &self.reducer)
            .finish_non_exhaustive()
    }
}

impl<R: Reducer> SlowMo<R> {
    /// Differences travel through `reducer`; between periods ranks do what `base` does, or step alone.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: SlowMoConfig, reducer: R, base: Option<Box<dyn SyncStrategy>>) -> Result<Self, ConfigError> {
        settings.check()?;
        let (anchor, momentum, difference, report) = Default::default();
        Ok(SlowMo { settings, reducer, base, anchor, momentum, difference, report, ends: false })
    }

    /// The slow momentum `u`, the same on every rank; empty before the first period has ended.
    pub fn momentum(&self) -> &[f32] {
        self.momentum.now()
    }

    fn ends_period(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.settings.period)
    }

    fn base_plan(&self, step: u64) -> Plan {
        self.base.as_ref().map_or(Plan::ALONE, |base| base.plan(step))
    }

    /// `difference` holds `x_i`. The mean of `x₀ − x_i` goes to the next anchor's storage, which then becomes the next anchor.
    fn end_period(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (step, len) = (cx.agreed_step.step, self.difference.len());
        let rate = cx.agreed_step.learning_rate.ok_or(ReduceError::NoLearningRate { step })? as f32;
        self.momentum.fit(len)?;
        let (anchor, mean) = self.anchor.both();
        self.difference.iter_mut().zip(anchor).for_each(|(x, anchor)| *x = anchor - *x);
        mean.resize(len, 0.0);
        let key = cx.key.step(step).purpose("slowmo");
        let round = Round {
            key,
            slots: cx.slots,
            agreed_step: cx.agreed_step,
            input: &self.difference,
            average: mean,
            sent: None,
        };
        self.reducer.reduce(round, comm)?;
        self.reducer.report(&mut self.report);
        let (alpha, beta) = (self.settings.alpha, self.settings.beta);
        let (momentum, next) = self.momentum.both();
        let per_rate = if rate == 0.0 { 0.0 } else { 1.0 / rate };
        for (((x, anchor), u), next) in mean.iter_mut().zip(anchor).zip(momentum).zip(next.iter_mut()) {
            *next = beta * u + *x * per_rate;
            // x₀ − α·γ·u, so that α = 1 and β = 0 give the mean itself.
            *x = (anchor - *x) + (1.0 - alpha) * *x - alpha * rate * beta * u;
        }
        check_average(mean, cx.slots)?;
        check_average(next, cx.slots)
    }
}

impl<R: Reducer> Stateful for SlowMo<R> {
    fn save(&self, state: &mut State) {
        state.put("anchor", self.anchor.now().clone());
        state.put("momentum", self.momentum.now().clone());
        state.put_part("reducer", &self.reducer);
        if let Some(base) = &self.base {
            state.put_part("base", base);
        }
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let anchor = state.memory("anchor", self.anchor.now())?;
        let momentum = state.memory("momentum", self.momentum.now())?;
        state.load_part("reducer", &mut self.reducer)?;
        if let Some(base) = &mut self.base {
            state.load_part("base", base)?;
        }
        self.anchor.set(anchor);
        self.momentum.set(momentum);
        self.ends = false;
        Ok(())
    }

    fn commit(&mut self) {
        self.reducer.commit();
        self.momentum.commit();
        self.anchor.commit();
        if let Some(base) = &mut self.base {
            base.commit();
            if self.ends {
                base.begin(self.anchor.now());
            }
        }
        self.ends = false;
    }

    fn discard(&mut self) {
        self.reducer.discard();
        self.momentum.discard();
        self.anchor.discard();
        self.base.iter_mut().for_each(Stateful::discard);
        self.ends = false;
    }
}

impl<R: Reducer> SyncStrategy for SlowMo<R> {
    fn plan(&self, step: u64) -> Plan {
        let base = self.base_plan(step);
        if !self.ends_period(step) {
            return base;
        }
        Plan { agrees: Agrees::World, parameters: true, replicas_equal: true, same_rate: true, ..base }
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.anchor.set(parameters.to_vec());
        self.momentum.set(Vec::new());
        self.base.iter_mut().for_each(|base| base.begin(parameters));
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        self.base.as_mut().map_or(Ok(()), |base| base.after_backward(gradient, cx, comm))
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        self.report = Report::default();
        if !self.ends_period(step) {
            let Some(base) = &mut self.base else { return Ok(Momenta::Keep) };
            let momenta = base.after_step(parameters, cx, comm)?;
            base.report(&mut self.report);
            return Ok(momenta);
        }
        let before = comm.traffic();
        let mut momenta = if self.settings.reset { Momenta::Reset } else { Momenta::Keep };
        self.difference.clear();
        self.difference.extend_from_slice(parameters);
        let mixes = self.base_plan(step).parameters;
        if let Some(base) = &mut self.base {
            if mixes && base.after_step(&mut self.difference, cx, comm)? == Momenta::Reset {
                momenta = Momenta::Reset;
            }
            base.view(&mut self.difference);
        }
        self.end_period(cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
        self.report.traffic = Some(comm.traffic() - before);
        self.anchor.stage();
        parameters.copy_from_slice(self.anchor.latest());
        self.momentum.stage();
        self.ends = true;
        Ok(momenta)
    }

    fn view(&self, parameters: &mut [f32]) {
        self.base.iter().for_each(|base| base.view(parameters));
    }

    /// Momentum moves the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests;
