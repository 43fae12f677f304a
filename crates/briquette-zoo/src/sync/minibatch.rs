//! Minibatch SGD in rounds: each rank takes `K` gradients at the same point, then all take one step, plain or accelerated
//! (AC-SA).
//!
//! **Why, and when not.** Local SGD uses the same number of gradients and exchanges: `K` steps of a rank, then one average.
//! It makes more progress with them if the ranks' data are similar. If the data differ, local steps lead each rank to its own
//! optimum and bias the mean, the more so the more they differ. Gradients at one point have no such bias, and the accelerated
//! form attains the optimal rate with them. If memory does not limit the batch, larger batches with an exchange at every step
//! give the same result.
//!
//! **Method.** In a round all ranks stay at `x` and each takes `K` gradients. With `g` the mean over ranks of their means:
//!
//! ```text
//! plain:        the optimizer steps from x with g
//! accelerated:  x ← x − γ·(t+1)/2·g       x_ag ← x/β_t + (1 − 1/β_t)·x_ag       β_t = (t+1)/2
//!               and gradients are taken at x/β_t + (1 − 1/β_t)·x_ag, with the next t
//! ```
//!
//! `t` counts rounds from 1, and `γ` is the learning rate of the round's last step: `1/(4H)` for a loss of smoothness `H`. On
//! strongly convex problems, restart from `x_ag` with `t = 1` after every few rounds (`restart`: of the order of `√(H/μ)`).
//!
//! In the paper's terms, with steps of `η_in` within a round and of `η_out` at its end, the plain form has `η_in = 0` and the
//! rate `K·η_out`. [`local-sgd`](briquette_core::sync::periodic) covers the other cases; its `rate` is `η_out/η_in`.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `K = 1` | gradients at every step |
//! | plain | [`EveryStep`](briquette_core::sync::every_step::EveryStep) with a batch `K` times as large |
//! | accelerated, restarted after every round | not available: it would be gradient descent |
//!
//! **On the wire.** The reducer's messages for `d` values, every `K` steps. These are gradients, so any error feedback is
//! suitable, except feedback with momentum where the step is accelerated.
//!
//! **Properties.** Ranks are always at the same point. In the accelerated form the model to evaluate is a different point,
//! `x_ag`.
//!
//! **State.** `x`, and `x_ag` if accelerated, the same on every rank; the gradients so far, rank-local.
//!
//! **Knobs.** `period` `K`, steps, default 8; `accelerate`, default false; `restart`, rounds, at least 2, or 0 for never (the
//! default).
//!
//! **Deviations.** The inner optimizer steps only at the end of a round, so any optimizer is as suitable as with a batch `K`
//! times as large. The accelerated form takes the step of AC-SA and ignores the inner optimizer's, which must be plain SGD.
//! Only a round's last gradient is weighted by its samples. The paper's constants for `γ` depend on the noise; here the caller
//! sets `γ` and the restarts.
//!
//! **References.** B. Woodworth, K. K. Patel, N. Srebro, *Minibatch vs Local SGD for Heterogeneous Distributed Learning*, NeurIPS 2020 (arXiv
//! 2006.04735), section 3. S. Ghadimi, G. Lan, *Optimal Stochastic Approximation Algorithms for Strongly Convex Stochastic Composite
//! Optimization I*, SIAM Journal on Optimization 22(4), 2012, for AC-SA and restarts.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::minibatch::{Minibatch, MinibatchConfig};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let mut minibatch = Minibatch::new(MinibatchConfig { period: 2, ..MinibatchConfig::default() }, Dense)?;
//! let mut x = vec![10.0];
//! minibatch.begin(&x);
//! let mut seen = vec![];
//! for (step, gradient) in [(0, 1.0), (1, 3.0), (2, 5.0)] {
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     let mut gradient = vec![gradient];
//!     minibatch.after_backward(&mut gradient, &cx, &mut comm)?;
//!     x[0] -= gradient[0];
//!     minibatch.after_step(&mut x, &cx, &mut comm)?;
//!     minibatch.commit();
//!     seen.push(x[0]);
//! }
//! assert_eq!(seen, [10.0, 8.0, 8.0]); // one step, with the mean of two gradients
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use briquette_core::config::{Described, Exchange, Sends, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{Reducer, Round, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{Context, Momenta, Plan, SyncStrategy};
use briquette_core::{Layout, Session, layout, stateful};

/// Settings of [`Minibatch`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "minibatch",
    help = "one step with the mean of PERIOD gradients (8) of every rank at the same point; accelerated: AC-SA",
    representatives("minibatch:3", "minibatch:3,accelerate=true", "minibatch:1,accelerate=true,restart=2"),
    check = Self::check_restart
)]
pub struct MinibatchConfig {
    /// Gradients per rank in a round.
    #[setting(default = 8, range = "[1, inf)")]
    pub period: u64,
    /// Set if rounds are accelerated.
    pub accelerate: bool,
    /// Accelerated rounds between restarts, at least 2; 0 for no restart.
    #[setting(syntax = "ROUNDS")]
    pub restart: u64,
}

