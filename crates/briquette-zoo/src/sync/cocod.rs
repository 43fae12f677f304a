//! CoCoD-SGD: overlaps averaging with local steps and applies the local progress to the delayed average.
//!
//! **Why, and when not.** Local SGD waits for its average once a period. Here the average of a snapshot is exchanged during the
//! next period's steps, and no step is discarded or pulled back: each rank continues from the average plus its own progress. An
//! exchange that takes less than a period costs no time. Each rank's newest period stays rank-local until the next exchange, so
//! replicas are one period further apart than under Local SGD. If ranks' data differ much,
//! [`OverlapLocalSgd`](crate::sync::overlap_local_sgd::OverlapLocalSgd) pulls them together.
//!
//! **Method.** All ranks hold the anchor `z`, at first the initial model. At the end of a period of `τ` steps a rank at `x` has
//! progressed by `Δ` since the end of the previous period, and
//!
//! ```text
//! z ← z + mean over ranks of Δ'      Δ' is the period before, whose exchange ends now
//! x ← z + Δ                          and the exchange of Δ starts
//! ```
//!
//! `z + Δ'` is the snapshot that the paper averages. Progress is sent only once, so use compressors with error feedback.
//!
//! | setting | equivalent to |
//! |---|---|
//! | one rank | its inner optimizer alone |
//! | no noise, equal data | the same |
//!
//! **On the wire.** The reducer's messages for `d` values, every `τ` steps, in the background.
//!
//! **Properties.** Replicas differ; the anchor is the same on every rank. With a dense reducer only local steps move the mean
//! of the parameters.
//!
//! **State.** `z`, the same on every rank; `Δ`, the input of the exchange in flight: a resumed run sends it again, and gets the
//! same bits.
//!
//! **Knobs.** `period` `τ`, steps, default 8.
//!
//! **Deviations.** None in the method.
//!
//! **Reference.** S. Shen, L. Xu, J. Liu, X. Liang, Y. Cheng, *Faster Distributed Deep Net Training: Computation and Communication
//! Decoupled Stochastic Gradient Descent*, IJCAI 2019 (arXiv 1906.12043), algorithm 1.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_zoo::sync::cocod::{CoCoD, CoCoDConfig};
//! use briquette_core::sync::{Context, SyncStrategy};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(1);
//! let mut cocod = CoCoD::new(CoCoDConfig { period: Some(1) }, Dense)?;
//! let mut x = vec![0.0];
//! cocod.begin(&x);
//! let mut anchors = vec![];
//! for step in 0..3 {
//!     x[0] += 8.0;
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     cocod.after_step(&mut x, &cx, &mut comm)?;
//!     cocod.commit();
//!     cocod.after_commit(&cx, &mut comm);
//!     anchors.push(cocod.anchor()[0]);
//! }
//! assert_eq!((x[0], anchors), (24.0, vec![0.0, 8.0, 16.0])); // the average is a period late, the rank is not
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::periods::Periods;
use briquette_core::comm::Session;
use briquette_core::config::{Described, Exchange, Sends, StrategyConfig, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{AgreedStep, Reducer, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{
    Context, Momenta, Plan, SyncStrategy, check_own,
    in_background::{CHANNEL, InBackground},
    outer,
    rounds::{in_rounds, period_of},
};
use briquette_core::{Key, Layout, stateful};

/// Settings of [`CoCoD`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(deny_unknown_fields, default)]
#[described(
    name = "cocod",
    help = "Local SGD whose averages, every PERIOD steps (8), travel while ranks go on",
    representatives("cocod:1", "cocod:3")
)]
pub struct CoCoDConfig {
    /// Steps of a period. If absent, it follows from the [number of steps](StrategySettings::for_steps).
    #[setting(range = "[1, inf)")]
    pub period: Option<u64>,
}

/// The default period.
const USUAL: u64 = 8;

impl CoCoDConfig {
    /// Returns the steps of a period.
    fn steps(&self) -> u64 {
        self.period.unwrap_or(USUAL)
    }
}

