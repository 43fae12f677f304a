//! Overlap-Local-SGD: averages parameters in the background and applies the average one period later.
//!
//! **Why, and when not.** Local SGD still waits for its average once a period. Here ranks continue at once, and are pulled
//! towards the average of the *previous period*. An exchange that takes less than a period of computing therefore costs no
//! time. On a fast network [`Periodic`](briquette_core::sync::periodic::Periodic) has fresher averages.
//!
//! **Method.** All ranks hold the anchor `z`, at first the initial model. At the end of a period of `τ` steps, a rank
//!
//! 1. waits for the exchange that was started a period ago, which yields `z`;
//! 2. is pulled: `x ← (1−α)·x + α·z`;
//! 3. updates its momentum: `v ← β·v + (z − x)/γ` with the learning rate `γ` of this step;
//! 4. starts the exchange of `z − γ·v`, whose mean over ranks is the next `z`.
//!
//! Ranks exchange `−γ·v`, the difference to the anchor, through any reducer, on a separate channel. Values that a compressor
//! omits remain in the next difference, so error feedback would count them twice and is rejected. With `β = 0` the next anchor
//! is the mean of the pulled parameters. The inner optimizer's momenta are unchanged.
//!
//! **On the wire.** The reducer's messages for `d` values, every `τ` steps, in the background.
//!
//! **Properties.** Replicas always differ; the anchor is the same on every rank. With `β = 0` and a dense reducer the mean over
//! ranks of `(1−α)·x + α·z` is conserved, with `z` the anchor in flight. Ranks agree on a header only about every hundred
//! steps, so a controller sees no losses, seconds and learning rates.
//!
//! **State.** `z`, the same on every rank; `v` and the input of the exchange in flight, rank-local. An exchange in flight is
//! saved as its input: a resumed run sends it again, and gets the same bits.
//!
//! **Knobs.** `period` `τ`, steps, default 2; `alpha`, the pull, in [0, 1), default 0.6; `beta` in [0, 1), default 0.7: the authors'
//! script for ranks with different data; `offset`, steps by which the first period is longer, below `τ`, default 0, and 1 in the
//! authors' code.
//!
//! **Deviations.** If the learning rate is 0, `v ← β·v`. The authors use `α = 1` for a start at the stale average. By the four
//! lines above that would discard all of a period's progress before it is sent, so it is rejected.
//!
//! **Reference.** J. Wang, H. Liang, G. Joshi, *Overlap Local-SGD: An Algorithmic Approach to Hide Communication Delays in
//! Distributed SGD*, ICASSP 2020 (arXiv 2002.09539), and the authors' code.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::overlap_local_sgd::{OverlapLocalSgdConfig, OverlapLocalSgd};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let settings = OverlapLocalSgdConfig { period: Some(1), alpha: 0.5, beta: 0.0, offset: 0 };
//! let mut overlap = OverlapLocalSgd::new(settings, Dense)?;
//! let mut x = vec![0.0];
//! overlap.begin(&x);
//! let mut seen = vec![];
//! for step in 0..3 {
//!     x[0] += 8.0;
//!     let agreed_step = AgreedStep { step, learning_rate: Some(1.0), ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     overlap.after_step(&mut x, &cx, &mut comm)?;
//!     overlap.commit();
//!     overlap.after_commit(&cx, &mut comm);
//!     seen.push(x[0]);
//! }
//! assert_eq!(seen, [4.0, 8.0, 12.0]); // pulled half-way to 0, then to 4, then to 8
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;

pub use config::OverlapLocalSgdConfig;