impl MinibatchConfig {
    fn check_restart(&self) -> Result<(), ConfigError> {
        let is_valid = self.restart == 0 || self.accelerate && self.restart >= 2;
        ConfigError::unless(is_valid, "restart of minibatch", "0, or, with accelerate, at least 2", self.restart)
    }
}

impl StrategySettings for MinibatchConfig {
    fn traits(&self) -> StrategyTraits {
        let sends = if self.accelerate { Sends::Accelerated } else { Sends::AsTheyAre };
        StrategyTraits { sends, ..StrategyTraits::default() }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Minibatch::new(*self, exchange.build_reducer(layout, world)?)?))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    /// Returns true: an earlier step of the round may have had a gradient for a slot.
    fn keeps_state(&self) -> bool {
        true
    }

    fn exchanges(&self) -> Vec<Exchange> {
        briquette_core::sync::outer::exchanges()
    }

    /// Returns true unless rounds are accelerated: the optimizer steps only at the end of a round, with the average.
    fn steps_with_averages(&self) -> bool {
        !self.accelerate
    }

    fn requires_plain_sgd(&self) -> bool {
        self.accelerate
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some("exchanges gradients, once in a round")
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.period)
    }
}

/// Rounds of gradients at one point; see the [module](self).
pub struct Minibatch<R> {
    settings: MinibatchConfig,
    reducer: R,
    /// This round's gradients so far, each divided by `K`; empty at its start.
    gathered: Staged<Vec<f32>>,
    /// Number of gradients in `gathered`.
    count: Staged<u64>,
    /// `x`.
    point: Staged<Vec<f32>>,
    /// `x_ag`; empty if rounds are not accelerated.
    aggregate: Staged<Vec<f32>>,
    /// The last round's `g`.
    mean: Vec<f32>,
    report: Report,
    /// Last step of the run, if known. A round ends with it, however many gradients it has.
    last: Option<u64>,
}

impl<R: std::fmt::Debug> std::fmt::Debug for Minibatch<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Minibatch")
            .field("settings", &self.settings)
            .field("reducer", &self.reducer)
            .finish_non_exhaustive()
    }
}

impl<R: Reducer> Minibatch<R> {
    /// Creates the strategy; gradients are exchanged through `reducer`.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: MinibatchConfig, reducer: R) -> Result<Self, ConfigError> {
        settings.check()?;
        let (gathered, count, point, aggregate, mean, report, last) = Default::default();
        Ok(Minibatch { settings, reducer, gathered, count, point, aggregate, mean, report, last })
    }

    /// Resets the count if the gradients were dropped because the world size changed.
    fn count_gathered(&mut self) {
        if self.gathered.now().is_empty() {
            self.count.set(0);
        }
    }

    fn ends_round(&self, step: u64) -> bool {
        (step + 1).is_multiple_of(self.settings.period) || self.last == Some(step)
    }

    /// Returns `β_t` of the round that contains `step`.
    fn beta(&self, step: u64) -> f32 {
        let (round, restart) = (step / self.settings.period, self.settings.restart);
        let t = 1 + if restart == 0 { round } else { round % restart };
        (t + 1) as f32 / 2.0
    }

    fn exchange(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (before, input) = (comm.traffic(), self.gathered.next_mut());
        self.mean.resize(input.len(), 0.0);
        // An earlier step of the round may have had a gradient where this one has none.
        let slots = layout::with_absent(cx.slots, |_| false);
        let round = Round {
            key: cx.key.step(cx.agreed_step.step),
            slots: &slots,
            agreed_step: cx.agreed_step,
            input,
            average: &mut self.mean,
            sent: None,
        };
        self.reducer.reduce(round, comm)?;
        self.reducer.report(&mut self.report);
        self.report.traffic = Some(comm.traffic() - before);
        Ok(())
    }

    /// Takes a step of AC-SA with the round's `g`.
    fn accelerate(&mut self, cx: &Context<'_>) -> Result<(), ReduceError> {
        let step = cx.agreed_step.step;
        let rate = cx.agreed_step.learning_rate.ok_or(ReduceError::NoLearningRate { step })? as f32;
        // This is also `γ·(t+1)/2`.
        let (beta, begins_anew) = (self.beta(step), self.beta(step + 1) == 1.0);
        let (x, next) = self.point.both();
        next.clear();
        next.extend(x.iter().zip(&self.mean).map(|(x, g)| x - rate * beta * g));
        let (before, aggregate) = self.aggregate.both();
        aggregate.clear();
        aggregate.extend(next.iter().zip(before).map(|(x, before)| between(beta, *x, *before)));
        if begins_anew {
            next.clone_from(aggregate);
        }
        check_average(self.point.next_mut(), cx.slots)?;
        self.point.stage();
        self.aggregate.stage();
        Ok(())
    }
}

