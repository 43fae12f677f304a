//! DIANA and EF21: compress the difference to a memory that every rank keeps, so that the error vanishes as gradients settle.
//!
//! **Why, and when not.** Ranks with different data have different gradients, even at the optimum. A compressor applied to them keeps
//! losing there: without a memory the run stalls at a distance (unbiased) or diverges (contractive). Here each rank compresses the
//! *difference* to its memory, which goes to zero. For full or large-batch gradients and heterogeneous ranks. If the gradients' own noise
//! dominates, the difference is as large as the gradient and nothing is gained: use [`ErrorFeedback`](briquette_core::wrapper::error_feedback::ErrorFeedback). Use DIANA with
//! unbiased compressors, EF21 with contractive ones.
//!
//! **Method.** On every rank, with `α = 1` for EF21:
//!
//! | paper | here |
//! |---|---|
//! | `hᵢ` (DIANA), `gᵢ` (EF21) | `memory`, zero before the first exchange |
//! | `h = mean hᵢ`, the server's | `mean_memory` (`H`), kept by every rank |
//! | `Δᵢ = C(gᵢ − hᵢ)` | the inner reducer's `sent` for the input `gᵢ − hᵢ` |
//! | `ĝ = h + mean Δᵢ` | the average |
//! | `hᵢ ← hᵢ + αΔᵢ`, `h ← h + α mean Δᵢ` | the new memories |
//!
//! So EF21's average is its new `H`, and its first message is `C(g)`. This wrapper's own `sent` is `hᵢ + Δᵢ`.
//!
//! **On the wire.** Only the inner reducer's bytes.
//!
//! **Properties.** `H` has the same bits on every rank, because it is computed from averages. DIANA with an unbiased `C` of variance ω:
//! unbiased, and with `α ≤ 1/(1+ω)` and a frozen input `E‖hᵢ − gᵢ‖²` shrinks by `1 − α` per call. EF21 with a contraction δ: `‖hᵢ − gᵢ‖²`
//! shrinks by `1 − δ` per call. Linear rate on strongly convex functions, to the exact optimum, at a constant learning rate: DIANA below
//! `1/(L(1 + 6ω/W))`, EF21 below `1/(L + L̃√(β/θ))` with `θ = 1 − √(1−δ)`, `β = (1−δ)/θ`. Conserves: the memory moves by
//! `α·(sent − memory)`; no residual is kept.
//!
//! *Rounding.* `H` and the mean of the `hᵢ` are summed separately, so they drift apart by about `√t·ε` of the largest difference sent in
//! `t` exchanges. The drift is a constant error of the average. If all gradients end at zero, the tests get from 1 to 1e-8 and stay there,
//! while error feedback, which has no such floor, reaches 4e-32. The drift is below the noise of any mini-batch.
//!
//! A slot for which no rank has a gradient is [held](briquette_core::reduce::Reducer::hold): both memories stay, and so agree.
//!
//! **State.** Both memories: two vectors per rank; during an exchange, two more.
//!
//! **Knobs.** `alpha` of DIANA in (0, 1]. Settings default to `1/(1+ω)` of the compressor and reject larger values.
//!
//! **Deviations.** The papers keep `H` on a server; with an all-gather every rank acts as one. EF21 may start from exact gradients; here it
//! starts from `C(g)`, as in its experiments. There is no proximal step: that is up to the inner optimizer.
//!
//! **Reference.** K. Mishchenko, E. Gorbunov, M. Takáč, P. Richtárik, *Distributed Learning with Compressed Gradient
//! Differences*, 2019 (arXiv 1901.09269), algorithm 1; S. Horváth, D. Kovalev, K. Mishchenko, S. Stich, P. Richtárik,
//! *Stochastic Distributed Learning with Gradient Quantization and Variance Reduction*, 2019 (arXiv 1904.05115), for
//! general ω; P. Richtárik, I. Sokolov, I. Fatkhullin, *EF21: A New, Simpler, Theoretically Better, and Practically Faster
//! Error Feedback*, NeurIPS 2021 (arXiv 2106.05203), algorithm 2.
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::comm::Local;
//! use briquette_core::compress::top_k::TopK;
//! use briquette_zoo::wrapper::shifted::Shifted;
//! use briquette_core::reduce::{AgreedStep, gather::Gather, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = Shifted::ef21(Gather::new(TopK::fraction(0.5)?, Mean));
//! let layout = Layout::flat(2);
//! let mut step = |input: [f32; 2]| {
//!     let mut average = [0.0; 2];
//!     reducer.exchange(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm).map(|_| average)
//! };
//! assert_eq!(step([3.0, 2.0])?, [3.0, 0.0]); // the larger one …
//! assert_eq!(step([3.0, 2.0])?, [3.0, 2.0]); // … is remembered: the difference is (0, 2)
//! assert_eq!(step([2.5, 2.0])?, [2.5, 2.0]); // and (-0.5, 0)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use super::clear_absent;
use briquette_core::config::{Described, Exchange, Feedback, FeedbackRequirement, FeedbackSettings};
use briquette_core::error::{ConfigError, ReduceError};
use briquette_core::layout::absent;
use briquette_core::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use briquette_core::report::Report;
use briquette_core::state::Staged;
use briquette_core::wrapper::check_finite;
use briquette_core::{Layout, Session, Slot, stateful};