use super::periods::Periods;
use briquette_core::comm::Session;
use briquette_core::config::Described;
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{AgreedStep, Reducer, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{Context, Momenta, Plan, SyncStrategy, check_own, in_background::InBackground};
use briquette_core::{Key, stateful};

/// Averages in the background; see the [module](self).
pub struct OverlapLocalSgd<R> {
    settings: OverlapLocalSgdConfig,
    /// Set if the reducer sends everything.
    is_exact: bool,
    anchor: Staged<Vec<f32>>,
    momentum: Staged<Vec<f32>>,
    exchange: InBackground<R>,
}

impl<R> std::fmt::Debug for OverlapLocalSgd<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OverlapLocalSgd").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<R: Reducer + 'static> OverlapLocalSgd<R> {
    /// Creates the strategy; differences to the anchor are exchanged through `reducer`.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: OverlapLocalSgdConfig, reducer: R) -> Result<Self, ConfigError> {
        settings.check()?;
        let (anchor, momentum, exchange) =
            (Staged::default(), Staged::default(), InBackground::new(reducer, Some("anchor")));
        Ok(OverlapLocalSgd { settings, is_exact: true, anchor, momentum, exchange })
    }

    /// Returns the anchor `z`, the same on every rank; empty before a run begins.
    pub fn anchor(&self) -> &[f32] {
        self.anchor.now()
    }

    fn periods(&self) -> Periods {
        Periods { period: self.settings.steps(), offset: self.settings.offset }
    }

    /// Returns the inputs of the exchange at the end of step `step`. Ranks have not agreed on a learning rate, so controllers
    /// must not see a rank-local one.
    fn round(step: u64, cx: &Context<'_>) -> (Key, AgreedStep) {
        (cx.key.step(step).purpose("overlap"), AgreedStep { step, ..AgreedStep::default() })
    }

    /// Receives the mean of the previous period at the end of this one. There is none at the end of the first.
    fn receive(&mut self, cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (key, agreed_step) = Self::round(cx.agreed_step.step.saturating_sub(self.settings.steps()), cx);
        self.exchange.receive(key, agreed_step, cx, comm)
    }

    /// Computes the next anchor, and the momentum and exchange input of the parameters `x`, before the pull.
    fn advance(&mut self, x: &[f32], rate: f32) -> Result<(), ReduceError> {
        let OverlapLocalSgdConfig { alpha, beta, .. } = self.settings;
        self.momentum.fit(x.len())?;
        let (anchor, z) = self.anchor.both();
        z.clone_from(anchor);
        if let Some(mean) = self.exchange.mean() {
            z.iter_mut().zip(mean).for_each(|(z, mean)| *z += mean);
        }
        let (momentum, next) = self.momentum.both();
        let input = self.exchange.input.next_mut();
        input.resize(x.len(), 0.0);
        let per_rate = if rate == 0.0 { 0.0 } else { 1.0 / rate };
        for ((((x, z), v), next), input) in x.iter().zip(&*z).zip(momentum).zip(next).zip(input) {
            let x = pulled(alpha, *x, *z);
            // Not finite if `x` is not.
            *next = beta * v + (z - x) * per_rate;
            // `−γ·v`, written so that a period's progress is not lost at a rate of 0.
            *input = (x - z) - rate * beta * v;
        }
        Ok(())
    }
}

/// Returns `x` pulled towards the anchor `z`.
fn pulled(alpha: f32, x: f32, z: f32) -> f32 {
    x + alpha * (z - x)
}

stateful! {
    impl<R: Reducer + 'static> Stateful for OverlapLocalSgd<R> {
        anchor: vector("anchor"),
        momentum: vector("momentum").rank_local(Spread),
        exchange: flatten(),
    }
}

impl<R: Reducer + 'static> SyncStrategy for OverlapLocalSgd<R> {
    fn plan(&self, step: u64) -> Plan {
        self.periods().plan(step)
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.anchor.set(parameters.to_vec());
        self.momentum.set(Vec::new());
        self.exchange.begin();
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        let failed = |source| SyncError::Reduce { step, source };
        let rate = cx.agreed_step.learning_rate.ok_or(failed(ReduceError::NoLearningRate { step }))? as f32;
        self.receive(cx, comm).map_err(failed)?;
        self.advance(parameters, rate).map_err(failed)?;
        check_average(self.anchor.next_mut(), cx.slots).map_err(failed)?;
        check_own(self.momentum.next_mut(), cx, comm)?;
        self.anchor.stage();
        let anchor = self.anchor.latest();
        parameters.iter_mut().zip(anchor).for_each(|(x, z)| *x = pulled(self.settings.alpha, *x, *z));
        self.momentum.stage();
        self.exchange.input.stage();
        Ok(Momenta::Keep)
    }

    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        if self.periods().ends(cx.agreed_step.step) {
            let (key, agreed_step) = Self::round(cx.agreed_step.step, cx);
            self.exchange.start(key, agreed_step, cx, comm);
        }
    }

    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        self.exchange.settle(comm).map_err(|source| SyncError::Reduce { step: comm.scope().step, source })
    }

    /// Returns `(1−α)·x + α·z`, with the anchor in flight.
    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        let (alpha, beta) = (self.settings.alpha, self.settings.beta);
        let share = |(i, x): (usize, &f32)| {
            let z = self.anchor.now()[i] + self.exchange.input.now().get(i).unwrap_or(&0.0);
            x + alpha * (z - x)
        };
        (beta == 0.0 && self.is_exact).then(|| parameters.iter().enumerate().map(share).collect())
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

#[cfg(test)]
mod tests;