/// Returns `x/β + (1 − 1/β)·x_ag`.
fn between(beta: f32, x: f32, aggregate: f32) -> f32 {
    x / beta + (1.0 - 1.0 / beta) * aggregate
}

stateful! {
    impl<R: Reducer> Stateful for Minibatch<R> {
        point: vector("point"),
        aggregate: vector("aggregate").like("point"),
        gathered: vector("gathered").like("point").rank_local(Spread),
        count: value("count"),
        reducer: part("reducer"),
    }
    after_load: Self::count_gathered;
}

impl<R: Reducer> SyncStrategy for Minibatch<R> {
    fn plan(&self, step: u64) -> Plan {
        let within = Plan::ALONE.with_gradients(true).with_optimizer(false);
        let plan = if self.ends_round(step) { Plan::GRADIENTS } else { within };
        // If the evaluated model differs from the trained one, its view is requested as if replicas differed.
        plan.with_parameters(true).with_replicas_equal(!self.settings.accelerate)
    }

    fn ends_at(&mut self, last: u64) {
        self.last = Some(last);
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.gathered.clear();
        self.count.set(0);
        self.point.set(parameters.to_vec());
        self.aggregate.set(if self.settings.accelerate { parameters.to_vec() } else { Vec::new() });
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        let step = cx.agreed_step.step;
        let (period, count) = (self.settings.period, self.count.now() + 1);
        self.report = Report::default();
        let ends = self.ends_round(step);
        let (before, gathered) = self.gathered.both();
        gathered.clear();
        gathered.extend(gradient.iter().map(|g| g / period as f32));
        gathered.iter_mut().zip(before).for_each(|(sum, before)| *sum += before);
        if ends {
            // A round that was cut short, or the remainder of one.
            if count < period {
                gathered.iter_mut().for_each(|sum| *sum *= period as f32 / count as f32);
            }
            self.exchange(cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
            gradient.copy_from_slice(&self.mean);
            self.gathered.next_mut().clear();
        } else {
            gradient.fill(0.0);
        }
        self.gathered.stage();
        *self.count.next_mut() = if ends { 0 } else { count };
        self.count.stage();
        Ok(())
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        _: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        match (self.ends_round(step), self.settings.accelerate) {
            (true, true) => self.accelerate(cx).map_err(|source| SyncError::Reduce { step, source })?,
            (true, false) => {
                self.point.next_mut().clone_from(parameters);
                self.point.stage();
            }
            (false, _) => {}
        }
        parameters.copy_from_slice(self.point.latest());
        let (beta, aggregate) = (self.beta(step + 1), self.aggregate.latest());
        parameters.iter_mut().zip(aggregate).for_each(|(x, aggregate)| *x = between(beta, *x, *aggregate));
        Ok(Momenta::Keep)
    }

    /// Writes `x_ag` if rounds are accelerated.
    fn view(&self, parameters: &mut [f32]) {
        parameters.iter_mut().zip(self.aggregate.latest()).for_each(|(x, aggregate)| *x = *aggregate);
    }

    /// Returns nothing: a step moves the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests;