/// Compresses differences to a memory; see the [module](self).
#[derive(Debug)]
pub struct Shifted<R> {
    inner: R,
    alpha: f32,
    /// This rank's memory, which the other ranks know. During an exchange, the next value is the contribution that was sent.
    memory: Staged<Vec<f32>>,
    /// The mean of all ranks' memories, replicated. During an exchange, the next value is the vector to send.
    mean_memory: Staged<Vec<f32>>,
}

impl<R: Reducer> Shifted<R> {
    /// Creates DIANA for unbiased compressors: the memory moves by `alpha`, at most `1/(1+ω)`, times the message.
    ///
    /// # Errors
    /// [`ConfigError`] if `alpha` is outside (0, 1].
    pub fn diana(inner: R, alpha: f32) -> Result<Self, ConfigError> {
        Diana { alpha: Some(alpha) }.check()?;
        Ok(Shifted::moving(inner, alpha))
    }

    /// Creates a wrapper whose memory moves by `alpha` times the message; 0 disables the memory.
    pub(crate) fn moving(inner: R, alpha: f32) -> Self {
        Shifted { alpha, ..Shifted::ef21(inner) }
    }

    /// Returns the inner reducer.
    pub(crate) fn inner(&mut self) -> &mut R {
        &mut self.inner
    }

    /// Creates EF21 for contractive compressors: the memory is the contribution that was sent.
    pub fn ef21(inner: R) -> Self {
        Shifted { inner, alpha: 1.0, memory: Staged::default(), mean_memory: Staged::default() }
    }

    /// Returns this rank's memory, which the other ranks know; empty before the first exchange.
    pub fn memory(&self) -> &[f32] {
        self.memory.now()
    }

    /// Returns the mean of all ranks' memories, the same bits on every rank; empty before the first exchange.
    pub fn mean_memory(&self) -> &[f32] {
        self.mean_memory.now()
    }
}

impl<R> Shifted<R> {
    /// Adds the memory to the mean difference, and stages the next mean memory. The next mean memory is finite if the sum is: it moves a
    /// part of the way there.
    fn stage_mean(&mut self, average: &mut [f32], slots: &[Slot]) -> Result<(), ReduceError> {
        let (mean_memory, next) = self.mean_memory.both();
        for ((average, mean), next) in average.iter_mut().zip(mean_memory).zip(next) {
            let delta = *average;
            *average = mean + delta;
            *next = mean + self.alpha * delta;
        }
        self.mean_memory.stage();
        self.mean_memory.hold(&absent(slots));
        check_average(average, slots)
    }

