//! Multi-step compression (MSC of NEOLITHIC): sends a vector in several rounds, each compressing the remainder of the previous ones.
//!
//! **Why, and when not.** `R` rounds of a compressor make a better compressor with `R` times the bytes: the error shrinks geometrically in
//! `R`. A single round with a finer setting may not exist (one sign bit a value) or may improve more slowly. With an `R` times larger batch
//! per step it reaches the lower bounds of compressed optimization. It does not help sparsifiers: `R` rounds of top-k *are* one top-(Rk),
//! with `R` latencies. Do not use it where latency matters: every round waits for the previous one.
//!
//! **Method.** From `v = 0`, for `R` rounds:
//!
//! | paper | here |
//! |---|---|
//! | `cʳ = C(x − vʳ)` | the round's reducer on `remaining`, with a separate key |
//! | contractive: `vʳ⁺¹ = vʳ + cʳ` | `damping` 1 |
//! | unbiased: `vʳ⁺¹ = vʳ + cʳ/(1+ω)` | `damping` `1/(1+ω)` |
//! | output `v^R`; unbiased: `v^R/(1 − q^R)`, `q = ω/(1+ω)` | `weight` times the sum of the rounds |
//!
//! The receiver's sum is the sum of the rounds' averages, and `sent` is the sum of the rounds' `sent`, with the same weight. Round 0 uses
//! the exchange's own key, so one round is bit-identical to the inner reducer.
//!
//! **On the wire.** The inner reducer's bytes in each round: `R` times, one after another.
//!
//! **Properties.** Contractive δ: contractive with `1 − (1−δ)^R`. Unbiased ω: unbiased with `q^R/(1 − q^R)`, at most
//! `ω·q^(R−1)`. Both hold for any `ω` at least the compressor's own.
//!
//! **State.** That of the rounds' reducers: each round has a separate one, so that PowerSGD finds its warm start again. During an exchange,
//! three vectors.
//!
//! **Knobs.** `rounds`, at least 1. The paper uses about `1/δ` or `1+ω` times a logarithm; its experiments use 2 to 4. `ω` comes from the
//! compressor's error bound.
//!
//! **Deviations.** The paper compresses in both directions and averages `R` mini-batches. An all-gather has no second direction, and the
//! batch is up to the training loop. The factor `1/(1 − q^R)`, which makes the unbiased form unbiased, is from the paper's analysis, not
//! its algorithm.
//!
//! **Reference.** X. Huang, Y. Chen, W. Yin, K. Yuan, *Lower Bounds and Nearly Optimal Algorithms in Distributed Learning
//! with Communication Compression*, NeurIPS 2022 (arXiv 2206.03665), the multi-step compression module (MSC).
//!
//! ```
//! use briquette_core::{Key, Layout};
//! use briquette_core::aggregate::mean::Mean;
//! use briquette_core::comm::Local;
//! use briquette_core::compress::scaled_sign::ScaledSign;
//! use briquette_core::reduce::{AgreedStep, gather::Gather, Reducer, Round};
//! use briquette_zoo::reduce::multi_step::MultiStep;
//! let mut comm = Local::world(1).remove(0);
//! let layout = Layout::flat(2);
//! let mut reducer = MultiStep::contractive([(); 2].map(|()| Gather::new(ScaledSign::new(), Mean)).into())?;
//! let mut average = [0.0; 2];
//! reducer.reduce(Round { key: Key::new(0), slots: layout.slots(), agreed_step: &AgreedStep::default(),
//!     input: &[3.0, -1.0], average: &mut average, sent: None }, &mut comm)?;
//! assert_eq!(average, [3.0, -1.0]); // (2, -2), then (1, 1) of the (1, 1) that is left
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::ops::Range;

use briquette_core::compress::ErrorBound;
use briquette_core::config::{Described, Exchange, ReducerConfig, ReducerSettings, ReducerTraits};
use briquette_core::error::{ConfigError, Conflict, ReduceError};
use briquette_core::reduce::{Exchanged, Reducer, Round, check_average};
use briquette_core::report::Report;
use briquette_core::{CompressionRatio, Layout, Session, Traffic, stateful};

/// Several rounds, each on the remainder of the previous ones; see the [module](self).
#[derive(Debug)]
pub struct MultiStep<R> {
    rounds: Vec<R>,
    /// Share of a round's message that is subtracted from the remaining vector.
    damping: f32,
    /// Share of a round's message that is added to the result.
    weight: f32,
    remaining: Vec<f32>,
    round_average: Vec<f32>,
    round_sent: Vec<f32>,
}

impl<R: Reducer> MultiStep<R> {
    /// Creates a reducer around contractive reducers, one per round.
    ///
    /// # Errors
    /// [`ConfigError`] if there are none.
    pub fn contractive(rounds: Vec<R>) -> Result<Self, ConfigError> {
        MultiStep::unbiased(rounds, 0.0)
    }

    /// Creates a reducer around unbiased reducers with `E‖x − C(x)‖² ≤ omega·‖x‖²`, one per round; the result is unbiased too.
    ///
    /// # Errors
    /// [`ConfigError`] if there are none, or `omega` is negative or not finite.
    pub fn unbiased(rounds: Vec<R>, omega: f64) -> Result<Self, ConfigError> {
        let [damping, weight] = weights(rounds.len(), omega)?;
        let empty = Vec::new;
        Ok(MultiStep { rounds, damping, weight, remaining: empty(), round_average: empty(), round_sent: empty() })
    }
}