impl StrategySettings for CoCoDConfig {
    fn traits(&self) -> StrategyTraits {
        let uses: &[&str] =
            &["reducer", "aggregator", "feedback", "controller", "bucket_values", "rules", "dense_below", "threads"];
        StrategyTraits { uses: Some((uses, "exchanges in the background")), sends: Sends::Progress }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        let is_exact = exchange.reducers().all(|reducer| reducer.get().traits().is_dense);
        Ok(Box::new(CoCoD { is_exact, ..CoCoD::new(*self, exchange.build_reducer(layout, world)?)? }))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn channels(&self) -> usize {
        CHANNEL
    }

    fn exchanges(&self) -> Vec<Exchange> {
        outer::exchanges()
    }

    fn local_steps(&self) -> Option<u64> {
        Some(self.steps())
    }

    fn for_steps(&self, steps: Option<u64>) -> Option<(StrategyConfig, String)> {
        in_rounds(self.period, (USUAL, period_of(USUAL, steps)), steps, |period| {
            CoCoDConfig { period: Some(period) }.into()
        })
    }
}

/// Averages of progress, delayed by one period; see the [module](self).
pub struct CoCoD<R> {
    settings: CoCoDConfig,
    /// Set if the reducer sends everything.
    is_exact: bool,
    anchor: Staged<Vec<f32>>,
    /// Exchange whose input is `Δ`.
    exchange: InBackground<R>,
}

impl<R> std::fmt::Debug for CoCoD<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CoCoD").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<R: Reducer + 'static> CoCoD<R> {
    /// Creates the strategy; progress is exchanged through `reducer`.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range.
    pub fn new(settings: CoCoDConfig, reducer: R) -> Result<Self, ConfigError> {
        settings.check()?;
        Ok(CoCoD {
            settings,
            is_exact: true,
            anchor: Staged::default(),
            exchange: InBackground::new(reducer, Some("anchor")),
        })
    }

    /// Returns the anchor `z`, the same on every rank; empty before a run begins.
    pub fn anchor(&self) -> &[f32] {
        self.anchor.now()
    }

    fn periods(&self) -> Periods {
        Periods { period: self.settings.steps(), offset: 0 }
    }

    /// Returns the inputs of the exchange at the end of step `step`. Ranks have not agreed on anything else.
    fn round(step: u64, cx: &Context<'_>) -> (Key, AgreedStep) {
        (cx.key.step(step).purpose("cocod"), AgreedStep { step, ..AgreedStep::default() })
    }

    /// Computes the next anchor, and the progress of the rank, which is at `x`.
    fn advance(&mut self, x: &[f32], cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (key, agreed_step) = Self::round(cx.agreed_step.step.saturating_sub(self.settings.steps()), cx);
        self.exchange.receive(key, agreed_step, cx, comm)?;
        let (anchor, next) = self.anchor.both();
        let (before, progress) = self.exchange.input.both();
        progress.clear();
        progress.extend(x.iter().zip(anchor).map(|(x, anchor)| x - anchor));
        progress.iter_mut().zip(before).for_each(|(progress, before)| *progress -= before);
        next.clone_from(anchor);
        if let Some(mean) = self.exchange.mean() {
            next.iter_mut().zip(mean).for_each(|(next, mean)| *next += mean);
        }
        check_average(next, cx.slots)
    }
}

stateful! {
    impl<R: Reducer + 'static> Stateful for CoCoD<R> {
        anchor: vector("anchor"),
        exchange: flatten(),
    }
}

impl<R: Reducer + 'static> SyncStrategy for CoCoD<R> {
    fn plan(&self, step: u64) -> Plan {
        self.periods().plan(step)
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.anchor.set(parameters.to_vec());
        self.exchange.begin();
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        self.advance(parameters, cx, comm).map_err(|source| SyncError::Reduce { step, source })?;
        check_own(self.exchange.input.next_mut(), cx, comm)?;
        self.anchor.stage();
        self.exchange.input.stage();
        // `z + Δ`, which rounds less in this form. The rounding error becomes part of the next progress.
        let both = self.exchange.mean().into_iter().flatten().zip(self.exchange.input.now());
        parameters.iter_mut().zip(both).for_each(|(x, (mean, before))| *x += mean - before);
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

    fn conserved(&self, parameters: &[f32]) -> Option<Vec<f32>> {
        self.is_exact.then(|| parameters.to_vec())
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

#[cfg(test)]
mod tests;
