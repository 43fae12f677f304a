//! Delayed gradients: exchanged in the background while the next step computes, and applied one step late.
//!
//! **Why.** An exchange that takes no longer than a step's computing costs no time, whatever the backend and the order of
//! gradients. **Why not.** Every step uses the gradient at parameters that are one step old, which leaves little room for
//! momentum (see below): at 0.9, with the rate that suits the exact mean, a ResNet-8 loses a dozen points in 237 steps.
//! Compression without overlap costs less.
//!
//! **Method.** With `g(x)` the mean over ranks of their gradients at `x`, and `U` the inner optimizer's step:
//!
//! | paper (`K = 2`) | here |
//! |---|---|
//! | wait for the aggregated gradient of iteration `t − 1` | `after_backward` of step `t` waits for the exchange that started at `t − 1` |
//! | `w[t+1] ← w[t] − γ·g(w[t−1])` | `x[t+1] = U(x[t], g(x[t−1]))`; at step 0 the gradient is 0 |
//! | compute the gradient at `w[t]`, start its aggregation | the local gradient of step `t` goes to the reducer once the step is committed |
//!
//! The gradient of the last step is never used.
//!
//! **On the wire.** The reducer's messages, on a separate channel, and the step header.
//!
//! **Properties.** Replicas are equal. The result at step `t` is, to the bit, that of [`EveryStep`](briquette_core::sync::every_step::EveryStep) for the
//! same gradient at `t − 1`. On `f(x) = c·x²/2` SGD with momentum `β` is stable for `γ·c < 1 − β`, compared with `γ·c < 2·(1 +
//! β)` for `EveryStep` (the roots of `z² − (1+β)·z + β + γc`): half the rate without momentum, a 38th at `β` = 0.9.
//!
//! **State.** The input of the exchange in flight, which is rank-local, and its learning rate: a resumed run sends it again,
//! and gets the same bits. Memory: two vectors more than `EveryStep`, and two that the background exchange owns.
//!
//! A slot for which no rank had a gradient at step `t − 1` gets none at step `t`, and its residual is kept.
//!
//! **Non-finite values.** The header of a step rejects a non-finite gradient before it is sent; the next step uses the exchange
//! in flight. **Controllers** are rejected: one would read statistics of the exchange before the previous one.
//!
//! **Knobs.** None. **Deviations.** The paper compresses by rounding and truncation on every hop of a ring; here any reducer
//! can compress, with any error feedback.
//!
//! **Reference.** Y. Li, M. Yu, S. Li, S. Avestimehr, N. S. Kim, A. Schwing, *Pipe-SGD: A Decentralized Pipelined SGD Framework for
//! Distributed Deep Net Training*, NeurIPS 2018 (arXiv 1811.03619), algorithm 1 with `K = 2`.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::comm::Local;
//! use briquette_core::reduce::{dense::Dense, AgreedStep};
//! use briquette_core::state::Stateful;
//! use briquette_core::sync::{Context, SyncStrategy};
//! use briquette_zoo::sync::delayed::Delayed;
//! let (mut comm, layout) = (Local::world(1).remove(0), Layout::flat(1));
//! let (mut delayed, mut x) = (Delayed::new(Dense), 1.0);
//! let mut seen = vec![x];
//! for step in 0..5 {
//!     let mut gradient = vec![x]; // of x²/2
//!     let agreed_step = AgreedStep { step, ..AgreedStep::default() };
//!     let cx = Context::new(Key::new(0), layout.slots(), &agreed_step);
//!     delayed.after_backward(&mut gradient, &cx, &mut comm)?;
//!     delayed.commit();
//!     delayed.after_commit(&cx, &mut comm);
//!     x -= 0.5 * gradient[0];
//!     seen.push(x);
//! }
//! // x[t+1] = x[t] − x[t−1]/2
//! assert_eq!(seen, [1.0, 1.0, 0.5, 0.0, -0.25, -0.25]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::borrow::Cow;

use briquette_core::comm::Session;
use briquette_core::config::{Described, Exchange, ReducerConfig, Sends, StrategySettings, StrategyTraits};
use briquette_core::error::{ConfigError, ReduceError, SyncError};
use briquette_core::reduce::{AgreedStep, Reducer};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::sync::{
    Context, Plan, SyncStrategy,
    in_background::{CHANNEL, InBackground},
};
use briquette_core::{Key, Layout, Slot, layout, stateful};

/// Exchanges gradients in the background; see the [module](self).
pub struct Delayed<R> {
    exchange: InBackground<R>,
    /// Learning rate of the step whose gradient is in flight, if known.
    learning_rate: Staged<Option<f64>>,
    /// Slots for which no rank had a gradient at that step.
    absent: Staged<Vec<f64>>,
}

impl<R> std::fmt::Debug for Delayed<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delayed").finish_non_exhaustive()
    }
}

