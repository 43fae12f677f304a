//! DQ-SGD: chooses the bits per value from the gradient's norm and the remaining steps, within a budget of bits or of error.
//!
//! **Why.** Quantization adds an error to the final loss. It is a sum over steps of `‖g‖²/s²`, each times the share of it that later
//! steps leave. For a given total of bits that sum is smallest if every step adds the same amount: `s` must be proportional to the
//! norm, and grow towards the end if the steps contract (reduce earlier errors). **Why not.** Ranks must agree on a norm at every
//! step. If norms shrink as fast as the steps contract, the rule for convex problems gives a constant number of bits; if norms are
//! constant, so does the rule for deep networks.
//!
//! **Method.** With `s = 2^(bits−1) − 1` levels besides zero, step `n` of `N` at norm `‖g‖` has
//!
//! - `bits = log₂(k·α^((N−n)/2)·‖g‖ + 1) + 1`, eq. (18), for strongly convex problems: `contraction` `α` below 1;
//! - `bits = log₂(t·‖g‖ + 1) + 1`, eq. (20), for deep networks: `contraction` 1, for which the formulas coincide;
//!
//! rounded to the nearest whole number, within `min` and `max`. The norm is the root of the mean of `‖x‖²` over ranks. The constants
//! `k` and `t` depend on future norms, and are recomputed at every step: with them the remaining steps would spend the rest of
//! `bits·steps` if their norms were as expected.
//!
//! *Expected norms.* If `steps` is set, the expected norm is a geometric mean of the norms so far in which the last norm has a weight
//! of 2/5. If the logarithms of all norms clearly fall with the logarithm of time (by a regression, at three standard errors), the
//! expected norm is half of that. The current step then gets one bit more, at the expense of later steps, until the remaining steps
//! have an eighth of a bit less than `bits` each. If the logarithms clearly rise, the expected norm is twice that, with the same
//! limit. The first hundredth of the steps counts as falling, because most runs begin so (eq. (20) only).
//!
//! If `steps` is not set, the expected norm is the geometric mean of all norms so far. The difference between the bits spent and
//! `bits` is compensated over an eighth of the steps taken, and at least 100. This rule also applies if a run is longer than `steps`.
//!
//! *Error.* `Σ ‖g‖²/s²` relative to a constant 4 bits, which is the same mean, over 300 steps: 0.72 if norms fall 20-fold, 0.61 for
//! `1/√n`, 0.98 if they drop tenfold after 30 steps, 0.82 if they rise 20-fold. With the best constants of the whole run, which are
//! known only afterward, it is 0.39, 0.52, 0.09 and 0.39. Constant norms cost 1.04: three of the first steps have one bit more, and
//! three of the last ones one bit less. No rule that knows only the past is both below 1 at the drop and at 1 on constant norms. A
//! tenfold rise within one step costs up to 2.2 (ADR 46).
//!
//! If `error` is set, the controller solves the dual problem: the fewest bits for which the term of theorem 1,
//! `(L·d·η²/12)·Σ α^(N−1−n)·‖g‖²/s²/ranks`, is at most `error`. Every step may add an equal share:
//! `s = √(N·L·d·η²/(12·error·ranks))·α^((N−1−n)/2)·‖g‖`, and bits are rounded up.
//!
//! | paper | here |
//! |---|---|
//! | `B_n`, `s_n` | bits, `2^(bits−1) − 1` |
//! | `α = 1 − 2μη + Lμη²` | `contraction`: the share that a step leaves of the squared distance to the minimum |
//! | `N`, `L`, `η`, `ε_Q` | `steps`, `smoothness`, `rate`, `error` (in units of the loss) |
//! | `d` | values that share a scale: `bucket`, or the whole vector if it is shorter |
//!
//! A number of bits is the [ratio](CompressionRatio::of_bits) `32/bits`, which [`Qsgd`](briquette_core::compress::qsgd::Qsgd) converts back to bits.
//! A sparsifier uses it as a ratio, for which the rules were not made.
//!
//! **On the wire.** At every step one f64 ([`Probing`](briquette_core::wrapper::adaptive::Probing)). Each message states its bits in its header.
//!
//! **Knobs.** `bits`, the mean to be spent, from `min` to `max`, default 4. `steps`, optimizer steps of the run, default unknown.
//! `contraction`, above 0 and at most 1, default 1; below 1 it needs `steps`. `min` and `max`, 2 to 8, default 2 and 8. `error` in
//! place of `bits`, above 0; it needs `steps`, `smoothness` and `rate`, each above 0. `bucket`, default 512, is the quantizer's, and
//! only `error` uses it.
//!
//! If another controller overrules a decision, the bits sent count as spent.
//!
//! **Invalid measurements.** A norm that is not finite is not averaged, and `max` bits are sent. At a norm of 0, `min` bits are
//! sent. If `error` needs more bits than `max`, `max` bits are sent. The reason of the decision states each case. Steps may repeat,
//! skip or go back.
//!
//! **Deviations.** The arXiv text was not available. The rules are those of its predecessor (submitted to ICLR 2021, *DQSGD: Dynamic
//! Quantized SGD*), and the dual is derived from its theorem 1. This project chose: the rounding and bounds of bits; the computation
//! of `k` and `t`, which depend on future norms; one number of bits for all ranks; the Euclidean norm of the whole vector, although
//! the quantizer has its own norm per bucket; and the division by the number of ranks, which round independently. `d/6s²` is the mean
//! over values spread evenly between levels. At 2 bits (`s = 1`) the actual error is far smaller than that, so that it stays well
//! below `error`.
//!
//! **Reference.** G. Yan, S.-L. Huang, T. Lan, L. Song, *DQ-SGD: Dynamic Quantization in SGD for Communication-Efficient Distributed
//! Learning*, IEEE MASS 2021 (arXiv 2107.14575).
//!
//! ```
//! use briquette_core::control::{Agreed, Controller};
//! use briquette_zoo::control::dq_sgd::DqSgd;
//! let settings = DqSgd { bits: Some(4.0), steps: Some(50), ..DqSgd::default() };
//! let (mut controller, agreed_step) = (settings.controller(1)?, Default::default());
//! let mut bits = |norm: f64| {
//!     let mut agreed = Agreed::new(&agreed_step, &[]);
//!     agreed.norm2 = norm * norm;
//!     controller.decide(&agreed).ratio().map(|ratio| ratio.bits(2..=8))
//! };
//! // The first norm gets the mean. Of 8 and 1/2 the level is 2, at which 4 bits (s = 7) are kept: 1/2 gets s = 7/4.
//! assert_eq!([bits(8.0), bits(0.5)], [Some(4), Some(2)]); // log₂(7/4 + 1) + 1 = 2.46
//! # Ok::<(), briquette_core::error::ConfigError>(())
//! ```

