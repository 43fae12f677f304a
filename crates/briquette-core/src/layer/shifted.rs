//! Compresses the difference to a memory that every rank keeps, so that what is lost vanishes as gradients settle:
//! DIANA and EF21.
//!
//! **Why, and when not.** Ranks with different data have different gradients, also at the optimum. A compressor applied to
//! them keeps losing there: without a memory the run stalls at a distance (unbiased) or diverges (contractive). Here each
//! rank compresses the *difference* to what is known of it, which goes to zero. For full or large-batch gradients and
//! heterogeneous ranks. Where the gradients' own noise dominates, the difference is as large as the gradient and nothing is
//! gained: use [`ErrorFeedback`](super::ErrorFeedback). Unbiased compressors take DIANA, contractive ones EF21.
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
//! So EF21's average is its new `H`, and its first message is `C(g)`. This layer's own `sent` is `hᵢ + Δᵢ`.
//!
//! **On the wire.** The inner reducer's bytes, nothing more.
//!
//! **Properties.** `H` has the same bits on every rank, as it is made of averages. DIANA with an unbiased `C` of variance ω:
//! unbiased, and with `α ≤ 1/(1+ω)` and a frozen input `E‖hᵢ − gᵢ‖²` shrinks by `1 − α` a call. EF21 with a
//! contraction δ: `‖hᵢ − gᵢ‖²` shrinks by `1 − δ` a call. Linear rate on strongly convex functions, to the exact optimum,
//! at a constant learning rate: DIANA below `1/(L(1 + 6ω/W))`, EF21 below `1/(L + L̃√(β/θ))` with `θ = 1 − √(1−δ)`,
//! `β = (1−δ)/θ`. Conserves: the memory moves by `α·(sent − memory)`; no residual is kept.
//!
//! *Rounding.* `H` and the mean of the `hᵢ` are summed apart, so they drift apart by about `√t·ε` of the largest
//! difference sent in `t` exchanges. The drift is a constant error of the average: where all gradients end at zero, the
//! tests get from 1 to 1e-8 and stay there, while error feedback, which has no such floor, goes on to 4e-32. Below the
//! noise of any mini-batch.
//!
//! **State.** Both memories: two vectors a rank; while exchanging, two more.
//!
//! **Knobs.** `alpha` of DIANA in (0, 1]; settings default to `1/(1+ω)` of the compressor and refuse more.
//!
//! **Deviations.** The papers keep `H` on a server; with an all-gather every rank is one. EF21 may start from exact
//! gradients; here from `C(g)`, as its experiments do. There is no proximal step: that is the inner optimizer's.
//!
//! **Reference.** K. Mishchenko, E. Gorbunov, M. Takáč, P. Richtárik, *Distributed Learning with Compressed Gradient
//! Differences*, 2019 (arXiv 1901.09269), algorithm 1; S. Horváth, D. Kovalev, K. Mishchenko, S. Stich, P. Richtárik,
//! *Stochastic Distributed Learning with Gradient Quantization and Variance Reduction*, 2019 (arXiv 1904.05115), for
//! general ω; P. Richtárik, I. Sokolov, I. Fatkhullin, *EF21: A New, Simpler, Theoretically Better, and Practically Faster
//! Error Feedback*, NeurIPS 2021 (arXiv 2106.05203), algorithm 2.
//!
//! ```
//! use briquette_core::{Key, Layout, aggregate::Mean, comm::Local, compress::TopK};
//! use briquette_core::{layer::Shifted, reduce::{Facts, Gather, Reducer, Round}};
//! let mut comm = Local::world(1).remove(0);
//! let mut reducer = Shifted::ef21(Gather::new(TopK::fraction(0.5)?, Mean));
//! let layout = Layout::flat(2);
//! let mut step = |input: [f32; 2]| {
//!     let mut average = [0.0; 2];
//!     reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), facts: &Facts::default(),
//!         input: &input, average: &mut average, sent: None }, &mut comm).map(|_| average)
//! };
//! assert_eq!(step([3.0, 2.0])?, [3.0, 0.0]); // the larger one …
//! assert_eq!(step([3.0, 2.0])?, [3.0, 2.0]); // … is remembered: the difference is (0, 2)
//! assert_eq!(step([2.5, 2.0])?, [2.5, 2.0]); // and (-0.5, 0)
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{check_finite, fit};
use crate::error::{ConfigError, ReduceError, StateError};
use crate::reduce::{Exchanged, Reducer, Round, Selection, check_average};
use crate::report::Report;
use crate::state::{State, Stateful};
use crate::{Session, Slot};

/// Sends differences to a memory; see the [module](self).
#[derive(Debug)]
pub struct Shifted<R> {
    inner: R,
    alpha: f32,
    /// What the other ranks know of this rank.
    memory: Vec<f32>,
    /// The mean of all ranks' memories, as every rank knows it.
    mean_memory: Vec<f32>,
    difference: Vec<f32>,
    delta: Vec<f32>,
}