    /// Does the same for this rank's memory; the sum is its contribution.
    fn stage_own(&mut self, sent: Option<&mut [f32]>, slots: &[Slot], rank: usize) -> Result<(), ReduceError> {
        let (memory, delta) = self.memory.both();
        if memory.iter().zip(&*delta).fold(false, |bad, (h, delta)| bad | !(h + delta).is_finite()) {
            delta.iter_mut().zip(memory).for_each(|(delta, h)| *delta += h);
            return check_finite(delta, slots, rank);
        }
        if let Some(sent) = sent {
            sent.iter_mut().zip(memory).zip(&*delta).for_each(|((sent, h), delta)| *sent = h + delta);
        }
        delta.iter_mut().zip(memory).for_each(|(delta, h)| *delta = h + self.alpha * *delta);
        self.memory.stage();
        self.memory.hold(&absent(slots));
        Ok(())
    }
}

stateful! {
    impl<R: Reducer> Stateful for Shifted<R> {
        // The mean over the ranks that saved is the mean memory itself. If the memories are dropped, so is their mean.
        memory: vector("memory").rank_local(Spread),
        mean_memory: vector("mean_memory").exactly_like("memory").rank_local(Spread),
        inner: part("inner"),
    }
}

impl<R: Reducer> Reducer for Shifted<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (len, rank) = (round.input.len(), comm.rank());
        self.memory.fit(len)?;
        self.mean_memory.fit(len)?;
        let (memory, delta) = self.memory.both();
        let difference = self.mean_memory.next_mut();
        for ((difference, input), memory) in difference.iter_mut().zip(round.input).zip(memory) {
            *difference = input - memory;
        }
        clear_absent(difference, round.slots);
        check_finite(difference, round.slots, rank)?;
        let Round { key, slots, agreed_step, average, sent, .. } = round;
        let part = Round { key, slots, agreed_step, input: difference, average: &mut *average, sent: Some(delta) };
        let exchanged = self.inner.reduce(part, comm)?;
        self.stage_mean(average, slots)?;
        self.stage_own(sent, slots, rank)?;
        // Every coordinate of the memory took part, whatever the inner reducer selected.
        Ok(Exchanged { selection: Selection::All, ..exchanged })
    }

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.memory.hold(absent);
        self.mean_memory.hold(absent);
        self.inner.hold(absent);
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

/// Settings of [`Shifted::diana`].
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "diana",
    help = "only the difference to a memory travels; for unbiased compressors",
    combinations("reducer=shared-random-k:8x,scaled=true feedback=diana controller=none")
)]
pub struct Diana {
    /// Step size of the memory towards the contribution, at most `1/(1+ω)` of the compressor, which is the default.
    #[setting(range = "(0, 1]")]
    pub alpha: Option<f32>,
}

impl FeedbackSettings for Diana {
    fn wrap(
        &self,
        inner: Box<dyn Reducer>,
        exchange: &Exchange,
        layout: &Layout,
    ) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Shifted::diana(inner, exchange.memory_step(self.alpha, layout)?)?))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Unbiased
    }

    /// With a varying ratio, the memory's step size must be set explicitly.
    fn under_controller(&self) -> Option<Feedback> {
        Some(Diana { alpha: Some(0.1) }.into())
    }
}

/// Settings of [`Shifted::ef21`]: none.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[described(name = "ef21", help = "only the difference to what was sent before travels; for contractive compressors")]
pub struct Ef21;

impl FeedbackSettings for Ef21 {
    fn wrap(&self, inner: Box<dyn Reducer>, _: &Exchange, _: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        Ok(Box::new(Shifted::ef21(inner)))
    }

    fn requirement(&self) -> FeedbackRequirement {
        FeedbackRequirement::Contractive
    }
}

#[cfg(test)]
mod tests;
