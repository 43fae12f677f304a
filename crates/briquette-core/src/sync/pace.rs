//! Adaptive period: the number of local steps between exchanges follows the link.
//!
//! **Why.** A period must be long enough that exchanges take little of the time, and longer periods let ranks drift apart. On a link that
//! changes, a constant period is too long at its high bandwidth or too short at its low one. **Why not.** A constant period that
//! was found by trial was 1.02 to 1.21 times as fast at about the same accuracy (`docs/evidence/comparisons.md`).
//!
//! **Method.** Let `c` be the compute seconds of the last step, on the slowest rank, and `e` the seconds of an exchange with encoding and decoding. A
//! step takes `c + e/H` on average. The period `H` is the shortest of 1, 2, 4, …, `longest` for which
//!
//! ```text
//! c + e/H ≤ (1 + τ)·(c + e/longest)        τ = 5 %
//! ```
//!
//! Times are those on which ranks have agreed in a [step header](crate::sync::header), so all ranks choose the same period. The header of an
//! exchange has the seconds of the exchange before it. `e` is the longer one of the last two exchanges: a single slow exchange lengthens the
//! period, and two fast ones shorten it. The header itself is not counted, nor are votes of elastic worlds.
//!
//! A controller inside the reducer observes the compute time of one step. It chooses the ratio as if there were an exchange at every step, and the
//! period reduces what remains.
//!
//! **Residuals.** At every period, also at `H = 1`, ranks exchange the change of their parameters. A residual of error feedback is always in the
//! units of parameters, so a new period leaves it as it is. An outer momentum is a sum of changes, which are proportional to the period: it is
//! multiplied by the new period over the old one.
//!
//! **Start.** The first period has four steps, or `longest` if that is less. The first decision follows from the first exchange, at the end of the
//! second period.
//!
//! **Invalid measurements.** Without a clock (`c` is 0), and for times that are negative or not finite, the period is `longest`. On a device that
//! computes asynchronously, `c` may include work of earlier steps of the period; the period is then shorter than it could be.
//!
//! **Source.** This project's. A step time of `c + e/H` is also that of J. Wang, G. Joshi, *Adaptive Communication Strategies to Achieve the Best
//! Error-Runtime Trade-off in Local-Update SGD*, MLSys 2019 (arXiv 1810.08313); their period depends on the loss, and not on the link.
//!
//! ```
//! use briquette_core::sync::pace::period;
//! // Steps of 50 ms, exchanges of 40 ms: 51.25 ms a step at 32, so at most 53.8 ms. 16 local steps take 52.5 ms, and 8 take 55 ms.
//! assert_eq!(period(0.05, 0.04, 32), 16);
//! // Ten times slower, and twenty times faster.
//! assert_eq!((period(0.05, 0.4, 32), period(0.05, 0.002, 32)), (32, 1));
//! ```

use super::rounds::{in_rounds, period_of};
use crate::seam::AgreedStep;
use crate::settings::StrategyConfig;
use crate::state::Staged;
use crate::stateful;

/// Time above the shortest possible step time that a shorter period may take.
const TOLERANCE: f64 = 0.05;
/// The longest period if none is named, in steps.
pub const LONGEST: u64 = 32;
/// Steps of the first period.
const FIRST: u64 = 4;

/// Returns the shortest period, among the powers of two below `longest` and `longest` itself, whose step takes at most 5 % longer than at `longest`.
/// `compute` are the seconds of a step, `exchange` those of an exchange. The result is at least 1.
pub fn period(compute: f64, exchange: f64, longest: u64) -> u64 {
    let is_valid = compute > 0.0 && compute.is_finite() && exchange >= 0.0 && exchange.is_finite();
    let step = |period: u64| compute + exchange / period as f64;
    let most = (1.0 + TOLERANCE) * step(longest);
    let powers = (0..u64::BITS).map(|power| 1 << power).take_while(|period| *period < longest);
    powers.filter(|_| is_valid).find(|period| step(*period) <= most).unwrap_or(longest.max(1))
}

/// The current period of an adaptive strategy; see the [module](self).
#[derive(Debug)]
pub(super) struct Pace {
    longest: u64,
    /// The step with which the period starts.
    start: Staged<u64>,
    /// The step with which the period before it started.
    before: Staged<u64>,
    /// Steps of the period.
    steps: Staged<u64>,
    /// Seconds of the exchange before the last one; 0 if there was none.
    seconds: Staged<f64>,
}

