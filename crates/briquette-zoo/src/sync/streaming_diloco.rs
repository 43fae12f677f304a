//! Streaming DiLoCo: DiLoCo over fragments of the model, exchanged one after another and optionally overlapped with local
//! steps.
//!
//! **Why, and when not.** [DiLoCo](briquette_core::sync::diloco) sends nothing for hundreds of steps, and then the whole model at once, while
//! all ranks wait. Here a fragment is exchanged every few steps. The total bytes are the same, with a peak `P` times lower if
//! fragments are of equal size, and an exchange that takes at most `τ` steps costs no time. If links are fast and exchanges
//! short, prefer DiLoCo: its replicas are equal once a period, and these never are.
//!
//! **Method.** Slot `i` of the model belongs to fragment `i mod P`, and step `t` is the `t + 1`st. Fragment `p` is due after
//! the steps for which `(t + 1) mod H = ⌊p·H/P⌋`: each fragment every `H` steps, and some fragment every `H/P`. All ranks hold
//! its anchor `z_p`, at first the initial model. The exchange after a step at which it is due, and the update `τ` steps later:
//!
//! ```text
//! after step t:       D_p = mean over ranks of z_p − x_p                          by any reducer
//! after step t + τ:   b_p ← μ·b_p + D_p        z_p ← z_p − ρ·(D_p + μ·b_p)        DiLoCo's outer step
//!                     x_p ← α·x_p + (1−α)·z_p
//! ```
//!
//! Each fragment has its own reducer. The residual of a fragment stays there until its next exchange. The inner optimizer is
//! unchanged.
//!
//! `α` keeps a share of a rank's local progress. It shortens the outer steps, and averages noise: on a noisy quadratic (`H` =
//! 20, `P` = 4, `τ` = 4, four ranks) the loss is 0.175 after 800 steps and 0.034 after 2400 at `α` = 0.5, 0.064 and 0.055 at 0,
//! and 0.063 and 0.079 for DiLoCo. With outer gradients in E3M0, without feedback, it is 0.034 after 2400 steps, too.
//!
//! | setting | equivalent to |
//! |---|---|
//! | `P = 1`, `τ = 0`, `α = 0` | DiLoCo, if ranks have equally many samples |
//! | `τ = 0`, `α = 0` | DiLoCo for each fragment |
//! | one rank, `ρ = 1`, `μ = 0`, `τ = 0` | its inner optimizer alone |
//! | `reducer=gather:float4:e3m0 feedback=none` | the paper's outer gradients, in [4-bit floats](crate::compress::float4) |
//!
//! **On the wire.** Every `H` steps the reducer's messages for each fragment; in the background if `τ` is above 0.
//!
//! **Properties.** Anchors are the same on every rank. Replicas differ, except where this is DiLoCo. With `τ` above 0 ranks
//! agree on a header only about every hundred steps. The model to evaluate is the replicas' mean.
//!
//! **State.** For each fragment `z_p` and `b_p`, the same on every rank, and the input of the exchange in flight: a resumed run
//! sends it again, and gets the same bits.
//!
//! **Knobs.** `period` `H`, steps, default 100; `fragments` `P`, default 4, at most `H` and the number of slots; `overlap` `τ`,
//! steps, default 0, at most `H/P` and below `H`, so that only one exchange is in flight at a time; `mixing` `α` in [0, 1], by
//! default the paper's 0.5, or 0 without overlap; `rate` `ρ` above 0, default 0.7; `momentum` `μ` in [0, 1), default 0.9.
//!
//! **Deviations.** A fragment consists of slots; the paper's consists of transformer layers, strided likewise. Outer gradients
//! are sent by any reducer; the paper uses 4-bit floats, which are `gather:float4:e3m0` here. An anchor is the result of the outer step before mixing, as in
//! torchft. Controllers are rejected: the previous exchange that one would read belongs to another fragment.
//!
//! **Reference.** A. Douillard et al., *Streaming DiLoCo with overlapping communication: Towards a Distributed Free Lunch*, 2025 (arXiv
//! 2501.18512).
//!
//! ```
//! use briquette_core::{CompressionRatio, Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::compress::Compressor;
//! use briquette_core::config::Config;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::streaming_diloco::{StreamingDiLoCo, StreamingDiLoCoConfig};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::new([("a", vec![1]), ("b", vec![1])]);
//! let settings = StreamingDiLoCoConfig { period: Some(2), fragments: 2, rate: 0.5, momentum: 0.0, ..StreamingDiLoCoConfig::default() };
//! let mut streaming = StreamingDiLoCo::new(settings, &layout, |_| Ok(Dense))?;
//! let mut x = vec![0.0; 2];
//! streaming.begin(&x);
//! let mut seen = vec![];
//! for step in 0..3 {
//!     x.iter_mut().for_each(|x| *x += 8.0);
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     streaming.after_step(&mut x, &cx, &mut comm)?;
//!     streaming.commit();
//!     streaming.after_commit(&cx, &mut comm);
//!     seen.push([x[0], x[1]]);
//! }
//! // By turns, half of the way: b from 0 to 8, a from 0 to 16, b from 4 to 20.
//! assert_eq!(seen, [[8.0, 4.0], [8.0, 12.0], [16.0, 12.0]]);
//! // With outer gradients in 4-bit floats, as in the paper:
//! briquette_zoo::install();
//! let config: Config = "strategy=streaming-diloco:100,overlap=5 reducer=gather:float4:e3m0 feedback=none".parse()?;
//! let compressor = config.exchange.reducer.get().compressor().expect("a gather has one");
//! assert_eq!(compressor.build().nominal(), CompressionRatio::of_bits(4)); // 8x fewer bytes
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod fragment;

