//! Sends the same vector in several rounds, each the compression of what the rounds before left: NEOLITHIC's MSC.
//!
//! **Why, and when not.** `R` rounds of a compressor make a better compressor of `R` times the bytes: the error shrinks
//! geometrically in `R`, where a single round with a finer setting may not exist (one sign bit a value) or may improve more
//! slowly. With an `R` times larger batch per step it reaches the lower bounds of compressed optimization. For sparsifiers
//! it buys nothing: `R` rounds of top-k *are* one top-(Rk), in `R` latencies. Not for fast changes of direction: every
//! round waits for the one before.
//!
//! **Method.** From `v = 0`, for `R` rounds:
//!
//! | paper | here |
//! |---|---|
//! | `cʳ = C(x − vʳ)` | the inner reducer on `remaining`, with a key of its own per round |
//! | contractive: `vʳ⁺¹ = vʳ + cʳ` | `damping` 1 |
//! | unbiased: `vʳ⁺¹ = vʳ + cʳ/(1+ω)` | `damping` `1/(1+ω)` |
//! | output `v^R`; unbiased: `v^R/(1 − q^R)`, `q = ω/(1+ω)` | `weight` times the sum of the rounds |
//!
//! The receiver's sum is the sum of the rounds' averages, and `sent` that of the rounds' `sent`, with the same weight.
//! Round 0 uses the exchange's own key, so one round is the inner reducer to the bit.
//!
//! **On the wire.** The inner reducer's bytes, once a round: `R` times, one after another.
//!
//! **Properties.** Contractive δ: contractive with `1 − (1−δ)^R`. Unbiased ω: unbiased with `q^R/(1 − q^R)`, at most
//! `ω·q^(R−1)`. Both hold for any `ω` at least the compressor's own.
//!
//! **State.** None between exchanges; while exchanging three vectors.
//!
//! **Knobs.** `rounds`, at least 1; the paper takes about `1/δ` or `1+ω` times a logarithm, its experiments 2 to 4.
//! `ω` comes from the compressor's class.
//!
//! **Deviations.** The paper compresses in both directions and averages `R` mini-batches; an all-gather has no second
//! direction, and the batch is the training loop's. The factor `1/(1 − q^R)`, which makes the unbiased form unbiased, is
//! the paper's analysis, not its algorithm.
//!
//! **Reference.** X. Huang, Y. Chen, W. Yin, K. Yuan, *Lower Bounds and Nearly Optimal Algorithms in Distributed Learning
//! with Communication Compression*, NeurIPS 2022 (arXiv 2206.03665), the multi-step compression module (MSC).
//!
//! ```
//! use briquette_core::{Key, Layout, aggregate::Mean, comm::Local, compress::ScaledSign};
//! use briquette_core::reduce::{Facts, Gather, MultiStep, Reducer, Round};
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(2);
//! let mut reducer = MultiStep::contractive(Gather::new(ScaledSign::new(), Mean), 2)?;
//! let mut average = [0.0; 2];
//! reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), facts: &Facts::default(),
//!     input: &[3.0, -1.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [3.0, -1.0]); // (2, -2), then (1, 1) of the (1, 1) that is left
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use super::{Exchanged, Reducer, Round, Stateless, check_average};
use crate::error::{ConfigError, ReduceError};
use crate::report::Report;
use crate::state::Stateful;
use crate::{CompressionFactor, Session, Traffic};

/// Several rounds of a reducer on what is left; see the [module](self).
#[derive(Debug)]
pub struct MultiStep<R> {
    inner: R,
    rounds: usize,
    /// What of a round's message is taken off the remaining vector.
    damping: f32,
    /// What of a round's message goes into the result.
    weight: f32,
    remaining: Vec<f32>,
    round_average: Vec<f32>,
    round_sent: Vec<f32>,
}

impl<R: Stateless> MultiStep<R> {
    /// Around a contractive reducer.
    ///
    /// # Errors
    /// [`ConfigError`] when `rounds` is 0.
    pub fn contractive(inner: R, rounds: usize) -> Result<Self, ConfigError> {
        MultiStep::unbiased(inner, rounds, 0.0)
    }

    /// Around an unbiased reducer with `E‖x − C(x)‖² ≤ omega·‖x‖²`; the result is unbiased too.
    ///
    /// # Errors
    /// [`ConfigError`] when `rounds` is 0, or `omega` is negative or not finite.
    pub fn unbiased(inner: R, rounds: usize, omega: f64) -> Result<Self, ConfigError> {
        let wrong = || ConfigError::range("rounds of multi-step compression", "at least 1 and below 2^31", rounds);
        let power = i32::try_from(rounds).ok().filter(|&rounds| rounds > 0).ok_or_else(wrong)?;
        if !(omega >= 0.0 && omega.is_finite()) {
            return Err(ConfigError::range("omega of multi-step compression", "a finite number of at least 0", omega));
        }
        let damping = 1.0 / (1.0 + omega);
        let weight = damping / (1.0 - (omega * damping).powi(power));
        let (damping, weight, empty) = (damping as f32, weight as f32, Vec::new);
        Ok(MultiStep {
            inner,
            rounds,
            damping,
            weight,
            remaining: empty(),
            round_average: empty(),
            round_sent: empty(),
        })
    }
}

impl<R: Stateless> Stateful for MultiStep<R> {}
impl<R: Stateless> Stateless for MultiStep<R> {}

impl<R: Stateless> Reducer for MultiStep<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, facts, input, average, mut sent } = round;
        self.remaining.clear();
        self.remaining.extend_from_slice(input);
        self.round_average.resize(input.len(), 0.0);
        self.round_sent.resize(input.len(), 0.0);
        average.fill(0.0);
        if let Some(sent) = sent.as_deref_mut() {
            sent.fill(0.0);
        }
        let (mut traffic, mut selection) = (Traffic::default(), None);
        for index in 0..self.rounds {
            let key = if index == 0 { key } else { key.purpose("multi-step").bucket(index) };
            let (average_of, sent_of) = (&mut self.round_average[..], Some(&mut self.round_sent[..]));
            let part = Round { key, slots, facts, input: &self.remaining, average: average_of, sent: sent_of };
            let exchanged = self.inner.reduce(part, comm)?;
            traffic += exchanged.traffic;
            selection.get_or_insert(exchanged.selection);
            add(self.weight, &self.round_average, average);
            if let Some(sent) = sent.as_deref_mut() {
                add(self.weight, &self.round_sent, sent);
            }
            add(-self.damping, &self.round_sent, &mut self.remaining);
        }
        // Every round's average was finite; their sum need not be.
        check_average(average, slots)?;
        Ok(Exchanged { traffic, selection: selection.expect("at least one round") })
    }

    fn report(&self, report: &mut Report) {
        self.inner.report(report);
        let of_all = |factor: CompressionFactor| CompressionFactor::new((factor.get() / self.rounds as f64).max(1.0));
        report.factor = report.factor.and_then(|factor| of_all(factor).ok());
    }
}

/// `out += weight · x`.
fn add(weight: f32, x: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
}

#[cfg(test)]
mod tests;