stateful! {
    impl Stateful for Pace {
        start: value("start"),
        before: value("before"),
        steps: value("steps"),
        seconds: value("seconds"),
    }
    after_load: Self::check_steps;
}

impl Pace {
    /// Creates the pace of periods of at most `longest` steps.
    pub(super) fn new(longest: u64) -> Self {
        let steps = FIRST.min(longest);
        let start = || Staged::new(0);
        Pace { longest, start: start(), before: start(), steps: Staged::new(steps), seconds: Staged::new(0.0) }
    }

    /// Restores a possible period if a state has another one.
    fn check_steps(&mut self) {
        let steps = self.steps();
        self.steps.set(steps.clamp(1, self.longest));
    }

    /// Returns the steps of the period.
    pub(super) fn steps(&self) -> u64 {
        *self.steps.now()
    }

    /// Returns whether a period ends with this step. Knows the ends of the last two periods; those of later ones, if the period does not change.
    pub(super) fn ends(&self, step: u64) -> bool {
        let (next, start) = (step + 1, *self.start.now());
        match next.checked_sub(start) {
            Some(steps) if steps > 0 => steps.is_multiple_of(self.steps()),
            _ => next == start || next == *self.before.now(),
        }
    }

    /// Stages the period that follows the exchange at the end of this step. If it has another length, returns the reason, and its length over that
    /// of the period that ends.
    pub(super) fn advance(&mut self, agreed: &AgreedStep) -> Option<(String, f32)> {
        let (before, compute) = (self.steps(), agreed.compute_seconds);
        let last = agreed.previous.map(|last| last.compress_seconds + last.exchange_seconds);
        let is_valid = |seconds: &f64| seconds.is_finite() && *seconds >= 0.0;
        let exchange = match last {
            None => 0.0,
            Some(last) if !is_valid(&last) => f64::NAN,
            Some(last) => last.max(*self.seconds.now()),
        };
        let steps = if last.is_some() { period(compute, exchange, self.longest) } else { before };
        *self.before.next_mut() = *self.start.now();
        *self.start.next_mut() = agreed.step + 1;
        *self.steps.next_mut() = steps;
        *self.seconds.next_mut() = last.filter(is_valid).unwrap_or_default();
        self.start.stage();
        self.before.stage();
        self.steps.stage();
        self.seconds.stage();
        let reason = || {
            format!("{steps} local steps instead of {before}: an exchange takes {exchange:.3} s, a step {compute:.3} s")
        };
        (steps != before).then(|| (reason(), steps as f32 / before as f32))
    }
}

/// Returns the default period: `usual`, or the longest one where it adapts.
pub(super) fn usual_or_longest(adapts: bool, usual: u64) -> u64 {
    if adapts { LONGEST } else { usual }
}

