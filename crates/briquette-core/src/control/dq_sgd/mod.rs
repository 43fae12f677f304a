//! Bits a value from the gradient's norm and the steps that remain, within a budget of bits or of error.
//!
//! **Why.** What quantization adds to the final loss is a sum over steps, of `‖g‖²/s²` times what later steps leave of it. For a given
//! number of bits that sum is smallest where every step adds the same: `s` is proportional to the norm, and grows towards the end
//! where the steps contract. **Why not.** A norm is agreed at every step. Where norms shrink as fast as the steps contract, the rule
//! for convex problems is a constant number of bits; where they are flat, so is that for deep networks.
//!
//! **Method.** With `s = 2^(bits−1) − 1` levels beside zero, step `n` of `N` at norm `‖g‖` has
//!
//! - `bits = log₂(k·α^((N−n)/2)·‖g‖ + 1) + 1`, eq. (18), for strongly convex problems: `contraction` `α` below 1;
//! - `bits = log₂(t·‖g‖ + 1) + 1`, eq. (20), for deep networks: `contraction` 1, which leaves the same formula;
//!
//! rounded to the nearest whole number, within `min` and `max`. The norm is the root of the mean of `‖x‖²` over ranks. The
//! constant depends on norms to come, and is found at every step anew: it is the one with which the steps that remain would spend what
//! remains of `bits·steps`, were their norms what is expected of them.
//!
//! *Expected norms.* With `steps`, the present level: a geometric mean in which the last norm has a weight of 2/5. Where the logarithms
//! of all norms clearly fall with the logarithm of time (by a regression, at three standard errors), half of that: the present step gets
//! one bit more, and later ones pay for it, until the steps that remain have an eighth of a bit less than `bits` each. Where they clearly
//! rise, twice that, in the same way. The first hundredth of the steps counts as falling, as most runs begin so (eq. (20) only).
//! Without `steps`, the geometric mean of all norms so far; what was spent above or below `bits` is made up for over an eighth of the
//! steps taken, and at least 100. The last also holds where a run is longer than `steps`.
//!
//! *Error.* `Σ ‖g‖²/s²` relative to constant bits of the same mean, 4, over 300 steps: .72 where norms fall 20-fold, .61 for `1/√n`, .98
//! where they drop tenfold after 30 steps, .82 where they rise 20-fold. With the best constant of the whole run, which is known afterwards, it is
//! .39, .52, .09 and .39. Flat norms cost 1.04: three of the first steps have a bit more, and three of the last ones a bit less. No rule
//! that knows only the past is below 1 at the drop and at 1 on flat norms. A tenfold rise within one step costs up to 2.2 (ADR 46).
//!
//! With `error`, the dual: the fewest bits whose term of theorem 1, `(L·d·η²/12)·Σ α^(N−1−n)·‖g‖²/s²/ranks`, is at most
//! `error`. Every step may add an equal share: `s = √(N·L·d·η²/(12·error·ranks))·α^((N−1−n)/2)·‖g‖`, and bits are rounded up.
//!
//! | paper | here |
//! |---|---|
//! | `B_n`, `s_n` | bits, `2^(bits−1) − 1` |
//! | `α = 1 − 2μη + Lμη²` | `contraction`: what a step leaves of the distance to the minimum, squared |
//! | `N`, `L`, `η`, `ε_Q` | `steps`, `smoothness`, `rate`, `error` (in units of the loss) |
//! | `d` | values that share a scale: `bucket`, or the whole vector where it is shorter |
//!
//! Bits are the [ratio](CompressionFactor::of_bits) `32/bits`, which [`Qsgd`](crate::compress::Qsgd) takes as bits; a sparsifier
//! takes it as a ratio, for which the rules were not made.
//!
//! **On the wire.** At every step one f64 ([`Probing`](crate::wrapper::Probing)). Bits travel in the messages' own headers.
//!
//! **Knobs.** `bits`, the mean to be spent, from `min` to `max`, default 4. `steps`, optimizer steps of the run, default unknown.
//! `contraction`, above 0 and at most 1, default 1; below 1 it needs `steps`. `min` and `max`, 2 to 8, default 2 and 8. `error` in
//! place of `bits`, above 0; it needs `steps`, `smoothness` and `rate`, each above 0. `bucket`, default 512, is the quantizer's, and
//! only `error` uses it.
//!
//! Where another controller sends something else, what was sent is what was spent.
//!
//! **Bad numbers.** A norm that is not finite is not averaged, and `max` bits are sent; at a norm of 0, `min`. Where `error`
//! needs more bits than `max`, `max` are sent. The reason states each. Steps may repeat, leap or go back.
//!
//! **Deviations.** The arXiv text was not at hand; the rules are those of its predecessor (submitted to ICLR 2021, *DQSGD: Dynamic
//! Quantized SGD*), the dual is derived from its theorem 1. Not known from it, and ours: how bits are rounded and bounded, how `k` and
//! `t` are found (they depend on norms to come), one number of bits for all ranks, the norm (2, of the whole vector; the quantizer
//! has its own, a bucket), division by ranks, which round independently. `d/6s²` is the mean over values spread evenly between
//! levels; at 2 bits (`s = 1`) the error is smaller than that by far, so `error` is kept with room.
//!
//! **Reference.** G. Yan, S.-L. Huang, T. Lan, L. Song, *DQ-SGD: Dynamic Quantization in SGD for Communication-Efficient Distributed
//! Learning*, IEEE MASS 2021 (arXiv 2107.14575).
//!
//! ```
//! use briquette_core::control::{Agreed, Controller, DqSgd};
//! let settings = DqSgd { bits: Some(4.0), steps: Some(50), ..DqSgd::default() };
//! let (mut controller, agreed_step) = (settings.controller(1)?, Default::default());
//! let mut bits = |norm: f64| {
//!     let agreed = Agreed { norm2: norm * norm, ..Agreed::new(&agreed_step, &[]) };
//!     controller.decide(&agreed).factor().map(|factor| factor.bits(2..=8))
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