impl<R: Reducer> Shifted<R> {
    /// DIANA: the memory moves by `alpha` of what was sent, at most `1/(1+ω)`. For unbiased compressors.
    ///
    /// # Errors
    /// [`ConfigError`] when `alpha` is outside (0, 1].
    pub fn diana(inner: R, alpha: f32) -> Result<Self, ConfigError> {
        if !(alpha > 0.0 && alpha <= 1.0) {
            return Err(ConfigError::range("alpha of diana", "above 0 and at most 1", alpha));
        }
        Ok(Shifted { alpha, ..Shifted::ef21(inner) })
    }

    /// EF21: the memory is what was sent. For contractive compressors.
    pub fn ef21(inner: R) -> Self {
        let empty = Vec::new;
        Shifted { inner, alpha: 1.0, memory: empty(), mean_memory: empty(), difference: empty(), delta: empty() }
    }

    /// What the other ranks know of this rank's vector; empty before the first exchange.
    pub fn memory(&self) -> &[f32] {
        &self.memory
    }

    /// The mean of all ranks' memories, the same bits on every rank; empty before the first exchange.
    pub fn mean_memory(&self) -> &[f32] {
        &self.mean_memory
    }
}

impl<R> Shifted<R> {
    /// Memories stay finite where these sums are: they move part of the way there.
    fn check_sums(&mut self, average: &mut [f32], slots: &[Slot], rank: usize) -> Result<(), ReduceError> {
        let finite = |memory: &[f32], delta: &[f32]| {
            memory.iter().zip(delta).fold(true, |all, (h, delta)| all & (h + delta).is_finite())
        };
        if finite(&self.mean_memory, average) && finite(&self.memory, &self.delta) {
            return Ok(());
        }
        average.iter_mut().zip(&self.mean_memory).for_each(|(average, mean)| *average += mean);
        self.delta.iter_mut().zip(&self.memory).for_each(|(delta, h)| *delta += h);
        check_average(average, slots)?;
        check_finite(&self.delta, 1.0, slots, rank)
    }
}

impl<R: Reducer> Stateful for Shifted<R> {
    fn save(&self, state: &mut State) {
        state.put("memory", self.memory.clone());
        state.put("mean_memory", self.mean_memory.clone());
        state.put_part("inner", &self.inner);
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let memory = state.memory("memory", &self.memory)?;
        let mean_memory = state.f32s("mean_memory", Some(memory.len()))?.to_vec();
        state.load_part("inner", &mut self.inner)?;
        (self.memory, self.mean_memory) = (memory, mean_memory);
        Ok(())
    }
}

impl<R: Reducer> Reducer for Shifted<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let (len, first) = (round.input.len(), self.memory.is_empty());
        fit(&mut self.memory, len)?;
        fit(&mut self.mean_memory, len)?;
        self.difference.clear();
        self.difference.extend(round.input.iter().zip(&self.memory).map(|(input, memory)| input - memory));
        self.delta.resize(len, 0.0);
        // What the inner reducer keeps under a memory is a controller's few numbers.
        let mut before = State::default();
        before.put_part("inner", &self.inner);
        let Round { key, slots, facts, average, sent, .. } = round;
        let part =
            Round { key, slots, facts, input: &self.difference, average: &mut *average, sent: Some(&mut self.delta) };
        let exchanged = check_finite(&self.difference, 1.0, slots, comm.rank())
            .and_then(|()| self.inner.reduce(part, comm))
            .and_then(|exchanged| self.check_sums(average, slots, comm.rank()).map(|()| exchanged));
        if exchanged.is_err() {
            if first {
                // As they were before.
                self.memory.clear();
                self.mean_memory.clear();
            }
            let restored = before.load_part("inner", &mut self.inner);
            debug_assert!(restored.is_ok(), "a reducer must load what it saved: {restored:?}");
        }
        let exchanged = exchanged?;
        // Nothing fails from here on: this is the commit.
        if let Some(sent) = sent {
            sent.iter_mut().zip(&self.memory).zip(&self.delta).for_each(|((sent, h), delta)| *sent = h + delta);
        }
        self.memory.iter_mut().zip(&self.delta).for_each(|(h, delta)| *h += self.alpha * delta);
        for (average, mean) in average.iter_mut().zip(&mut self.mean_memory) {
            let delta = *average;
            *average = *mean + delta;
            *mean += self.alpha * delta;
        }
        // Whatever the inner reducer chose, every coordinate of the memory took part.
        Ok(Exchanged { selection: Selection::All, ..exchanged })
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
    }
}

#[cfg(test)]
mod tests;