/// As [`in_rounds`]. Where the period adapts, the default is the longest one.
pub(super) fn in_adaptive_rounds(
    adapts: bool,
    (named, usual): (Option<u64>, u64),
    steps: Option<u64>,
    with: impl FnOnce(u64) -> StrategyConfig,
) -> Option<(StrategyConfig, String)> {
    let usual = usual_or_longest(adapts, usual);
    let (settings, why) = in_rounds(named, (usual, period_of(usual, steps)), steps, with)?;
    Some((settings, if adapts { format!("at the longest period, {why}") } else { why }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seam::LastExchange;
    use crate::state::{State, Stateful};

    /// Follows exchanges of these seconds, with steps of 50 ms, and returns the step at which each exchange ends and the period after it.
    fn follow(pace: &mut Pace, exchanges: &[f64]) -> Vec<(u64, u64)> {
        let (mut step, mut previous, mut ends) = (*pace.start.now(), None, Vec::new());
        for seconds in exchanges {
            let steps = pace.steps();
            let start = step;
            step = (start..).find(|step| pace.ends(*step)).unwrap();
            assert_eq!(step + 1 - start, steps);
            let compute_seconds = 0.05;
            pace.advance(&AgreedStep { step, compute_seconds, previous, ..AgreedStep::default() });
            assert!(pace.ends(step), "before the commit");
            pace.commit();
            // The plan of a step stays what it was, as do those of the period before it.
            let known: Vec<u64> = (start.saturating_sub(1)..=step).filter(|step| pace.ends(*step)).collect();
            assert_eq!(known, if start == 0 { vec![step] } else { vec![start - 1, step] });
            ends.push((step, pace.steps()));
            previous = Some(LastExchange {
                compress_seconds: 0.25 * seconds,
                exchange_seconds: 0.75 * seconds,
                ..LastExchange::default()
            });
            step += 1;
        }
        ends
    }

    #[test]
    fn one_slow_exchange_lengthens_the_period_and_two_fast_ones_shorten_it() {
        let mut pace = Pace::new(32);
        let ends = follow(&mut pace, &[0.04, 0.04, 0.4, 0.004, 0.004, 0.004, 0.004]);
        // Each decision is of the exchange before it: 0.04 s, 0.04 s, 0.4 s, and 0.4 s against 0.004 s.
        assert_eq!(ends, [(3, 4), (7, 16), (23, 16), (39, 32), (71, 32), (103, 2), (105, 2)]);
    }

    #[test]
    fn a_reason_has_both_periods_and_both_times() {
        let (mut pace, exchange_seconds) = (Pace::new(32), 0.4);
        let previous = Some(LastExchange { exchange_seconds, ..LastExchange::default() });
        let agreed = AgreedStep { step: 7, compute_seconds: 0.05, previous, ..AgreedStep::default() };
        let expected = "32 local steps instead of 4: an exchange takes 0.400 s, a step 0.050 s";
        assert_eq!(pace.advance(&agreed), Some((expected.into(), 8.0)));
        // A faster exchange afterwards: the longer one of the last two decides.
        pace.seconds.set(0.04);
        let previous = Some(LastExchange { exchange_seconds: 0.004, ..LastExchange::default() });
        let expected = "16 local steps instead of 4: an exchange takes 0.040 s, a step 0.050 s";
        assert_eq!(pace.advance(&AgreedStep { previous, ..agreed }), Some((expected.into(), 4.0)));
        // A step that failed leaves no trace.
        pace.discard();
        assert_eq!((pace.steps(), pace.ends(3), pace.ends(4)), (4, true, false));
    }

    #[test]
    fn without_valid_times_the_period_is_the_longest() {
        for (compute, exchange) in
            [(0.0, 0.0), (0.0, 0.1), (-1.0, 0.1), (0.1, -1.0), (f64::NAN, 0.1), (0.1, f64::NAN), (0.1, f64::INFINITY)]
        {
            assert_eq!(period(compute, exchange, 10), 10, "{compute} {exchange}");
        }
        // An invalid exchange is not remembered, and neither is one of another world.
        let mut pace = Pace::new(32);
        for (exchange_seconds, steps, remembered) in [(f64::NAN, 32, 0.0), (-1.0, 32, 0.0), (0.4, 32, 0.4)] {
            let previous = Some(LastExchange { exchange_seconds, ..LastExchange::default() });
            pace.advance(&AgreedStep { compute_seconds: 0.05, previous, ..AgreedStep::default() });
            pace.commit();
            assert_eq!((pace.steps(), *pace.seconds.now()), (steps, remembered), "{exchange_seconds}");
        }
        pace.advance(&AgreedStep { compute_seconds: 0.05, ..AgreedStep::default() });
        pace.commit();
        assert_eq!((pace.steps(), *pace.seconds.now()), (32, 0.0));
        // Not a power of two; and a period of one step.
        assert_eq!((period(0.05, 0.4, 12), period(0.05, 0.001, 12), period(0.05, 10.0, 1)), (12, 1, 1));
        assert_eq!(period(0.05, 0.4, 0), 1);
    }

    #[test]
    fn a_loaded_pace_goes_on_and_an_impossible_period_is_corrected() {
        let (mut one, mut other) = (Pace::new(32), Pace::new(32));
        follow(&mut one, &[0.04; 3]);
        let mut state = State::default();
        one.save(&mut state);
        other.load(&state).unwrap();
        assert_eq!(follow(&mut one, &[0.4, 0.004, 0.004]), follow(&mut other, &[0.4, 0.004, 0.004]));
        let mut shorter = Pace::new(2);
        shorter.load(&state).unwrap();
        assert_eq!(shorter.steps(), 2);
    }
}