use super::{Agreed, Controller, Decision, Needs};
use crate::CompressionFactor;
use crate::error::StateError;
use crate::reduce::Levels;
use crate::state::{State, Stateful};
use plan::{Budget, Dual, bits_of};
use trend::Trend;

/// What the constant of the rule comes from.
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
    /// How many decisions, and the sum of their bits.
    spent: [f64; 2],
    /// How many norms, and the sum of their logarithms.
    norms: [f64; 2],
    trend: Trend,
    /// 0 before the first decision.
    last: u8,
}

impl Planner {
    /// Bits, and what to say of them.
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
                let len: usize = agreed.slots.iter().map(crate::Slot::len).sum();
                let needed = bits_of(dual.level(step, len) + level).ceil();
                let short = if needed > max { format!(" needs {needed} bits for this error") } else { String::new() };
                (needed.clamp(min, max) as u8, said + &short)
            }
        }
    }
}

impl Stateful for Planner {
    fn save(&self, state: &mut State) {
        state.put("last", u64::from(self.last));
        state.put("sums", [self.spent, self.norms].concat());
        state.put("trend", self.trend.saved());
    }

    fn load(&mut self, state: &State) -> Result<(), StateError> {
        let (last, sums) = (state.u64("last")?, state.f64s("sums")?);
        let known = [0].into_iter().chain(self.min..=self.max).find(|bits| u64::from(*bits) == last);
        let known = known.ok_or_else(|| StateError::mismatch("last", "0, or from min to max of dqsgd", last))?;
        let &[count, bits, norms, logs] = sums else {
            return Err(StateError::mismatch("sums", "4 numbers", sums));
        };
        let trend = state.f64s("trend")?;
        let trend = Trend::loaded(trend).ok_or_else(|| StateError::mismatch("trend", "7 numbers", trend))?;
        (self.last, self.spent, self.norms, self.trend) = (known, [count, bits], [norms, logs], trend);
        Ok(())
    }
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
        Decision::all(CompressionFactor::of_bits(bits), reason)
    }

    fn overruled(&mut self, levels: Levels<'_>) {
        if let Levels::All(ratio) = levels {
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