/// Returns the share of a round's message that is subtracted from the remainder, and the share that is added to the result, for `rounds`
/// rounds. `omega` is the error of an unbiased compressor, and 0 for a contractive one.
pub(super) fn weights(rounds: usize, omega: f64) -> Result<[f32; 2], ConfigError> {
    let wrong = || ConfigError::range("rounds of multi-step compression", "at least 1 and below 2^31", rounds);
    let power = i32::try_from(rounds).ok().filter(|&rounds| rounds > 0).ok_or_else(wrong)?;
    if !(omega >= 0.0 && omega.is_finite()) {
        return Err(ConfigError::range("omega of multi-step compression", "a finite number of at least 0", omega));
    }
    let damping = 1.0 / (1.0 + omega);
    Ok([damping as f32, (damping / (1.0 - (omega * damping).powi(power))) as f32])
}

stateful! {
    impl<R: Reducer> Stateful for MultiStep<R> { rounds: parts("round") }
}

impl<R: Reducer> Reducer for MultiStep<R> {
    fn reduce(&mut self, round: Round<'_>, comm: &mut Session) -> Result<Exchanged, ReduceError> {
        let Round { key, slots, agreed_step, input, average, mut sent } = round;
        self.remaining.clear();
        self.remaining.extend_from_slice(input);
        self.round_average.resize(input.len(), 0.0);
        self.round_sent.resize(input.len(), 0.0);
        average.fill(0.0);
        if let Some(sent) = sent.as_deref_mut() {
            sent.fill(0.0);
        }
        let (mut traffic, mut selection) = (Traffic::default(), None);
        for (index, inner) in self.rounds.iter_mut().enumerate() {
            let key = if index == 0 { key } else { key.purpose("multi-step").bucket(index) };
            let (average_of, sent_of) = (&mut self.round_average[..], Some(&mut self.round_sent[..]));
            let part = Round { key, slots, agreed_step, input: &self.remaining, average: average_of, sent: sent_of };
            let exchanged = inner.reduce(part, comm)?;
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

    fn hold(&mut self, absent: &[Range<usize>]) {
        self.rounds.iter_mut().for_each(|round| round.hold(absent));
    }

    fn report(&self, report: &mut Report) {
        self.rounds[0].report(report);
        let rounds = self.rounds.len() as f64;
        let of_all = |ratio: CompressionRatio| CompressionRatio::new((ratio.get() / rounds).max(1.0));
        report.ratio = report.ratio.and_then(|ratio| of_all(ratio).ok());
    }
}

/// `out += weight · x`.
fn add(weight: f32, x: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += weight * x);
}

/// Settings of [`MultiStep`].
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, Described)]
#[serde(default, deny_unknown_fields)]
#[described(
    name = "multi-step",
    help = "several rounds, each on what those before left (2 of gather)",
    representatives("multi-step:3,inner=gather:sign"),
    combinations(
        "reducer=multi-step:2,inner=(gather:topk:8x) feedback=error controller=none bucket_values=32",
        "reducer=multi-step:2,inner=(gather:topk:8x) feedback=ef21 controller=none bucket_values=32",
        "reducer=multi-step:2,inner=(gather:qsgd:4:64:l2) feedback=none controller=none bucket_values=32",
        "reducer=multi-step:2,inner=(gather:qsgd:4:64:l2) feedback=diana controller=none bucket_values=32",
        "reducer=multi-step:2,inner=(power-sgd:1) feedback=error controller=none bucket_values=32",
    )
)]
pub struct MultiStepConfig {
    /// The number of rounds. Each is a separate exchange with a separate reducer.
    #[setting(default = 2, range = "[1, 1000]")]
    pub rounds: usize,
    /// The reducer of each round.
    #[setting(default = "gather", syntax = "(REDUCER)")]
    pub inner: ReducerConfig,
}

impl ReducerSettings for MultiStepConfig {
    fn build(&self, exchange: &Exchange, layout: &Layout) -> Result<Box<dyn Reducer>, ConfigError> {
        let rounds = (0..self.rounds).map(|_| self.inner.get().build(exchange, layout)).collect::<Result<_, _>>()?;
        Ok(Box::new(match exchange.error_bound(&self.inner, layout) {
            Some(ErrorBound::Unbiased { omega }) => MultiStep::unbiased(rounds, omega)?,
            _ => MultiStep::contractive(rounds)?,
        }))
    }

    fn traits(&self) -> ReducerTraits {
        ReducerTraits { is_dense: false, aggregates: false, ..self.inner.get().traits() }
    }

    fn min_ranks(&self) -> usize {
        self.inner.get().min_ranks()
    }

    fn requires_plain_sgd(&self) -> bool {
        self.inner.get().requires_plain_sgd()
    }

    fn check_within(&self, exchange: &Exchange) -> Result<(), Conflict> {
        if self.inner.get().downlink(1).is_some() {
            let why =
                "rounds of multi-step take off what was sent, and the other reducer compresses the mean once more";
            let instead = format!("use {} alone", self.inner.name());
            return Err(Conflict::new("reducer multi-step", format!("reducer {}", self.inner), why, instead));
        }
        self.inner.get().check_within(exchange)
    }

    fn check_world(&self, world: usize) -> Result<(), Conflict> {
        self.inner.get().check_world(world)
    }

    fn error_bound(&self, len: usize) -> Option<ErrorBound> {
        Some(self.inner.get().error_bound(len)?.of_rounds(self.rounds))
    }
}

#[cfg(test)]
mod tests;