impl<R: Reducer + 'static> Delayed<R> {
    /// Creates the strategy; gradients are exchanged through `reducer`.
    pub fn new(reducer: R) -> Self {
        Delayed {
            exchange: InBackground::new(reducer, None),
            learning_rate: Staged::default(),
            absent: Staged::default(),
        }
    }

    /// Returns the inputs of the exchange of the gradient of `step`.
    fn round(&self, step: u64, cx: &Context<'_>) -> (Key, AgreedStep) {
        let learning_rate = *self.learning_rate.now();
        (cx.key.step(step), AgreedStep { step, learning_rate, ..AgreedStep::default() })
    }

    /// Returns the slots of the gradient in flight, with the absent slots of its step marked.
    fn slots<'a>(&self, cx: &Context<'a>) -> Cow<'a, [Slot]> {
        let absent = self.absent.now();
        if absent.is_empty() && !cx.slots.iter().any(Slot::is_absent) {
            return cx.slots.into();
        }
        layout::with_absent(cx.slots, |index| absent.contains(&(index as f64))).into()
    }

    fn exchange(&mut self, gradient: &mut [f32], cx: &Context<'_>, comm: &mut Session) -> Result<(), ReduceError> {
        let (key, agreed_step) = self.round(cx.agreed_step.step.saturating_sub(1), cx);
        let slots = self.slots(cx);
        self.exchange.receive(key, agreed_step, &cx.with_slots(&slots), comm)?;
        let input = self.exchange.input.next_mut();
        input.clear();
        input.extend_from_slice(gradient);
        match self.exchange.mean() {
            Some(mean) if mean.len() != gradient.len() => {
                return Err(ReduceError::Length { expected: mean.len(), got: gradient.len() });
            }
            Some(mean) => gradient.copy_from_slice(mean),
            None => gradient.fill(0.0),
        }
        self.exchange.input.stage();
        *self.learning_rate.next_mut() = cx.agreed_step.learning_rate;
        self.learning_rate.stage();
        let absent = cx.slots.iter().zip(0_u32..).filter(|(slot, _)| slot.is_absent());
        *self.absent.next_mut() = absent.map(|(_, index)| f64::from(index)).collect();
        self.absent.stage();
        Ok(())
    }
}

stateful! {
    impl<R: Reducer + 'static> Stateful for Delayed<R> {
        learning_rate: value("learning_rate"),
        absent: optional("absent"),
        exchange: flatten(),
    }
}

impl<R: Reducer + 'static> SyncStrategy for Delayed<R> {
    /// The first step has no mean, nor does the first step after a change of the world size that dropped the exchange in
    /// flight.
    fn plan(&self, step: u64) -> Plan {
        Plan::GRADIENTS.with_optimizer(step > 0 && !self.exchange.input.now().is_empty())
    }

    fn begin(&mut self, _parameters: &[f32]) {
        self.exchange.begin();
    }

    fn after_backward(
        &mut self,
        gradient: &mut Vec<f32>,
        cx: &Context<'_>,
        comm: &mut Session,
    ) -> Result<(), SyncError> {
        self.exchange(gradient, cx, comm).map_err(|source| SyncError::Reduce { step: cx.agreed_step.step, source })
    }

    fn after_commit(&mut self, cx: &Context<'_>, comm: &mut Session) {
        let ((key, agreed_step), slots) = (self.round(cx.agreed_step.step, cx), self.slots(cx));
        self.exchange.start(key, agreed_step, &cx.with_slots(&slots), comm);
    }

    fn settle(&mut self, comm: &mut Session) -> Result<(), SyncError> {
        self.exchange.settle(comm).map_err(|source| SyncError::Reduce { step: comm.scope().step, source })
    }

    fn report(&self, report: &mut Report) {
        self.exchange.report(report);
    }
}

/// Settings of [`Delayed`]: only those of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "delayed", help = "gradients of the step before, exchanged while this one computes")]
pub struct DelayedConfig;

impl StrategySettings for DelayedConfig {
    fn traits(&self) -> StrategyTraits {
        let uses: &[&str] = &["reducer", "aggregator", "feedback", "bucket_values", "rules", "dense_below", "threads"];
        StrategyTraits { uses: Some((uses, "exchanges in the background, a step late")), sends: Sends::AsTheyAre }
    }

    fn build(&self, exchange: &Exchange, layout: &Layout, world: usize) -> Result<Box<dyn SyncStrategy>, ConfigError> {
        Ok(Box::new(Delayed::new(exchange.build_reducer(layout, world)?)))
    }

    fn min_ranks(&self, exchange: &Exchange) -> usize {
        exchange.min_ranks()
    }

    fn channels(&self) -> usize {
        CHANNEL
    }

    fn keeps_state(&self) -> bool {
        true
    }

    fn exchanges(&self) -> Vec<Exchange> {
        let compressed = |feedback: &str| Exchange {
            reducer: ReducerConfig::gather("topk:8x".parse().expect("a compressor's text")),
            feedback: feedback.parse().expect("a memory's text"),
            ..Exchange::default()
        };
        [Exchange::default()].into_iter().chain(["error", "error-inside", "momentum"].map(compressed)).collect()
    }

    fn steps_with_averages(&self) -> bool {
        true
    }

    fn dense_reason(&self) -> Option<&'static str> {
        Some("exchanges while the next step computes, and takes no controller")
    }
}

#[cfg(test)]
mod tests;