pub use config::StreamingDiLoCoConfig;
use fragment::{Fragment, Sent};

use briquette_core::config::Described;
use briquette_core::error::{ConfigError, SyncError};
use briquette_core::reduce::{AgreedStep, Reducer};
use briquette_core::report::Report;
use briquette_core::sync::diloco::DiLoCo;
use briquette_core::sync::{Agrees, Context, HEADER_STEPS, Momenta, Plan, SyncStrategy};
use briquette_core::{Layout, Session, stateful};

/// DiLoCo, one fragment at a time; see the [module](self).
pub struct StreamingDiLoCo<R> {
    settings: StreamingDiLoCoConfig,
    fragments: Vec<Fragment<R>>,
    report: Report,
}

impl<R> std::fmt::Debug for StreamingDiLoCo<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamingDiLoCo").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl<R: Reducer + 'static> StreamingDiLoCo<R> {
    /// Creates the strategy for a model of `layout`. Each fragment is exchanged through its own reducer, which `reducer`
    /// creates for the fragment's slots.
    ///
    /// # Errors
    /// [`ConfigError`] for a setting that is out of range, for fragments without a slot, and from `reducer`.
    pub fn new(
        settings: StreamingDiLoCoConfig,
        layout: &Layout,
        reducer: impl FnMut(&Layout) -> Result<R, ConfigError>,
    ) -> Result<Self, ConfigError> {
        settings.check()?;
        let fragments = Fragment::all(&settings, layout, reducer)?;
        Ok(StreamingDiLoCo { settings, fragments, report: Report::default() })
    }

    /// Returns the inputs of the exchange that is due at `step`. In the background ranks have not agreed on anything else.
    fn sent(&self, step: u64, cx: &Context<'_>) -> Sent {
        let alone = AgreedStep { step, ..AgreedStep::default() };
        let agreed_step = if self.settings.overlap == 0 { *cx.agreed_step } else { alone };
        // The same bits as DiLoCo where this is DiLoCo.
        Sent { key: cx.key.step(step).purpose(DiLoCo::NAME), agreed_step }
    }
}

stateful! {
    impl<R: Reducer + 'static> Stateful for StreamingDiLoCo<R> { fragments: parts("fragment") }
}

impl<R: Reducer + 'static> SyncStrategy for StreamingDiLoCo<R> {
    fn plan(&self, step: u64) -> Plan {
        let (period, overlap) = (self.settings.steps(), self.settings.overlap);
        let arrives = self.settings.arrives(step).is_some();
        let header_steps = HEADER_STEPS.div_ceil(period).saturating_mul(period);
        let agrees = if overlap == 0 { arrives } else { (step + 1).is_multiple_of(header_steps) };
        Plan::ALONE
            .agreeing(if agrees { Agrees::World } else { Agrees::NoRank })
            .with_parameters(arrives || self.settings.due(step).is_some())
            .with_replicas_equal(arrives && self.settings.is_diloco())
    }

    fn begin(&mut self, parameters: &[f32]) {
        self.fragments.iter_mut().for_each(|fragment| fragment.begin(parameters));
    }

    fn after_step(
        &mut self,
        parameters: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<Momenta, SyncError> {
        let step = cx.agreed_step.step;
        self.report = Report::default();
        // Never the fragment that arrives at this step.
        if let Some(due) = self.settings.due(step) {
            self.fragments[due].depart(parameters, cx, comm)?;
        }
        if let Some(arrives) = self.settings.arrives(step) {
            let sent = self.sent(step - self.settings.overlap, cx);
            let (fragment, outer) = (&mut self.fragments[arrives], self.settings.outer());
            let arrived = fragment.arrive(parameters, (&outer, &sent), comm, &mut self.report);
            if arrived.map_err(|source| SyncError::Reduce { step, source })? {
                fragment.mix(self.settings.mixing(), parameters);
            }
        }
        Ok(Momenta::Keep)
    }

    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        let step = cx.agreed_step.step;
        if let Some(due) = self.settings.due(step) {
            let sent = self.sent(step, cx);
            self.fragments[due].start(&sent, cx, comm);
        }
    }

    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        let settled = self.fragments.iter_mut().try_for_each(|fragment| fragment.settle(comm));
        settled.map_err(|source| SyncError::Reduce { step: comm.scope().step, source })
    }

    /// Returns nothing: an outer step moves the mean.
    fn conserved(&self, _parameters: &[f32]) -> Option<Vec<f32>> {
        None
    }

    fn report(&self, report: &mut Report) {
        report.clone_from(&self.report);
    }
}

#[cfg(test)]
mod tests;