mod config;
mod plan;
#[cfg(test)]
mod tests;
mod trend;

pub use config::DqSgd;

use briquette_core::control::{Agreed, Controller, Decision, Needs};
use briquette_core::error::StateError;
use briquette_core::reduce::Ratios;
use briquette_core::state::State;
use briquette_core::{CompressionRatio, stateful};
use plan::{Budget, Dual, bits_of};
use trend::Trend;

/// Source of the constant of the rule.
#[derive(Debug, Clone, Copy)]
enum Goal {
    Mean(Budget),
    Error(Dual),
}

#[derive(Debug)]
struct Planner {
    goal: Goal,
    ranks: f64,
    min: u8,
    max: u8,
    /// Number of decisions, and the sum of their bits.
    spent: [f64; 2],
    /// Number of norms, and the sum of their logarithms.
    norms: [f64; 2],
    trend: Trend,
    /// Bits of the last decision; 0 before the first.
    last: u8,
}

impl Planner {
    /// Checks that the settings allow the saved bits.
    fn fits(&self, state: &State) -> Result<(), StateError> {
        let last = state.u64("last")?;
        let fits = last == 0 || (u64::from(self.min)..=u64::from(self.max)).contains(&last);
        if fits { Ok(()) } else { Err(StateError::mismatch("last", "0, or from min to max of dqsgd", last)) }
    }

    /// Returns the bits of this step, and the text for the reason.
    fn bits(&mut self, agreed: &Agreed<'_>) -> (u8, String) {
        let (norm, step) = ((agreed.norm2 / self.ranks).sqrt(), agreed.agreed_step.step);
        let (min, max) = (f64::from(self.min), f64::from(self.max));
        if !norm.is_finite() {
            return (self.max, "the gradient's norm is not finite".into());
        }
        let said = format!("gradient norm {norm:.2e} at step {step}");
        if norm == 0.0 {
            return (self.min, said);
        }
        let level = norm.log2();
        match &self.goal {
            Goal::Mean(budget) => {
                self.norms = [self.norms[0] + 1.0, self.norms[1] + level];
                self.trend.add(level);
                let [count, sum] = self.spent;
                let mean = if count > 0.0 { sum / count } else { budget.mean };
                let expected = match budget.steps {
                    Some(_) => self.trend.level() + budget.lean(step, mean, self.trend.direction()),
                    None => self.norms[1] / self.norms[0],
                };
                let constant = budget.constant(step, mean, (min, max)) - expected;
                (bits_of(constant + budget.exponent(step) + level).round().clamp(min, max) as u8, said)
            }
            Goal::Error(dual) => {
                let len: usize = agreed.slots.iter().map(briquette_core::Slot::len).sum();
                let needed = bits_of(dual.level(step, len) + level).ceil();
                let short = if needed > max { format!(" needs {needed} bits for this error") } else { String::new() };
                (needed.clamp(min, max) as u8, said + &short)
            }
        }
    }
}

stateful! {
    impl Stateful for Planner {
        last: value("last"),
        [spent, norms]: numbers("sums"),
        trend: value("trend"),
    }
    check: Self::fits;
}

impl Controller for Planner {
    fn needs(&self) -> Needs<'_> {
        Needs { norm: true, ..Needs::default() }
    }

    fn decide(&mut self, agreed: &Agreed<'_>) -> Decision<'_> {
        let (bits, said) = self.bits(agreed);
        self.spent = [self.spent[0] + 1.0, self.spent[1] + f64::from(bits)];
        let before = std::mem::replace(&mut self.last, bits);
        let reason = (before != bits).then(|| format!("{said}: {bits} bits a value"));
        Decision::all(CompressionRatio::of_bits(bits), reason)
    }

    fn overruled(&mut self, ratios: Ratios<'_>) {
        if let Ratios::All(ratio) = ratios {
            self.spent[1] += 32.0 / ratio.get() - f64::from(self.last);
        }
    }

    fn describe(&self) -> Option<String> {
        let [count, sum] = self.spent;
        let goal = match &self.goal {
            Goal::Mean(budget) => format!("{:.2} are to be", budget.mean),
            Goal::Error(_) => "as many as the error needs".to_owned(),
        };
        let mean = if count > 0.0 { sum / count } else { 0.0 };
        Some(format!("{} bits a value, {mean:.2} in the mean of {count} steps, {goal}", self.last))
    }
}
